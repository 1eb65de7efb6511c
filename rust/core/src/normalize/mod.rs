//! The rules, as edits to a body that passes in its own dialect. The translator applies the same rules to its own
//! form with the same pure functions.

pub mod billing_header;
pub mod late_system;

use crate::json::{Edits, Kind, Text, Value};
use crate::profile::{LateSystem, Profile};
use crate::request::Notes;
use crate::wire::messages::{Message, kind};
use billing_header::Header;
use late_system::{Placement, Turn};

/// Name of rule 1, as notes and counters carry it.
pub const BILLING_HEADER: &str = "billing-header";
/// Name of rule 2.
pub const LATE_SYSTEM: &str = "late-system";

/// Runs the rules over a chat body.
pub fn chat(body: Value<'_>, profile: &Profile, edits: &mut Edits, notes: &mut Notes) {
    let Some(messages) = body.get("messages") else { return };
    let mut run = Run::new(messages, Dialect::Chat, edits, notes);
    if profile.billing_header {
        run.strip_leading();
    }
    run.place_late(profile.late_system);
    let gone = run.gone.iter().filter(|&&gone| gone).count();
    run.notes.messages = Some(run.messages.len() + run.added - gone);
    run.finish();
}

/// Runs the rules over an Anthropic Messages body that goes to the engine's own `/v1/messages`.
pub fn messages(body: Value<'_>, profile: &Profile, edits: &mut Edits, notes: &mut Notes) {
    let Some(messages) = body.get("messages") else { return };
    let mut run = Run::new(messages, Dialect::Messages, edits, notes);
    if profile.billing_header {
        run.strip_system(body);
    }
    run.place_late(profile.late_system);
    run.finish();
}

/// A message of the Messages API as rule 2 sees it. `each` is shown its blocks, where they have a kind.
pub(crate) fn messages_turn<'t>(message: &Message<'t>, mut each: impl FnMut(Value<'t>, Text<'t>)) -> Turn {
    let mut last = false;
    let mut results = false;
    for block in message.blocks() {
        let kind = kind(block);
        last = kind.is_some_and(|kind| kind.is("tool_result"));
        results |= last;
        if let Some(kind) = kind {
            each(block, kind);
        }
    }
    match results {
        _ if message.is_from("system") || message.is_from("developer") => Turn::System,
        true => Turn::Results { last },
        false => Turn::Other,
    }
}

fn chat_turn(message: Value<'_>) -> Turn {
    match message.get("role").and_then(Value::as_text) {
        Some(role) if role.is("system") => Turn::System,
        Some(role) if role.is("developer") => Turn::Developer,
        Some(role) if role.is("tool") => Turn::Results { last: true },
        _ => Turn::Other,
    }
}

/// Whether `block` has the type `name`.
pub(crate) fn is_type(block: Value<'_>, name: &str) -> bool {
    block.get("type").and_then(Value::as_text).is_some_and(|kind| kind.is(name))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Chat,
    Messages,
}

/// What rule 1 made of a text or a list of texts.
enum Stripped {
    /// Nothing is left of it: the next text is the first one.
    Gone,
    /// It has nothing but white space, which is looked through: the next text is the first one.
    Blank,
    /// It stays, changed or not; nothing behind it is looked at.
    Settled,
}

/// One body's edits under way.
struct Run<'t, 'e> {
    dialect: Dialect,
    array: Value<'t>,
    messages: Vec<Value<'t>>,
    /// Messages that go altogether.
    gone: Vec<bool>,
    /// Messages that are new.
    added: usize,
    edits: &'e mut Edits,
    notes: &'e mut Notes,
}

impl<'t, 'e> Run<'t, 'e> {
    fn new(array: Value<'t>, dialect: Dialect, edits: &'e mut Edits, notes: &'e mut Notes) -> Self {
        let messages: Vec<_> = array.items().collect();
        Self { dialect, array, gone: vec![false; messages.len()], added: 0, messages, edits, notes }
    }

    fn finish(self) {
        let Self { array, gone, edits, .. } = self;
        if gone.contains(&true) {
            edits.remove_items(array, |index| gone[index]);
        }
    }

    fn strip_system(&mut self, body: Value<'_>) {
        let stripped = match body.get("system") {
            Some(system) if system.kind() == Kind::String => self.strip_text(system),
            Some(system) if system.items().next().is_some() => self.strip_list(system),
            _ => return self.strip_leading(),
        };
        match stripped {
            Stripped::Gone => self.edits.remove_member(body, "system"),
            Stripped::Blank => {}
            Stripped::Settled => return,
        }
        self.strip_leading();
    }

    /// Rule 1 on the system messages at the head of the conversation.
    fn strip_leading(&mut self) {
        for index in 0..self.messages.len() {
            let message = self.messages[index];
            let Some(role) = message.get("role").and_then(Value::as_text) else { return };
            let Some(content) = message.get("content").filter(|_| role.is("system") || role.is("developer")) else {
                return;
            };
            let stripped = match content.kind() {
                Kind::String => self.strip_text(content),
                Kind::Array => self.strip_list(content),
                _ => return,
            };
            match stripped {
                Stripped::Gone => self.gone[index] = true,
                Stripped::Blank => {}
                Stripped::Settled => return,
            }
        }
    }

    fn strip_text(&mut self, literal: Value<'_>) -> Stripped {
        let Some(text) = literal.as_text() else { return Stripped::Settled };
        match billing_header::find(text) {
            Header::Absent if billing_header::is_blank(text) => Stripped::Blank,
            Header::Absent => Stripped::Settled,
            Header::Unknown => {
                self.notes.note_unknown(BILLING_HEADER);
                Stripped::Settled
            }
            Header::Prefix(bytes) => {
                let inside = literal.span().start + 1;
                self.edits.replace(inside..inside + bytes, []);
                self.notes.note_rule(BILLING_HEADER);
                Stripped::Settled
            }
            Header::Whole => {
                self.notes.note_rule(BILLING_HEADER);
                Stripped::Gone
            }
        }
    }

    fn strip_list(&mut self, list: Value<'_>) -> Stripped {
        let blocks: Vec<_> = list.items().collect();
        let mut gone = vec![false; blocks.len()];
        let mut left = Stripped::Blank;
        for (block, gone) in blocks.iter().zip(&mut gone) {
            let Some(literal) = text_of(*block) else { continue };
            match self.strip_text(literal) {
                Stripped::Gone => *gone = true,
                Stripped::Blank => {}
                Stripped::Settled => {
                    left = Stripped::Settled;
                    break;
                }
            }
        }
        if gone.iter().all(|&gone| gone) && !gone.is_empty() {
            return Stripped::Gone;
        }
        if gone.contains(&true) {
            self.edits.remove_items(list, |index| gone[index]);
        }
        left
    }

    /// Rule 2.
    fn place_late(&mut self, mode: LateSystem) {
        if matches!(mode, LateSystem::System | LateSystem::Off) {
            return;
        }
        let turn = match self.dialect {
            Dialect::Chat => chat_turn,
            Dialect::Messages => |message: Value<'_>| messages_turn(&Message::read(message), |_, _| {}),
        };
        let turns: Vec<_> = self.messages.iter().map(|&message| turn(message)).collect();
        // What is put at one place is gathered, so that each place is edited once.
        let mut tails: Vec<(usize, Vec<u8>)> = Vec::new();
        let mut inserts: Vec<(usize, Vec<u8>)> = Vec::new();
        for (index, placement) in late_system::plan(&turns, mode).into_iter().enumerate() {
            if placement == Placement::Stay {
                continue;
            }
            let Some(literals) = self.messages[index].get("content").and_then(texts) else {
                self.notes.note_unknown(LATE_SYSTEM);
                continue;
            };
            let pieces: Vec<_> = literals.iter().filter_map(|literal| literal.as_text()).collect();
            self.notes.note_rule(LATE_SYSTEM);
            match placement {
                _ if pieces.is_empty() => self.gone[index] = true,
                Placement::Result(target) if self.result_takes_text(target) => {
                    self.gone[index] = true;
                    let note = late_system::wrapped(&pieces);
                    match tails.iter_mut().find(|(known, _)| *known == target) {
                        Some((_, tail)) => tail.extend([br"\n".to_vec(), note].concat()),
                        None => tails.push((target, note)),
                    }
                }
                Placement::After(target) => {
                    self.gone[index] = true;
                    let note = late_system::wrapped(&pieces);
                    self.added += usize::from(self.dialect == Dialect::Chat);
                    let (open, close): (&[u8], &[u8]) = match self.dialect {
                        Dialect::Chat => (br#",{"role":"user","content":""#, br#""}"#),
                        Dialect::Messages => (br#",{"type":"text","text":""#, br#""}"#),
                    };
                    inserts.push((target, [open, &note, close].concat()));
                }
                _ => self.make_user(self.messages[index], &literals, &pieces),
            }
        }
        for (target, note) in tails {
            self.append_to_result(target, &note);
        }
        for (target, insert) in inserts {
            let end = self.result(target).span().end;
            self.edits.replace(end..end, insert);
        }
    }

    /// Turns a system message into a wrapped user message, in its place and its own form.
    fn make_user(&mut self, message: Value<'_>, literals: &[Value<'_>], pieces: &[Text<'_>]) {
        let (open, close) = late_system::wrapper(pieces);
        if let Some(role) = message.get("role") {
            self.edits.replace(role.span(), br#""user""#);
        }
        if let (Some(first), Some(last)) = (literals.first(), literals.last()) {
            self.edits.replace(first.span().start + 1..first.span().start + 1, open);
            self.edits.replace(last.span().end - 1..last.span().end - 1, close);
        }
    }

    /// What a note is appended to: the tool message, or the last `tool_result` block of the message.
    fn result(&self, index: usize) -> Value<'t> {
        let message = self.messages[index];
        let blocks = message.get("content").into_iter().flat_map(Value::items);
        match self.dialect {
            Dialect::Chat => message,
            Dialect::Messages => blocks.filter(|block| is_type(*block, "tool_result")).last().unwrap_or(message),
        }
    }

    fn result_takes_text(&self, index: usize) -> bool {
        let content = self.result(index).get("content");
        content.is_none_or(|content| matches!(content.kind(), Kind::String | Kind::Array | Kind::Null))
    }

    fn append_to_result(&mut self, index: usize, note: &[u8]) {
        let result = self.result(index);
        let Some(content) = result.get("content") else {
            self.edits.add_member(result, &format!("\"content\":\"{}\"", String::from_utf8_lossy(note)));
            return;
        };
        let inside_end = content.span().end.saturating_sub(1);
        match content.kind() {
            Kind::String => {
                let newline: &[u8] = if content.as_text().is_some_and(Text::is_empty) { b"" } else { br"\n" };
                self.edits.replace(inside_end..inside_end, [newline, note].concat());
            }
            Kind::Array => {
                let comma: &[u8] = if content.items().next().is_some() { b"," } else { b"" };
                let block: &[&[u8]] = &[comma, br#"{"type":"text","text":""#, note, br#""}"#];
                self.edits.replace(inside_end..inside_end, block.concat());
            }
            _ => self.edits.replace(content.span(), [b"\"", note, b"\""].concat()),
        }
    }
}

/// The literal of a text block.
fn text_of(block: Value<'_>) -> Option<Value<'_>> {
    block.get("text").filter(|text| text.kind() == Kind::String && is_type(block, "text"))
}

/// The literals of a content that is all text, without empty ones; `None` for any other shape.
fn texts(content: Value<'_>) -> Option<Vec<Value<'_>>> {
    let all: Option<Vec<_>> = match content.kind() {
        Kind::String => Some(vec![content]),
        Kind::Array => content.items().map(text_of).collect(),
        _ => None,
    };
    all.map(|mut all| {
        all.retain(|literal| literal.as_text().is_some_and(|text| !text.is_empty()));
        all
    })
}
