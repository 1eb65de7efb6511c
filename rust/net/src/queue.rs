//! A bounded queue from the network thread to one that may block: on a disk, on a server.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::outbox::locked;

/// Records on their way to one thread. Putting never blocks.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    limit: usize,
}

#[derive(Debug, Default)]
struct State {
    records: VecDeque<Bytes>,
    bytes: usize,
    closed: bool,
    /// Whether the thread that takes is done.
    done: bool,
}

/// How much [`Queue::take`] takes at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portion {
    pub(crate) records: usize,
    /// The first record is taken whatever its size.
    pub(crate) bytes: usize,
    /// How long to wait for a full portion once there is something.
    pub(crate) gather: Duration,
}

impl Queue {
    /// A queue of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), limit }
    }

    /// Appends a record; false if there is no room or the queue is closed.
    pub(crate) fn put(&self, record: Bytes) -> bool {
        let mut state = locked(&self.state);
        if state.closed || state.bytes + record.len() > self.limit {
            return false;
        }
        state.bytes += record.len();
        state.records.push_back(record);
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Waits for records and takes the oldest; none once the queue is closed and empty.
    pub(crate) fn take(&self, portion: Portion) -> Option<VecDeque<Bytes>> {
        let mut state = locked(&self.state);
        while state.records.is_empty() {
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let until = Instant::now() + portion.gather;
        while !state.closed && state.records.len() < portion.records && state.bytes < portion.bytes {
            let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else { break };
            (state, _) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
        let mut taken = VecDeque::new();
        let mut bytes = 0;
        while taken.len() < portion.records {
            let Some(record) = state.records.pop_front() else { break };
            if !taken.is_empty() && bytes + record.len() > portion.bytes {
                state.records.push_front(record);
                break;
            }
            bytes += record.len();
            taken.push_back(record);
        }
        state.bytes -= bytes;
        Some(taken)
    }

    /// Waits for `pause`; returns early, with true, once the queue is closed.
    pub(crate) fn rest(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        self.wait_until(until, |state| state.closed)
    }

    /// Takes no more records. What is queued can still be taken.
    pub(crate) fn close(&self) {
        locked(&self.state).closed = true;
        self.changed.notify_all();
    }

    /// Says that the thread that takes has ended, once the result is dropped: also when that thread panics.
    pub(crate) fn finish_on_drop(&self) -> impl Drop {
        Finish(self)
    }

    /// Waits until that is so, at most until `deadline`; whether it is.
    pub(crate) fn wait_finished(&self, deadline: Instant) -> bool {
        self.wait_until(deadline, |state| state.done)
    }

    fn wait_until(&self, deadline: Instant, is_so: impl Fn(&State) -> bool) -> bool {
        let mut state = locked(&self.state);
        while !is_so(&state) {
            let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                return false;
            };
            (state, _) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }
}

struct Finish<'a>(&'a Queue);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        locked(&self.0.state).done = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const NOW: Portion = Portion { records: 10, bytes: 100, gather: Duration::ZERO };

    #[test]
    fn records_come_in_order_and_in_portions() {
        let queue = Queue::new(1000);
        for number in 0..12_u8 {
            assert!(queue.put(Bytes::from(vec![number; 20])));
        }
        let taken = queue.take(NOW).unwrap();
        assert_eq!(taken.iter().map(|record| record[0]).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        let large = Portion { bytes: 1000, ..NOW };
        assert_eq!(queue.take(large).unwrap().len(), 7);
    }

    #[test]
    fn a_full_or_closed_queue_refuses() {
        let queue = Queue::new(30);
        assert!(queue.put(Bytes::from_static(&[0; 20])));
        assert!(!queue.put(Bytes::from_static(&[0; 20])));
        assert_eq!(queue.take(NOW).unwrap().len(), 1);
        assert!(queue.put(Bytes::from_static(&[0; 20])));
        queue.close();
        assert!(!queue.put(Bytes::from_static(&[0; 1])));
        assert_eq!(queue.take(NOW).unwrap().len(), 1);
        assert_eq!(queue.take(NOW), None);
    }

    #[test]
    fn a_record_over_the_portion_is_taken_alone() {
        let queue = Queue::new(1000);
        queue.put(Bytes::from_static(&[0; 500]));
        queue.put(Bytes::from_static(&[0; 1]));
        assert_eq!(queue.take(NOW).unwrap().len(), 1);
    }

    #[test]
    fn gathering_waits_for_a_full_portion_and_ends_with_the_queue() {
        let queue = Arc::new(Queue::new(1000));
        queue.put(Bytes::from_static(b"one"));
        let patient = Portion { records: 2, bytes: 100, gather: Duration::from_secs(60) };
        let putter = {
            let queue = Arc::clone(&queue);
            std::thread::spawn(move || queue.put(Bytes::from_static(b"two")))
        };
        assert_eq!(queue.take(patient).unwrap().len(), 2);
        assert!(putter.join().unwrap());
        queue.put(Bytes::from_static(b"three"));
        queue.close();
        assert_eq!(queue.take(patient).unwrap().len(), 1);
        assert!(queue.rest(Duration::from_secs(60)));
    }
}
