//! What a chat completion, whole or in chunks, says.

use std::ops::Range;

use crate::json::{Kind, Text, Value};

/// One chunk of a stream, or a whole completion.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chunk<'t> {
    pub(crate) choices: Option<Value<'t>>,
    pub(crate) usage: Option<Value<'t>>,
    /// llama.cpp's and Strata's own figures.
    pub(crate) timings: Option<Value<'t>>,
    /// The engine's failure, if this is one: an object, a text, or the whole chunk in old vLLM's flat form and in
    /// `FastAPI`'s, which has a `detail` and nothing of a chunk.
    pub(crate) error: Option<Value<'t>>,
}

impl<'t> Chunk<'t> {
    /// Reads `root`; of duplicate members the last counts.
    pub(crate) fn read(root: Value<'t>) -> Self {
        let mut chunk = Self::default();
        let (mut flat_error, mut detail) = (false, false);
        for (name, value) in root.members() {
            match name.raw() {
                b"choices" => chunk.choices = Some(value),
                b"usage" => chunk.usage = Some(value).filter(|usage| usage.kind() == Kind::Object),
                b"timings" => chunk.timings = Some(value).filter(|timings| timings.kind() == Kind::Object),
                b"error" => chunk.error = Some(value).filter(|error| says_something(*error)),
                b"object" | b"type" => flat_error |= value.as_text().is_some_and(|text| text.is("error")),
                b"detail" => detail = says_something(value),
                _ => {}
            }
        }
        if chunk.error.is_none() && (flat_error || detail && chunk.says_nothing()) {
            chunk.error = Some(root);
        }
        chunk
    }

    /// Whether this is an object of another kind: some servers send heartbeats and notes of their own between chunks.
    pub(crate) fn says_nothing(&self) -> bool {
        self.choices.is_none() && self.usage.is_none() && self.timings.is_none() && self.error.is_none()
    }

    /// Whether this is the chunk that comes last and only brings usage: its `choices` are empty, or not there at all.
    pub(crate) fn brings_only_usage(&self) -> bool {
        self.usage.is_some() && self.choices.is_none_or(|choices| choices.items().next().is_none())
    }

    /// The parts of the first choice; others (`n` > 1) have no place in a message.
    pub(crate) fn first_choice(&self) -> impl Iterator<Item = Choice<'t>> {
        let items = self.choices.into_iter().flat_map(Value::items);
        items.map(Choice::read).filter(|choice| choice.index == 0)
    }
}

/// What a piece of text belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PieceOf {
    Text,
    Thinking,
    /// The arguments of the call with this index.
    Arguments(u64),
}

/// The one piece of text that a chunk brings: the inside of its literal, and where that lies.
#[derive(Clone, Debug)]
pub(crate) struct Piece<'t> {
    pub(crate) of: PieceOf,
    pub(crate) inside: &'t [u8],
    pub(crate) at: Range<usize>,
}

impl<'t> Chunk<'t> {
    /// The piece of a chunk that brings exactly one and says nothing else that counts.
    pub(crate) fn only_piece(&self) -> Option<Piece<'t>> {
        if self.error.is_some() || self.usage.is_some() || self.timings.is_some() {
            return None;
        }
        let mut choices = self.choices?.items();
        let choice = Choice::read(choices.next()?);
        if choices.next().is_some()
            || choice.index != 0
            || choice.whole
            || choice.finish.is_some()
            || choice.usage.is_some()
        {
            return None;
        }
        let delta = Delta::read(choice.delta?);
        let content = delta.content.filter(|content| !content.is_null());
        let (of, literal) = match (delta.reasoning_value, content, delta.tool_calls) {
            (None, Some(content), None) => (PieceOf::Text, content),
            (Some(reasoning), None, None) => (PieceOf::Thinking, reasoning),
            (None, None, Some(calls)) => {
                let mut calls = calls.items();
                let call = CallDelta::read(calls.next()?);
                if calls.next().is_some() || call.id.is_some() || call.name.is_some() {
                    return None;
                }
                (PieceOf::Arguments(call.index?), call.arguments?)
            }
            _ => return None,
        };
        let inside = filled(literal)?.raw();
        let at = literal.span();
        let alone = delta.refusal.is_none() && delta.function_call.is_none();
        alone.then(|| Piece { of, inside, at: at.start + 1..at.end - 1 })
    }
}

/// One choice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Choice<'t> {
    pub(crate) index: u64,
    pub(crate) delta: Option<Value<'t>>,
    /// Whether the delta is a whole `message`.
    pub(crate) whole: bool,
    /// Why the turn ended. `""` and `"null"`, which some servers write until then, are no reason.
    pub(crate) finish: Option<Text<'t>>,
    /// Moonshot tells a stream's usage here.
    pub(crate) usage: Option<Value<'t>>,
    /// The stop string that matched: vLLM's `stop_reason`, SGLang's `matched_stop`. Token ids do not count.
    pub(crate) stop: Option<Text<'t>>,
}

impl<'t> Choice<'t> {
    fn read(value: Value<'t>) -> Self {
        let mut choice = Self::default();
        for (name, value) in value.members() {
            match name.raw() {
                b"index" => choice.index = value.as_u64().unwrap_or(0),
                b"delta" if value.kind() == Kind::Object => (choice.delta, choice.whole) = (Some(value), false),
                b"message" if value.kind() == Kind::Object && choice.delta.is_none() => {
                    (choice.delta, choice.whole) = (Some(value), true);
                }
                b"finish_reason" => choice.finish = filled(value).filter(|reason| !reason.is("null")),
                b"usage" => choice.usage = Some(value).filter(|usage| usage.kind() == Kind::Object),
                b"stop_reason" | b"matched_stop" => choice.stop = filled(value).or(choice.stop),
                _ => {}
            }
        }
        choice
    }
}

/// What the model said, in one delta or one message.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delta<'t> {
    /// Never empty.
    reasoning_value: Option<Value<'t>>,
    /// A text, or a list of parts.
    pub(crate) content: Option<Value<'t>>,
    pub(crate) refusal: Option<Text<'t>>,
    pub(crate) tool_calls: Option<Value<'t>>,
    /// The single call of the API before `tool_calls`.
    pub(crate) function_call: Option<Value<'t>>,
}

impl<'t> Delta<'t> {
    pub(crate) fn reasoning(&self) -> Option<Text<'t>> {
        self.reasoning_value?.as_text()
    }

    pub(crate) fn read(value: Value<'t>) -> Self {
        let mut delta = Self::default();
        for (name, value) in value.members() {
            match name.raw() {
                // Some engines send both names with the same text; it counts once.
                b"reasoning" if filled(value).is_some() => delta.reasoning_value = Some(value),
                b"reasoning_content" if filled(value).is_some() => {
                    delta.reasoning_value = delta.reasoning_value.or(Some(value));
                }
                b"content" => delta.content = Some(value),
                b"refusal" => delta.refusal = filled(value),
                b"tool_calls" => delta.tool_calls = Some(value),
                b"function_call" if value.kind() == Kind::Object => delta.function_call = Some(value),
                _ => {}
            }
        }
        delta
    }
}

/// A fragment of a tool call, or a whole one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallDelta<'t> {
    pub(crate) index: Option<u64>,
    pub(crate) id: Option<Text<'t>>,
    pub(crate) name: Option<Text<'t>>,
    /// A text, or (out of the standard) the value itself.
    pub(crate) arguments: Option<Value<'t>>,
}

impl<'t> CallDelta<'t> {
    pub(crate) fn read(value: Value<'t>) -> Self {
        let mut call = Self::default();
        for (name, value) in value.members() {
            match name.raw() {
                b"index" => call.index = value.as_u64(),
                b"id" => call.id = filled(value),
                b"function" => call.read_function(value),
                _ => {}
            }
        }
        call
    }

    /// Reads the members of a `function` (or of the old `function_call`).
    pub(crate) fn read_function(&mut self, function: Value<'t>) {
        for (name, value) in function.members() {
            match name.raw() {
                b"name" => self.name = filled(value),
                b"arguments" => self.arguments = Some(value).filter(|arguments| !arguments.is_null()),
                _ => {}
            }
        }
    }
}

/// Whether an `error` member tells of an error. Some servers send an empty one with every chunk.
pub(crate) fn says_something(error: Value<'_>) -> bool {
    match error.kind() {
        Kind::Null => false,
        Kind::Bool => error.as_bool() == Some(true),
        Kind::String => error.as_text().is_some_and(|text| !text.is_empty()),
        Kind::Object => error.members().next().is_some(),
        Kind::Array => error.items().next().is_some(),
        Kind::Number => true,
    }
}

/// The text, if it is one and not empty.
fn filled(value: Value<'_>) -> Option<Text<'_>> {
    value.as_text().filter(|text| !text.is_empty())
}
