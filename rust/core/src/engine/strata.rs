//! Strata's cache as a whole: one conversation in the slot with its checkpoints, and others parked in host memory.
//!
//! A conversation is parked only when the next request of another one starts, and before that request looks for a parked
//! conversation of its own: with too little room it evicts the very one it is about to ask for.

use super::checkpoints::{Checkpoints, Landmarks, Rules};
use super::parking::{Limits, Parking, Refusal};
use super::snapshot::Sizes;

/// What a model compares: a prompt, or a prompt with its answer.
pub trait Text: Clone {
    /// Its length in tokens.
    fn tokens(&self) -> u64;
    /// Tokens at the head of `prompt` that are equal to this text's.
    fn shared(&self, prompt: &Self) -> u64;
    /// Whether `later` belongs to the same conversation as this text, whose last checkpoint is given. Who knows only
    /// texts must take everything for another conversation that changes what lies before that checkpoint: it is the
    /// only answer that loses nothing.
    fn continued_by(&self, later: &Self, last_checkpoint: u64) -> bool {
        self.shared(later) >= last_checkpoint
    }
}

/// The engine's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How checkpoints are taken.
    pub rules: Rules,
    /// How much may be parked.
    pub limits: Limits,
    /// Snapshots above so many bytes are not parked at all. Not a flag of the engine's: a remedy that was proposed
    /// against giants that evict everyone else.
    pub skip_above: Option<u64>,
    /// How large a conversation is when it is parked.
    pub sizes: Sizes,
}

/// One thing that the engine tells in its log. Tokens, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Older copies of the conversation that is being parked were dropped.
    Superseded {
        /// How many.
        copies: usize,
    },
    /// The conversation that was in the slot has been parked.
    Parked {
        /// Its length.
        tokens: u64,
        /// Its size.
        bytes: u64,
        /// Others that had to go.
        evicted: usize,
    },
    /// It was not parked, and what it held is lost.
    NotParked {
        /// Its length.
        tokens: u64,
        /// Its size, had it been parked.
        bytes: u64,
        /// Why; none: it is above what may be parked at all.
        refusal: Option<Refusal>,
    },
    /// A parked conversation is in the slot again.
    Restored {
        /// What the new prompt can use of it.
        tokens: u64,
        /// Its size.
        bytes: u64,
        /// Whether all of it goes on in the new prompt.
        exact: bool,
    },
}

/// What a request found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Started {
    /// Tokens of its prompt that need not be read.
    pub reused: u64,
    /// What happened, in order.
    pub events: Vec<Event>,
}

#[derive(Clone)]
struct State<T> {
    text: T,
    checkpoints: Checkpoints,
}

impl<T: Text> State<T> {
    fn resumable(&self, prompt: &T) -> u64 {
        self.checkpoints.resumable(self.text.shared(prompt), prompt.tokens())
    }

    fn continued_by(&self, later: &T) -> bool {
        !self.checkpoints.is_empty() && self.text.continued_by(later, self.checkpoints.last())
    }
}

/// The cache of one engine.
pub struct Strata<T> {
    settings: Settings,
    live: Option<State<T>>,
    parking: Parking<State<T>>,
}

impl<T: Text> Strata<T> {
    /// An engine that has just started.
    pub fn new(settings: Settings) -> Self {
        let parking = Parking::new(settings.limits);
        Self { settings, live: None, parking }
    }

    /// The next request's turn: parks the conversation in the slot if this is another one, looks for the best place to
    /// resume at, and puts that into the slot. `free`: the host's free memory in bytes, if known.
    pub fn start(&mut self, prompt: &T, free: Option<u64>) -> Started {
        let mut started = Started::default();
        if self.live.as_ref().is_some_and(|live| !live.continued_by(prompt)) {
            self.park(free, &mut started.events);
        }
        let in_slot = self.live.as_ref().map_or(0, |live| live.resumable(prompt));
        let better = |state: &State<T>| Some(state.resumable(prompt)).filter(|&tokens| tokens > in_slot).unwrap_or(0);
        if let Some(copy) = self.parking.best(better).cloned() {
            started.events.push(Event::Restored {
                tokens: copy.resumable(prompt),
                bytes: self.settings.sizes.bytes(copy.text.tokens()),
                exact: copy.text.shared(prompt) == copy.text.tokens(),
            });
            self.live = Some(copy);
        }
        let rules = self.settings.rules;
        let before = self.live.take();
        let shared = before.as_ref().map_or(0, |live| live.text.shared(prompt));
        let mut checkpoints = before.map_or_else(|| Checkpoints::new(rules), |live| live.checkpoints);
        started.reused = checkpoints.resume(shared, prompt.tokens());
        self.live = Some(State { text: prompt.clone(), checkpoints });
        started
    }

    /// The prompt in the slot has been read up to `upto`.
    pub fn read(&mut self, upto: u64, landmarks: Landmarks) {
        if let Some(live) = &mut self.live {
            live.checkpoints.read(upto, landmarks);
        }
    }

    /// The request is over; `text` is what the slot holds now: as much of the prompt and the answer as was computed.
    pub fn finish(&mut self, text: T) {
        if let Some(live) = &mut self.live {
            live.checkpoints.write(text.tokens());
            live.text = text;
        }
    }

    /// A restart: everything is lost.
    pub fn clear(&mut self) {
        self.live = None;
        self.parking.clear();
    }

    /// Checkpoints of the conversation in the slot.
    pub fn checkpoints(&self) -> usize {
        self.live.as_ref().map_or(0, |live| live.checkpoints.len())
    }

    /// Conversations parked.
    pub fn parked(&self) -> usize {
        self.parking.len()
    }

    /// Bytes of them.
    pub fn parked_bytes(&self) -> u64 {
        self.parking.bytes()
    }

    /// Bytes of host memory held for them, retained storage included.
    pub fn held_bytes(&self) -> u64 {
        self.parking.held()
    }

    /// Evictions since the start.
    pub fn evictions(&self) -> u64 {
        self.parking.evictions()
    }

    /// What was told at the start.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    fn park(&mut self, free: Option<u64>, events: &mut Vec<Event>) {
        let off = self.settings.limits.budget == 0 || self.settings.limits.slots == 0;
        let Some(live) = self.live.as_ref().filter(|live| !off && !live.checkpoints.is_empty()) else { return };
        let tokens = live.text.tokens();
        let bytes = self.settings.sizes.bytes(tokens);
        if self.settings.skip_above.is_some_and(|most| bytes > most) {
            events.push(Event::NotParked { tokens, bytes, refusal: None });
            return;
        }
        let older = |copy: &State<T>| copy.continued_by(&live.text);
        match self.parking.park(live.clone(), bytes, free, older) {
            Ok(stored) => {
                if stored.superseded > 0 {
                    events.push(Event::Superseded { copies: stored.superseded });
                }
                events.push(Event::Parked { tokens, bytes, evicted: stored.evicted });
            }
            Err(refusal) => events.push(Event::NotParked { tokens, bytes, refusal: Some(refusal) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    impl Text for Vec<u32> {
        fn tokens(&self) -> u64 {
            self.len() as u64
        }

        fn shared(&self, prompt: &Self) -> u64 {
            self.iter().zip(prompt).take_while(|(one, other)| one == other).count() as u64
        }
    }

    fn engine(budget: u64, slots: usize) -> Strata<Vec<u32>> {
        Strata::new(Settings {
            rules: Rules { kept: 6, every: 100, root: 20 },
            limits: Limits { budget, slots, min_free: 0 },
            skip_above: None,
            sizes: Sizes::new(&[(0, 0), (1_000, GIB)]),
        })
    }

    /// A prompt of `tokens`: a head that all share, then the conversation's own.
    fn prompt(name: u32, head: usize, tokens: usize) -> Vec<u32> {
        std::iter::repeat_n(7, head)
            .chain((head..tokens).map(|at| name * 100_000 + u32::try_from(at).unwrap()))
            .collect()
    }

    fn run(engine: &mut Strata<Vec<u32>>, prompt: &[u32]) -> Started {
        let started = engine.start(&prompt.to_vec(), None);
        engine.read(prompt.len() as u64, Landmarks { system_end: None, turn: Some(prompt.len() as u64 - 1) });
        engine.finish(prompt.to_vec());
        started
    }

    fn reused(engine: &mut Strata<Vec<u32>>, prompt: &[u32]) -> u64 {
        run(engine, prompt).reused
    }

    #[test]
    fn a_conversation_is_parked_when_another_one_starts_and_not_before() {
        let mut engine = engine(10 * GIB, 4);
        assert_eq!(run(&mut engine, &prompt(1, 0, 1_010)).events, []);
        assert_eq!(run(&mut engine, &prompt(1, 0, 1_050)), Started { reused: 1_009, events: vec![] });
        assert_eq!(engine.parked(), 0);
        let other = run(&mut engine, &prompt(2, 0, 500));
        let size = GIB * 1_050 / 1_000;
        assert_eq!(other.events, [Event::Parked { tokens: 1_050, bytes: size, evicted: 0 }]);
        assert_eq!((other.reused, engine.parked(), engine.parked_bytes()), (0, 1, size));
        let back = run(&mut engine, &prompt(1, 0, 1_100));
        assert_eq!(back.reused, 1_049);
        assert_eq!(back.events[1], Event::Restored { tokens: 1_049, bytes: size, exact: true });
    }

    #[test]
    fn the_copy_that_was_taken_up_is_superseded_and_no_eviction() {
        let mut engine = engine(10 * GIB, 4);
        for turn in 0..9_usize {
            for name in [1, 2] {
                let started = run(&mut engine, &prompt(name, 0, 500 + 50 * turn));
                assert_eq!(
                    started.events.contains(&Event::Superseded { copies: 1 }),
                    turn > 1 || (turn == 1 && name == 2)
                );
            }
        }
        assert_eq!((engine.parked(), engine.evictions()), (2, 0));
    }

    #[test]
    fn without_room_the_one_that_is_asked_for_next_is_evicted() {
        // Two conversations and room for one: parking the first for the second costs the second.
        let mut engine = engine(GIB, 4);
        for turn in 0..6_usize {
            for name in [1, 2] {
                assert_eq!(
                    reused(&mut engine, &prompt(name, 120, 900 + 10 * turn)),
                    if (turn, name) == (0, 1) { 0 } else { 100 }
                );
            }
        }
        assert_eq!(engine.evictions(), 10);
    }

    #[test]
    fn without_parking_the_pinned_checkpoint_is_all_that_conversations_share() {
        let mut engine = engine(0, 4);
        for (name, found) in [(1, 0), (2, 100), (1, 100), (2, 100)] {
            let started = run(&mut engine, &prompt(name, 150, 900));
            assert_eq!(started, Started { reused: found, events: vec![] });
        }
    }

    #[test]
    fn giants_are_skipped_when_told_so_and_evict_nobody() {
        let mut engine = engine(2 * GIB, 8);
        engine.settings.skip_above = Some(GIB);
        run(&mut engine, &prompt(1, 0, 410));
        run(&mut engine, &prompt(2, 0, 1_500));
        let started = run(&mut engine, &prompt(1, 0, 450));
        let bytes = GIB * 1_500 / 1_000;
        assert_eq!(started.events[0], Event::NotParked { tokens: 1_500, bytes, refusal: None });
        assert_eq!((started.reused, engine.evictions()), (409, 0));
        assert_eq!(reused(&mut engine, &prompt(2, 0, 1_550)), 0);
    }

    #[test]
    fn a_snapshot_above_the_budget_is_not_parked() {
        let mut engine = engine(GIB, 8);
        run(&mut engine, &prompt(1, 0, 1_001));
        let bytes = GIB * 1_001 / 1_000;
        let refusal = Some(Refusal::Budget);
        assert_eq!(run(&mut engine, &prompt(2, 0, 10)).events, [Event::NotParked { tokens: 1_001, bytes, refusal }]);
    }

    #[test]
    fn an_edited_history_is_another_conversation_and_resumes_before_the_edit() {
        let mut engine = engine(10 * GIB, 4);
        let mut text = prompt(1, 0, 1_000);
        run(&mut engine, &text);
        text[850] += 1;
        let started = run(&mut engine, &text);
        assert_eq!(started.reused, 800);
        assert_eq!(engine.parked(), 1);
        // Edited back: the old form is still there.
        text[850] -= 1;
        assert_eq!(reused(&mut engine, &text), 999);
    }

    #[test]
    fn a_restart_loses_all() {
        let mut engine = engine(10 * GIB, 4);
        run(&mut engine, &prompt(1, 0, 1_000));
        run(&mut engine, &prompt(2, 0, 1_000));
        engine.clear();
        assert_eq!((engine.parked(), engine.checkpoints(), engine.held_bytes()), (0, 0, 0));
        for name in [1, 2] {
            assert_eq!(reused(&mut engine, &prompt(name, 0, 1_000)), 0);
        }
    }
}
