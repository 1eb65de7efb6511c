//! From a client's request to what goes upstream: the one entry of the request side.

use bytes::Bytes;

use crate::answer::Reader;
use crate::error::Fault;
use crate::json::Rope;
use crate::profile::Profile;

/// What a path is, as far as core cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// POST /v1/messages
    Messages,
    /// POST /v1/messages/count_tokens
    CountTokens,
    /// POST /v1/chat/completions
    Chat,
    /// POST /v1/completions
    Completions,
    /// POST /v1/responses
    Responses,
    /// GET /v1/models
    Models,
    /// Anything else: passes untouched.
    Other,
}

/// One request as core sees it.
#[derive(Clone, Debug)]
pub struct Request {
    /// Where it was sent.
    pub route: Route,
    /// Its body, already decoded; empty for GET.
    pub body: Bytes,
    /// Whether it carried `anthropic-version`.
    pub anthropic: bool,
}

/// What the rules and the translator did, for `x-foreword`, counters and the exchange record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Names of rules that changed the request, in the order of docs/rules.md.
    pub rules: Vec<&'static str>,
    /// Names of rules that met a shape which they do not know and so left alone.
    pub unknown: Vec<&'static str>,
    /// What the translator left out: server tools by type, block types, fields.
    pub dropped: Vec<String>,
}

/// A request ready to be sent.
pub struct Prepared {
    /// Path (and query) upstream; `None` keeps the client's.
    pub path: Option<&'static str>,
    /// The body upstream.
    pub body: Rope,
    /// How the engine's answer is to be read.
    pub reader: Reader,
    /// What was done.
    pub notes: Notes,
    /// The model as requested, as far as it could be read (at most 256 bytes).
    pub model: Option<String>,
    /// Whether the client asked for a stream.
    pub stream: bool,
}

/// Prepares one request. `body` is already decoded (see [`crate::encoding`]).
///
/// A body that a pass-through route cannot read goes upstream as it came: the engine answers for it.
///
/// # Errors
/// A [`Fault`] of the client where a translated route cannot be read (not JSON, not UTF-8, `messages` missing, ...).
pub fn prepare(request: Request, profile: &Profile, ids: Ids) -> Result<Prepared, Fault> {
    let _ = (request, profile, ids);
    unimplemented!()
}

/// Fresh randomness of one exchange, from outside: core itself stays deterministic.
#[derive(Clone, Copy, Debug)]
pub struct Ids {
    /// 128 random bits: message ids and generated tool ids are drawn from it.
    pub seed: u128,
}
