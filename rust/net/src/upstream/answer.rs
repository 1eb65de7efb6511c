//! The engine's answer: its head, and its body as it arrives.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use foreword_core::http1::{self, AnswerHead, Decoded, Malformed};
use http::Method;

use super::connection::Connection;
use super::pool::Pool;

/// Room made at once for a body that states its length; a lie costs no more than this.
const PRESIZE_AT_MOST: u64 = 8 * 1024 * 1024;

/// Why an answer did not come whole.
#[derive(Debug)]
pub enum Broken {
    /// The connection failed.
    Connection(io::Error),
    /// What came is no HTTP/1.1.
    Malformed(Malformed),
    /// The body is longer than was asked for.
    TooLong,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connection(error) => write!(f, "{error}"),
            Self::Malformed(reason) => write!(f, "{reason}"),
            Self::TooLong => write!(f, "its answer is too long"),
        }
    }
}

/// The engine's answer.
pub struct Answer {
    /// Status and headers.
    pub head: AnswerHead,
    /// The body, and with it the connection.
    pub body: AnswerBody,
    /// Whether the request had to be sent twice.
    pub retried: bool,
}

impl Answer {
    /// Waits for the head of the answer to a request of `method` that was begun on `connection`.
    ///
    /// # Errors
    /// Why there is none, and whether nothing at all was heard.
    pub(super) async fn head(connection: Connection, pool: Pool, method: &Method) -> Result<Self, (Broken, bool)> {
        let mut connection = connection;
        let mut bytes = Vec::new();
        loop {
            let arrived = poll_fn(|cx| {
                connection.poll_read(cx, |piece| {
                    bytes.extend_from_slice(piece);
                    piece.len()
                })
            });
            let read = match arrived.await {
                Ok(0) => Err(Broken::Malformed(Malformed::Cut)),
                Ok(_) => http1::read_head(&bytes, method).map_err(Broken::Malformed),
                Err(error) => Err(Broken::Connection(error)),
            };
            if let Some((head, framing, length)) = read.map_err(|broken| (broken, bytes.is_empty()))? {
                let early = bytes.split_off(length);
                let body = AnswerBody { connection, framing, early, keeps: head.keeps, pool };
                return Ok(Self { head, body, retried: false });
            }
        }
    }
}

/// The body of an answer. Reading it drives its connection: one task does both, so that an event wakes one.
///
/// Dropped, it closes the connection at once, whatever that was doing: so an engine learns that a client left.
pub struct AnswerBody {
    connection: Connection,
    framing: http1::Body,
    /// What arrived with the head.
    early: Vec<u8>,
    /// Whether the connection can be used again.
    keeps: bool,
    pool: Pool,
}

impl AnswerBody {
    /// Waits for more of the body and gives it to `take`; `None` at its end. Nothing is lost when the future is dropped.
    ///
    /// # Errors
    /// Why no more will come.
    pub async fn read<R>(&mut self, mut take: impl FnMut(&[u8]) -> R) -> Result<Option<R>, Broken> {
        poll_fn(|cx| self.poll(cx, &mut take)).await
    }

    /// Reads all that is left of the body.
    ///
    /// # Errors
    /// Why it did not come whole; [`Broken::TooLong`] beyond `limit` bytes.
    pub async fn collect(&mut self, limit: usize) -> Result<Bytes, Broken> {
        let stated = self.framing.stated().unwrap_or_default().min(PRESIZE_AT_MOST);
        let mut whole = Vec::with_capacity(usize::try_from(stated).unwrap_or_default());
        while self.read(|piece| whole.extend_from_slice(piece)).await?.is_some() {
            if whole.len() > limit {
                return Err(Broken::TooLong);
            }
        }
        Ok(whole.into())
    }

    /// Gives the connection back, if the body has been read to its end and the connection can be used again.
    pub fn give_back(self) {
        if self.keeps && self.framing.is_over() && self.connection.is_clear() {
            self.pool.put(self.connection);
        }
    }

    fn poll<R>(&mut self, cx: &mut Context<'_>, take: &mut impl FnMut(&[u8]) -> R) -> Poll<Result<Option<R>, Broken>> {
        if !self.early.is_empty() {
            let mut early = mem::take(&mut self.early);
            if let Some(taken) = decode(&mut self.framing, &mut self.keeps, &mut early, take)? {
                return Poll::Ready(Ok(Some(taken)));
            }
        }
        while !self.framing.is_over() {
            let Self { connection, framing, keeps, .. } = self;
            framing.check().map_err(Broken::Malformed)?;
            let taken = ready!(connection.poll_read(cx, |piece| {
                if piece.is_empty() {
                    return framing.close().map(|()| None).map_err(Broken::Malformed);
                }
                decode(framing, keeps, piece, take)
            }))
            .map_err(Broken::Connection)??;
            if taken.is_some() {
                return Poll::Ready(Ok(taken));
            }
        }
        Poll::Ready(Ok(None))
    }
}

/// What `take` makes of the content of `piece`, if there is any.
fn decode<R>(
    framing: &mut http1::Body,
    keeps: &mut bool,
    piece: &mut [u8],
    take: &mut impl FnMut(&[u8]) -> R,
) -> Result<Option<R>, Broken> {
    let Decoded { content, used } = framing.decode(piece).map_err(Broken::Malformed)?;
    // Nobody asked for what stands behind the end: who can tell what the next answer would be.
    *keeps &= used == piece.len();
    Ok((content > 0).then(|| take(piece.get(..content).unwrap_or_default())))
}
