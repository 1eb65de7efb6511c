//! Anthropic Messages.

use super::chat::add_call;
use super::{Cutter, Form, Role, class_of, text};
use crate::json::{Kind, Text, Value};
use crate::prompt::chain::Voice;
use crate::prompt::segment::{Class, Part, Path, Root};
use crate::translate::request::{offered_tools, prints_reasoning};
use crate::wire::messages::{Block, Message};

pub(super) fn cut(root: Value<'_>, cutter: &mut Cutter<'_>) {
    let read = |message| {
        let message = Message::read(message);
        (Role::of(message.role), message.content)
    };
    let list: Vec<_> = root.get("messages").into_iter().flat_map(Value::items).map(read).collect();
    let started = list.iter().position(|(role, _)| *role != Role::System).unwrap_or(list.len());
    cutter.head(
        |cutter| {
            cutter.open();
            if let Some(system) = root.get("system") {
                let block = |index| Path::item(Root::System, index);
                cutter.add_system_content(Path::member(Root::System), block, system);
            }
            for (index, (_, content)) in list[..started].iter().enumerate() {
                let item = Path::item(Root::Messages, index);
                let block = |index| item.part(Part::block(index));
                if let Some(content) = *content {
                    cutter.add_system_content(item.part(Part::Content), block, content);
                }
            }
        },
        |cutter| tools(root, cutter),
        |_| {}, // the system text is one message to the engine
    );
    let first_user = list.iter().position(|(role, _)| *role == Role::User);
    let last_answer = list.iter().rposition(|(role, _)| *role == Role::Assistant);
    for (index, &(role, content)) in list.iter().enumerate().skip(started) {
        let item = Path::item(Root::Messages, index);
        let class = class_of(index, first_user, last_answer);
        cutter.open();
        let Some(content) = content else { continue };
        let (class, voice) = match role {
            Role::System => (Class::LateSystem, Voice::System),
            Role::Assistant => (class, Voice::Assistant),
            _ => (class, Voice::User),
        };
        match content.as_text() {
            Some(text) => cutter.add_text(item.part(Part::Content), class, voice, text),
            None => {
                for (index, block) in content.items().enumerate() {
                    add_block(item.part(Part::block(index)), class, voice, block, cutter);
                }
            }
        }
    }
}

fn tools(root: Value<'_>, cutter: &mut Cutter<'_>) {
    let list: Vec<_> = root.get("tools").into_iter().flat_map(Value::items).collect();
    if cutter.form != Form::Translated {
        return list.iter().enumerate().for_each(|(index, &tool)| cutter.add_tool(index, tool));
    }
    for (place, tool) in offered_tools(root, cutter.profile).into_iter().enumerate() {
        // A tool that the conversation itself defines comes behind those of the list.
        let index = list.iter().position(|listed| listed.span() == tool.span());
        cutter.add_tool(index.unwrap_or(list.len() + place), tool);
    }
}

fn add_block(path: Path, class: Class, voice: Voice, block: Value<'_>, cutter: &mut Cutter<'_>) {
    let Block { value: block, kind, text, thinking, name, input, content, is_error, .. } = Block::read(block);
    let kind = kind.and_then(Value::as_text).map(Text::bytes).unwrap_or_default();
    match &*kind {
        b"text" => {
            if let Some(text) = text.and_then(Value::as_text) {
                cutter.add_text(path, class, voice, text);
            }
        }
        b"thinking" => {
            let printed = cutter.form == Form::Messages || prints_reasoning(cutter.profile.engine);
            if let Some(text) = thinking.and_then(Value::as_text).filter(|_| printed) {
                cutter.add_text(path, class, Voice::Reasoning, text);
            }
        }
        // Sealed for Anthropic's own servers.
        b"redacted_thinking" => {}
        b"tool_use" => cutter.add_made(path, class, Voice::Call, |out| {
            add_call(name, |out| text::push_any(input, out), out);
        }),
        b"tool_result" => {
            // A message of its own toward the engine, and so is what follows it.
            cutter.open();
            cutter.add_made(path, class, Voice::Result, |out| result(is_error, content, out));
            cutter.open();
        }
        b"image" => cutter.add_made(path, Class::Image, Voice::Image, |out| {
            text::push_any(block.get("source"), out);
        }),
        server if server.ends_with(b"_tool_use") || server.ends_with(b"_tool_result") => {
            if cutter.form == Form::Messages {
                cutter.add_other(path, class, block);
            }
        }
        _ => cutter.add_other(path, class, block),
    }
}

/// A tool's result: its texts, and whatever else it holds. One without any is rendered all the same.
fn result(is_error: Option<Value<'_>>, content: Option<Value<'_>>, out: &mut Vec<u8>) {
    out.push(u8::from(is_error.and_then(Value::as_bool) == Some(true)));
    let Some(content) = content else { return };
    if content.kind() == Kind::String {
        return text::push(Some(content), out);
    }
    for (index, part) in content.items().enumerate() {
        if index > 0 {
            out.push(b'\n');
        }
        match part.get("text") {
            Some(literal) => text::push(Some(literal), out),
            None => super::members(part, out),
        }
    }
}
