//! Chat and completions: each event is copied as it came. Only what names usage, an error or an end is looked into.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::{Fate, rename, write_event};
use crate::answer::{Ask, Summary};
use crate::error::{Dialect, Fault};
use crate::json::{Edits, Tape, Value};
use crate::sse::{Event, Splitter};
use crate::translate::error::from_frame;
use crate::wire::chat::Chunk;

static USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"usage\""));
static ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"error\""));
static FINISH: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"finish_reason\""));

/// Passes one stream.
#[derive(Debug)]
pub(crate) struct Relay {
    splitter: Splitter,
    tape: Tape,
    state: State,
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
struct State {
    /// The name to give back, where another went upstream.
    model: Option<String>,
    /// Whether usage is here only because Foreword asked for it.
    hide_usage: bool,
    summary: Summary,
    /// What the engine itself said of a failure. The client has read it.
    failed: Option<Fault>,
    started: bool,
    heard: bool,
    done: bool,
}

impl Relay {
    pub(crate) fn new(ask: &Ask) -> Self {
        let state = State {
            model: ask.model_mapped.then(|| ask.model.clone()),
            hide_usage: ask.usage_injected,
            summary: Summary::default(),
            failed: None,
            started: false,
            heard: false,
            done: false,
        };
        Self { splitter: Splitter::new(), tape: Tape::new(), state }
    }

    /// Copies what the engine sent.
    ///
    /// # Errors
    /// An event is longer than any engine's.
    pub(crate) fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        let Self { splitter, tape, state } = self;
        let result = splitter.feed(input, |event| {
            state.event(event, tape, out);
            Ok(())
        });
        result.map_err(|fault| state.fail(fault, out))
    }

    /// Ends the stream. Where the engine did not end it, an error event is written and no `[DONE]`.
    ///
    /// # Errors
    /// The stream broke off, or the engine itself told of an error in it.
    pub(crate) fn end(&mut self, cut: Option<Fault>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let Self { splitter, tape, state } = self;
        let mut open = false;
        splitter.finish(|event| -> Result<(), Fault> {
            // A broken half of an event would make the client fail on the error that follows.
            let whole = event.data_lines().all(|data| data.trim_ascii() == b"[DONE]" || tape.scan(data).is_ok());
            if whole || state.is_ended() {
                state.event(event, tape, out);
                open = true;
            }
            Ok(())
        })?;
        if state.is_ended() {
            return state.failed.take().map_or(Ok(()), Err);
        }
        if open {
            out.extend_from_slice(b"\n\n");
        }
        let broken = || if state.heard { Fault::unfinished() } else { Fault::empty() };
        Err(state.fail(cut.unwrap_or_else(broken), out))
    }

    pub(crate) fn started(&self) -> bool {
        self.state.started
    }

    pub(crate) fn done(&self) -> bool {
        self.state.done
    }

    pub(crate) fn summary(&self) -> &Summary {
        &self.state.summary
    }
}

impl State {
    fn event(&mut self, event: Event<'_>, tape: &mut Tape, out: &mut Vec<u8>) {
        let raw = event.raw();
        let has_data = raw.starts_with(b"data") || event.data_lines().next().is_some();
        let start = out.len();
        self.summary.events += u64::from(has_data);
        if !has_data && let Some(Ok(error)) = event.error().map(|error| tape.scan(error)) {
            self.failed = Some(from_frame(error));
        }
        if self.model.is_none() && !is_notable(raw) {
            self.heard |= has_data;
            out.extend_from_slice(raw);
        } else {
            write_event(event, out, |data| self.line(data, tape));
        }
        self.started |= out.len() > start;
    }

    fn line(&mut self, data: &[u8], tape: &mut Tape) -> Fate {
        if data.trim_ascii() == b"[DONE]" {
            self.done = true;
            return Fate::Stays;
        }
        let Ok(root) = tape.scan(data) else {
            self.summary.unreadable += u64::from(!data.is_empty());
            return Fate::Stays;
        };
        self.heard = true;
        let chunk = Chunk::read(root);
        self.note(&chunk);
        let mut edits = Edits::new();
        if self.hide_usage {
            if chunk.brings_only_usage() {
                return Fate::Goes;
            }
            edits.remove_member(root, "usage");
        }
        if let Some(model) = &self.model {
            rename(&mut edits, root, model);
        }
        if edits.is_empty() { Fate::Stays } else { Fate::Changes(edits) }
    }

    fn note(&mut self, chunk: &Chunk<'_>) {
        note(chunk, &mut self.summary);
        if let Some(error) = chunk.error {
            self.failed = Some(from_frame(error));
        }
    }

    /// Whether the engine said that this is all: by an end, or by an error.
    fn is_ended(&self) -> bool {
        self.done || self.summary.finish.is_some() || self.failed.is_some()
    }

    fn fail(&self, fault: Fault, out: &mut Vec<u8>) -> Fault {
        if self.started {
            out.extend_from_slice(&fault.event(Dialect::OpenAi));
        }
        fault
    }
}

/// Notes usage and end of a chunk or a whole answer.
fn note(chunk: &Chunk<'_>, summary: &mut Summary) {
    if let Some(usage) = chunk.usage {
        summary.usage.note_openai(usage);
    }
    if let Some(timings) = chunk.timings {
        summary.usage.note_timings(timings);
    }
    for choice in chunk.first_choice() {
        if let Some(usage) = choice.usage.filter(|_| chunk.usage.is_none()) {
            summary.usage.note_openai(usage);
        }
        if let Some(finish) = choice.finish {
            summary.finish = Some(finish.decode().into_owned());
        }
    }
}

/// Notes what a whole answer says; the edits that give the client its model name back.
pub(crate) fn whole(root: Value<'_>, ask: &Ask, summary: &mut Summary) -> Edits {
    note(&Chunk::read(root), summary);
    let mut edits = Edits::new();
    if ask.model_mapped {
        rename(&mut edits, root, &ask.model);
    }
    edits
}

/// Whether an event may say more than the next piece of text: a quick look that is never wrong when it says no.
fn is_notable(raw: &[u8]) -> bool {
    // The shortest chunk of text is longer than [DONE] or a comment.
    raw.len() < 64 || USAGE.find(raw).is_some() || ERROR.find(raw).is_some() || has_finish(raw)
}

/// Whether some `finish_reason` is not null.
fn has_finish(raw: &[u8]) -> bool {
    FINISH.find_iter(raw).any(|at| {
        let value = raw[at + FINISH.needle().len()..].trim_ascii_start();
        !value.strip_prefix(b":").is_some_and(|value| value.trim_ascii_start().starts_with(b"null"))
    })
}
