//! The stream machine: a chat stream of an engine into the event stream of an Anthropic message.

use super::events::Events;
use super::frame::Frame;
use super::payload::{self, Payload};
use super::turn::{Stop, Turn, chunk_fault};
use super::{ids, response, write_str};
use crate::answer::{Ask, Summary};
use crate::error::{Dialect, Fault};
use crate::json::{Tape, Value};
use crate::profile::UsageMode;
use crate::sse::{Event, Overlong, Splitter};
use crate::usage::ClientUsage;
use crate::wire::chat::Chunk;

/// The event that keeps a silent stream alive.
pub(crate) const PING: &[u8] = b"event: ping\ndata: {\"type\":\"ping\"}\n\n";
/// The last event of a message.
pub(crate) const MESSAGE_STOP: &[u8] = b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

/// Translates one stream.
#[derive(Debug)]
pub(crate) struct Stream {
    splitter: Splitter,
    tape: Tape,
    /// Data of events that have several lines.
    joined: Vec<u8>,
    machine: Machine,
}

impl Stream {
    pub(crate) fn new(ask: &Ask) -> Self {
        Self { splitter: Splitter::new(), tape: Tape::new(), joined: Vec::new(), machine: Machine::new(ask) }
    }

    /// Reads what the engine sent; appends events to `out`.
    ///
    /// # Errors
    /// The engine failed. If the client has its head already, the error event is in `out`.
    pub(crate) fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        let Self { splitter, tape, joined, machine } = self;
        let result = splitter.feed(input, |event| machine.event(event, tape, joined, out));
        result.map_err(|fault| machine.fail(fault, out))
    }

    /// Ends the stream. An end that the engine did not state is an error.
    pub(crate) fn end(&mut self, cut: Option<Fault>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let Self { splitter, tape, joined, machine } = self;
        let rest = splitter.finish(|event| machine.event(event, tape, joined, out));
        let result = rest.and_then(|()| machine.close(cut, out));
        result.map_err(|fault| machine.fail(fault, out))
    }

    /// Reads a whole completion, which an engine sent although a stream was asked for, and ends the stream.
    pub(crate) fn whole(&mut self, body: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        let Self { tape, machine, .. } = self;
        let result = response::completion(body, tape, |root| machine.chunk(root, body, false, out))
            .and_then(|()| machine.stop(out));
        result.map_err(|fault| machine.fail(fault, out))
    }

    pub(crate) fn ping(&mut self, out: &mut Vec<u8>) {
        if !self.machine.over {
            self.machine.head(None, out);
            out.extend_from_slice(PING);
        }
    }

    pub(crate) fn started(&self) -> bool {
        self.machine.started
    }

    pub(crate) fn done(&self) -> bool {
        self.machine.done
    }

    pub(crate) fn summary(&self) -> &Summary {
        &self.machine.turn.summary
    }
}

/// Everything but the cutting of bytes.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
struct Machine {
    turn: Turn<Events>,
    frame: Frame,
    model: String,
    id: String,
    usage: UsageMode,
    diagnostics: Option<String>,
    /// The engine has said anything at all.
    heard: bool,
    /// `message_start` has been written.
    started: bool,
    /// Nothing more is written: `message_stop` or an error was.
    over: bool,
    /// The engine said `[DONE]`.
    done: bool,
}

impl Machine {
    fn new(ask: &Ask) -> Self {
        Self {
            turn: Turn::new(Events::default(), ask.ids),
            frame: Frame::default(),
            model: ask.model.clone(),
            id: ids::message(ask.ids),
            usage: ask.usage,
            diagnostics: ask.diagnostics.clone(),
            heard: false,
            started: false,
            over: false,
            done: false,
        }
    }

    fn event(
        &mut self,
        event: Event<'_>,
        tape: &mut Tape,
        joined: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let Some((data, named_error)) = payload::text(event, joined) else { return Ok(()) };
        self.turn.summary.events += 1;
        if !self.over
            && !named_error
            && let Some((of, piece)) = self.frame.piece(data)
            && self.turn.piece(of, piece, out)
        {
            return Ok(());
        }
        payload::read(event, data, named_error, tape, |payload| self.payload(payload, named_error, out))
    }

    fn payload(&mut self, payload: Payload<'_>, named_error: bool, out: &mut Vec<u8>) -> Result<(), Fault> {
        match payload {
            Payload::Chunk(root, data) => self.chunk(root, data, named_error, out),
            Payload::Done => {
                self.done = true;
                match (self.over, self.heard) {
                    (true, _) => Ok(()),
                    (false, true) => self.stop(out),
                    (false, false) => Err(Fault::empty()),
                }
            }
            Payload::Unreadable(data) if named_error && !self.over => Err(payload::named_error(data)),
            Payload::Unreadable(_) => {
                self.turn.summary.unreadable += 1;
                Ok(())
            }
        }
    }

    fn chunk(&mut self, root: Value<'_>, data: &[u8], named_error: bool, out: &mut Vec<u8>) -> Result<(), Fault> {
        if self.over {
            return Ok(());
        }
        let chunk = Chunk::read(root);
        if let Some(fault) = chunk_fault(&chunk, named_error, root) {
            return Err(fault);
        }
        if chunk.says_nothing() {
            return Ok(());
        }
        self.heard = true;
        self.turn.note_usage(&chunk);
        if !self.started {
            let usage = self.turn.summary.usage;
            // Only usage that knows of the cache is final enough for the head; output is counted at the end.
            let known = usage.prompt.is_some() && usage.cached.is_some();
            self.head(known.then(|| ClientUsage { output: 0, ..usage.client(self.usage) }), out);
        }
        let piece = chunk.only_piece();
        if !piece.as_ref().is_some_and(|piece| self.turn.piece(piece.of, piece.inside, out)) {
            self.turn.read(&chunk, out)?;
        }
        self.frame.learn(data, piece);
        if self.turn.is_finished() && chunk.brings_only_usage() {
            self.stop(out)?;
        }
        Ok(())
    }

    /// Writes `message_start`, once.
    fn head(&mut self, usage: Option<ClientUsage>, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.started, true) {
            self.turn.summary.message_id = Some(self.id.clone());
            write_head(&self.id, &self.model, usage.unwrap_or_default(), self.diagnostics.as_deref(), out);
        }
    }

    /// Writes the end of the message, once.
    #[allow(clippy::unnecessary_wraps)]
    fn stop(&mut self, out: &mut Vec<u8>) -> Result<(), Fault> {
        if std::mem::replace(&mut self.over, true) {
            return Ok(());
        }
        let Stop { reason, sequence } = self.turn.end(out);
        out.extend_from_slice(b"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"");
        out.extend_from_slice(reason.as_bytes());
        out.extend_from_slice(b"\",\"stop_sequence\":");
        match sequence {
            Some(sequence) => write_str(&sequence, out),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b"},\"usage\":");
        self.turn.summary.usage.client(self.usage).write(out);
        out.extend_from_slice(b"}\n\n");
        out.extend_from_slice(MESSAGE_STOP);
        Ok(())
    }

    /// The body ended, one way or the other.
    fn close(&mut self, cut: Option<Fault>, out: &mut Vec<u8>) -> Result<(), Fault> {
        if self.over {
            return Ok(());
        }
        if self.turn.is_finished() {
            return self.stop(out);
        }
        Err(match cut {
            Some(fault) => fault,
            None if !self.heard => Fault::empty(),
            None => Fault::unfinished(),
        })
    }

    /// Tells the client of a fault, where its head has gone out already.
    fn fail(&mut self, fault: Fault, out: &mut Vec<u8>) -> Fault {
        if !std::mem::replace(&mut self.over, true) && self.started {
            out.extend_from_slice(&fault.event(Dialect::Messages));
        }
        fault
    }
}

/// Writes `message_start`.
pub(crate) fn write_head(id: &str, model: &str, usage: ClientUsage, diagnostics: Option<&str>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"");
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(br#"","type":"message","role":"assistant","model":"#);
    write_str(model, out);
    out.extend_from_slice(br#","content":[],"stop_reason":null,"stop_sequence":null,"#);
    if let Some(diagnostics) = diagnostics {
        out.extend_from_slice(format!(r#""diagnostics":{diagnostics},"#).as_bytes());
    }
    out.extend_from_slice(br#""usage":"#);
    usage.write(out);
    out.extend_from_slice(b"}}\n\n");
}

impl From<Overlong> for Fault {
    fn from(overlong: Overlong) -> Self {
        Self::broken(&overlong.to_string())
    }
}
