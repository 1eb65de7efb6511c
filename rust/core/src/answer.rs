//! From the engine's answer to what the client reads: the one entry of the answer side.

use bytes::Bytes;

use crate::error::{Dialect, Fault};
use crate::json::{Edits, Tape, Value};
use crate::profile::{Added, UsageMode};
use crate::relay;
use crate::request::{Ids, Route};
use crate::translate::models::{self, Wanted};
use crate::translate::{count, error, response, stream};
use crate::usage::EngineUsage;

/// What is known of an answer when it is over: for records and metrics, raw as the engine said it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The engine's own usage; fields that it did not report are `None`.
    pub usage: EngineUsage,
    /// The answer's id as the client was told it, where the route has one that requests can name later.
    pub message_id: Option<String>,
    /// `finish_reason` (chat) or `stop_reason` (Messages) as the engine said it.
    pub finish: Option<String>,
    /// Events (streams) read from the engine.
    pub events: u64,
    /// Frames that could not be read and were skipped.
    pub unreadable: u64,
}

/// What was asked, as far as the answer's reader must know. Filled by [`crate::request::prepare`].
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
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
    /// The value of `reasoning_effort` that Foreword made of the client's effort, if any went upstream.
    pub effort: Option<&'static str>,
    /// How usage is told to Anthropic clients.
    pub usage: UsageMode,
    /// Randomness of this exchange.
    pub ids: Ids,
    /// For `count_tokens`: an estimate in tokens, used when the engine cannot count.
    pub estimate: u64,
    /// JSON of the vendor's own cache diagnostics, where the request asked for them.
    pub diagnostics: Option<String>,
    /// For `GET /v1/models`: whether the client speaks Anthropic (it sent `anthropic-version`).
    pub anthropic: bool,
    /// For `GET /v1/models`: further names and the models that they stand for.
    pub aliases: Vec<(String, String)>,
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
#[derive(Debug)]
pub struct Reader {
    ask: Ask,
    stream: Stream,
    /// What is known of an answer that was read whole.
    summary: Summary,
    estimated: bool,
    /// The model that is asked for, where it is one.
    wanted: Option<Wanted>,
}

/// How a stream is read.
#[derive(Debug)]
enum Stream {
    /// Chat into Messages.
    Translated(Box<stream::Stream>),
    /// The engine's own Messages.
    Messages(Box<relay::messages::Relay>),
    /// Chat and completions.
    Chat(Box<relay::chat::Relay>),
    Responses(Box<relay::responses::Relay>),
    /// Bytes that nobody looks at. Whether there were any.
    Plain(bool),
}

/// Calls the same method on whatever machine reads the stream.
macro_rules! on_machine {
    ($stream:expr, $machine:ident => $call:expr, $any:ident => $plain:expr) => {
        match $stream {
            Stream::Translated($machine) => $call,
            Stream::Messages($machine) => $call,
            Stream::Chat($machine) => $call,
            Stream::Responses($machine) => $call,
            Stream::Plain($any) => $plain,
        }
    };
}

impl Reader {
    /// A reader for the answer to `ask`.
    pub fn new(ask: Ask) -> Self {
        let stream = match ask.route {
            Route::Messages if ask.native => Stream::Messages(Box::new(relay::messages::Relay::new(&ask))),
            Route::Messages => Stream::Translated(Box::new(stream::Stream::new(&ask))),
            Route::Chat | Route::Completions => Stream::Chat(Box::new(relay::chat::Relay::new(&ask))),
            Route::Responses => Stream::Responses(Box::new(relay::responses::Relay::new(&ask))),
            Route::CountTokens | Route::Models | Route::Model | Route::Other => Stream::Plain(false),
        };
        Self { ask, stream, summary: Summary::default(), estimated: false, wanted: None }
    }

    /// Also tells the client this diagnosis of its cache: JSON of the vendor's form. To be said before anything is read.
    pub fn tell_diagnostics(&mut self, diagnostics: String) {
        *self = Self::new(Ask { diagnostics: Some(diagnostics), ..self.ask.clone() });
    }

    /// Of the engine's models only this one is told: by the `name` that the client gave it, which may stand for the
    /// `served` one. To be said before anything is read.
    pub fn want_model(&mut self, name: String, served: Option<String>) {
        self.wanted = Some(Wanted { name, served });
    }

    /// The dialect that the client expects errors in.
    pub fn dialect(&self) -> Dialect {
        match self.ask.route {
            Route::Messages | Route::CountTokens => Dialect::Messages,
            Route::Models | Route::Model if self.ask.anthropic => Dialect::Messages,
            _ => Dialect::OpenAi,
        }
    }

    /// Feeds raw body bytes of a streamed (SSE) 200 answer; appends what the client gets to `out`.
    /// Any cut of the input gives the same output.
    ///
    /// # Errors
    /// The engine failed in mid-stream (error event, unreadable end). What can still be said is in `out`
    /// already only if [`Reader::started`]; else the caller answers with the fault's own status.
    pub fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        on_machine!(&mut self.stream, machine => machine.feed(input, out), any => {
            *any |= !input.is_empty();
            out.extend_from_slice(input);
            Ok(())
        })
    }

    /// The stream's body ended (`cut` is `None`: cleanly at the HTTP level; `Some`: the transport failed or a
    /// time limit of Foreword's struck). Finishes the client's stream; a stream that the engine did not end
    /// itself becomes an error.
    ///
    /// # Errors
    /// The stream broke off: what can be said of it is in `out` if [`Reader::started`]. On OpenAI routes also an
    /// error that the engine told in the stream itself; the client has read that one already.
    pub fn end(&mut self, cut: Option<Fault>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let dialect = self.dialect();
        on_machine!(&mut self.stream, machine => machine.end(cut, out), any => {
            let Some(fault) = cut else { return Ok(()) };
            if *any {
                out.extend_from_slice(&fault.event(dialect));
            }
            Err(fault)
        })
    }

    /// Whether anything was written for the client yet (so the head has gone out with status 200).
    pub fn started(&self) -> bool {
        on_machine!(&self.stream, machine => machine.started(), any => *any)
    }

    /// Writes what may be written early or in silence: for Messages `message_start` if none was sent and `ping`;
    /// nothing for OpenAI dialects. Always between whole events.
    pub fn ping(&mut self, out: &mut Vec<u8>) {
        match &mut self.stream {
            Stream::Translated(machine) => machine.ping(out),
            Stream::Messages(machine) => machine.ping(out),
            _ => {}
        }
    }

    /// Whether the engine stated its end (`[DONE]`, `message_stop`): what follows is not needed.
    pub fn done(&self) -> bool {
        on_machine!(&self.stream, machine => machine.done(), _any => false)
    }

    /// A whole (non-stream) 200 answer, decoded, in the client's form.
    ///
    /// # Errors
    /// A Messages answer that is empty, cannot be read, or tells of a failure. Other routes' bodies pass as they are.
    pub fn whole(&mut self, body: &Bytes) -> Result<Bytes, Fault> {
        match self.ask.route {
            Route::Messages if !self.ask.native => {
                response::message(body, &self.ask, &mut self.summary).map(Bytes::from)
            }
            Route::CountTokens if self.ask.native => Ok(body.clone()),
            Route::CountTokens => Ok(match count::tokens(body) {
                Some(tokens) => Bytes::from(count::answer(tokens)),
                None => self.estimate(),
            }),
            Route::Models if self.ask.anthropic => models::anthropic(body, &self.ask.aliases).map(Bytes::from),
            Route::Model => match &self.wanted {
                Some(wanted) => models::one(body, wanted, self.ask.anthropic).map(Bytes::from),
                None => Ok(body.clone()),
            },
            Route::Models | Route::Other => Ok(body.clone()),
            _ => self.passed(body),
        }
    }

    /// A whole 200 answer of an engine that was asked for a stream, as the stream that the client asked for. Only
    /// a translated Messages answer has another form for it; others pass as they are.
    ///
    /// # Errors
    /// As [`Reader::feed`] and [`Reader::whole`].
    pub fn whole_as_stream(&mut self, body: &Bytes, out: &mut Vec<u8>) -> Result<(), Fault> {
        if let Stream::Translated(machine) = &mut self.stream {
            return machine.whole(body, out);
        }
        out.extend_from_slice(&self.whole(body)?);
        Ok(())
    }

    /// An answer with an error status (`body` decoded).
    pub fn refused(&mut self, status: u16, body: &[u8], retry_after: Option<&str>) -> Refused {
        if self.ask.route == Route::CountTokens && count::cannot_count(status, body) {
            return Refused::Answer(self.estimate());
        }
        match self.dialect() {
            Dialect::Messages => Refused::Fault(error::from_answer(status, body, retry_after)),
            Dialect::OpenAi => Refused::Pass,
        }
    }

    /// What an error answer says, for records: its kind and whose fault it is.
    pub fn understand(status: u16, body: &[u8]) -> Fault {
        error::from_answer(status, body, None)
    }

    /// What of Foreword's own an error answer says that the engine does not take: the request is then prepared again
    /// without, and that is remembered.
    ///
    /// Of an effort the chat template says so; llama.cpp, and vLLM before 0.28, tell it with 500.
    pub fn refused_addition(&self, status: u16, body: &[u8]) -> Option<Added> {
        let says = |words: [&str; 2]| words.iter().any(|word| memchr::memmem::find(body, word.as_bytes()).is_some());
        let options = || self.ask.usage_injected && says(["stream_options", "include_usage"]);
        let effort = || self.ask.effort.filter(|_| says(["reasoning effort", "reasoning_effort"])).map(Added::Effort);
        match status {
            400 | 422 if options() => Some(Added::StreamOptions),
            400 | 422 | 500 => effort(),
            _ => None,
        }
    }

    /// Whether the answer to `count_tokens` is Foreword's estimate, not the engine's count.
    pub fn estimated(&self) -> bool {
        self.estimated
    }

    /// What is known so far.
    pub fn summary(&self) -> &Summary {
        // An answer is read as a stream or whole, never both: the other summary is still empty.
        let stream = on_machine!(&self.stream, machine => machine.summary(), _any => &self.summary);
        if *stream == Summary::default() { &self.summary } else { stream }
    }

    fn estimate(&mut self) -> Bytes {
        self.estimated = true;
        Bytes::from(count::answer(self.ask.estimate))
    }

    /// A whole answer in its own dialect: noted, and edited where the law says so.
    fn passed(&mut self, body: &Bytes) -> Result<Bytes, Fault> {
        let mut tape = Tape::new();
        let Ok(root) = tape.scan(body) else {
            let is_message = self.ask.route == Route::Messages;
            return if is_message { Err(Fault::broken("it is not JSON")) } else { Ok(body.clone()) };
        };
        let edits = self.edits(root)?;
        Ok(if edits.is_empty() { body.clone() } else { Bytes::from(edits.apply(body).to_vec()) })
    }

    fn edits(&mut self, root: Value<'_>) -> Result<Edits, Fault> {
        let (ask, summary) = (&self.ask, &mut self.summary);
        match ask.route {
            Route::Messages => relay::messages::whole(root, ask, summary),
            Route::Responses => Ok(relay::responses::whole(root, ask, summary)),
            _ => Ok(relay::chat::whole(root, ask, summary)),
        }
    }
}
