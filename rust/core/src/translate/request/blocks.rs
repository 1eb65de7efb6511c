//! Content blocks as texts and images: all that a chat engine takes.
//!
//! A block that cannot be passed becomes a short text that says so. It is never an error: it stays in the client's
//! history, so that an error would lock the conversation for good.

use std::fmt;

use super::out::{Few, Inside, Part, text_of};
use crate::error::Fault;
use crate::json::{Kind, Text, Value};
use crate::request::{Notes, invalid};
use crate::wire::messages::{Block, Named};

/// A place in the request, named as Anthropic's API names it: `messages.3.content.0`.
#[derive(Clone, Copy)]
pub(super) struct Path<'p> {
    up: Option<&'p Path<'p>>,
    name: &'static str,
    index: Option<usize>,
}

impl<'p> Path<'p> {
    /// A top-level field.
    pub(super) fn root(name: &'static str) -> Self {
        Self { up: None, name, index: None }
    }

    /// Item `index` of the list at this place.
    pub(super) fn item(&'p self, index: usize) -> Self {
        Self { index: Some(index), ..*self }
    }

    /// The member `name` of the object at this place.
    pub(super) fn key(&'p self, name: &'static str) -> Self {
        Self { up: Some(self), name, index: None }
    }

    /// The fault that something is wrong at this place.
    pub(super) fn fault(&self, what: &str) -> Fault {
        invalid(format!("{self}: {what}"))
    }

    /// `member`, the one called `name` of the object at this place, which must be a string.
    pub(super) fn string<'t>(&self, member: Option<Value<'t>>, name: &'static str) -> Result<Value<'t>, Fault> {
        match member {
            Some(value) if value.kind() == Kind::String => Ok(value),
            Some(_) => Err(self.key(name).fault("Input should be a valid string")),
            None => Err(self.key(name).fault("Field required")),
        }
    }

    /// `value`, which must be an object.
    pub(super) fn object<'t>(&self, value: Value<'t>) -> Result<Value<'t>, Fault> {
        if value.kind() == Kind::Object { Ok(value) } else { Err(self.fault("Input should be an object")) }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(up) = self.up {
            write!(f, "{up}.")?;
        }
        f.write_str(self.name)?;
        self.index.map_or(Ok(()), |index| write!(f, ".{index}"))
    }
}

/// The parts of a content: a string or a list of blocks.
pub(super) fn parts(content: Value<'_>, path: Path<'_>, notes: &mut Notes) -> Result<Few<Part>, Fault> {
    let mut parts = Few::default();
    match content.kind() {
        Kind::String => push_text(Inside::of(content), &mut parts),
        Kind::Array => {
            for (index, block) in content.items().enumerate() {
                let path = path.item(index);
                add(&Block::read(path.object(block)?), path, notes, &mut parts)?;
            }
        }
        _ => return Err(path.fault("Input should be a string or a list of content blocks")),
    }
    Ok(parts)
}

/// Adds the parts of one block.
pub(super) fn add(block: &Block<'_>, path: Path<'_>, notes: &mut Notes, parts: &mut Few<Part>) -> Result<(), Fault> {
    let Block { value: block, kind, text, .. } = *block;
    let kind = path.string(kind, "type")?;
    match &*kind.as_text().map(Text::bytes).unwrap_or_default() {
        b"text" => push_text(Inside::of(path.string(text, "text")?), parts),
        b"image" => parts.push(image(block, notes)),
        b"document" => document(block, path, notes, parts)?,
        b"search_result" => search_result(block, path, notes, parts)?,
        b"tool_reference" | b"tool_addition" => push_text(tool_news(block, " is available."), parts),
        b"tool_removal" => push_text(tool_news(block, " is no longer available."), parts),
        // A summary that stands for the conversation before it.
        b"compaction" if is_string(block, "content") => push_text(member(block, "content"), parts),
        other => {
            notes.note_dropped(&String::from_utf8_lossy(other));
            push_text(sentence("[", Inside::of(kind), " block omitted]"), parts);
        }
    }
    Ok(())
}

fn push_text(text: Inside, parts: &mut Few<Part>) {
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
}

fn sentence(before: &'static str, middle: Inside, after: &'static str) -> Inside {
    let mut sentence = Inside::own(before);
    sentence.append(middle);
    sentence.add(after);
    sentence
}

fn is_string(object: Value<'_>, name: &str) -> bool {
    object.get(name).is_some_and(|value| value.kind() == Kind::String)
}

/// The string member `name`; empty where there is none.
fn member(object: Value<'_>, name: &str) -> Inside {
    object.get(name).map(Inside::of).unwrap_or_default()
}

fn image(block: Value<'_>, notes: &mut Notes) -> Part {
    let source = block.get("source");
    let has = |name| source.is_some_and(|source| is_string(source, name));
    match source {
        Some(source) if has("media_type") && has("data") => {
            let mut url = sentence("data:", member(source, "media_type"), ";base64,");
            url.append(member(source, "data"));
            Part::Image(url)
        }
        Some(source) if has("url") => Part::Image(member(source, "url")),
        _ => {
            notes.note_dropped("image");
            Part::Text(Inside::own("[image omitted: this engine takes image data and URLs only]"))
        }
    }
}

fn document(block: Value<'_>, path: Path<'_>, notes: &mut Notes, parts: &mut Few<Part>) -> Result<(), Fault> {
    let source = block.get("source");
    let kind = source.and_then(|source| source.get("type")).and_then(Value::as_text);
    let mut head = member(block, "title");
    head.join(member(block, "context"));
    match source {
        Some(source) if kind.is_some_and(|kind| kind.is("text")) && is_string(source, "data") => {
            head.join(member(source, "data"));
            push_text(head, parts);
        }
        Some(source) if kind.is_some_and(|kind| kind.is("content")) => {
            push_text(head, parts);
            let path = path.key("source");
            let content = source.get("content").ok_or_else(|| path.key("content").fault("Field required"))?;
            parts.append(self::parts(content, path.key("content"), notes)?);
        }
        _ => {
            notes.note_dropped("document");
            let mut text = Inside::own("[document ");
            if is_string(block, "title") {
                text.append(sentence("\\\"", member(block, "title"), "\\\" "));
            }
            let media_type = source.map(|source| member(source, "media_type")).unwrap_or_default();
            if !media_type.is_empty() {
                text.append(sentence("(", media_type, ") "));
            }
            text.add("omitted: this engine takes text and images only]");
            push_text(text, parts);
        }
    }
    Ok(())
}

fn search_result(block: Value<'_>, path: Path<'_>, notes: &mut Notes, parts: &mut Few<Part>) -> Result<(), Fault> {
    let mut text = member(block, "title");
    text.join(member(block, "source"));
    if let Some(content) = block.get("content") {
        text.join(text_of(self::parts(content, path.key("content"), notes)?));
    }
    push_text(text, parts);
    Ok(())
}

/// The name of the tool that a block of the tool search or of a change of tools is about.
pub(super) fn tool_named(block: Value<'_>) -> Option<Value<'_>> {
    let mut named = Named::read(block);
    named = named.tool.map_or(named, Named::read);
    named = named.definition.map_or(named, Named::read);
    named.tool_name.or(named.name).filter(|name| name.kind() == Kind::String)
}

fn tool_news(block: Value<'_>, news: &'static str) -> Inside {
    tool_named(block).map_or_else(Inside::default, |name| sentence("Tool ", Inside::of(name), news))
}
