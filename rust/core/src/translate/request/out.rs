//! What goes upstream, before it is written: messages whose texts are pieces of the client's body.
//!
//! Texts are never decoded: a piece is a span of the inside of one of the client's string literals, or a few bytes
//! of our own, and a text is written by putting pieces between one pair of quotes.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use memchr::{memchr, memchr2, memmem};

use crate::json::{Kind, Rope, Text, Value};
use crate::translate::arguments::input_object;

/// A part of a string literal's inside.
#[derive(Clone, Debug)]
enum Piece {
    /// Bytes of the client's body, escapes and all.
    Span(Range<usize>),
    /// Bytes of our own, escaped already.
    Own(Cow<'static, str>),
}

/// A list that nearly always has one item, for which nothing is allocated.
#[derive(Clone, Debug)]
pub(super) struct Few<T> {
    first: Option<T>,
    more: Vec<T>,
}

impl<T> Few<T> {
    pub(super) fn push(&mut self, item: T) {
        match self.first {
            None => self.first = Some(item),
            Some(_) => self.more.push(item),
        }
    }

    pub(super) fn append(&mut self, other: Self) {
        if self.is_empty() {
            return *self = other;
        }
        self.more.extend(other.first);
        self.more.extend(other.more);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.more)
    }
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self { first: None, more: Vec::new() }
    }
}

impl<T> IntoIterator for Few<T> {
    type Item = T;
    type IntoIter = std::iter::Chain<std::option::IntoIter<T>, std::vec::IntoIter<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.more)
    }
}

/// The inside of a string literal, in pieces.
#[derive(Clone, Debug, Default)]
pub(super) struct Inside {
    pieces: Few<Piece>,
}

impl Inside {
    /// All of the string `literal`. Anything but a string gives an empty text.
    pub(super) fn of(literal: Value<'_>) -> Self {
        Self::behind(literal, 0)
    }

    /// The string `literal` without the first `cut` bytes of its inside.
    pub(super) fn behind(literal: Value<'_>, cut: usize) -> Self {
        let mut inside = Self::default();
        if let Some(text) = literal.as_text() {
            let span = literal.span();
            if text.raw().len() > cut {
                inside.pieces.push(Piece::Span(span.start + 1 + cut..span.end - 1));
            }
        }
        inside
    }

    /// Text of our own, escaped already.
    pub(super) fn own(escaped: impl Into<Cow<'static, str>>) -> Self {
        let mut inside = Self::default();
        inside.add(escaped);
        inside
    }

    /// Adds text of our own, escaped already.
    pub(super) fn add(&mut self, escaped: impl Into<Cow<'static, str>>) {
        let escaped = escaped.into();
        if !escaped.is_empty() {
            self.pieces.push(Piece::Own(escaped));
        }
    }

    /// Adds `other` right behind.
    pub(super) fn append(&mut self, other: Self) {
        self.pieces.append(other.pieces);
    }

    /// Adds `other` on a new line; an empty side gives no line.
    pub(super) fn join(&mut self, other: Self) {
        if !self.is_empty() && !other.is_empty() {
            self.add(r"\n");
        }
        self.append(other);
    }

    /// Whether there is no text.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The pieces as texts; `body` is what the spans were taken from.
    pub(super) fn texts<'a>(&'a self, body: &'a [u8]) -> Vec<Text<'a>> {
        let raw = |piece: &'a Piece| match piece {
            Piece::Span(span) => body.get(span.clone()).unwrap_or_default(),
            Piece::Own(own) => own.as_bytes(),
        };
        self.pieces.iter().map(|piece| Text::new(raw(piece))).collect()
    }
}

/// One message of a chat.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) role: &'static str,
    pub(super) content: Content,
    /// What the assistant thought; empty for none.
    pub(super) reasoning: Inside,
    pub(super) calls: Vec<Call>,
    /// For a tool message: the call that it answers.
    pub(super) answers: Option<Inside>,
}

impl Message {
    pub(super) fn new(role: &'static str, content: Content) -> Self {
        Self { role, content, reasoning: Inside::default(), calls: Vec::new(), answers: None }
    }
}

/// A message's content.
#[derive(Debug)]
pub(super) enum Content {
    /// `null`
    Null,
    /// One string.
    Text(Inside),
    /// A list of parts, for content with images.
    Parts(Few<Part>),
}

impl Content {
    /// All-text parts become one string, a newline between them, as vLLM joins parts: whether a client sends a string,
    /// one block or several must not show in the prompt.
    pub(super) fn of(parts: Few<Part>) -> Self {
        if parts.iter().any(|part| matches!(part, Part::Image(_))) {
            Self::Parts(parts)
        } else {
            Self::Text(text_of(parts))
        }
    }
}

/// The texts among `parts`, joined.
pub(super) fn text_of(parts: Few<Part>) -> Inside {
    let mut text = Inside::default();
    for part in parts {
        if let Part::Text(piece) = part {
            text.join(piece);
        }
    }
    text
}

/// One part of a content.
#[derive(Debug)]
pub(super) enum Part {
    Text(Inside),
    /// An image's URL, `data:` or other.
    Image(Inside),
}

/// One tool call.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: Inside,
    pub(super) name: Inside,
    pub(super) input: Input,
}

/// A call's input.
#[derive(Debug)]
pub(super) enum Input {
    /// Where the object lies in the body.
    Span(Range<usize>),
    /// JSON of our own.
    Own(Vec<u8>),
}

impl Input {
    /// The input of a `tool_use` block. Templates go through its members, so what is no object takes the form that it has
    /// in an answer: in the history an error would lock the conversation.
    pub(super) fn of(input: Option<Value<'_>>) -> Self {
        match input {
            Some(object) if object.kind() == Kind::Object => Self::Span(object.span()),
            Some(other) => {
                let written = other.as_text().map_or_else(|| String::from_utf8_lossy(other.raw()), Text::decode);
                Self::Own(input_object(&written).into_owned())
            }
            None => Self::Own(b"{}".to_vec()),
        }
    }
}

/// Writes the upstream body.
pub(super) struct Writer<'b> {
    body: &'b Bytes,
    rope: Rope,
    /// Whether the body has escapes of surrogates, some of which may stand alone.
    surrogates: bool,
}

impl<'b> Writer<'b> {
    /// A writer that takes spans from `body`.
    pub(super) fn new(body: &'b Bytes) -> Self {
        Self { body, rope: Rope::with_capacity(body.len() / 2), surrogates: has_surrogates(body) }
    }

    pub(super) fn finish(self) -> Rope {
        self.rope
    }

    /// JSON of our own.
    pub(super) fn raw(&mut self, json: &str) {
        self.rope.push(json.as_bytes());
    }

    /// A value of the client's as written.
    pub(super) fn value(&mut self, value: Value<'_>) {
        self.span(value.span());
    }

    /// A string literal.
    pub(super) fn literal(&mut self, inside: &Inside) {
        self.raw("\"");
        for piece in inside.pieces.iter() {
            match piece {
                Piece::Span(span) => self.span(span.clone()),
                Piece::Own(own) => self.raw(own),
            }
        }
        self.raw("\"");
    }

    pub(super) fn message(&mut self, message: &Message, reasoning_field: Option<&str>) {
        self.raw("{\"role\":\"");
        self.raw(message.role);
        if let Some(id) = &message.answers {
            self.raw("\",\"tool_call_id\":");
            self.literal(id);
            self.raw(",\"content\":");
        } else {
            self.raw("\",\"content\":");
        }
        self.content(&message.content);
        if let Some(field) = reasoning_field.filter(|_| !message.reasoning.is_empty()) {
            self.raw(",\"");
            self.raw(field);
            self.raw("\":");
            self.literal(&message.reasoning);
        }
        for (index, call) in message.calls.iter().enumerate() {
            self.raw(if index == 0 { ",\"tool_calls\":[" } else { "," });
            self.call(call);
        }
        self.raw(if message.calls.is_empty() { "}" } else { "]}" });
    }

    fn content(&mut self, content: &Content) {
        match content {
            Content::Null => self.raw("null"),
            Content::Text(text) => self.literal(text),
            Content::Parts(parts) => {
                for (index, part) in parts.iter().enumerate() {
                    self.raw(if index == 0 { "[" } else { "," });
                    match part {
                        Part::Text(text) => {
                            self.raw("{\"type\":\"text\",\"text\":");
                            self.literal(text);
                            self.raw("}");
                        }
                        Part::Image(url) => {
                            self.raw("{\"type\":\"image_url\",\"image_url\":{\"url\":");
                            self.literal(url);
                            self.raw("}}");
                        }
                    }
                }
                self.raw(if parts.is_empty() { "[]" } else { "]" });
            }
        }
    }

    fn call(&mut self, call: &Call) {
        self.raw("{\"id\":");
        self.literal(&call.id);
        self.raw(",\"type\":\"function\",\"function\":{\"name\":");
        self.literal(&call.name);
        self.raw(",\"arguments\":\"");
        let input = match &call.input {
            Input::Span(span) => self.body.get(span.clone()).unwrap_or_default(),
            Input::Own(own) => own,
        };
        let mended = if self.surrogates { mend(input) } else { Cow::Borrowed(input) };
        self.rope.push_written(|out| quote_compact(&mended, out));
        self.raw("\"}}");
    }

    fn span(&mut self, span: Range<usize>) {
        let written = self.body.get(span.clone()).unwrap_or_default();
        match if self.surrogates { mend(written) } else { Cow::Borrowed(written) } {
            Cow::Owned(mended) => self.rope.push(&mended),
            Cow::Borrowed(_) => self.rope.push_slice(self.body, span),
        }
    }
}

/// Writes JSON text as the inside of a string literal, without the white space between its tokens. Spelling of
/// numbers, order and duplicates of keys and escapes stay.
fn quote_compact(json: &[u8], out: &mut Vec<u8>) {
    let mut rest = json;
    loop {
        // Outside of strings: everything up to the next quote but white space.
        let quote = memchr(b'"', rest);
        let (between, string) = rest.split_at(quote.unwrap_or(rest.len()));
        out.extend(between.iter().filter(|byte| !byte.is_ascii_whitespace()));
        let Some(mut inside) = string.get(1..) else { return };
        out.extend_from_slice(b"\\\"");
        loop {
            let Some(at) = memchr2(b'"', b'\\', inside) else { return out.extend_from_slice(inside) };
            out.extend_from_slice(&inside[..at]);
            if inside[at] == b'"' {
                rest = &inside[at + 1..];
                break;
            }
            // An escape: its backslash is doubled, and an escaped quote or backslash behind it is escaped once more.
            out.extend_from_slice(b"\\\\");
            match inside.get(at + 1) {
                Some(&escaped @ (b'"' | b'\\')) => out.extend_from_slice(&[b'\\', escaped]),
                Some(&escaped) => out.push(escaped),
                None => return,
            }
            inside = &inside[at + 2..];
        }
        out.extend_from_slice(b"\\\"");
    }
}

/// Whether any escape names a surrogate.
fn has_surrogates(json: &[u8]) -> bool {
    memmem::find_iter(json, "\\u").any(|at| matches!(json.get(at + 2), Some(b'd' | b'D')))
}

/// Replaces escapes of lone surrogates by U+FFFD: text with half a character (JavaScript clients cut it so) is no
/// UTF-8, engines refuse it, and in the history it would lock the conversation for good.
fn mend(json: &[u8]) -> Cow<'_, [u8]> {
    let mut mended = Vec::new();
    let mut kept = 0;
    let mut at = 0;
    while let Some(found) = json.get(at..).and_then(|rest| memchr(b'\\', rest)) {
        at += found;
        match surrogate(json, at) {
            None => at += 2,
            Some(high) if high < 0xDC00 && surrogate(json, at + 6).is_some_and(|low| low >= 0xDC00) => at += 12,
            Some(_) => {
                mended.extend_from_slice(&json[kept..at]);
                mended.extend_from_slice(br"\ufffd");
                at += 6;
                kept = at;
            }
        }
    }
    if kept == 0 {
        return Cow::Borrowed(json);
    }
    mended.extend_from_slice(&json[kept..]);
    Cow::Owned(mended)
}

/// The surrogate that the escape at `at` names, if it is such an escape.
fn surrogate(json: &[u8], at: usize) -> Option<u32> {
    let digits = json.get(at..at + 6)?.strip_prefix(b"\\u")?;
    let unit = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    (0xD800..0xE000).contains(&unit).then_some(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn quoted(json: &str) -> String {
        let mut out = vec![b'"'];
        quote_compact(json.as_bytes(), &mut out);
        out.push(b'"');
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn arguments_keep_everything_but_white_space() {
        assert_eq!(
            quoted("{ \"a\" : 1.0,\n\t\"a\": [1e3, \" x \\\" \\\\ \\n\\u00e9 é\"] }"),
            r#"{"a":1.0,"a":[1e3," x \" \\ \n\u00e9 é"]}"#
        );
        assert_eq!(quoted("{}"), "{}");
    }

    #[test]
    fn only_lone_surrogates_are_mended() {
        let pair = br"a\ud83d\ude42b\\ud83d";
        assert!(matches!(mend(pair), Cow::Borrowed(_)));
        assert_eq!(&*mend(br"\ud83d x\uDE42\ud83d\ud83d\ude42"), br"\ufffd x\ufffd\ufffd\ud83d\ude42");
        assert!(has_surrogates(br"\uD83D") && !has_surrogates(br"\u00e9"));
    }

    proptest! {
        #[test]
        fn arguments_read_the_same(text in any::<String>(), key in "[a-z\"\\\\]{0,3}", number in any::<f64>()) {
            let value = serde_json::json!({ &key: [&text, number], "n": { "t": text } });
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            prop_assert_eq!(quoted(&pretty), serde_json::to_string(&value).unwrap());
        }

        #[test]
        fn mending_agrees_with_lossy_decoding(units in prop::collection::vec(prop_oneof![0xD7F0_u32..0xE010, 0x20_u32..0x7f], 0..12)) {
            let text = units.iter().fold(String::new(), |text, unit| format!("{text}\\u{unit:04x}"));
            let mended = mend(text.as_bytes()).into_owned();
            prop_assert_eq!(Text::new(&mended).decode(), Text::new(text.as_bytes()).decode());
            let literal = [b"\"", &mended[..], b"\""].concat();
            prop_assert!(serde_json::from_slice::<String>(&literal).is_ok());
        }
    }
}
