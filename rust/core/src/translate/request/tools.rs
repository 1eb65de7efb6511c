//! `tools` and `tool_choice`.
//!
//! A tool with `defer_loading` is left out until the conversation names it, and then stands behind all the others in
//! order of first reference: clients put it in the middle of their list, which would change the prompt from there on;
//! this way loading one costs the prefix behind the tools once, and nothing is ever reordered.

use std::borrow::Cow;
use std::collections::HashMap;

use bytes::Bytes;

use super::Source;
use super::blocks::{Path, tool_named};
use super::out::{Inside, Writer};
use crate::error::Fault;
use crate::json::{Kind, Text, Value};
use crate::normalize::is_type;
use crate::profile::{Engine, Profile};
use crate::request::{Notes, invalid};
use crate::wire::messages::{Message, kind};

/// What the engine may call, and how.
pub(super) struct Tools<'t> {
    offered: Vec<Value<'t>>,
    choice: Choice<'t>,
    /// Whether the engine may make one call only.
    single: bool,
}

enum Choice<'t> {
    /// Not given: the engine's default.
    Default,
    Auto,
    Any,
    None,
    /// A tool by its name.
    Tool(Value<'t>),
}

/// Reads the tools; `references` are those of the conversation.
///
/// # Errors
/// A fault where a tool has no name, or where `tool_choice` names a tool that cannot be offered.
pub(super) fn tools<'t>(
    source: &Source<'t>,
    references: &References<'t>,
    notes: &mut Notes,
) -> Result<Tools<'t>, Fault> {
    let root = source.root;
    let mut offered = Vec::new();
    let mut names: HashMap<Cow<'t, str>, Standing<'t>> = HashMap::new();
    let path = Path::root("tools");
    let list = root.get("tools").filter(|list| !list.is_null());
    if list.is_some_and(|list| list.kind() != Kind::Array) {
        return Err(path.fault("Input should be a valid list"));
    }
    for (index, tool) in list.into_iter().flat_map(Value::items).enumerate() {
        let path = path.item(index);
        if let Some(kind) = server_type(path.object(tool)?) {
            notes.note_dropped(&kind);
            // Not all of them have a name (`mcp_toolset`).
            names.insert(tool.get("name").map(decoded).unwrap_or_default(), Standing::Server);
            continue;
        }
        let name = path.string(tool.get("name"), "name")?;
        let standing = if tool.get("defer_loading").and_then(Value::as_bool) == Some(true) {
            Standing::Deferred(tool)
        } else {
            offered.push(tool);
            Standing::Offered
        };
        names.insert(decoded(name), standing);
    }

    let waiting = names.values().any(|standing| matches!(standing, Standing::Deferred(_)));
    for &named in &references.blocks {
        let inline =
            named.get("tool").and_then(|tool| tool.get("definition")).filter(|tool| server_type(*tool).is_none());
        if !waiting && inline.is_none() {
            continue;
        }
        let Some(name) = tool_named(named).map(decoded) else { continue };
        match (names.get(&name), inline) {
            (Some(Standing::Deferred(tool)), _) => offered.push(*tool),
            (None, Some(tool)) => offered.push(tool),
            _ => continue,
        }
        names.insert(name, Standing::Offered);
    }

    let asked = root.get("tool_choice");
    let choice = match asked.and_then(|asked| asked.get("type")).and_then(Value::as_text) {
        Some(kind) if kind.is("auto") => Choice::Auto,
        Some(kind) if kind.is("any") => Choice::Any,
        Some(kind) if kind.is("none") => Choice::None,
        Some(kind) if kind.is("tool") => {
            let path = Path::root("tool_choice");
            let name = path.string(asked.unwrap_or(root).get("name"), "name")?;
            match names.get(&decoded(name)) {
                Some(Standing::Offered) => {}
                Some(Standing::Deferred(tool)) => offered.push(*tool),
                Some(Standing::Server) => {
                    return Err(unavailable(name, "runs on Anthropic's servers, not on this engine"));
                }
                None => return Err(unavailable(name, "is not among the tools")),
            }
            Choice::Tool(name)
        }
        _ => Choice::Default,
    };
    let single = asked.and_then(|asked| asked.get("disable_parallel_tool_use")).and_then(Value::as_bool) == Some(true);
    Ok(Tools { offered, choice, single })
}

/// The tools that an engine is offered, in their order; none where they cannot be read.
pub(crate) fn offered<'t>(root: Value<'t>, profile: &'t Profile) -> Vec<Value<'t>> {
    static NOTHING: Bytes = Bytes::new();
    let source = Source { body: &NOTHING, root, profile, model: None };
    tools(&source, &References::of(root), &mut Notes::default()).map(|tools| tools.offered).unwrap_or_default()
}

/// What is known of a tool's name.
enum Standing<'t> {
    Offered,
    Deferred(Value<'t>),
    Server,
}

/// The type of a tool that Anthropic's servers would run: it has a type of its own and no schema.
fn server_type(tool: Value<'_>) -> Option<Cow<'_, str>> {
    let kind = tool.get("type")?.as_text()?.decode();
    (kind != "custom" && tool.get("input_schema").is_none()).then_some(kind)
}

fn unavailable(name: Value<'_>, why: &str) -> Fault {
    let name: String = decoded(name).chars().take(128).collect();
    invalid(format!("tool_choice: the tool '{name}' {why}"))
}

fn decoded(literal: Value<'_>) -> Cow<'_, str> {
    literal.as_text().map(Text::decode).unwrap_or_default()
}

/// The blocks that name a tool, in the order of the conversation: calls, results of the tool search, changes of tools.
#[derive(Default)]
pub(super) struct References<'t> {
    blocks: Vec<Value<'t>>,
}

impl<'t> References<'t> {
    fn of(root: Value<'t>) -> Self {
        let mut references = Self::default();
        let messages = root.get("messages").into_iter().flat_map(Value::items);
        for block in messages.flat_map(|message| Message::read(message).blocks()) {
            if let Some(kind) = kind(block) {
                references.note(block, kind);
            }
        }
        references
    }

    /// Takes note of what `block`, the next of the conversation, names.
    pub(super) fn note(&mut self, block: Value<'t>, kind: Text<'t>) {
        if kind.is("tool_use") || kind.is("tool_reference") || kind.is("tool_addition") {
            self.blocks.push(block);
        } else if kind.is("tool_result") {
            let content = block.get("content").into_iter().flat_map(Value::items);
            self.blocks.extend(content.filter(|inner| is_type(*inner, "tool_reference")));
        } else if kind.is("tool_search_tool_result") {
            let found = block.get("content").and_then(|result| result.get("tool_references"));
            self.blocks.extend(found.into_iter().flat_map(Value::items));
        }
    }
}

impl Tools<'_> {
    /// Writes `,"tools":[...]`, if there are any.
    pub(super) fn write(&self, engine: Engine, out: &mut Writer<'_>) {
        for (index, tool) in self.offered.iter().enumerate() {
            out.raw(if index == 0 { ",\"tools\":[" } else { "," });
            out.raw("{\"type\":\"function\",\"function\":{\"name\":");
            out.literal(&tool.get("name").map(Inside::of).unwrap_or_default());
            let description = tool.get("description").map(Inside::of).unwrap_or_default();
            if !description.is_empty() {
                out.raw(",\"description\":");
                out.literal(&description);
            }
            out.raw(",\"parameters\":");
            match tool.get("input_schema").filter(|schema| schema.kind() == Kind::Object) {
                Some(schema) => out.value(schema),
                None => out.raw("{\"type\":\"object\",\"properties\":{}}"),
            }
            // vLLM holds a call to its schema only then (measured); others may refuse the field.
            if engine == Engine::Vllm && tool.get("strict").and_then(Value::as_bool) == Some(true) {
                out.raw(",\"strict\":true");
            }
            out.raw("}}");
        }
        if !self.offered.is_empty() {
            out.raw("]");
        }
    }

    /// Writes `tool_choice` and `parallel_tool_calls`. Without tools neither has a meaning, and engines refuse them.
    pub(super) fn write_choice(&self, out: &mut Writer<'_>) {
        if self.offered.is_empty() {
            return;
        }
        match self.choice {
            Choice::Default => {}
            Choice::Auto => out.raw(",\"tool_choice\":\"auto\""),
            Choice::Any => out.raw(",\"tool_choice\":\"required\""),
            Choice::None => out.raw(",\"tool_choice\":\"none\""),
            Choice::Tool(name) => {
                out.raw(",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":");
                out.literal(&Inside::of(name));
                out.raw("}}");
            }
        }
        if self.single && !matches!(self.choice, Choice::None) {
            out.raw(",\"parallel_tool_calls\":false");
        }
    }
}
