//! HTTP/1.1 towards the engine, without I/O: a request's head as bytes, an answer's head and body from bytes
//! (RFC 9110, RFC 9112).
//!
//! It stands here and not in a library because an event passes it: a body is decoded in place, in the one buffer that
//! its bytes were read into, so that an open stream holds no buffer.

use std::fmt;

mod body;
mod head;

pub use body::{Body, Decoded};
pub use head::{AnswerHead, HEAD_BYTES, read_head, write_head};

/// What is no HTTP/1.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The head of the answer, for this reason.
    Head(&'static str),
    /// The sizes between the pieces of a chunked body.
    Chunk,
    /// The answer was cut off before its end.
    Cut,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(reason) => write!(f, "the head of its answer is no HTTP/1.1: {reason}"),
            Self::Chunk => write!(f, "its answer has a malformed chunk"),
            Self::Cut => write!(f, "the connection closed before the answer was complete"),
        }
    }
}

impl std::error::Error for Malformed {}
