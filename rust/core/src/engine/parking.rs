//! Strata's parking: conversations whose state was moved out of the engine's slot into host memory, within a budget.
//!
//! The rules are those that the engine's own tests assert: storage that is only retained counts against the budget and
//! is given up before a parked conversation is; superseded copies of a conversation go first of all and are no
//! evictions; over the budget or the slots the one that was not used for longest goes and is counted; room reserved for
//! a capture under way may cost a conversation that would fit; a snapshot that can never fit is not stored and costs
//! nobody anything.

use std::fmt;

/// The engine's flags. Lengths are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `--conversation-cache-mib`, in bytes; 0: parking is off.
    pub budget: u64,
    /// `--conversation-cache-slots`: conversations parked at once, at most.
    pub slots: usize,
    /// `--conversation-cache-min-free-mib`, in bytes: what must stay free of the host's memory.
    pub min_free: u64,
}

/// Memory refusals in a row after which the engine stops asking ...
const REFUSALS_IN_A_ROW: u32 = 3;
/// ... for so many conversations that would be parked.
const QUIET_REQUESTS: u32 = 64;

/// Why a conversation was not parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Parking is off: no budget or no slot.
    Off,
    /// The snapshot is larger than the budget, less what captures under way have reserved.
    Budget,
    /// Too little of the host's memory would stay free.
    Memory {
        /// Whether the engine now stops asking for a while.
        quiet: bool,
    },
    /// The host's memory was refused several times in a row, and the engine does not ask again yet.
    Quiet,
}

/// A conversation that is parked.
#[derive(Clone, Debug)]
pub struct Parked<S> {
    /// What it takes to go on with it.
    pub state: S,
    /// Its size.
    pub bytes: u64,
    stamp: u64,
}

/// Room for a snapshot that is being captured. Give it back with [`Parking::commit`] or [`Parking::cancel`].
#[must_use = "reserved room counts against the budget until it is given back"]
pub struct Reservation {
    bytes: u64,
    /// Conversations that were evicted to make the room.
    pub evicted: usize,
}

impl Reservation {
    fn into_bytes(self) -> u64 {
        self.bytes
    }
}

/// What parking a conversation did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Older copies of the same conversation that were dropped.
    pub superseded: usize,
    /// Other conversations that were evicted.
    pub evicted: usize,
}

/// The conversations parked, in bytes and slots; what a state is, and when one supersedes another, is the caller's.
pub struct Parking<S> {
    limits: Limits,
    parked: Vec<Parked<S>>,
    clock: u64,
    reserved: u64,
    captures: usize,
    retained: u64,
    evictions: u64,
    refused_in_a_row: u32,
    quiet: u32,
}

impl<S> Parking<S> {
    /// Nothing is parked yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            parked: Vec::new(),
            clock: 0,
            reserved: 0,
            captures: 0,
            retained: 0,
            evictions: 0,
            refused_in_a_row: 0,
            quiet: 0,
        }
    }

    /// Parks a conversation of `bytes`: first the older copies of it are dropped, for which `superseded` holds, and then
    /// room is made. A snapshot that is refused changes nothing. `free`: the host's free memory in bytes, if known.
    pub fn park(
        &mut self,
        state: S,
        bytes: u64,
        free: Option<u64>,
        superseded: impl Fn(&S) -> bool,
    ) -> Result<Stored, Refusal> {
        self.admit(bytes, free)?;
        let dropped = self.supersede(superseded);
        let reservation = self.make_room(bytes)?;
        let evicted = reservation.evicted;
        self.commit(reservation, state);
        Ok(Stored { superseded: dropped, evicted })
    }

    /// Reserves room for a capture under way, which may evict a conversation that would otherwise fit.
    pub fn reserve(&mut self, bytes: u64, free: Option<u64>) -> Result<Reservation, Refusal> {
        self.admit(bytes, free)?;
        self.make_room(bytes)
    }

    /// Stores what was captured in the room reserved for it.
    pub fn commit(&mut self, reservation: Reservation, state: S) {
        let bytes = self.give_back(reservation);
        self.clock += 1;
        self.parked.push(Parked { state, bytes, stamp: self.clock });
    }

    /// The capture failed: its room is free again.
    pub fn cancel(&mut self, reservation: Reservation) {
        self.give_back(reservation);
    }

    /// Drops the copies for which `superseded` holds; their storage is retained. Returns how many they were.
    pub fn supersede(&mut self, superseded: impl Fn(&S) -> bool) -> usize {
        let before = self.parked.len();
        let mut bytes = 0;
        self.parked.retain(|copy| {
            let goes = superseded(&copy.state);
            bytes += if goes { copy.bytes } else { 0 };
            !goes
        });
        self.retained += bytes;
        before - self.parked.len()
    }

    /// The parked conversation that `score` likes best, of equals the one used last; it becomes the most recently
    /// used. A copy stays parked when it is taken up. None where nothing scores above 0.
    pub fn best(&mut self, score: impl Fn(&S) -> u64) -> Option<&S> {
        let found = self
            .parked
            .iter()
            .enumerate()
            .map(|(at, copy)| (score(&copy.state), copy.stamp, at))
            .filter(|&(score, ..)| score > 0)
            .max()?;
        self.clock += 1;
        let copy = self.parked.get_mut(found.2)?;
        copy.stamp = self.clock;
        Some(&copy.state)
    }

    /// Whether a snapshot could be captured now and nothing would be evicted. Retained storage counts as used.
    pub fn fits(&self, bytes: u64) -> bool {
        self.held().saturating_add(bytes) <= self.limits.budget && self.parked.len() + self.captures < self.limits.slots
    }

    /// Bytes that count against the budget: parked, reserved and retained.
    pub fn held(&self) -> u64 {
        self.bytes() + self.reserved + self.retained
    }

    /// Bytes of the conversations parked.
    pub fn bytes(&self) -> u64 {
        self.parked.iter().map(|copy| copy.bytes).sum()
    }

    /// Conversations parked.
    pub fn len(&self) -> usize {
        self.parked.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.parked.is_empty()
    }

    /// Conversations evicted since the engine's start.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// What was told at the start.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// A restart of the engine: everything is in its memory, and so everything is lost.
    pub fn clear(&mut self) {
        *self = Self::new(self.limits);
    }

    /// The checks that come before anything is dropped.
    fn admit(&mut self, bytes: u64, free: Option<u64>) -> Result<(), Refusal> {
        if self.limits.budget == 0 || self.limits.slots == 0 {
            return Err(Refusal::Off);
        }
        if self.quiet > 0 {
            self.quiet -= 1;
            return Err(Refusal::Quiet);
        }
        if self.reserved.saturating_add(bytes) > self.limits.budget || self.captures >= self.limits.slots {
            return Err(Refusal::Budget);
        }
        if free.is_some_and(|free| free < bytes.saturating_add(self.limits.min_free)) {
            self.refused_in_a_row += 1;
            let quiet = self.refused_in_a_row >= REFUSALS_IN_A_ROW;
            if quiet {
                (self.refused_in_a_row, self.quiet) = (0, QUIET_REQUESTS);
            }
            return Err(Refusal::Memory { quiet });
        }
        self.refused_in_a_row = 0;
        Ok(())
    }

    /// Gives up retained storage first, then conversations, the oldest first, until `bytes` and a slot are free.
    fn make_room(&mut self, bytes: u64) -> Result<Reservation, Refusal> {
        let needed = self.bytes().saturating_add(self.reserved).saturating_add(bytes);
        self.retained = self.retained.saturating_sub(bytes).min(self.limits.budget.saturating_sub(needed));
        let mut evicted = 0;
        while self.held().saturating_add(bytes) > self.limits.budget
            || self.parked.len() + self.captures >= self.limits.slots
        {
            let oldest = self.parked.iter().enumerate().min_by_key(|(_, copy)| copy.stamp).map(|(at, _)| at);
            self.parked.swap_remove(oldest.ok_or(Refusal::Budget)?);
            self.evictions += 1;
            evicted += 1;
        }
        self.reserved += bytes;
        self.captures += 1;
        Ok(Reservation { bytes, evicted })
    }

    fn give_back(&mut self, reservation: Reservation) -> u64 {
        let bytes = reservation.into_bytes();
        self.reserved -= bytes;
        self.captures -= 1;
        bytes
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Budget => "budget",
            Self::Memory { quiet: false } => "memory",
            Self::Memory { quiet: true } => "memory-quiet",
            Self::Quiet => "quiet",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NEVER: fn(&&str) -> bool = |_| false;

    fn parking(budget: u64, slots: usize) -> Parking<&'static str> {
        Parking::new(Limits { budget, slots, min_free: 0 })
    }

    fn names(parking: &Parking<&'static str>) -> Vec<&'static str> {
        let mut names: Vec<_> = parking.parked.iter().map(|copy| copy.state).collect();
        names.sort_unstable();
        names
    }

    fn park(parking: &mut Parking<&'static str>, name: &'static str, bytes: u64) -> Result<Stored, Refusal> {
        parking.park(name, bytes, None, |other| *other == name)
    }

    fn evicting(evicted: usize) -> Stored {
        Stored { superseded: 0, evicted }
    }

    #[test]
    fn retained_storage_is_counted_when_checking_a_capture_without_eviction() {
        let mut cache = parking(100, 8);
        park(&mut cache, "A", 60).unwrap();
        assert!(cache.fits(40));
        cache.supersede(|_| true);
        assert_eq!((cache.bytes(), cache.held()), (0, 60));
        assert!(cache.fits(40));
        assert!(!cache.fits(41));
    }

    #[test]
    fn pressure_drops_retained_storage_before_evicting_parked_conversations() {
        let mut cache = parking(100, 8);
        park(&mut cache, "A", 50).unwrap();
        park(&mut cache, "B", 40).unwrap();
        cache.supersede(|name| *name == "A");
        assert_eq!(cache.held(), 90);
        assert_eq!(park(&mut cache, "C", 60), Ok(evicting(0)));
        assert_eq!((names(&cache), cache.held()), (vec!["B", "C"], 100));
    }

    #[test]
    fn storage_that_is_retained_is_used_again() {
        let mut cache = parking(1_000, 8);
        for _ in 0..5 {
            park(&mut cache, "A", 100).unwrap();
        }
        assert_eq!(cache.held(), 100);
        // A smaller copy leaves the rest of the storage behind.
        park(&mut cache, "A", 30).unwrap();
        assert_eq!((cache.bytes(), cache.held()), (30, 100));
    }

    #[test]
    fn the_oldest_is_evicted_by_the_slot_limit_with_a_counter() {
        let mut cache = parking(1_000, 2);
        park(&mut cache, "B", 10).unwrap();
        park(&mut cache, "A", 10).unwrap();
        assert_eq!(park(&mut cache, "C", 10), Ok(evicting(1)));
        assert_eq!(names(&cache), ["A", "C"], "B is evicted before A");
        assert_eq!(cache.evictions(), 1);
        // What was taken up again is no longer the oldest.
        assert_eq!(cache.best(|name| u64::from(*name == "A")), Some(&"A"));
        park(&mut cache, "D", 10).unwrap();
        assert_eq!((names(&cache), cache.evictions()), (vec!["A", "D"], 2));
    }

    #[test]
    fn an_in_flight_reservation_evicts_what_would_otherwise_fit() {
        let mut cache = parking(100, 8);
        park(&mut cache, "A", 20).unwrap();
        park(&mut cache, "B", 40).unwrap();
        cache.best(|name| u64::from(*name == "A"));
        let reservation = cache.reserve(60, None).unwrap();
        assert_eq!((names(&cache), reservation.evicted), (vec!["A"], 1));
        assert_eq!(cache.held(), 80);
        // Room that is reserved is nobody else's, and eviction cannot give it.
        assert_eq!(park(&mut cache, "C", 50), Err(Refusal::Budget));
        assert_eq!(names(&cache), ["A"]);
        cache.commit(reservation, "D");
        assert_eq!((names(&cache), cache.bytes(), cache.evictions()), (vec!["A", "D"], 80, 1));
        let reservation = cache.reserve(20, None).unwrap();
        cache.cancel(reservation);
        assert_eq!(cache.held(), 80);
    }

    #[test]
    fn an_oversized_snapshot_does_not_evict_useful_entries() {
        let mut cache = parking(100, 8);
        park(&mut cache, "A", 60).unwrap();
        assert_eq!(park(&mut cache, "B", 101), Err(Refusal::Budget));
        // Not even an older copy of its own goes.
        assert_eq!(park(&mut cache, "A", 101), Err(Refusal::Budget));
        assert_eq!((names(&cache), cache.evictions(), cache.held()), (vec!["A"], 0, 60));
    }

    #[test]
    fn eight_superseded_copies_are_dropped_and_nothing_is_evicted() {
        let mut cache = parking(90, 9);
        for _ in 0..8 {
            cache.park("A", 10, None, NEVER).unwrap();
        }
        park(&mut cache, "B", 10).unwrap();
        assert_eq!(park(&mut cache, "A", 50), Ok(Stored { superseded: 8, evicted: 0 }));
        assert_eq!((names(&cache), cache.evictions()), (vec!["A", "B"], 0));
    }

    #[test]
    fn a_budget_below_one_snapshot_parks_nothing_and_none_is_off() {
        assert_eq!(park(&mut parking(3_345, 20), "A", 3_346), Err(Refusal::Budget));
        assert_eq!(park(&mut parking(0, 20), "A", 1), Err(Refusal::Off));
        assert_eq!(park(&mut parking(100, 0), "A", 1), Err(Refusal::Off));
    }

    #[test]
    fn the_floor_of_free_memory_holds_and_refusals_in_a_row_silence_the_engine() {
        let mut cache = Parking::new(Limits { budget: 1_000, slots: 8, min_free: 50 });
        let mut ask = |free| cache.park("A", 100, Some(free), NEVER).map(|_| ());
        assert_eq!(ask(150), Ok(()));
        assert_eq!(ask(149), Err(Refusal::Memory { quiet: false }));
        assert_eq!(ask(500), Ok(()));
        for quiet in [false, false, true] {
            assert_eq!(ask(149), Err(Refusal::Memory { quiet }));
        }
        for _ in 0..64 {
            assert_eq!(ask(500), Err(Refusal::Quiet));
        }
        assert_eq!(ask(500), Ok(()));
    }

    #[test]
    fn a_restart_loses_all() {
        let mut cache = parking(100, 8);
        park(&mut cache, "A", 60).unwrap();
        park(&mut cache, "B", 60).unwrap();
        cache.clear();
        assert!(cache.is_empty());
        assert_eq!((cache.held(), cache.evictions(), cache.best(|_| 1)), (0, 0, None));
    }

    proptest! {
        #[test]
        fn the_limits_hold_and_every_loss_is_counted(
            budget in 0..60_u64,
            slots in 0..6_usize,
            steps in prop::collection::vec((0..4_usize, 1..40_u64, 0..3_u8), 1..60),
        ) {
            let all = ["A", "B", "C", "D"];
            let mut cache = parking(budget, slots);
            let mut flight: Vec<Reservation> = Vec::new();
            for (who, bytes, what) in steps {
                let (before, evictions) = (cache.len(), cache.evictions());
                match what {
                    0 => if let Ok(reservation) = cache.reserve(bytes, None) { flight.push(reservation); },
                    1 => if let Some(reservation) = flight.pop() { cache.cancel(reservation); },
                    _ => {
                        let outcome = park(&mut cache, all[who], bytes);
                        if let Ok(stored) = outcome {
                            prop_assert_eq!(before + 1 - stored.superseded - stored.evicted, cache.len());
                        } else {
                            prop_assert_eq!((before, evictions), (cache.len(), cache.evictions()));
                        }
                    }
                }
                prop_assert!(cache.held() <= budget);
                prop_assert!(cache.len() + flight.len() <= slots);
            }
        }
    }
}
