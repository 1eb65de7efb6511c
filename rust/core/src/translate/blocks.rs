//! From deltas in any order to content blocks in sequence.
//!
//! Engines interleave: text between the fragments of a call, two calls at once, a name in pieces. Anthropic blocks
//! are sequential: one is open, and it is closed before the next opens. What belongs to the open block goes out at
//! once. What belongs to another opens that one, unless the open block is a tool call whose arguments are not
//! complete: then it waits, in its order, until they are.

use std::collections::VecDeque;

use super::arguments::{Progress, input_object};
use super::events::{Block, Form};
use super::literal::Cleaner;
use super::{ids, tool_id};
use crate::json::{Kind, Tape, Text, Value, write_str};
use crate::request::Ids;
use crate::wire::chat::CallDelta;

/// A kind of prose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prose {
    Thinking,
    Text,
}

impl Prose {
    fn block(self) -> Block<'static> {
        match self {
            Self::Thinking => Block::Thinking,
            Self::Text => Block::Text,
        }
    }
}

/// The block that deltas go to now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Nothing,
    Prose(Prose),
    /// A call, by its place in the list.
    Call(usize),
}

/// What waits for the open call to be complete.
#[derive(Debug)]
enum Waiting {
    Prose(Prose, Vec<u8>),
    Call(usize),
}

/// Where a call stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its name may still grow, or its arguments are not an object: nothing is written yet.
    Held,
    /// Its block is open and arguments go out as they come.
    Streaming,
    /// Its block is closed, or it was no call at all.
    Closed,
}

#[derive(Debug)]
struct Call {
    /// The engine's number for it. Whole messages number their calls by place.
    index: Option<u64>,
    /// The engine's id, decoded; empty if none came.
    id: String,
    name: String,
    /// The arguments so far, as a literal.
    text: Vec<u8>,
    /// How much of it has been written.
    written: usize,
    progress: Progress,
    stage: Stage,
}

/// Room for a call's arguments, in bytes: few are longer but those that hold a file.
const ARGUMENTS: usize = 256;

/// Orders deltas into blocks and writes them in the form `F`.
#[derive(Debug)]
pub(crate) struct Blocks<F> {
    form: F,
    ids: Ids,
    open: Open,
    cleaner: Cleaner,
    calls: Vec<Call>,
    waiting: VecDeque<Waiting>,
    /// The tool ids that the client has seen in this message.
    used: Vec<String>,
    /// Fragments that had no place: for a closed call, or for none.
    pub(crate) lost: u64,
}

impl<F: Form> Blocks<F> {
    pub(crate) fn new(form: F, ids: Ids) -> Self {
        Self {
            form,
            ids,
            open: Open::Nothing,
            cleaner: Cleaner::default(),
            calls: Vec::new(),
            waiting: VecDeque::new(),
            used: Vec::new(),
            lost: 0,
        }
    }

    /// Whether a `tool_use` block was written.
    pub(crate) fn has_tool_use(&self) -> bool {
        !self.used.is_empty()
    }

    /// Whether the last call's arguments broke off before they were complete.
    pub(crate) fn is_call_cut(&self) -> bool {
        self.calls.last().is_some_and(|call| call.progress.first().is_some() && !call.progress.is_complete())
    }

    /// Takes a piece of thinking or text, as a literal. An empty one changes nothing.
    pub(crate) fn prose(&mut self, prose: Prose, literal: &[u8], out: &mut Vec<u8>) {
        if literal.is_empty() {
            return;
        }
        if self.is_call_open() {
            match self.waiting.back_mut() {
                Some(Waiting::Prose(last, text)) if *last == prose => text.extend_from_slice(literal),
                _ => self.waiting.push_back(Waiting::Prose(prose, literal.to_vec())),
            }
            return;
        }
        if self.open != Open::Prose(prose) {
            self.close(out);
            self.form.open(prose.block(), out);
            self.open = Open::Prose(prose);
        }
        self.append(literal, out);
    }

    /// Takes a fragment of a call.
    pub(crate) fn call(&mut self, delta: &CallDelta<'_>, out: &mut Vec<u8>) {
        let at = self.find(delta).unwrap_or_else(|| {
            self.calls.push(Call {
                index: delta.index,
                id: String::new(),
                name: String::new(),
                text: Vec::with_capacity(ARGUMENTS),
                written: 0,
                progress: Progress::default(),
                stage: Stage::Held,
            });
            self.calls.len() - 1
        });
        let is_next = self.is_new(at);
        let call = &mut self.calls[at];
        // An id that comes when the block may be open already is too late, in either form of an answer.
        if call.id.is_empty()
            && (call.progress.first().is_none() || call.name.is_empty())
            && let Some(id) = delta.id
        {
            call.id = id.decode().into_owned();
        }
        // A name is whole when arguments begin. Engines that repeat a whole name mean it once.
        if call.progress.first().is_none()
            && let Some(name) = delta.name.map(Text::decode)
            && name != call.name
        {
            call.name.push_str(&name);
        }
        match delta.arguments.map(|value| (value, value.as_text())) {
            Some((_, Some(text))) => self.arguments(at, text.raw()),
            Some((value, None)) => self.arguments(at, &literal_of(value)),
            None => {}
        }
        self.settle(at, is_next, out);
    }

    /// Takes arguments of the call with an index, and nothing else. False if no such call has begun.
    pub(crate) fn fragment(&mut self, index: u64, literal: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(at) = self.find(&CallDelta { index: Some(index), ..CallDelta::default() }) else { return false };
        self.arguments(at, literal);
        self.settle(at, false, out);
        true
    }

    /// Writes what a fragment of a call allows to be written.
    fn settle(&mut self, at: usize, is_next: bool, out: &mut Vec<u8>) {
        if self.open == Open::Call(at) {
            self.advance(at, out);
        } else if is_next {
            if self.is_call_open() {
                self.waiting.push_back(Waiting::Call(at));
            } else {
                self.close(out);
                self.open = Open::Call(at);
                self.advance(at, out);
            }
        }
        if !self.is_call_open() {
            self.release(out);
        }
    }

    /// Writes all that waits and closes the last block.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        self.close(out);
        while !self.waiting.is_empty() {
            self.release(out);
            self.close(out);
        }
    }

    /// Whether the open block is a call that must not be closed yet.
    fn is_call_open(&self) -> bool {
        matches!(self.open, Open::Call(at) if !self.calls[at].progress.is_complete())
    }

    /// Whether a call has no place yet: it is not open, not closed, and does not wait.
    fn is_new(&self, at: usize) -> bool {
        let waits = self.waiting.iter().any(|waiting| matches!(waiting, Waiting::Call(other) if *other == at));
        self.open != Open::Call(at) && self.calls[at].stage == Stage::Held && !waits
    }

    /// The call that a fragment belongs to, if it is not a new one.
    ///
    /// A call begins with a new index, or with a new id under an old index. Where an engine gives no index, it
    /// begins with a new id, or with a name after the last call's arguments began. A complete call that is
    /// followed by a name and a new object under the same index and id is followed by another call. Some engines draw
    /// a new id for every delta: one that comes with arguments and without a name, while a call's arguments are not
    /// complete, begins nothing.
    fn find(&self, delta: &CallDelta<'_>) -> Option<usize> {
        let same_id = |call: &Call| delta.id.is_none_or(|id| call.id.is_empty() || id.is(&call.id));
        let within = |call: &Call| {
            let fragment = delta.name.is_none() && delta.arguments.is_some();
            fragment && !call.name.is_empty() && !call.progress.is_complete()
        };
        let begins = delta.name.is_some()
            && delta.arguments.and_then(Value::as_text).is_some_and(|text| text.raw().first() == Some(&b'{'));
        let goes_on = |call: &Call| (same_id(call) || within(call)) && !(begins && call.progress.is_complete());
        // Without a name and a known index, a fragment is known by its id.
        let by_id = || {
            let id = delta.id.filter(|_| delta.name.is_none())?;
            self.calls.iter().rposition(|call| id.is(&call.id))
        };
        let Some(index) = delta.index else {
            let last = self.calls.last()?;
            let named_anew = delta.name.is_some() && delta.id.is_none() && last.progress.first().is_some();
            return by_id().or_else(|| (goes_on(last) && !named_anew).then(|| self.calls.len() - 1));
        };
        match self.calls.iter().rposition(|call| call.index == Some(index)) {
            Some(at) => goes_on(&self.calls[at]).then_some(at),
            None => by_id(),
        }
    }

    /// Adds a fragment to a call's arguments.
    fn arguments(&mut self, at: usize, literal: &[u8]) {
        let call = &mut self.calls[at];
        if call.stage == Stage::Closed {
            self.lost += u64::from(says_anything(literal));
            return;
        }
        // An empty object before the real one is a placeholder of engines that announce a call with it.
        if call.stage == Stage::Held && call.text == b"{}" && literal.first() == Some(&b'{') {
            call.text.clear();
            call.progress = Progress::default();
        }
        let behind = call.progress.feed(literal);
        let (value, behind) = literal.split_at(literal.len() - behind.len());
        call.text.extend_from_slice(value);
        // Behind a sound object nothing has a meaning, but some engines close it twice or send it again as a whole.
        if says_anything(behind) && is_object(&call.text) {
            self.lost += 1;
        } else {
            call.text.extend_from_slice(behind);
        }
    }

    /// Writes what can be written of the open call.
    fn advance(&mut self, at: usize, out: &mut Vec<u8>) {
        let call = &self.calls[at];
        let is_object = F::STREAMS_INPUT && call.progress.first() == Some(b'{') && call.text != b"{}";
        if call.stage == Stage::Held && is_object && !call.name.is_empty() {
            self.start(at, out);
            self.calls[at].stage = Stage::Streaming;
        }
        if self.calls[at].stage == Stage::Streaming {
            let text = std::mem::take(&mut self.calls[at].text);
            self.append(&text[self.calls[at].written..], out);
            self.calls[at].written = text.len();
            self.calls[at].text = text;
        }
    }

    /// Opens a call's block under an id that is the client's only one.
    fn start(&mut self, at: usize, out: &mut Vec<u8>) {
        let call = &self.calls[at];
        let mut id = tool_id::to_client(&call.id, self.ids).into_owned();
        if call.id.is_empty() || self.used.contains(&id) {
            id = ids::tool_call(self.ids, at as u64);
        }
        self.form.open(Block::ToolUse { id: &id, name: &call.name }, out);
        self.used.push(id);
    }

    /// Opens what waits, in order, until a call that is not complete is open.
    fn release(&mut self, out: &mut Vec<u8>) {
        while !self.is_call_open() {
            let Some(next) = self.waiting.pop_front() else { return };
            match next {
                Waiting::Prose(prose, text) => self.prose(prose, &text, out),
                Waiting::Call(at) => {
                    self.close(out);
                    self.open = Open::Call(at);
                    self.advance(at, out);
                }
            }
        }
    }

    /// Closes the open block, complete or not.
    fn close(&mut self, out: &mut Vec<u8>) {
        match std::mem::replace(&mut self.open, Open::Nothing) {
            Open::Nothing => return,
            Open::Prose(_) => {}
            Open::Call(at) => {
                let stage = std::mem::replace(&mut self.calls[at].stage, Stage::Closed);
                if stage == Stage::Held && !self.write_held(at, out) {
                    return;
                }
            }
        }
        if let Some(rest) = self.cleaner.finish() {
            self.form.append(rest, out);
        }
        self.form.close(out);
    }

    /// Writes a held call whole, up to its end. A call without a name cannot be made: it is left out.
    fn write_held(&mut self, at: usize, out: &mut Vec<u8>) -> bool {
        if self.calls[at].name.is_empty() {
            self.lost += 1;
            return false;
        }
        self.start(at, out);
        let text = std::mem::take(&mut self.calls[at].text);
        if !text.is_empty() || !F::STREAMS_INPUT {
            let mut cleaner = Cleaner::default();
            let arguments = Text::new(&text).decode();
            self.form.input(cleaner.clean(&input_object(&arguments)), out);
        }
        true
    }

    fn append(&mut self, literal: &[u8], out: &mut Vec<u8>) {
        let clean = self.cleaner.clean(literal);
        if !clean.is_empty() {
            self.form.append(clean, out);
        }
    }
}

/// Whether a literal has more than white space.
fn says_anything(literal: &[u8]) -> bool {
    let mut progress = Progress::default();
    progress.feed(literal);
    progress.first().is_some()
}

/// Whether a literal reads as a JSON object.
fn is_object(literal: &[u8]) -> bool {
    let text = Text::new(literal).decode();
    Tape::new().scan(text.as_bytes()).is_ok_and(|value| value.kind() == Kind::Object)
}

/// The text of a value that should have been a string, as a literal.
fn literal_of(value: Value<'_>) -> Vec<u8> {
    let mut quoted = Vec::new();
    write_str(&String::from_utf8_lossy(value.raw()), &mut quoted);
    quoted.pop();
    quoted.remove(0);
    quoted
}
