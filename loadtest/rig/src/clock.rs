//! One clock for all processes of a run.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds in a second.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// `CLOCK_MONOTONIC` in nanoseconds: the same for every process of this machine, and never set back.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * SECOND + now.tv_nsec.cast_unsigned()
}

/// Processor time of this process so far, in nanoseconds.
pub(crate) fn cpu_ns() -> u64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec.cast_unsigned() * SECOND + used.tv_nsec.cast_unsigned()
}

/// Nanoseconds as seconds.
pub(crate) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
