//! `system` and `messages` as chat messages.

use super::Source;
use super::blocks::{self, Path};
use super::out::{Call, Content, Few, Input, Inside, Message, Part, Writer, text_of};
use super::reasoning::{self, Thinking};
use super::tools::References;
use crate::error::Fault;
use crate::json::{Kind, Text, Value};
use crate::normalize::billing_header::{self, Header};
use crate::normalize::late_system::{self, Placement, Turn};
use crate::normalize::{BILLING_HEADER, LATE_SYSTEM, messages_turn};
use crate::profile::LateSystem;
use crate::request::Notes;
use crate::translate::tool_id;
use crate::wire::messages::{self as wire, Block};

/// What was written of the conversation, and what it says of tools.
pub(super) struct Written<'t> {
    /// How many messages.
    pub(super) messages: usize,
    /// Whether the last one is an assistant's text that the engine is to go on with.
    pub(super) prefill: bool,
    pub(super) references: References<'t>,
}

/// Writes `,"messages":[...]`.
///
/// # Errors
/// A fault that names the place where a message has no meaning (no role, content that is no text and no list, ...).
pub(super) fn write<'t>(source: &Source<'t>, notes: &mut Notes, out: &mut Writer<'_>) -> Result<Written<'t>, Fault> {
    let items = source.root.get("messages").into_iter().flat_map(Value::items);
    let list: Vec<_> = items.map(wire::Message::read).collect();
    let mut references = References::default();
    let turn = |message| messages_turn(message, |block, kind| references.note(block, kind));
    let turns: Vec<_> = list.iter().map(turn).collect();
    let started = turns.iter().position(|turn| *turn != Turn::System).unwrap_or(turns.len());
    out.raw(",\"messages\":[");
    let mut builder = Builder { source, notes, out, written: 0, open: Vec::new(), last_tool: None, held: Vec::new() };
    let path = Path::root("messages");
    builder.head(&list[..started])?;
    let plan = late_system::plan(&turns, source.profile.late_system);
    let mut prefill = false;
    for (index, (message, placement)) in list.iter().zip(plan).enumerate().skip(started) {
        let path = path.item(index);
        let (role, content) = role_and_content(message, path)?;
        prefill = false;
        match role {
            _ if turns[index] == Turn::System => builder.late(index, content, placement, path.key("content"))?,
            role if role.is("user") => builder.user(index, content, path.key("content"))?,
            role if role.is("assistant") => prefill = builder.assistant(content, path.key("content"))?,
            _ => return Err(path.key("role").fault("Input should be 'user', 'assistant' or 'system'")),
        }
    }
    if prefill && Thinking::of(source.root) == Thinking::Enabled && !list.last().is_some_and(begins_with_thinking) {
        let what = "a final assistant message cannot be continued while thinking is enabled";
        return Err(path.item(list.len() - 1).fault(what));
    }
    builder.settle();
    builder.out.raw("]");
    Ok(Written { messages: builder.written, prefill, references })
}

fn role_and_content<'t>(message: &wire::Message<'t>, path: Path<'_>) -> Result<(Text<'t>, Value<'t>), Fault> {
    path.object(message.value)?;
    let role = path.string(message.role, "role")?;
    let content = message.content.ok_or_else(|| path.key("content").fault("Field required"))?;
    Ok((role.as_text().unwrap_or(Text::new(b"")), content))
}

fn begins_with_thinking(message: &wire::Message<'_>) -> bool {
    let first = message.blocks().next().and_then(wire::kind);
    first.is_some_and(|kind| kind.is("thinking") || kind.is("redacted_thinking"))
}

struct Builder<'s, 'b, 'n> {
    source: &'s Source<'s>,
    notes: &'n mut Notes,
    out: &'n mut Writer<'b>,
    /// How many messages are written.
    written: usize,
    /// What the last message that is no system message has become, and notes behind it: not written yet, since a note
    /// may still be added to a result.
    open: Vec<Message>,
    /// The last tool message in `open`.
    last_tool: Option<usize>,
    /// Notes that wait for the results of the message with that index.
    held: Vec<(usize, Placement, Inside)>,
}

impl Builder<'_, '_, '_> {
    /// Writes the open messages.
    fn settle(&mut self) {
        let reasoning_field = reasoning::history_field(self.source.profile.engine);
        for message in self.open.drain(..) {
            if self.written > 0 {
                self.out.raw(",");
            }
            self.out.message(&message, reasoning_field);
            self.written += 1;
        }
        self.last_tool = None;
    }

    /// The system message: the `system` field, then system messages in front of the conversation.
    fn head(&mut self, leading: &[wire::Message<'_>]) -> Result<(), Fault> {
        let mut head = Head { text: Inside::default(), strip: self.source.profile.billing_header, notes: self.notes };
        if let Some(system) = self.source.root.get("system").filter(|system| !system.is_null()) {
            head.add(system, Path::root("system"))?;
        }
        for (index, message) in leading.iter().enumerate() {
            let path = Path::root("messages");
            let path = path.item(index);
            let (_, content) = role_and_content(message, path)?;
            head.add(content, path.key("content"))?;
        }
        let text = head.text;
        if !text.is_empty() {
            self.open.push(Message::new("system", Content::Text(text)));
        }
        Ok(())
    }

    /// A system message inside the conversation (rule 2).
    fn late(&mut self, index: usize, content: Value<'_>, placement: Placement, path: Path<'_>) -> Result<(), Fault> {
        let text = text_of(blocks::parts(content, path, self.notes)?);
        if text.is_empty() {
            return Ok(());
        }
        if placement != Placement::Stay {
            self.notes.note_rule(LATE_SYSTEM);
        }
        match placement {
            Placement::Result(target) | Placement::After(target) if target > index => {
                self.held.push((target, placement, text));
            }
            other => self.put(other, text),
        }
        Ok(())
    }

    fn put(&mut self, placement: Placement, text: Inside) {
        let system = placement == Placement::Stay
            || matches!(placement, Placement::After(_)) && self.source.profile.late_system == LateSystem::System;
        if system {
            return self.open.push(Message::new("system", Content::Text(text)));
        }
        let (open, close) = late_system::wrapper(&text.texts(self.source.body));
        let mut note = Inside::own(open);
        note.append(text);
        note.add(close);
        let tool = self.last_tool.filter(|_| matches!(placement, Placement::Result(_)));
        match tool.and_then(|index| self.open.get_mut(index)) {
            Some(Message { content: Content::Text(result), .. }) => result.join(note),
            _ => self.open.push(Message::new("user", Content::Text(note))),
        }
    }

    fn user(&mut self, index: usize, content: Value<'_>, path: Path<'_>) -> Result<(), Fault> {
        self.settle();
        let mut own = Few::default();
        // Engines take text only in tool messages: images go to the user message behind all of them.
        let mut hoisted = Few::default();
        let mut results = false;
        if content.kind() == Kind::Array {
            for (index, block) in content.items().enumerate() {
                let path = path.item(index);
                let block = Block::read(path.object(block)?);
                if block.is("tool_result") {
                    results = true;
                    let message = self.result(&block, path, &mut hoisted)?;
                    self.last_tool = Some(self.open.len());
                    self.open.push(message);
                } else {
                    blocks::add(&block, path, self.notes, &mut own)?;
                }
            }
        } else {
            own = blocks::parts(content, path, self.notes)?;
        }
        let due: Vec<_> = self.held.extract_if(.., |(target, ..)| *target == index).collect();
        for (_, placement, text) in due {
            self.put(placement, text);
        }
        hoisted.append(own);
        if !(results && hoisted.is_empty()) {
            self.open.push(Message::new("user", Content::of(hoisted)));
        }
        Ok(())
    }

    /// The tool message for a `tool_result` block. Its images are added to `images`.
    fn result(&mut self, block: &Block<'_>, path: Path<'_>, images: &mut Few<Part>) -> Result<Message, Fault> {
        let id = path.string(block.tool_use_id, "tool_use_id")?;
        let mut text = Inside::default();
        let mut pictured = false;
        if let Some(content) = block.content.filter(|content| !content.is_null()) {
            for part in blocks::parts(content, path.key("content"), self.notes)? {
                match part {
                    Part::Text(piece) => text.join(piece),
                    Part::Image(_) => {
                        pictured = true;
                        images.push(part);
                    }
                }
            }
        }
        let failed = block.is_error.and_then(Value::as_bool) == Some(true);
        let text = match (failed, text.is_empty()) {
            (true, true) => Inside::own("Error"),
            (true, false) if !says_error(&text.texts(self.source.body)) => {
                let mut marked = Inside::own("Error: ");
                marked.append(text);
                marked
            }
            (false, true) if !pictured => Inside::own("(no output)"),
            (false, true) => Inside::own("(image follows)"),
            (_, false) => text,
        };
        Ok(Message { answers: Some(engine_id(id)), ..Message::new("tool", Content::Text(text)) })
    }

    /// Whether the message is plain text that an engine could go on with.
    fn assistant(&mut self, content: Value<'_>, path: Path<'_>) -> Result<bool, Fault> {
        self.settle();
        let mut parts = Few::default();
        let mut message = Message::new("assistant", Content::Null);
        if content.kind() == Kind::Array {
            for (index, block) in content.items().enumerate() {
                let path = path.item(index);
                self.said(&Block::read(path.object(block)?), path, &mut message, &mut parts)?;
            }
        } else {
            parts = blocks::parts(content, path, self.notes)?;
        }
        let text = text_of(parts);
        let plain = !text.is_empty() && message.calls.is_empty();
        // A turn with neither text nor calls nor thinking says nothing, and strict templates refuse it.
        if text.is_empty() && message.calls.is_empty() && message.reasoning.is_empty() {
            return Ok(false);
        }
        if !text.is_empty() || message.calls.is_empty() {
            message.content = Content::Text(text);
        }
        self.open.push(message);
        Ok(plain)
    }

    /// One block of an assistant's turn.
    fn said(
        &mut self,
        block: &Block<'_>,
        path: Path<'_>,
        message: &mut Message,
        parts: &mut Few<Part>,
    ) -> Result<(), Fault> {
        let kind = path.string(block.kind, "type")?.as_text().map(Text::bytes).unwrap_or_default();
        match &*kind {
            b"thinking" => {
                if reasoning::history_field(self.source.profile.engine).is_some() {
                    message.reasoning.join(block.thinking.map(Inside::of).unwrap_or_default());
                }
            }
            // Sealed for Anthropic's own servers.
            b"redacted_thinking" => {}
            b"tool_use" => message.calls.push(Call {
                id: engine_id(path.string(block.id, "id")?),
                name: Inside::of(path.string(block.name, "name")?),
                input: Input::of(block.input),
            }),
            // What Anthropic's servers ran: no engine can go on with it.
            server if server.ends_with(b"_tool_use") || server.ends_with(b"_tool_result") => {
                self.notes.note_dropped(&String::from_utf8_lossy(server));
            }
            _ => blocks::add(block, path, self.notes, parts)?,
        }
        Ok(())
    }
}

/// The system message under way.
struct Head<'n> {
    text: Inside,
    /// Whether the next text is the first one (rule 1).
    strip: bool,
    notes: &'n mut Notes,
}

impl Head<'_> {
    fn add(&mut self, content: Value<'_>, path: Path<'_>) -> Result<(), Fault> {
        match content.kind() {
            Kind::String => self.add_text(content),
            Kind::Array => {
                for (index, block) in content.items().enumerate() {
                    let path = path.item(index);
                    let block = Block::read(path.object(block)?);
                    if block.is("text") {
                        self.add_text(path.string(block.text, "text")?);
                    } else {
                        let mut parts = Few::default();
                        blocks::add(&block, path, self.notes, &mut parts)?;
                        self.text.join(text_of(parts));
                    }
                }
            }
            _ => return Err(path.fault("Input should be a string or a list of text blocks")),
        }
        Ok(())
    }

    fn add_text(&mut self, literal: Value<'_>) {
        let found = literal.as_text().filter(|_| self.strip).map_or(Header::Absent, billing_header::find);
        if matches!(found, Header::Whole | Header::Prefix(_)) {
            self.notes.note_rule(BILLING_HEADER);
        }
        self.strip &= found == Header::Whole
            || (found == Header::Absent && literal.as_text().is_some_and(billing_header::is_blank));
        match found {
            Header::Whole => {}
            Header::Prefix(cut) => self.text.join(Inside::behind(literal, cut)),
            Header::Unknown => {
                self.notes.note_unknown(BILLING_HEADER);
                self.text.join(Inside::of(literal));
            }
            Header::Absent => self.text.join(Inside::of(literal)),
        }
    }
}

/// A call's id in the engine's own form.
fn engine_id(literal: Value<'_>) -> Inside {
    let Some(text) = literal.as_text() else { return Inside::default() };
    let Some(engine) = tool_id::to_engine(&text.bytes()) else { return Inside::of(literal) };
    let mut written = Vec::new();
    crate::json::write_str(&engine, &mut written);
    let inside = written.get(1..written.len() - 1).unwrap_or_default();
    Inside::own(String::from_utf8_lossy(inside).into_owned())
}

/// Whether a failed result says so itself.
fn says_error(pieces: &[Text<'_>]) -> bool {
    let head = pieces.iter().flat_map(|piece| piece.chars()).map(|(character, _)| character);
    "error".chars().eq(head.take(5).map(|character| character.to_ascii_lowercase()))
}
