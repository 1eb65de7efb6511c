//! One exchange as its opener sees it.

use bytes::Bytes;
use foreword_core::request::Route;

use crate::gathering::Content;

/// Status and headers of an answer, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// HTTP status.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: Vec<(Bytes, Bytes)>,
}

/// What a client sent.
#[derive(Clone, Debug)]
pub struct Opening {
    /// Which path it is.
    pub route: Route,
    /// Whether it is a question of Foreword's own: then it is not counted.
    pub own: bool,
    /// HTTP method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Headers, names in lower case.
    pub headers: Vec<(Bytes, Bytes)>,
    /// The body as received.
    pub body: Content,
    /// The id told to the client as `request-id`.
    pub request_id: String,
    /// `Authorization` upstream; the client's own credentials never pass by themselves.
    pub authorization: Option<Bytes>,
}

impl Opening {
    /// The first header of this name, as text.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(key, _)| key.as_ref() == name.as_bytes())?;
        std::str::from_utf8(value).ok()
    }
}
