//! A day of requests through Strata's cache, for settings that one would like to compare.
//!
//! Nobody's text is needed: a request says how much of its prompt its conversation had before, and how much of it all
//! conversations have in common. Where arrivals are known, prompts are read one at a time, first come first served.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use super::checkpoints::{Checkpoints, Landmarks, Rules};
use super::parking::Limits;
use super::snapshot::{CHECKPOINT_BYTES, Sizes};
use super::strata::{Event, Settings, Strata, Text};

/// When a request comes. Seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// In its place in the list; one such request leaves the whole load without times.
    InOrder,
    /// At this time.
    At(f64),
    /// So long after the answer before it in its conversation, or after the beginning where there is none.
    After(f64),
}

/// One request. Lengths are in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Whose turn it is.
    pub conversation: u32,
    /// Its prompt.
    pub prompt: u64,
    /// Head of the prompt that this conversation had before, answers included.
    pub shared: u64,
    /// Head that prompts of other conversations have too.
    pub head: u64,
    /// Where the system prompt ends; 0: there is none to speak of.
    pub system: u64,
    /// Its answer.
    pub output: u64,
    /// When it comes.
    pub when: When,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Parking.
    pub limits: Limits,
    /// Checkpoints.
    pub rules: Rules,
    /// Snapshots above so many bytes are not parked.
    pub skip_above: Option<u64>,
    /// Prompts above so many tokens are refused.
    pub admit: Option<u64>,
    /// Prompts are assembled of at most so many tokens: what is new stays, the history before it is cut.
    pub cap: Option<u64>,
}

/// What the engine's work takes.
#[derive(Clone, Debug)]
pub struct Costs {
    /// Bytes of a conversation's snapshot.
    pub sizes: Sizes,
    /// Prompt tokens read in a second; 0: at once.
    pub prefill_rate: f64,
    /// Seconds that each prompt takes however little of it is read.
    pub prefill_floor: f64,
    /// Bytes of snapshots copied in a second, out of the slot or back; 0: at once.
    pub copy_rate: f64,
    /// Answer tokens written in a second, which delays the conversation's next turn and nobody else; 0: at once.
    pub decode_rate: f64,
}

/// What became of a load under one setting.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Requests served.
    pub turns: u64,
    /// Requests refused for their length.
    pub refused: u64,
    /// Parked conversations evicted.
    pub evictions: u64,
    /// Conversations that were not parked although their slot was needed: too large, or refused.
    pub skipped: u64,
    /// Conversations taken up again from where they were parked.
    pub restores: u64,
    /// Turns that found less of their conversation than its own checkpoints would have given them.
    pub lost_turns: u64,
    /// What most of those turns reused, in tokens; of equals the least.
    pub lost_reuse: Option<u64>,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Those of them that were read.
    pub read_tokens: u64,
    /// Those of these that the conversation had had before.
    pub reread_tokens: u64,
    /// Time spent on reading prompts, without the copying of snapshots, in seconds.
    pub prefill_seconds: f64,
    /// Most bytes of host memory held at once: snapshots, and the checkpoints of the slot.
    pub ram_bytes: u64,
    /// Time to first token in seconds, in order of size; none where arrivals are unknown.
    pub ttft: Option<Vec<f64>>,
}

impl Outcome {
    /// The time to first token that `share` (0 to 1) of the requests did not exceed.
    pub fn ttft_at(&self, share: f64) -> Option<f64> {
        let ttft = self.ttft.as_ref()?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let rank = (share.clamp(0.0, 1.0) * ttft.len() as f64).ceil() as usize;
        ttft.get(rank.max(1) - 1).copied()
    }
}

/// Plays the requests under one setting. Requests of one conversation come in the order of its turns.
pub fn simulate(requests: &[Request], setting: &Setting, costs: &Costs) -> Outcome {
    let load: Vec<Request> = requests.iter().map(|request| capped(*request, setting.cap)).collect();
    let mut chains: HashMap<u32, Vec<u64>> = HashMap::new();
    let mut numbers = Vec::with_capacity(load.len());
    for request in &load {
        let chain = chains.entry(request.conversation).or_default();
        numbers.push(chain.len());
        chain.push(request.shared);
    }
    let texts: Vec<Turn<'_>> = load
        .iter()
        .zip(numbers)
        .map(|(request, number)| Turn {
            conversation: request.conversation,
            number,
            tokens: request.prompt,
            head: request.head,
            chain: chains.get(&request.conversation).map_or(&[], Vec::as_slice),
        })
        .collect();
    let mut run = Run::new(*setting, costs);
    if load.iter().any(|request| request.when == When::InOrder) {
        for (request, text) in load.iter().zip(&texts) {
            run.serve(request, text);
        }
    } else {
        run.timed(&load, &texts);
    }
    run.outcome()
}

/// A prompt as it would be assembled within a cap.
fn capped(request: Request, cap: Option<u64>) -> Request {
    let Some(cap) = cap.filter(|&cap| cap < request.prompt) else { return request };
    let new = request.prompt.saturating_sub(request.shared).min(cap);
    Request { prompt: cap, shared: request.shared.min(cap - new), head: request.head.min(cap), ..request }
}

/// A prompt or a state, by name: its conversation, how far that has come, and what its turns kept of each other.
#[derive(Clone, Copy)]
struct Turn<'a> {
    conversation: u32,
    number: usize,
    tokens: u64,
    head: u64,
    chain: &'a [u64],
}

impl Text for Turn<'_> {
    fn tokens(&self) -> u64 {
        self.tokens
    }

    fn shared(&self, prompt: &Self) -> u64 {
        let most = self.tokens.min(prompt.tokens);
        if self.conversation != prompt.conversation {
            return most.min(self.head).min(prompt.head);
        }
        let between = self.chain.get(self.number + 1..=prompt.number).unwrap_or(&[]);
        between.iter().copied().min().unwrap_or(most).min(most)
    }

    fn continued_by(&self, later: &Self, _last_checkpoint: u64) -> bool {
        self.conversation == later.conversation
    }
}

/// A time in a queue.
#[derive(PartialEq)]
struct Ready(f64, usize);

impl Eq for Ready {}

impl Ord for Ready {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// One pass over a load.
struct Run<'a> {
    setting: Setting,
    costs: &'a Costs,
    engine: Strata<Turn<'a>>,
    /// Each conversation as it would stand had it never left the slot.
    alone: HashMap<u32, (Option<Turn<'a>>, Checkpoints)>,
    lost: HashMap<u64, u64>,
    found: Outcome,
}

impl<'a> Run<'a> {
    fn new(setting: Setting, costs: &'a Costs) -> Self {
        let engine = Strata::new(Settings {
            rules: setting.rules,
            limits: setting.limits,
            skip_above: setting.skip_above,
            sizes: costs.sizes.clone(),
        });
        Self { setting, costs, engine, alone: HashMap::new(), lost: HashMap::new(), found: Outcome::default() }
    }

    /// The serial queue: who is ready first is served first.
    fn timed(&mut self, load: &[Request], texts: &[Turn<'a>]) {
        let mut ttft = Vec::with_capacity(load.len());
        let mut followers: Vec<Option<usize>> = vec![None; load.len()];
        let mut last: HashMap<u32, usize> = HashMap::new();
        let mut queue = BinaryHeap::new();
        for (at, request) in load.iter().enumerate() {
            let before = last.insert(request.conversation, at);
            match (request.when, before) {
                (When::At(time) | When::After(time), None) | (When::At(time), Some(_)) => {
                    queue.push(Reverse(Ready(time, at)));
                }
                (_, Some(before)) => {
                    if let Some(follower) = followers.get_mut(before) {
                        *follower = Some(at);
                    }
                }
                (When::InOrder, None) => {}
            }
        }
        let mut free_at = f64::NEG_INFINITY;
        while let Some(Reverse(Ready(ready, at))) = queue.pop() {
            let (Some(request), Some(text)) = (load.get(at), texts.get(at)) else { continue };
            let mut over = ready;
            if let Some(seconds) = self.serve(request, text) {
                free_at = ready.max(free_at) + seconds;
                ttft.push(free_at - ready);
                over = free_at + ratio(request.output, self.costs.decode_rate);
            }
            let follower = followers.get(at).copied().flatten();
            if let Some((follower, When::After(think))) = follower.and_then(|at| Some((at, load.get(at)?.when))) {
                queue.push(Reverse(Ready(over + think, follower)));
            }
        }
        ttft.sort_by(f64::total_cmp);
        self.found.ttft = Some(ttft);
    }

    /// One request; returns how long the engine is busy with its prompt, or none if it was refused.
    fn serve(&mut self, request: &Request, text: &Turn<'a>) -> Option<f64> {
        if self.setting.admit.is_some_and(|most| request.prompt > most) {
            self.found.refused += 1;
            return None;
        }
        let landmarks = Landmarks {
            system_end: Some(request.system).filter(|&end| end > 0),
            turn: request.prompt.checked_sub(1).filter(|&turn| turn > 0),
        };
        let (before, alone) =
            self.alone.entry(request.conversation).or_insert_with(|| (None, Checkpoints::new(self.setting.rules)));
        // Of what was refused nothing was ever read.
        let had = before.map_or(0, |before| before.shared(text));
        let expected = alone.resume(had, request.prompt);
        alone.read(request.prompt, landmarks);

        let started = self.engine.start(text, None);
        self.engine.read(request.prompt, landmarks);
        let whole = Turn { tokens: request.prompt.saturating_add(request.output), ..*text };
        self.engine.finish(whole);
        *before = Some(whole);

        let mut copied = 0;
        for event in &started.events {
            match *event {
                Event::Parked { bytes, evicted, .. } => {
                    self.found.evictions += evicted as u64;
                    copied += bytes;
                }
                Event::NotParked { .. } => self.found.skipped += 1,
                Event::Restored { bytes, .. } => {
                    self.found.restores += 1;
                    copied += bytes;
                }
                Event::Superseded { .. } => {}
            }
        }
        let read = request.prompt - started.reused;
        if started.reused < expected {
            self.found.lost_turns += 1;
            *self.lost.entry(started.reused).or_default() += 1;
        }
        let prefill = self.costs.prefill_floor + ratio(read, self.costs.prefill_rate);
        let found = &mut self.found;
        found.turns += 1;
        found.prompt_tokens += request.prompt;
        found.read_tokens += read;
        found.reread_tokens += had.saturating_sub(started.reused);
        found.prefill_seconds += prefill;
        let checkpoints = self.engine.checkpoints() as u64 * CHECKPOINT_BYTES;
        found.ram_bytes = found.ram_bytes.max(self.engine.held_bytes().saturating_add(checkpoints));
        Some(prefill + ratio(copied, self.costs.copy_rate))
    }

    fn outcome(self) -> Outcome {
        let lost_reuse = self.lost.iter().map(|(&reused, &turns)| (turns, Reverse(reused))).max();
        Outcome { lost_reuse: lost_reuse.map(|(_, Reverse(reused))| reused), ..self.found }
    }
}

/// Seconds for `amount` at a rate; none where the rate is 0.
#[allow(clippy::cast_precision_loss)]
fn ratio(amount: u64, rate: f64) -> f64 {
    if rate > 0.0 { amount as f64 / rate } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn setting(mib: u64, slots: usize) -> Setting {
        let limits = Limits { budget: mib * MIB, slots, min_free: 0 };
        Setting { limits, rules: Rules::default(), skip_above: None, admit: None, cap: None }
    }

    fn costs() -> Costs {
        Costs { sizes: Sizes::default(), prefill_rate: 1_000.0, prefill_floor: 1.0, copy_rate: 0.0, decode_rate: 100.0 }
    }

    /// Conversations near 254k tokens take turns at random, as in the incident: who comes next is drawn.
    fn storm(turns: usize, conversations: u64) -> Vec<Request> {
        let mut state = 7_u64;
        let mut lengths = vec![0; usize::try_from(conversations).unwrap()];
        (0..turns)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let who = (state >> 33) % conversations;
                let length = &mut lengths[usize::try_from(who).unwrap()];
                let shared = *length;
                *length = if shared == 0 { 253_000 } else { shared + 40 };
                Request {
                    conversation: u32::try_from(who).unwrap(),
                    prompt: *length,
                    shared,
                    head: 17_000,
                    system: 0,
                    output: 0,
                    when: When::InOrder,
                }
            })
            .collect()
    }

    fn evictions(load: &[Request], mib: u64) -> u64 {
        simulate(load, &setting(mib, 20), &costs()).evictions
    }

    #[test]
    fn the_storm_at_three_budgets() {
        let load = storm(200, 8);
        let outcome = simulate(&load, &setting(8_192, 20), &costs());
        assert!((150..=185).contains(&outcome.evictions), "{outcome:?}");
        assert_eq!(outcome.lost_reuse, Some(16_384));
        assert!(outcome.reread_tokens > outcome.lost_turns * 230_000);
        let five = evictions(&load, 22_488);
        assert!((50..=90).contains(&five), "{five}");
        assert_eq!(evictions(&load, 24_000), five);
        assert!(evictions(&load, 35 * 1024) > 0);
        assert_eq!(evictions(&load, 36 * 1024), 0);
    }

    #[test]
    fn what_each_remedy_costs() {
        let load = storm(200, 8);
        let small = simulate(&load, &setting(8_192, 20), &costs());
        // Giants that are not parked evict nobody, and read everything again.
        let skipping = Setting { skip_above: Some(4_000 * MIB), ..setting(8_192, 20) };
        let skipped = simulate(&load, &skipping, &costs());
        assert_eq!((skipped.evictions, skipped.restores), (0, 0));
        assert_eq!(skipped.lost_turns, small.lost_turns);
        // Refused prompts cost nothing and serve nobody.
        let outcome = simulate(&load, &Setting { admit: Some(200_000), ..setting(8_192, 20) }, &costs());
        assert_eq!((outcome.turns, outcome.refused, outcome.read_tokens), (0, 200, 0));
        // Capped prompts fit, and lose what moves in them.
        let outcome = simulate(&load, &Setting { cap: Some(100_000), ..setting(64 * 1024, 20) }, &costs());
        assert_eq!((outcome.evictions, outcome.lost_turns), (0, 0));
        assert_eq!(outcome.prompt_tokens, 200 * 100_000);
        assert!(outcome.ram_bytes < simulate(&load, &setting(64 * 1024, 20), &costs()).ram_bytes);
    }

    #[test]
    fn a_serial_queue_adds_up() {
        let turn = |conversation, prompt, shared, output, when| Request {
            conversation,
            prompt,
            shared,
            head: 0,
            system: 0,
            output,
            when,
        };
        let load = [
            turn(1, 4_000, 0, 100, When::At(0.0)),
            turn(2, 2_000, 0, 0, When::At(1.0)),
            turn(1, 5_000, 4_100, 0, When::After(0.5)),
        ];
        let outcome = simulate(&load, &setting(64 * 1024, 4), &costs());
        // Read by 5; waits until 5 and is read by 8; ready at 5 + 1 + 0.5, waits until 8, reads 1,001 by 10.001.
        assert_eq!(outcome.ttft, Some(vec![10.001 - 6.5, 5.0, 7.0]));
        assert_eq!([0.0, 0.5, 0.95].map(|share| outcome.ttft_at(share)), [Some(10.001 - 6.5), Some(5.0), Some(7.0)]);
        assert!((outcome.prefill_seconds - 10.001).abs() < 1e-9);
        let mut unknown = load;
        unknown[1].when = When::InOrder;
        assert_eq!(simulate(&unknown, &setting(64 * 1024, 4), &costs()).ttft, None);
        assert_eq!(simulate(&[], &setting(1, 1), &costs()).ttft_at(0.5), None);
    }
}
