//! The Responses API. Items of reasoning are left out: engines keep what they need of it themselves, and what is
//! sealed no template can print.

use std::ops::Range;

use super::chat::{add_part, call_of};
use super::{Cutter, class_of, is_role, is_system, joined, text};
use crate::json::{Kind, Text, Value};
use crate::prompt::chain::Voice;
use crate::prompt::segment::{Class, Part, Path, Root};

pub(super) fn cut(root: Value<'_>, cutter: &mut Cutter<'_>) {
    let input = root.get("input");
    let list: Vec<_> = input.into_iter().flat_map(Value::items).collect();
    let started = list.iter().position(|&item| !is_system(item)).unwrap_or(list.len());
    let add_system = |cutter: &mut Cutter<'_>, range: Range<usize>| {
        for (index, item) in list.iter().enumerate().take(range.end).skip(range.start) {
            let path = Path::item(Root::Input, index);
            let block = |index| path.part(Part::block(index));
            cutter.open();
            if let Some(content) = item.get("content") {
                cutter.add_system_content(path.part(Part::Content), block, content);
            }
        }
    };
    // The instructions become a system message in front of all others.
    let instructions = root.get("instructions").and_then(Value::as_text);
    let first = joined(list.iter().copied(), started, instructions.is_some());
    cutter.head(
        |cutter| {
            cutter.open();
            if let Some(text) = instructions {
                cutter.add_system(Path::member(Root::Instructions), text);
            }
            add_system(cutter, 0..first);
        },
        |cutter| {
            let tools = root.get("tools").into_iter().flat_map(Value::items);
            tools.enumerate().for_each(|(index, tool)| cutter.add_tool(index, tool));
        },
        |cutter| add_system(cutter, first..started),
    );
    cutter.open();
    if let Some(text) = input.and_then(Value::as_text) {
        return cutter.add_text(Path::member(Root::Input), Class::FirstUser, Voice::User, text);
    }
    let first_user = list.iter().position(|&item| is_role(item, "user"));
    let last_answer = list.iter().rposition(|&item| is_answer(item));
    for (index, &item) in list.iter().enumerate().skip(started) {
        let path = Path::item(Root::Input, index);
        cutter.open();
        add_item(path, class_of(index, first_user, last_answer), item, cutter);
    }
}

/// Whether the model said this item.
fn is_answer(item: Value<'_>) -> bool {
    is_role(item, "assistant") || kind_of(item).is_some_and(|kind| kind.is("function_call") || kind.is("reasoning"))
}

fn kind_of(item: Value<'_>) -> Option<Text<'_>> {
    item.get("type").and_then(Value::as_text)
}

fn add_item(path: Path, class: Class, item: Value<'_>, cutter: &mut Cutter<'_>) {
    match kind_of(item).map(Text::decode).as_deref() {
        Some("function_call") => cutter.add_made(path, class, Voice::Call, |out| call_of(item, out)),
        Some("function_call_output") => cutter.add_made(path, class, Voice::Result, |out| match item.get("output") {
            Some(output) if output.kind() == Kind::String => text::push(Some(output), out),
            Some(output) => text::push_json(output, out),
            None => {}
        }),
        Some("reasoning") => {}
        Some("message") | None => {
            let (class, voice) = match () {
                () if is_system(item) => (Class::LateSystem, Voice::System),
                () if is_role(item, "assistant") => (class, Voice::Assistant),
                () => (class, Voice::User),
            };
            match item.get("content") {
                Some(content) if content.kind() == Kind::String => {
                    if let Some(text) = content.as_text() {
                        cutter.add_text(path.part(Part::Content), class, voice, text);
                    }
                }
                Some(content) => {
                    for (index, part) in content.items().enumerate() {
                        add_part(path.part(Part::block(index)), class, voice, part, cutter);
                    }
                }
                None => {}
            }
        }
        Some(_) => cutter.add_other(path, class, item),
    }
}
