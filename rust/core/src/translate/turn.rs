//! What one assistant turn says: chat chunks, or one whole completion, into content blocks, an end and usage.

use super::blocks::{Blocks, Prose};
use super::error::from_frame;
use super::events::Form;
use crate::answer::Summary;
use crate::error::Fault;
use crate::json::{Kind as Json, Text, Value};
use crate::request::Ids;
use crate::wire::chat::{CallDelta, Choice, Chunk, Delta, PieceOf};

/// Why a turn ended, in Anthropic's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    pub(super) reason: &'static str,
    pub(super) sequence: Option<String>,
}

/// Reads an assistant turn and writes its blocks in the form `F`.
#[derive(Debug)]
pub(super) struct Turn<F> {
    blocks: Blocks<F>,
    stop: Option<String>,
    pub(super) summary: Summary,
}

impl<F: Form> Turn<F> {
    pub(super) fn new(form: F, ids: Ids) -> Self {
        Self { blocks: Blocks::new(form, ids), stop: None, summary: Summary::default() }
    }

    /// Whether the engine said why the turn ended.
    pub(super) fn is_finished(&self) -> bool {
        self.summary.finish.is_some()
    }

    /// Takes the usage of a chunk. Comes before [`Turn::read`], so that the head can tell it.
    pub(super) fn note_usage(&mut self, chunk: &Chunk<'_>) {
        if let Some(usage) = chunk.usage {
            self.summary.usage.note_openai(usage);
        }
        if let Some(timings) = chunk.timings {
            self.summary.usage.note_timings(timings);
        }
    }

    /// Takes what a chunk's first choice says.
    ///
    /// # Errors
    /// The engine gave up the turn.
    pub(super) fn read(&mut self, chunk: &Chunk<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        for choice in chunk.first_choice() {
            if let Some(usage) = choice.usage.filter(|_| chunk.usage.is_none()) {
                self.summary.usage.note_openai(usage);
            }
            if let Some(delta) = choice.delta {
                self.delta(&Delta::read(delta), choice.whole, out);
            }
            if let Some(finish) = choice.finish {
                self.finish_reason(finish, &choice, out)?;
            }
        }
        Ok(())
    }

    /// Takes one piece of text. False if it belongs to no call that has begun.
    pub(super) fn piece(&mut self, of: PieceOf, literal: &[u8], out: &mut Vec<u8>) -> bool {
        match of {
            PieceOf::Text => self.blocks.prose(Prose::Text, literal, out),
            PieceOf::Thinking => self.blocks.prose(Prose::Thinking, literal, out),
            PieceOf::Arguments(index) => return self.blocks.fragment(index, literal, out),
        }
        true
    }

    /// Ends the blocks and says why the turn ended. An end without a reason is one that the engine stated otherwise.
    pub(super) fn end(&mut self, out: &mut Vec<u8>) -> Stop {
        self.blocks.finish(out);
        self.summary.unreadable += std::mem::take(&mut self.blocks.lost);
        let calls = self.blocks.has_tool_use();
        let ends = |reason| Stop { reason, sequence: None };
        match self.summary.finish.as_deref() {
            // vLLM's `repetition`: it broke off what repeated itself. The answer is cut, as by a limit.
            Some("length" | "max_tokens" | "max_output_tokens" | "model_length" | "repetition") => ends("max_tokens"),
            Some("model_context_window_exceeded") => ends("model_context_window_exceeded"),
            Some("content_filter" | "refusal" | "sensitive") => ends("refusal"),
            // A stop string within a call's arguments leaves a call that must not be made.
            _ if calls && !(self.stop.is_some() && self.blocks.is_call_cut()) => ends("tool_use"),
            _ if self.stop.is_some() => Stop { reason: "stop_sequence", sequence: self.stop.clone() },
            _ => ends("end_turn"),
        }
    }

    fn delta(&mut self, delta: &Delta<'_>, whole: bool, out: &mut Vec<u8>) {
        if let Some(reasoning) = delta.reasoning() {
            self.blocks.prose(Prose::Thinking, reasoning.raw(), out);
        }
        if let Some(content) = delta.content {
            self.content(content, out);
        }
        if let Some(refusal) = delta.refusal {
            self.blocks.prose(Prose::Text, refusal.raw(), out);
        }
        if let Some(calls) = delta.tool_calls {
            let numbered = whole || calls.items().nth(1).is_some();
            for (place, call) in (0..).zip(calls.items()) {
                let mut call = CallDelta::read(call);
                // Calls of a whole message, or several of one delta, are told apart by place.
                call.index = call.index.or(numbered.then_some(place));
                if whole {
                    call.index = Some(place);
                }
                self.blocks.call(&call, out);
            }
        }
        if let Some(function) = delta.function_call {
            let mut call = CallDelta::default();
            call.read_function(function);
            self.blocks.call(&call, out);
        }
    }

    /// Content is a text; some engines send a list of parts.
    fn content(&mut self, content: Value<'_>, out: &mut Vec<u8>) {
        if let Some(text) = content.as_text() {
            self.blocks.prose(Prose::Text, text.raw(), out);
            return;
        }
        for part in content.items() {
            if let Some(text) = part.get("text").and_then(Value::as_text) {
                self.blocks.prose(Prose::Text, text.raw(), out);
            }
            match part.get("thinking") {
                Some(thinking) if thinking.kind() == Json::Array => {
                    for text in thinking.items().filter_map(|piece| piece.get("text")?.as_text()) {
                        self.blocks.prose(Prose::Thinking, text.raw(), out);
                    }
                }
                Some(thinking) => {
                    let text = thinking.as_text().map_or(&b""[..], Text::raw);
                    self.blocks.prose(Prose::Thinking, text, out);
                }
                None => {}
            }
        }
    }

    fn finish_reason(&mut self, finish: Text<'_>, choice: &Choice<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let reason = finish.decode();
        if matches!(
            &*reason,
            "error" | "abort" | "aborted" | "cancelled" | "insufficient_system_resource" | "network_error"
        ) {
            return Err(Fault::broken(&format!("it ended with finish_reason {reason:?}")));
        }
        self.summary.finish = Some(reason.into_owned());
        self.stop = choice.stop.map(|stop| stop.decode().into_owned()).or_else(|| self.stop.take());
        self.blocks.finish(out);
        Ok(())
    }
}

/// The fault of a chunk that is an error.
pub(super) fn chunk_fault(chunk: &Chunk<'_>, named_error: bool, root: Value<'_>) -> Option<Fault> {
    chunk.error.or_else(|| named_error.then_some(root)).map(from_frame)
}
