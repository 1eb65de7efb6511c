//! Outboxes and the completion port: how bytes cross from the network thread to Python's event loop.
//!
//! Each exchange has an outbox. What the network thread puts into it is handed over as one piece (up to a bound) at the
//! next [`Port::drain`]; the port's pipe is written at most about once a millisecond for all exchanges together
//! (measured: wake-ups cost, bytes do not), and at once after a pause. Three rules keep every byte on its way:
//! a ready outbox is listed before the notifier is told, the notifier's permit survives until it has written,
//! and a drain empties the pipe before it takes the list.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::sync::Notify;

use crate::exchange::Head;
use crate::lull::LULL;

/// Bytes that may wait for a client before the engine is no longer read.
pub const HIGH_WATER: usize = 256 * 1024;

/// Bytes of one exchange that one drain hands over at most. A server keeps a few such pieces for a client that does
/// not read; a paced stream never has so much ready.
const PIECE: usize = 64 * 1024;

/// Bytes of all exchanges that one drain hands over, about: where many have more than their share, a paced stream's
/// event must not wait for megabytes of theirs.
const DRAIN: usize = 2 * 1024 * 1024;

/// The least share of one exchange.
const SHARE: usize = 8 * 1024;

/// The least time between two wake-ups of the reader.
const PACE: Duration = Duration::from_millis(1);

/// What one exchange has ready.
#[derive(Debug, Default)]
pub struct Ready {
    /// Status and headers, once.
    pub head: Option<Head>,
    /// Body bytes since the last drain.
    pub body: BytesMut,
    /// The exchange record (one JSON object); with it the exchange is over.
    pub record: Option<Vec<u8>>,
}

#[derive(Debug, Default)]
struct State {
    ready: Ready,
    /// Whether the outbox stands in the port's list.
    listed: bool,
    /// Whether its client does not read at present.
    held: bool,
}

/// The bytes of one exchange on their way to its client.
#[derive(Debug)]
pub struct Outbox {
    token: u64,
    port: Port,
    state: Mutex<State>,
    drained: Notify,
}

impl Outbox {
    /// An empty outbox for the exchange `token`.
    pub fn new(token: u64, port: Port) -> Arc<Self> {
        Arc::new(Self { token, port, state: Mutex::default(), drained: Notify::new() })
    }

    /// Puts the head of the answer.
    pub fn head(self: &Arc<Self>, head: Head) {
        self.put(|ready| ready.head = Some(head));
    }

    /// Puts body bytes. Whether there is room for more; else who has more to come waits for [`Outbox::room`].
    pub fn body(self: &Arc<Self>, bytes: &[u8]) -> bool {
        self.put(|ready| {
            ready.body.extend_from_slice(bytes);
            ready.body.len() <= HIGH_WATER
        })
    }

    /// Waits while more than [`HIGH_WATER`] bytes lie here.
    pub async fn room(&self) {
        while locked(&self.state).ready.body.len() > HIGH_WATER {
            self.drained.notified().await;
        }
    }

    /// Puts the record: the end.
    pub fn end(self: &Arc<Self>, record: Vec<u8>) {
        self.put(|ready| ready.record = Some(record));
    }

    /// Keeps what comes until [`Outbox::release`]: the client does not read.
    pub fn hold(&self) {
        locked(&self.state).held = true;
    }

    /// The client reads again.
    pub fn release(self: &Arc<Self>) {
        locked(&self.state).held = false;
        self.put(|_| ());
    }

    fn put<T>(self: &Arc<Self>, change: impl FnOnce(&mut Ready) -> T) -> T {
        let mut state = locked(&self.state);
        let changed = change(&mut state.ready);
        let something = state.ready.head.is_some() || !state.ready.body.is_empty() || state.ready.record.is_some();
        if something && !state.listed && !state.held {
            state.listed = true;
            drop(state);
            self.port.list(Arc::clone(self));
        }
        changed
    }

    /// Hands what is ready to `take` and empties the outbox (its buffer is kept). While the answer goes on, more than
    /// `piece` bytes take more than one drain.
    fn take<T>(self: &Arc<Self>, piece: usize, take: impl FnOnce(u64, &Ready) -> T) -> Option<T> {
        let mut state = locked(&self.state);
        state.listed = false;
        if state.held {
            return None;
        }
        if state.ready.body.len() > piece && state.ready.record.is_none() {
            let body = state.ready.body.split_to(piece);
            let piece = Ready { head: state.ready.head.take(), body, record: None };
            state.listed = true;
            drop(state);
            self.port.list(Arc::clone(self));
            self.drained.notify_one();
            return Some(take(self.token, &piece));
        }
        let taken = take(self.token, &state.ready);
        state.ready.head = None;
        state.ready.record = None;
        // A flood's buffer goes back to the system; a paced stream's is used again.
        if state.ready.body.capacity() > PIECE {
            state.ready.body = BytesMut::new();
        } else {
            state.ready.body.clear();
        }
        drop(state);
        self.drained.notify_one();
        Some(taken)
    }
}

/// The list of ready outboxes and the pipe that tells of it.
#[derive(Clone, Debug)]
pub struct Port {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    list: Mutex<Vec<Arc<Outbox>>>,
    listed: Notify,
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Port {
    /// Opens the port.
    ///
    /// # Errors
    /// When the process may open no more files.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = rustix::pipe::pipe()?;
        for end in [&reader, &writer] {
            rustix::io::ioctl_fionbio(end, true)?;
            rustix::io::fcntl_setfd(end, rustix::io::FdFlags::CLOEXEC)?;
        }
        Ok(Self { shared: Arc::new(Shared { list: Mutex::default(), listed: Notify::new(), reader, writer }) })
    }

    /// The descriptor that becomes readable when something is ready.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.reader.as_fd()
    }

    /// Takes all that is ready, one call of `take` an exchange, in the order in which they became ready.
    pub fn drain<T>(&self, mut take: impl FnMut(u64, &Ready) -> T) -> Vec<T> {
        let mut sink = [0; 64];
        // The pipe is emptied first: an outbox listed from here on writes it anew.
        while matches!(rustix::io::read(&self.shared.reader, &mut sink), Ok(n) if n == sink.len()) {}
        let list = std::mem::take(&mut *locked(&self.shared.list));
        let piece = (DRAIN / list.len().max(1)).clamp(SHARE, PIECE);
        list.iter().filter_map(|outbox| outbox.take(piece, &mut take)).collect()
    }

    /// Wakes the reader when outboxes are ready, paced. Runs as long as the runtime.
    ///
    /// It becomes runnable behind all tasks that the same poll of the sockets woke, so that an engine's step for
    /// a hundred streams costs one wake-up.
    pub(crate) async fn notify(self) {
        let mut last: Option<Instant> = None;
        loop {
            self.shared.listed.notified().await;
            if let Some(wait) = last.and_then(|last| PACE.checked_sub(last.elapsed())) {
                tokio::time::sleep(wait).await;
            }
            last = Some(Instant::now());
            LULL.hand_over();
            // A full pipe is a reader that has been told and has not come yet.
            let _ = rustix::io::write(&self.shared.writer, &[1]);
        }
    }

    fn list(&self, outbox: Arc<Outbox>) {
        locked(&self.shared.list).push(outbox);
        self.shared.listed.notify_one();
    }
}

/// A lock whose holder panicked still holds whole values here: every change under it is one assignment or append.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(port: &Port) -> Vec<(u64, Vec<u8>)> {
        port.drain(|token, ready| (token, ready.body.to_vec()))
    }

    fn readable(port: &Port) -> bool {
        rustix::io::read(&port.shared.reader, &mut [0; 1]).is_ok()
    }

    #[tokio::test]
    async fn one_drain_takes_everything_of_a_stream() {
        let port = Port::new().unwrap();
        let outbox = Outbox::new(7, port.clone());
        outbox.body(b"a");
        outbox.body(b"b");
        assert_eq!(bodies(&port), [(7, b"ab".to_vec())]);
        assert!(bodies(&port).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn every_put_is_told_of() {
        let port = Port::new().unwrap();
        tokio::spawn(port.clone().notify());
        let outbox = Outbox::new(1, port.clone());
        for round in 0..50 {
            outbox.body(b"x");
            tokio::time::sleep(Duration::from_millis(round % 3)).await;
            tokio::time::sleep(PACE * 2).await;
            assert!(readable(&port), "round {round}");
            assert_eq!(bodies(&port).len(), 1);
        }
    }

    #[tokio::test]
    async fn a_held_stream_stays_until_released() {
        let port = Port::new().unwrap();
        let outbox = Outbox::new(1, port.clone());
        outbox.body(b"a");
        outbox.hold();
        assert!(bodies(&port).is_empty());
        outbox.end(b"{}".to_vec());
        assert!(bodies(&port).is_empty());
        outbox.release();
        assert_eq!(bodies(&port), [(1, b"a".to_vec())]);
    }

    #[tokio::test]
    async fn much_is_handed_over_in_pieces_until_the_end() {
        let port = Port::new().unwrap();
        let outbox = Outbox::new(1, port.clone());
        let drained = || port.drain(|_, ready| (ready.body.len(), ready.record.is_some()));
        outbox.body(&vec![7; 3 * PIECE]);
        assert_eq!(drained(), [(PIECE, false)]);
        outbox.end(b"{}".to_vec());
        assert_eq!(drained(), [(2 * PIECE, true)]);
        assert!(bodies(&port).is_empty());
    }

    #[tokio::test]
    async fn many_share_a_drain() {
        let port = Port::new().unwrap();
        let outboxes: Vec<_> = (1..=100).map(|token| Outbox::new(token, port.clone())).collect();
        for outbox in &outboxes {
            outbox.body(&vec![7; PIECE]);
        }
        let first = bodies(&port);
        assert_eq!(first.len(), 100);
        assert!(first.iter().all(|(_, body)| body.len() == DRAIN / 100));
        let mut total = DRAIN / 100 * 100;
        while total < 100 * PIECE {
            total += bodies(&port).iter().map(|(_, body)| body.len()).sum::<usize>();
        }
        assert_eq!(total, 100 * PIECE);
    }

    #[tokio::test]
    async fn high_water_stops_the_producer() {
        let port = Port::new().unwrap();
        let outbox = Outbox::new(1, port.clone());
        let producer = tokio::spawn({
            let outbox = Arc::clone(&outbox);
            async move {
                for _ in 0..10 {
                    if !outbox.body(&vec![0; HIGH_WATER]) {
                        outbox.room().await;
                    }
                }
            }
        });
        let mut total = 0;
        while total < 10 * HIGH_WATER {
            tokio::task::yield_now().await;
            for (_, body) in bodies(&port) {
                assert!(body.len() <= PIECE);
                total += body.len();
            }
        }
        producer.await.unwrap();
    }
}
