//! What a Messages request says: its messages and their blocks, each read in one pass over its members.
//!
//! Members are what the client wrote, of whatever kind; of duplicates the last counts.

use crate::json::{Text, Value};

/// One message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'t> {
    /// All of it.
    pub(crate) value: Value<'t>,
    pub(crate) role: Option<Value<'t>>,
    pub(crate) content: Option<Value<'t>>,
}

impl<'t> Message<'t> {
    pub(crate) fn read(value: Value<'t>) -> Self {
        let mut message = Self { value, role: None, content: None };
        for (name, value) in value.entries() {
            match () {
                () if name.reads("role") => message.role = Some(value),
                () if name.reads("content") => message.content = Some(value),
                () => {}
            }
        }
        message
    }

    /// The blocks of its content; none where that is a text.
    pub(crate) fn blocks(self) -> impl Iterator<Item = Value<'t>> {
        self.content.into_iter().flat_map(Value::items)
    }

    /// Whether its role is `role`.
    pub(crate) fn is_from(&self, role: &str) -> bool {
        self.role.is_some_and(|text| text.reads(role))
    }
}

/// One block of a content: the members that the common kinds have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block<'t> {
    /// All of it.
    pub(crate) value: Value<'t>,
    pub(crate) kind: Option<Value<'t>>,
    pub(crate) text: Option<Value<'t>>,
    pub(crate) thinking: Option<Value<'t>>,
    /// Of a call.
    pub(crate) id: Option<Value<'t>>,
    pub(crate) name: Option<Value<'t>>,
    pub(crate) input: Option<Value<'t>>,
    /// Of a call's result.
    pub(crate) tool_use_id: Option<Value<'t>>,
    pub(crate) content: Option<Value<'t>>,
    pub(crate) is_error: Option<Value<'t>>,
}

impl<'t> Block<'t> {
    pub(crate) fn read(value: Value<'t>) -> Self {
        let mut block = Self {
            value,
            kind: None,
            text: None,
            thinking: None,
            id: None,
            name: None,
            input: None,
            tool_use_id: None,
            content: None,
            is_error: None,
        };
        for (name, value) in value.entries() {
            let member = match () {
                () if name.reads("type") => &mut block.kind,
                () if name.reads("text") => &mut block.text,
                () if name.reads("content") => &mut block.content,
                () if name.reads("tool_use_id") => &mut block.tool_use_id,
                () if name.reads("is_error") => &mut block.is_error,
                () if name.reads("id") => &mut block.id,
                () if name.reads("name") => &mut block.name,
                () if name.reads("input") => &mut block.input,
                () if name.reads("thinking") => &mut block.thinking,
                () => continue,
            };
            *member = Some(value);
        }
        block
    }

    /// Whether it is of the kind `name`.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.kind.is_some_and(|kind| kind.reads(name))
    }
}

/// The kind of a block, where nothing else is asked of it.
pub(crate) fn kind(block: Value<'_>) -> Option<Text<'_>> {
    let mut kind = None;
    for (name, value) in block.entries() {
        if name.reads("type") {
            kind = Some(value);
        }
    }
    kind?.as_text()
}

/// What a block that names a tool says of it: of its own, or in the objects within it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Named<'t> {
    pub(crate) tool: Option<Value<'t>>,
    pub(crate) definition: Option<Value<'t>>,
    pub(crate) tool_name: Option<Value<'t>>,
    pub(crate) name: Option<Value<'t>>,
}

impl<'t> Named<'t> {
    pub(crate) fn read(value: Value<'t>) -> Self {
        let mut named = Self::default();
        for (name, value) in value.entries() {
            let member = match () {
                () if name.reads("name") => &mut named.name,
                () if name.reads("tool_name") => &mut named.tool_name,
                () if name.reads("tool") => &mut named.tool,
                () if name.reads("definition") => &mut named.definition,
                () => continue,
            };
            *member = Some(value);
        }
        named
    }
}
