//! One connection: what is written on it, a turn at a time, and what is read from it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::address::Duplex;
use crate::lull::{LULL, Lull, Who};

/// Bytes that one look at a socket reads at most.
const READ: usize = 64 * 1024;

/// Bytes of a request that are written before other exchanges have their turn: copying megabytes into the kernel at
/// once would hold up every stream, and every turn wakes the engine.
pub(super) const WRITE_TURN: usize = 256 * 1024;

/// Between two looks whether a turn may be taken.
const LOOK: Duration = Duration::from_millis(1);

/// Pieces that one system call writes.
const PIECES: usize = 16;

/// The kernel's timer of delayed acknowledgements. When it has run off, each segment is acknowledged by itself
/// again: that would be a quarter of the kernel's time for reading an event (measured).
const ACK_TIMER: Duration = Duration::from_millis(35);

thread_local! {
    /// Where everything is read into that this thread reads: an open stream has no buffer of its own.
    static ARRIVED: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ].into());
}

/// A connection to the engine. Dropped, it closes at once.
pub(super) struct Connection {
    stream: Box<dyn Duplex>,
    /// What is still to be written of the request.
    unsent: VecDeque<Bytes>,
    /// Where that is more than one turn's.
    turns: Option<Turns>,
    /// Whether all of it has left the stream, which may have a buffer of its own: TLS has.
    flushed: bool,
    /// Whether something can still be written.
    writes: bool,
    /// When something was read last.
    read: Instant,
}

impl Connection {
    pub(super) fn new(stream: Box<dyn Duplex>) -> Self {
        Self { stream, unsent: VecDeque::new(), turns: None, flushed: true, writes: true, read: Instant::now() }
    }

    /// Begins a request.
    pub(super) fn begin(&mut self, request: impl IntoIterator<Item = Bytes>) {
        self.unsent.extend(request.into_iter().filter(|piece| !piece.is_empty()));
        let large = self.unsent.iter().map(Bytes::len).sum::<usize>() > WRITE_TURN;
        self.turns = large.then(|| Turns::new(&LULL));
        self.flushed = false;
    }

    /// Whether a request that comes next can be told from the last one: all of that was written.
    pub(super) fn is_clear(&self) -> bool {
        self.writes && self.flushed
    }

    /// Whether an unused connection can still be used, as far as is known without writing on it.
    pub(super) fn is_alive(&mut self) -> bool {
        let mut byte = [0];
        let mut read = ReadBuf::new(&mut byte);
        Pin::new(&mut self.stream).poll_read(&mut Context::from_waker(Waker::noop()), &mut read).is_pending()
    }

    /// Writes what can be written now. An error is not told before all that the engine sent has been read: it may
    /// have answered a request that it did not want to read.
    pub(super) fn write(&mut self, cx: &mut Context<'_>) {
        if self.flushed {
            return;
        }
        match self.poll_write(cx) {
            Poll::Pending => (),
            Poll::Ready(outcome) => {
                self.writes = outcome.is_ok();
                self.unsent.clear();
                self.turns = None;
                self.flushed = true;
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(turns) = &mut self.turns {
            ready!(turns.poll_take(cx));
        }
        let mut left = WRITE_TURN;
        while !self.unsent.is_empty() {
            if left == 0 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let mut room = left;
            for (slot, piece) in pieces.iter_mut().zip(&self.unsent) {
                let length = piece.len().min(room);
                *slot = IoSlice::new(piece.get(..length).unwrap_or_default());
                room -= length;
            }
            let mut written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, &pieces))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            left -= written.min(left);
            while let Some(piece) = self.unsent.front_mut() {
                let count = written.min(piece.len());
                piece.advance(count);
                written -= count;
                if !piece.is_empty() {
                    break;
                }
                self.unsent.pop_front();
            }
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Reads what has arrived and gives it to `take`, nothing at the connection's end; goes on writing meanwhile.
    pub(super) fn poll_read<R>(
        &mut self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&mut [u8]) -> R,
    ) -> Poll<io::Result<R>> {
        self.write(cx);
        ARRIVED.with_borrow_mut(|arrived| {
            let mut read = ReadBuf::new(arrived);
            let now = Instant::now();
            if now - self.read > ACK_TIMER {
                self.stream.delay_acknowledgements();
            }
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read))?;
            self.read = now;
            Poll::Ready(Ok(take(read.filled_mut())))
        })
    }
}

/// How many large requests there were.
static LARGE: AtomicU64 = AtomicU64::new(0);

/// The turns of a large request.
pub(super) struct Turns {
    /// When the last one was taken.
    taken: Instant,
    /// Until the next look, while none may be.
    pause: Option<Pin<Box<Sleep>>>,
    who: Who,
    lull: &'static Lull,
}

impl Turns {
    pub(super) fn new(lull: &'static Lull) -> Self {
        let number = LARGE.fetch_add(1, Ordering::Relaxed);
        Self { taken: Instant::now(), pause: None, who: Who::Going(number), lull }
    }

    /// Ready when the next turn may be taken.
    pub(super) fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
            }
            if self.lull.may_move(self.who, self.taken.elapsed(), false) {
                self.taken = Instant::now();
                self.pause = None;
                return Poll::Ready(());
            }
            self.pause = Some(Box::pin(sleep(LOOK)));
        }
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.lull.over(self.who);
    }
}
