//! When many large requests at once may move: in the lulls of the running streams.
//!
//! An engine writes a step's events for all its streams within a few milliseconds, and then computes. Megabytes that move
//! meanwhile take the same cores, so that every stream's event is late; between two steps nobody waits for them.
//! Measured with 50 bodies of 5 MB beside 500 streams: docs/performance.md.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::outbox::locked;

/// The lull of this process, whose threads share its cores.
pub static LULL: Lull = Lull::new();

/// No stream has had anything for so long: the step is over.
const QUIET: Duration = Duration::from_millis(3);

/// Where streams are never quiet, a piece of a large request moves after so long all the same.
pub(crate) const PATIENCE: Duration = Duration::from_millis(20);

/// Who has not asked for so long does not move: its client pauses, or its engine does not read.
const RECENTLY: Duration = Duration::from_millis(50);

/// One large request: on its way from its client, or to its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// By the number of its body.
    Coming(u64),
    /// By the number of its connection.
    Going(u64),
}

/// Streams that move, and large requests that would like to.
#[derive(Debug)]
pub struct Lull {
    /// When something was handed over to a client last.
    handed_over: Mutex<Option<Instant>>,
    /// Which two large requests asked last, and when; the latest first.
    asked: Mutex<[Option<(Who, Instant)>; 2]>,
}

impl Lull {
    const fn new() -> Self {
        Self { handed_over: Mutex::new(None), asked: Mutex::new([None; 2]) }
    }

    /// Notes that clients are handed something.
    pub(crate) fn hand_over(&self) {
        *locked(&self.handed_over) = Some(Instant::now());
    }

    /// Whether a piece of `who` may move, which has waited for so long: at once where no other asks, for then its
    /// client's time counts, and one body is over before a stream misses much. `many`: others are known to wait.
    pub fn may_move(&self, who: Who, waited: Duration, many: bool) -> bool {
        let now = Instant::now();
        let others = self.note(who, now) || many;
        !others
            || waited >= PATIENCE
            || locked(&self.handed_over).is_none_or(|at| now.saturating_duration_since(at) >= QUIET)
    }

    /// This one asks for nothing more.
    pub fn over(&self, who: Who) {
        for asked in &mut *locked(&self.asked) {
            *asked = asked.filter(|(asked, _)| *asked != who);
        }
    }

    /// Notes that `who` asks; whether another one did recently.
    fn note(&self, who: Who, now: Instant) -> bool {
        let [latest, other] = &mut *locked(&self.asked);
        if latest.is_none_or(|(latest, _)| latest != who) {
            *other = *latest;
        }
        *latest = Some((who, now));
        other.is_some_and(|(_, at)| now.saturating_duration_since(at) < RECENTLY)
    }
}

#[cfg(test)]
impl Lull {
    /// One of which nobody else knows, beside streams that are never quiet.
    pub(crate) fn never_quiet() -> &'static Self {
        let lull = Self::new();
        *locked(&lull.handed_over) = Instant::now().checked_add(Duration::from_secs(3600));
        Box::leak(Box::new(lull))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Who = Who::Coming(1);
    const OTHER: Who = Who::Going(1);

    #[test]
    fn one_alone_moves_at_once() {
        let lull = Lull::never_quiet();
        for _ in 0..3 {
            assert!(lull.may_move(ONE, Duration::ZERO, false));
        }
        assert!(!lull.may_move(ONE, Duration::ZERO, true));
    }

    #[test]
    fn who_is_over_or_pauses_keeps_nobody_waiting() {
        let lull = Lull::never_quiet();
        assert!(lull.may_move(OTHER, Duration::ZERO, false));
        assert!(!lull.may_move(ONE, Duration::ZERO, false));
        lull.over(OTHER);
        assert!(lull.may_move(ONE, Duration::ZERO, false));
        assert!(!lull.may_move(OTHER, Duration::ZERO, false));
        std::thread::sleep(RECENTLY);
        assert!(lull.may_move(OTHER, Duration::ZERO, false));
    }

    #[test]
    fn many_move_when_streams_are_quiet_or_never_are() {
        let lull = Lull::never_quiet();
        assert!(!lull.may_move(ONE, QUIET, true));
        assert!(lull.may_move(ONE, PATIENCE, true));
        lull.hand_over();
        std::thread::sleep(QUIET);
        assert!(lull.may_move(ONE, Duration::ZERO, true));
    }
}
