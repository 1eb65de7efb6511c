//! From the engine's answer to what the client reads: the one entry of the answer side.

use bytes::Bytes;

use crate::error::{Dialect, Fault};
use crate::profile::UsageMode;
use crate::request::{Ids, Route};
use crate::usage::EngineUsage;

/// What is known of an answer when it is over: for records and metrics, raw as the engine said it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The engine's own usage; fields that it did not report are `None`.
    pub usage: EngineUsage,
    /// `finish_reason` (chat) or `stop_reason` (Messages) as the engine said it.
    pub finish: Option<String>,
    /// Events (streams) read from the engine.
    pub events: u64,
    /// Frames that could not be read and were skipped.
    pub unreadable: u64,
}

/// What was asked, as far as the answer's reader must know. Filled by [`crate::request::prepare`].
#[derive(Clone, Debug)]
pub struct Ask {
    /// The client's route.
    pub route: Route,
    /// Whether `/v1/messages` went to the engine's own `/v1/messages` rather than to chat.
    pub native: bool,
    /// Whether the client asked for a stream.
    pub stream: bool,
    /// The model as requested; Messages answers carry it.
    pub model: String,
    /// Whether another name went upstream, so that answers of every dialect must be given the requested one back.
    pub model_mapped: bool,
    /// Whether `stream_options.include_usage` is Foreword's own: the client must not see its fruits.
    pub usage_injected: bool,
    /// How usage is told to Anthropic clients.
    pub usage: UsageMode,
    /// Randomness of this exchange.
    pub ids: Ids,
    /// For `count_tokens`: an estimate in tokens, used when the engine cannot count.
    pub estimate: u64,
    /// For `GET /v1/models`: whether the client speaks Anthropic (it sent `anthropic-version`).
    pub anthropic: bool,
}

/// What becomes of an answer with an error status.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// It passes to the client unchanged (OpenAI dialects).
    Pass,
    /// It is told to the client in its dialect.
    Fault(Fault),
    /// It is answered all the same, with status 200 (`count_tokens` by estimate).
    Answer(Bytes),
}

/// Reads one answer. Made by [`crate::request::prepare`], which knows what was asked.
pub struct Reader {
    _ask: Ask,
}

impl Reader {
    /// A reader for the answer to `ask`.
    pub fn new(ask: Ask) -> Self {
        Self { _ask: ask }
    }

    /// The dialect that the client expects errors in.
    pub fn dialect(&self) -> Dialect {
        unimplemented!()
    }

    /// Feeds raw body bytes of a streamed (SSE) 200 answer; appends what the client gets to `out`.
    /// Any cut of the input gives the same output.
    ///
    /// # Errors
    /// The engine failed in mid-stream (error event, unreadable end). What can still be said is in `out`
    /// already only if [`Reader::started`]; else the caller answers with the fault's own status.
    pub fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        let _ = (input, out);
        unimplemented!()
    }

    /// The stream's body ended (`cut` is `None`: cleanly at the HTTP level; `Some`: the transport failed or a
    /// time limit of Foreword's struck). Finishes the client's stream; a stream that the engine did not end
    /// itself becomes an error.
    pub fn end(&mut self, cut: Option<Fault>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let _ = (cut, out);
        unimplemented!()
    }

    /// Whether anything was written for the client yet (so the head has gone out with status 200).
    pub fn started(&self) -> bool {
        unimplemented!()
    }

    /// Writes what may be written early or in silence: for Messages `message_start` if none was sent and `ping`;
    /// nothing for OpenAI dialects. Always between whole events.
    pub fn ping(&mut self, out: &mut Vec<u8>) {
        let _ = out;
        unimplemented!()
    }

    /// Whether the engine stated its end ([DONE], message_stop): what follows is not needed.
    pub fn done(&self) -> bool {
        unimplemented!()
    }

    /// A whole (non-stream) 200 answer, decoded, in the client's form.
    pub fn whole(&mut self, body: &Bytes) -> Result<Bytes, Fault> {
        let _ = body;
        unimplemented!()
    }

    /// An answer with an error status (`body` decoded).
    pub fn refused(&mut self, status: u16, body: &[u8], retry_after: Option<&str>) -> Refused {
        let _ = (status, body, retry_after);
        unimplemented!()
    }

    /// Whether an error answer says that the engine does not take the `stream_options` which Foreword added:
    /// the request is then prepared again without, and that is remembered.
    pub fn refused_stream_options(&self, status: u16, body: &[u8]) -> bool {
        let _ = (status, body);
        unimplemented!()
    }

    /// What is known so far.
    pub fn summary(&self) -> &Summary {
        unimplemented!()
    }
}
