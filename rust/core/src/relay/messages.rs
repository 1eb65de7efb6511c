//! The engine's own Messages streams: events pass as they came, with usage put right and failures well formed.

use super::{Fate, identity, rename, write_event};
use crate::answer::{Ask, Summary};
use crate::error::{Dialect, Fault};
use crate::json::{Edits, Kind, Tape, Text, Value};
use crate::sse::{Event, Splitter};
use crate::translate::error::from_frame;
use crate::translate::{ids, stream};
use crate::usage::ClientUsage;

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
    ask: Ask,
    summary: Summary,
    started: bool,
    /// Foreword wrote a head of its own before the engine's came.
    headed: bool,
    /// `message_stop`, or an error: nothing more is written.
    over: bool,
    done: bool,
}

impl Relay {
    pub(crate) fn new(ask: &Ask) -> Self {
        let state = State {
            ask: ask.clone(),
            summary: Summary::default(),
            started: false,
            headed: false,
            over: false,
            done: false,
        };
        Self { splitter: Splitter::new(), tape: Tape::new(), state }
    }

    /// Copies what the engine sent.
    ///
    /// # Errors
    /// The engine failed. If the client has its head already, the error event is in `out`.
    pub(crate) fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        let Self { splitter, tape, state } = self;
        let result = splitter.feed(input, |event| state.event(event, tape, out));
        result.map_err(|fault| state.fail(fault, out))
    }

    /// Ends the stream. An end that the engine did not state is an error.
    pub(crate) fn end(&mut self, cut: Option<Fault>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let Self { splitter, tape, state } = self;
        let rest = splitter.finish(|event| {
            let whole = event.data_lines().all(|data| tape.scan(data).is_ok());
            if !whole {
                return Ok(());
            }
            let start = out.len();
            state.event(event, tape, out)?;
            if out.len() > start {
                out.extend_from_slice(b"\n\n");
            }
            Ok(())
        });
        let result = rest.and_then(|()| state.close(cut, out));
        result.map_err(|fault| state.fail(fault, out))
    }

    pub(crate) fn ping(&mut self, out: &mut Vec<u8>) {
        let state = &mut self.state;
        if state.over {
            return;
        }
        if !state.started {
            let Ask { ids, model, diagnostics, .. } = &state.ask;
            let id = ids::message(*ids);
            stream::write_head(&id, model, ClientUsage::default(), diagnostics.as_deref(), out);
            (state.started, state.headed) = (true, true);
        }
        out.extend_from_slice(stream::PING);
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
    fn event(&mut self, event: Event<'_>, tape: &mut Tape, out: &mut Vec<u8>) -> Result<(), Fault> {
        let has_data = event.data_lines().next().is_some();
        if self.over || (!has_data && !self.started) {
            return Ok(());
        }
        self.summary.events += u64::from(has_data);
        // The bulk: blocks and pings. An event without a name is looked into.
        let is_plain = event.name().is_some_and(|name| name.starts_with(b"content_block_") || name == b"ping");
        if is_plain || !has_data {
            self.started = true;
            out.extend_from_slice(event.raw());
            return Ok(());
        }
        let mut fault = None;
        let start = out.len();
        write_event(event, out, |data| {
            self.line(data, tape).unwrap_or_else(|told| {
                fault = Some(told);
                Fate::Goes
            })
        });
        if let Some(fault) = fault {
            out.truncate(start);
            return Err(fault);
        }
        self.started |= out.len() > start;
        Ok(())
    }

    fn line(&mut self, data: &[u8], tape: &mut Tape) -> Result<Fate, Fault> {
        let Ok(root) = tape.scan(data) else {
            // vLLM has no [DONE] here; if another engine has, it is not part of the protocol.
            self.summary.unreadable += u64::from(data.trim_ascii() != b"[DONE]");
            return Ok(Fate::Goes);
        };
        let mut edits = Edits::new();
        let kind = root.get("type").and_then(Value::as_text).map(Text::decode).unwrap_or_default();
        match &*kind {
            "message_start" => {
                if self.headed {
                    return Ok(Fate::Goes);
                }
                self.start(root, &mut edits);
            }
            "message_delta" => self.delta(root, &mut edits),
            "message_stop" => (self.over, self.done) = (true, true),
            "error" => return Err(from_frame(root)),
            _ if root.get("error").is_some_and(|error| !error.is_null()) => return Err(from_frame(root)),
            _ => {}
        }
        Ok(if edits.is_empty() { Fate::Stays } else { Fate::Changes(edits) })
    }

    /// Start usage that does not know of the cache is the whole prompt as new input: zeros, until the end tells.
    fn start(&mut self, root: Value<'_>, edits: &mut Edits) {
        let Some(message) = root.get("message") else { return };
        self.summary.message_id = identity(message);
        diagnose(edits, message, &self.ask);
        let reported = message.get("usage").filter(|usage| usage.kind() == Kind::Object);
        if let Some(usage) = reported {
            self.summary.usage.note_messages(usage);
        }
        let known = reported.and_then(|usage| usage.get("cache_read_input_tokens")?.as_u64()).is_some();
        let output = reported.and_then(|usage| usage.get("output_tokens")?.as_u64()).unwrap_or(0);
        let client = if known { self.client() } else { ClientUsage { output, ..ClientUsage::default() } };
        correct(edits, message, client);
        if self.ask.model_mapped {
            rename(edits, message, &self.ask.model);
        }
    }

    fn delta(&mut self, root: Value<'_>, edits: &mut Edits) {
        if let Some(usage) = root.get("usage") {
            self.summary.usage.note_messages(usage);
        }
        if let Some(reason) = root.get("delta").and_then(|delta| delta.get("stop_reason")?.as_text()) {
            self.summary.finish = Some(reason.decode().into_owned());
        }
        correct(edits, root, self.client());
    }

    fn client(&self) -> ClientUsage {
        self.summary.usage.client(self.ask.usage)
    }

    fn close(&mut self, cut: Option<Fault>, out: &mut Vec<u8>) -> Result<(), Fault> {
        if self.over {
            return Ok(());
        }
        if self.summary.finish.is_some() {
            self.over = true;
            out.extend_from_slice(stream::MESSAGE_STOP);
            return Ok(());
        }
        Err(cut.unwrap_or_else(|| match self.summary.events {
            0 => Fault::empty(),
            _ => Fault::broken("it ended without a stop_reason"),
        }))
    }

    fn fail(&mut self, fault: Fault, out: &mut Vec<u8>) -> Fault {
        if !std::mem::replace(&mut self.over, true) && self.started {
            out.extend_from_slice(&fault.event(Dialect::Messages));
        }
        fault
    }
}

/// Makes the `usage` of `object` say `client`: the four integers. Other members stay.
fn correct(edits: &mut Edits, object: Value<'_>, client: ClientUsage) {
    let mut whole = Vec::new();
    client.write(&mut whole);
    let Some(usage) = object.get("usage") else {
        edits.add_member(object, &format!("\"usage\":{}", String::from_utf8_lossy(&whole)));
        return;
    };
    if usage.kind() != Kind::Object || usage.members().next().is_none() {
        edits.replace(usage.span(), whole);
        return;
    }
    let mut missing = Vec::new();
    for (name, tokens) in client.members() {
        match usage.get(name) {
            Some(value) if value.as_u64() == Some(tokens) => {}
            Some(value) => edits.replace(value.span(), tokens.to_string()),
            None => missing.push(format!("\"{name}\":{tokens}")),
        }
    }
    if !missing.is_empty() {
        edits.add_member(usage, &missing.join(","));
    }
}

/// Adds the cache diagnostics that the client asked for; the engine knows nothing of them.
fn diagnose(edits: &mut Edits, message: Value<'_>, ask: &Ask) {
    if let Some(diagnostics) = &ask.diagnostics {
        match message.get("diagnostics") {
            Some(own) => edits.replace(own.span(), diagnostics.as_bytes()),
            None => edits.add_member(message, &format!("\"diagnostics\":{diagnostics}")),
        }
    }
}

/// Notes what a whole message says; the edits that put its usage right and give the client its model name back.
///
/// # Errors
/// It is an error in spite of its status.
pub(crate) fn whole(root: Value<'_>, ask: &Ask, summary: &mut Summary) -> Result<Edits, Fault> {
    let is_error = root.get("type").and_then(Value::as_text).is_some_and(|kind| kind.is("error"));
    if is_error || root.get("error").is_some_and(|error| !error.is_null()) {
        return Err(from_frame(root));
    }
    if root.kind() != Kind::Object {
        return Err(Fault::broken("it is not a message"));
    }
    if let Some(usage) = root.get("usage") {
        summary.usage.note_messages(usage);
    }
    summary.finish = root.get("stop_reason").and_then(Value::as_text).map(|reason| reason.decode().into_owned());
    summary.message_id = identity(root);
    let mut edits = Edits::new();
    diagnose(&mut edits, root, ask);
    correct(&mut edits, root, summary.usage.client(ask.usage));
    if ask.model_mapped {
        rename(&mut edits, root, &ask.model);
    }
    Ok(edits)
}
