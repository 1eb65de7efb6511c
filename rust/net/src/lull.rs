//! When many large requests at once may move: in the lulls of the running streams.
//!
//! An engine writes a step's events for all its streams within a few milliseconds, and then computes. Megabytes that move
//! meanwhile take the same cores, so that every stream's event is late; between two steps nobody waits for them.
//! Measured with 50 bodies of 5 MB beside 500 streams: docs/performance.md.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::outbox::locked;

/// The lull of this process, whose threads share its cores.
pub static LULL: Lull = Lull::new();

/// No stream has had anything for so long: the step is over.
const QUIET: Duration = Duration::from_millis(3);

/// Where streams are never quiet, a piece of a large request moves after so long all the same.
pub(crate) const PATIENCE: Duration = Duration::from_millis(20);

/// Streams that move, and large requests that would like to.
#[derive(Debug)]
pub struct Lull {
    /// When something was handed over to a client last.
    handed_over: Mutex<Option<Instant>>,
    /// Large requests on their way.
    large: AtomicUsize,
}

/// A large request on its way, from its first byte to its last.
#[derive(Debug)]
pub struct Large(&'static Lull);

impl Lull {
    const fn new() -> Self {
        Self { handed_over: Mutex::new(None), large: AtomicUsize::new(0) }
    }

    /// Notes that clients are handed something.
    pub(crate) fn hand_over(&self) {
        *locked(&self.handed_over) = Some(Instant::now());
    }

    /// Counts a large request until the result is dropped.
    pub fn begin(&'static self) -> Large {
        self.large.fetch_add(1, Ordering::Relaxed);
        Large(self)
    }

    /// Whether a piece of a large request may move that has waited for so long: at once where it is the only one, for
    /// then its client's time counts, and one body is over before a stream misses much.
    pub fn may_move(&self, waited: Duration) -> bool {
        self.large.load(Ordering::Relaxed) < 2
            || waited >= PATIENCE
            || locked(&self.handed_over).is_none_or(|at| at.elapsed() >= QUIET)
    }
}

impl Large {
    /// As [`Lull::may_move`], of the lull that counts it.
    pub(crate) fn may_move(&self, waited: Duration) -> bool {
        self.0.may_move(waited)
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        self.0.large.fetch_sub(1, Ordering::Relaxed);
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

    #[test]
    fn one_alone_moves_at_once() {
        let lull = Lull::never_quiet();
        let one = lull.begin();
        assert!(one.may_move(Duration::ZERO));
        let other = lull.begin();
        assert!(!lull.may_move(Duration::ZERO));
        drop(other);
        assert!(lull.may_move(Duration::ZERO));
    }

    #[test]
    fn many_move_when_streams_are_quiet_or_never_are() {
        let lull = Lull::never_quiet();
        let _many = [lull.begin(), lull.begin()];
        assert!(!lull.may_move(QUIET));
        assert!(lull.may_move(PATIENCE));
        lull.hand_over();
        std::thread::sleep(QUIET);
        assert!(lull.may_move(Duration::ZERO));
    }
}
