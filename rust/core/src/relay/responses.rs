//! Responses streams: events pass as they came; the last one tells usage.

use memchr::{memchr_iter, memmem};

use super::{Fate, identity, rename, write_event};
use crate::answer::{Ask, Summary};
use crate::error::Fault;
use crate::json::{Edits, Kind, Tape, Text, Value};
use crate::sse::{Event, Splitter};
use crate::translate::{error::from_frame, write_str};

const SEQUENCE: &[u8] = b"\"sequence_number\":";

/// Passes one stream.
#[derive(Debug)]
pub(crate) struct Relay {
    splitter: Splitter,
    tape: Tape,
    state: State,
}

#[derive(Debug)]
struct State {
    model: Option<String>,
    diagnostics: Option<String>,
    /// `id`, `created_at` and `model` of the response under way, as JSON.
    response: [Option<Vec<u8>>; 3],
    sequence: u64,
    summary: Summary,
    failed: Option<Fault>,
    started: bool,
    done: bool,
}

impl Relay {
    pub(crate) fn new(ask: &Ask) -> Self {
        let state = State {
            model: ask.model_mapped.then(|| ask.model.clone()),
            diagnostics: ask.diagnostics.clone(),
            response: [None, None, None],
            sequence: 0,
            summary: Summary::default(),
            failed: None,
            started: false,
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

    /// Ends the stream. Where the engine did not end it, `response.failed` does.
    ///
    /// # Errors
    /// The stream broke off, or the engine itself told of an error in it.
    pub(crate) fn end(&mut self, cut: Option<Fault>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let Self { splitter, tape, state } = self;
        let mut open = false;
        splitter.finish(|event| -> Result<(), Fault> {
            if state.done || event.data_lines().all(|data| tape.scan(data).is_ok()) {
                state.event(event, tape, out);
                open = true;
            }
            Ok(())
        })?;
        if state.done || state.failed.is_some() {
            return state.failed.take().map_or(Ok(()), Err);
        }
        if open {
            out.extend_from_slice(b"\n\n");
        }
        let incomplete = || Fault::broken("it ended before the response was complete");
        let broken = || if state.started { incomplete() } else { Fault::empty() };
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
        let name = event.name();
        self.summary.events += 1;
        self.started = true;
        if let Some(at) = memmem::rfind(raw, SEQUENCE) {
            self.sequence = number(&raw[at + SEQUENCE.len()..]).unwrap_or(self.sequence);
        }
        // Whole responses come with names of one dot (`response.completed`), errors with none.
        let is_plain = name.is_some_and(|name| memchr_iter(b'.', name).count() > 1);
        if is_plain {
            out.extend_from_slice(raw);
        } else {
            write_event(event, out, |data| self.line(data, name, tape));
        }
    }

    fn line(&mut self, data: &[u8], name: Option<&[u8]>, tape: &mut Tape) -> Fate {
        let Ok(root) = tape.scan(data) else {
            self.done |= data.trim_ascii() == b"[DONE]";
            return Fate::Stays;
        };
        let kind = root.get("type").and_then(Value::as_text).map(Text::decode);
        let kind = kind.as_deref().or_else(|| name.and_then(|name| std::str::from_utf8(name).ok())).unwrap_or_default();
        let response = root.get("response");
        match kind {
            "response.completed" | "response.incomplete" => self.done = true,
            "response.failed" => self.failed = Some(from_frame(response.unwrap_or(root))),
            "error" => self.failed = Some(from_frame(root)),
            // An error frame of the chat kind.
            _ if kind.is_empty() && root.get("error").is_some_and(|error| !error.is_null()) => {
                self.failed = Some(from_frame(root));
            }
            _ => {}
        }
        let Some(response) = response else { return Fate::Stays };
        note(response, &mut self.summary);
        for (name, field) in ["id", "created_at", "model"].into_iter().zip(&mut self.response) {
            *field = response.get(name).map(|value| value.raw().to_vec());
        }
        let mut edits = Edits::new();
        diagnose(&mut edits, response, self.diagnostics.as_deref());
        if let Some(model) = &self.model {
            rename(&mut edits, response, model);
        }
        if edits.is_empty() { Fate::Stays } else { Fate::Changes(edits) }
    }

    /// Ends the client's stream with the event that the API has for it.
    fn fail(&self, fault: Fault, out: &mut Vec<u8>) -> Fault {
        if !self.started {
            return fault;
        }
        let sequence = self.sequence + 1;
        out.extend_from_slice(
            format!("event: response.failed\ndata: {{\"type\":\"response.failed\",\"sequence_number\":{sequence},\"response\":{{").as_bytes(),
        );
        for (name, field) in ["id", "created_at", "model"].into_iter().zip(&self.response) {
            out.extend_from_slice(format!("\"{name}\":").as_bytes());
            match (name, field, &self.model) {
                ("model", _, Some(model)) => write_str(model, out),
                (_, Some(field), _) => out.extend_from_slice(field),
                _ => out.extend_from_slice(b"null"),
            }
            out.push(b',');
        }
        out.extend_from_slice(br#""object":"response","status":"failed","error":{"code":"server_error","message":"#);
        write_str(&fault.message, out);
        out.extend_from_slice(b"},\"incomplete_details\":null,\"output\":[],\"usage\":null}}\n\n");
        fault
    }
}

/// Adds the cache diagnostics that the client asked for, in place of the null that an engine may send.
fn diagnose(edits: &mut Edits, response: Value<'_>, diagnostics: Option<&str>) {
    if let Some(diagnostics) = diagnostics.filter(|_| response.kind() == Kind::Object) {
        match response.get("prompt_cache_diagnostics") {
            Some(own) => edits.replace(own.span(), diagnostics.as_bytes()),
            None => edits.add_member(response, &format!("\"prompt_cache_diagnostics\":{diagnostics}")),
        }
    }
}

/// Notes id, usage and status of a response object.
fn note(response: Value<'_>, summary: &mut Summary) {
    if summary.message_id.is_none() {
        summary.message_id = identity(response);
    }
    if let Some(usage) = response.get("usage") {
        summary.usage.note_openai(usage);
    }
    if let Some(status) = response.get("status").and_then(Value::as_text)
        && !status.is("in_progress")
        && !status.is("queued")
    {
        summary.finish = Some(status.decode().into_owned());
    }
}

/// Notes what a whole response says; the edits that give the client its model name back.
pub(crate) fn whole(root: Value<'_>, ask: &Ask, summary: &mut Summary) -> Edits {
    note(root, summary);
    let mut edits = Edits::new();
    diagnose(&mut edits, root, ask.diagnostics.as_deref());
    if ask.model_mapped {
        rename(&mut edits, root, &ask.model);
    }
    edits
}

/// The digits at the head of `text`, behind white space.
fn number(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii_start();
    let len = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..len]).ok()?.parse().ok()
}
