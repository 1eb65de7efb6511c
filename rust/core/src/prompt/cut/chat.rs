//! Chat completions.

use std::ops::Range;

use super::{Cutter, Role, class_of, joined, pick, text};
use crate::json::{Kind, Value};
use crate::prompt::chain::Voice;
use crate::prompt::segment::{Class, Part, Path, Root};

pub(super) fn cut(root: Value<'_>, cutter: &mut Cutter<'_>) {
    let read = |message| pick(message, ["role", "content", "reasoning", "reasoning_content", "tool_calls"]);
    let list: Vec<_> = root.get("messages").into_iter().flat_map(Value::items).map(read).map(Message::new).collect();
    let started = list.iter().position(|message| message.role != Role::System).unwrap_or(list.len());
    let add_system = |cutter: &mut Cutter<'_>, range: Range<usize>| {
        for (index, message) in list.iter().enumerate().take(range.end).skip(range.start) {
            let item = Path::item(Root::Messages, index);
            let block = |index| item.part(Part::block(index));
            cutter.open();
            if let Some(content) = message.content {
                cutter.add_system_content(item.part(Part::Content), block, content);
            }
        }
    };
    let first = joined(root.get("messages").into_iter().flat_map(Value::items), started, false);
    cutter.head(
        |cutter| add_system(cutter, 0..first),
        |cutter| {
            let tools = root.get("tools").into_iter().flat_map(Value::items);
            tools.enumerate().for_each(|(index, tool)| cutter.add_tool(index, tool));
        },
        |cutter| add_system(cutter, first..started),
    );
    let first_user = list.iter().position(|message| message.role == Role::User);
    let last_answer = list.iter().rposition(|message| message.role == Role::Assistant);
    for (index, message) in list.iter().enumerate().skip(started) {
        let item = Path::item(Root::Messages, index);
        let class = class_of(index, first_user, last_answer);
        let (class, voice) = match message.role {
            Role::System => (Class::LateSystem, Voice::System),
            Role::Assistant => (class, Voice::Assistant),
            Role::Tool => (class, Voice::Result),
            _ => (class, Voice::User),
        };
        cutter.open();
        add_message(item, class, voice, message, cutter);
    }
}

/// What of a message is printed.
struct Message<'t> {
    role: Role,
    content: Option<Value<'t>>,
    reasoning: Option<Value<'t>>,
    calls: Option<Value<'t>>,
}

impl<'t> Message<'t> {
    fn new([role, content, reasoning, older, calls]: [Option<Value<'t>>; 5]) -> Self {
        Self { role: Role::of(role), content, reasoning: reasoning.or(older), calls }
    }
}

fn add_message(item: Path, class: Class, voice: Voice, message: &Message<'_>, cutter: &mut Cutter<'_>) {
    if let Some(text) = message.reasoning.and_then(Value::as_text).filter(|text| !text.is_empty()) {
        cutter.add_text(item.part(Part::Reasoning), class, Voice::Reasoning, text);
    }
    match message.content {
        Some(content) if content.kind() == Kind::Array => {
            for (index, part) in content.items().enumerate() {
                add_part(item.part(Part::block(index)), class, voice, part, cutter);
            }
        }
        Some(content) if content.kind() == Kind::String => {
            content
                .as_text()
                .into_iter()
                .for_each(|text| cutter.add_text(item.part(Part::Content), class, voice, text));
        }
        _ => {}
    }
    for (index, call) in message.calls.into_iter().flat_map(Value::items).enumerate() {
        let function = call.get("function").unwrap_or(call);
        cutter.add_made(item.part(Part::call(index)), class, Voice::Call, |out| call_of(function, out));
    }
}

/// A call's name and arguments. Engines read the arguments and spell them anew.
pub(super) fn call_of(function: Value<'_>, out: &mut Vec<u8>) {
    let arguments = function.get("arguments");
    match arguments.and_then(Value::as_text) {
        Some(text) => add_call(function.get("name"), |out| text::push_json_text(&text.bytes(), out), out),
        None => add_call(function.get("name"), |out| text::push_any(arguments, out), out),
    }
}

/// A call in the form that most templates print.
pub(super) fn add_call(name: Option<Value<'_>>, arguments: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"name": "#);
    text::push_any(name, out);
    out.extend_from_slice(br#", "arguments": "#);
    arguments(out);
    out.push(b'}');
}

/// One part of a content; also of the Responses API's.
pub(super) fn add_part(path: Path, class: Class, voice: Voice, part: Value<'_>, cutter: &mut Cutter<'_>) {
    let image = part.get("image_url").or_else(|| part.get("input_audio")).or_else(|| part.get("file_id"));
    match (part.get("text").and_then(Value::as_text), image) {
        (Some(text), _) => cutter.add_text(path, class, voice, text),
        (None, Some(image)) => {
            // `{"url": ...}` and the URL itself are the same image.
            let url = image.get("url").unwrap_or(image);
            cutter.add_made(path, Class::Image, Voice::Image, |out| text::push_json(url, out));
        }
        (None, None) => cutter.add_other(path, class, part),
    }
}
