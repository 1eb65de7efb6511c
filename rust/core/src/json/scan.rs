//! A strict scanner (RFC 8259) that records where each value starts and ends.
//!
//! One pass over the text fills a flat table; afterwards every step (next member, next item) is a
//! table look-up, so that a body of megabytes is read once. Values are never decoded here: numbers,
//! escapes, duplicate keys and key order stay what the sender wrote. Bytes of 0x80 and above are
//! taken as they come; whoever needs UTF-8 checks it.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use super::marks::{Marks, Specials};
use super::text::{SHORT_ESCAPES, Text};

/// How deep arrays and objects may nest. Deeper text is an error, never a deep stack.
pub const MAX_DEPTH: usize = 512;

/// Room for one value is made for so many bytes of text, in which a request's body rarely has more than one.
const BYTES_A_NODE: usize = 32;

/// The six kinds of JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `{...}`
    Object,
    /// `[...]`
    Array,
    /// `"..."`
    String,
    /// A number in whatever spelling.
    Number,
    /// `true` or `false`
    Bool,
    /// `null`
    Null,
}

/// Where and why a text is not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Offset of the offending byte.
    pub at: usize,
    /// What the grammar wanted there.
    pub expected: &'static str,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {} at byte {}", self.expected, self.at)
    }
}

impl std::error::Error for SyntaxError {}

/// One value's place.
#[derive(Clone, Copy, Debug)]
struct Node {
    start: u32,
    end: u32,
    /// Nodes of the value, its own and those of all that is in it.
    count: u32,
    kind: Kind,
    /// Whether a string has escapes.
    escaped: bool,
}

impl Node {
    /// The text of a string.
    #[inline]
    fn string(self, text: &[u8]) -> Text<'_> {
        let inside = text.get(self.start as usize + 1..(self.end as usize).saturating_sub(1));
        Text::scanned(inside.unwrap_or_default(), self.escaped)
    }

    /// Whether a string reads `plain`. Nearly always its length alone says no, which is what a look-up by key costs.
    #[inline]
    fn reads(self, text: &[u8], plain: &str) -> bool {
        let length = (self.end - self.start) as usize;
        (self.escaped || length == plain.len() + 2) && self.string(text).is(plain)
    }
}

/// The scanner's table. Keep one and scan many texts with it: it allocates only to grow.
#[derive(Debug, Default)]
pub struct Tape {
    nodes: Vec<Node>,
    open: Vec<u32>,
}

impl Tape {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Scans `text`, which must hold exactly one JSON value (white space around it is fine).
    ///
    /// # Errors
    /// [`SyntaxError`] where the text leaves the grammar, nests deeper than [`MAX_DEPTH`], or is 4 GiB or longer.
    pub fn scan<'t>(&'t mut self, text: &'t [u8]) -> Result<Value<'t>, SyntaxError> {
        if u32::try_from(text.len()).is_err() {
            return Err(SyntaxError { at: 0, expected: "a text under 4 GiB" });
        }
        self.nodes.clear();
        self.open.clear();
        self.nodes.reserve(text.len() / BYTES_A_NODE);
        let marks = Marks::new(text);
        Scanner { text, at: 0, marks, nodes: &mut self.nodes, open: &mut self.open, inside: None }.run()?;
        Ok(Value { text, nodes: &self.nodes })
    }
}

/// A text and its table: what several readers go through, one after the other, and only the first one scanned.
pub struct Scanned {
    text: Bytes,
    tape: Tape,
}

impl Scanned {
    /// Scans `text`.
    ///
    /// # Errors
    /// As [`Tape::scan`].
    pub fn new(text: Bytes) -> Result<Self, SyntaxError> {
        let mut tape = Tape::new();
        tape.scan(&text)?;
        Ok(Self { text, tape })
    }

    /// The text.
    pub fn text(&self) -> &Bytes {
        &self.text
    }

    /// The value that the text is.
    pub fn root(&self) -> Value<'_> {
        Value { text: &self.text, nodes: &self.tape.nodes }
    }
}

struct Scanner<'t> {
    text: &'t [u8],
    at: usize,
    /// Quotes, escapes and control characters, for strings.
    marks: Marks<'t, Specials>,
    nodes: &'t mut Vec<Node>,
    /// Nodes of the containers that are open.
    open: &'t mut Vec<u32>,
    /// The innermost of them.
    inside: Option<Kind>,
}

impl Scanner<'_> {
    fn run(mut self) -> Result<(), SyntaxError> {
        // Whether what comes next is the key of a member.
        let mut key = false;
        loop {
            self.skip_space();
            let start = self.at;
            match self.peek() {
                Some(b'"') => {
                    let escaped = self.string()?;
                    self.leaf(start, Kind::String, escaped);
                    if key {
                        self.colon()?;
                        key = false;
                        continue;
                    }
                }
                _ if key => return fail(self.at, "a key in quotes"),
                Some(b'{') => {
                    self.open(Kind::Object)?;
                    if self.peek() != Some(b'}') {
                        key = true;
                        continue;
                    }
                    self.close();
                }
                Some(b'[') => {
                    self.open(Kind::Array)?;
                    if self.peek() != Some(b']') {
                        continue;
                    }
                    self.close();
                }
                Some(b'-' | b'0'..=b'9') => self.end_leaf(number(self.text, start)?, Kind::Number),
                Some(b't') => self.end_leaf(word(self.text, start, b"true")?, Kind::Bool),
                Some(b'f') => self.end_leaf(word(self.text, start, b"false")?, Kind::Bool),
                Some(b'n') => self.end_leaf(word(self.text, start, b"null")?, Kind::Null),
                _ => return fail(self.at, "a value"),
            }
            // Behind a value: out of the containers that end here, and on to what comes next.
            key = loop {
                self.skip_space();
                match (self.inside, self.peek()) {
                    (Some(kind), Some(b',')) => {
                        self.at += 1;
                        break kind == Kind::Object;
                    }
                    (Some(Kind::Object), Some(b'}')) | (Some(Kind::Array), Some(b']')) => self.close(),
                    (Some(Kind::Object), _) => return fail(self.at, "',' or '}'"),
                    (Some(_), _) => return fail(self.at, "',' or ']'"),
                    (None, Some(_)) => return fail(self.at, "the end of the text"),
                    (None, None) => return Ok(()),
                }
            };
        }
    }

    /// Goes behind a string; whether it has escapes.
    #[inline]
    fn string(&mut self) -> Result<bool, SyntaxError> {
        let mut at = self.at + 1;
        let mut escaped = false;
        loop {
            at = self.marks.next(at);
            match self.text.get(at) {
                Some(b'"') => {
                    self.at = at + 1;
                    return Ok(escaped);
                }
                Some(b'\\') => {
                    escaped = true;
                    at = behind_escape(self.text, at).ok_or_else(|| unknown_escape(self.text, at))?;
                }
                Some(_) => return fail(at, "an escape for this control character"),
                None => return fail(at, "a closing quote"),
            }
        }
    }

    #[inline]
    fn colon(&mut self) -> Result<(), SyntaxError> {
        self.skip_space();
        if self.peek() != Some(b':') {
            return fail(self.at, "':'");
        }
        self.at += 1;
        Ok(())
    }

    fn end_leaf(&mut self, end: usize, kind: Kind) {
        let start = std::mem::replace(&mut self.at, end);
        self.leaf(start, kind, false);
    }

    // Offsets fit: `scan` refuses longer texts, and a text has no more nodes than bytes.
    #[allow(clippy::cast_possible_truncation)]
    #[inline]
    fn leaf(&mut self, start: usize, kind: Kind, escaped: bool) {
        self.nodes.push(Node { start: start as u32, end: self.at as u32, count: 1, kind, escaped });
    }

    /// Goes into a container, up to what comes first in it.
    #[allow(clippy::cast_possible_truncation)]
    #[inline]
    fn open(&mut self, kind: Kind) -> Result<(), SyntaxError> {
        if self.open.len() == MAX_DEPTH {
            return fail(self.at, "less nesting");
        }
        self.open.push(self.nodes.len() as u32);
        self.nodes.push(Node { start: self.at as u32, end: 0, count: 0, kind, escaped: false });
        self.inside = Some(kind);
        self.at += 1;
        self.skip_space();
        Ok(())
    }

    #[allow(clippy::cast_possible_truncation)]
    #[inline]
    fn close(&mut self) {
        self.at += 1;
        let all = self.nodes.len() as u32;
        if let Some(index) = self.open.pop()
            && let Some(node) = self.nodes.get_mut(index as usize)
        {
            node.end = self.at as u32;
            node.count = all - index;
        }
        self.inside = self.open.last().and_then(|&index| Some(self.nodes.get(index as usize)?.kind));
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    #[inline]
    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }
}

#[cold]
fn fail<T>(at: usize, expected: &'static str) -> Result<T, SyntaxError> {
    Err(SyntaxError { at, expected })
}

/// The end of the number at `at`.
fn number(text: &[u8], mut at: usize) -> Result<usize, SyntaxError> {
    if text.get(at) == Some(&b'-') {
        at += 1;
    }
    at = if text.get(at) == Some(&b'0') { at + 1 } else { digits(text, at)? };
    if text.get(at) == Some(&b'.') {
        at = digits(text, at + 1)?;
    }
    if matches!(text.get(at), Some(b'e' | b'E')) {
        let signed = matches!(text.get(at + 1), Some(b'+' | b'-'));
        at = digits(text, at + 1 + usize::from(signed))?;
    }
    Ok(at)
}

/// The end of the digits at `at`, of which there must be one.
fn digits(text: &[u8], at: usize) -> Result<usize, SyntaxError> {
    let count = text.iter().skip(at).take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 { fail(at, "a digit") } else { Ok(at + count) }
}

/// The end of the word at `at`, which must be `word`.
fn word(text: &[u8], at: usize, word: &[u8]) -> Result<usize, SyntaxError> {
    let found = text.get(at..).is_some_and(|rest| rest.starts_with(word));
    if found { Ok(at + word.len()) } else { fail(at, "a value") }
}

/// The end of the escape at `at`, if the grammar has it.
#[inline]
fn behind_escape(text: &[u8], at: usize) -> Option<usize> {
    let &byte = text.get(at + 1)?;
    if SHORT_ESCAPES[usize::from(byte)] != 0 { Some(at + 2) } else { behind_unicode_escape(text, at) }
}

fn behind_unicode_escape(text: &[u8], at: usize) -> Option<usize> {
    let digits = text.get(at..at + 6)?.strip_prefix(b"\\u")?;
    digits.iter().all(u8::is_ascii_hexdigit).then_some(at + 6)
}

#[cold]
fn unknown_escape(text: &[u8], at: usize) -> SyntaxError {
    let expected = if text.get(at + 1) == Some(&b'u') { "four hex digits after \\u" } else { "a known escape" };
    SyntaxError { at, expected }
}

/// Whether `raw` may stand between the quotes of a string literal.
pub fn is_literal(raw: &[u8]) -> bool {
    let mut marks = Marks::<Specials>::new(raw);
    let mut at = 0;
    loop {
        at = marks.next(at);
        let end = match raw.get(at) {
            None => return true,
            Some(b'\\') => behind_escape(raw, at),
            Some(_) => None,
        };
        let Some(end) = end else { return false };
        at = end;
    }
}

/// One value of a scanned text. Cheap to copy.
#[derive(Clone, Copy)]
pub struct Value<'t> {
    text: &'t [u8],
    /// The value's own node, and behind it those of what is in it.
    nodes: &'t [Node],
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", String::from_utf8_lossy(self.raw()))
    }
}

impl<'t> Value<'t> {
    #[inline]
    fn node(self) -> Node {
        self.nodes[0]
    }

    /// The value's kind.
    #[inline]
    pub fn kind(self) -> Kind {
        self.node().kind
    }

    /// Where the value's bytes lie in the scanned text.
    #[inline]
    pub fn span(self) -> Range<usize> {
        let node = self.node();
        node.start as usize..node.end as usize
    }

    /// The value's bytes as written.
    #[inline]
    pub fn raw(self) -> &'t [u8] {
        &self.text[self.span()]
    }

    /// The string, if it is one.
    #[inline]
    pub fn as_text(self) -> Option<Text<'t>> {
        let node = self.node();
        (node.kind == Kind::String).then(|| node.string(self.text))
    }

    /// `true` or `false`, if it is one.
    pub fn as_bool(self) -> Option<bool> {
        (self.kind() == Kind::Bool).then(|| self.raw() == b"true")
    }

    /// The number, if it is an integer from 0 to `u64::MAX` written without fraction or exponent.
    pub fn as_u64(self) -> Option<u64> {
        if self.kind() != Kind::Number {
            return None;
        }
        std::str::from_utf8(self.raw()).ok()?.parse().ok()
    }

    /// The number nearest to what is written, if it is one.
    pub fn as_number(self) -> Option<f64> {
        if self.kind() != Kind::Number {
            return None;
        }
        std::str::from_utf8(self.raw()).ok()?.parse().ok()
    }

    /// Whether it is `null`.
    pub fn is_null(self) -> bool {
        self.kind() == Kind::Null
    }

    /// The members of an object in their order, duplicates included; nothing for other kinds.
    pub fn members(self) -> Members<'t> {
        Members { entries: self.children(Kind::Object) }
    }

    /// The members of an object with their keys as values, for edits that need the keys' spans.
    pub fn entries(self) -> impl Iterator<Item = (Value<'t>, Value<'t>)> {
        let mut children = self.children(Kind::Object);
        std::iter::from_fn(move || children.next_entry())
    }

    /// The items of an array; nothing for other kinds.
    pub fn items(self) -> Items<'t> {
        self.children(Kind::Array)
    }

    /// The member named `key`; of duplicates the last, as Python and JavaScript read them.
    #[inline]
    pub fn get(self, key: &str) -> Option<Value<'t>> {
        let mut found = None;
        let mut children = self.children(Kind::Object);
        while let Some((name, value)) = children.next_entry() {
            if name.node().reads(self.text, key) {
                found = Some(value);
            }
        }
        found
    }

    #[inline]
    fn children(self, kind: Kind) -> Items<'t> {
        let inside = if self.kind() == kind { self.nodes.get(1..) } else { None };
        Items { text: self.text, nodes: inside.unwrap_or_default() }
    }
}

/// Iterates over an array's items.
#[derive(Clone)]
pub struct Items<'t> {
    text: &'t [u8],
    /// Those that are to come.
    nodes: &'t [Node],
}

impl<'t> Items<'t> {
    /// Of an object's children, the next key and its value.
    #[inline]
    fn next_entry(&mut self) -> Option<(Value<'t>, Value<'t>)> {
        // A key has one node: what is behind it is its value.
        let (key, values) = self.nodes.split_at_checked(1)?;
        self.nodes = values;
        Some((Value { text: self.text, nodes: key }, self.next()?))
    }
}

impl<'t> Iterator for Items<'t> {
    type Item = Value<'t>;

    #[inline]
    fn next(&mut self) -> Option<Value<'t>> {
        let count = self.nodes.first()?.count as usize;
        let (nodes, behind) = self.nodes.split_at_checked(count)?;
        self.nodes = behind;
        Some(Value { text: self.text, nodes })
    }
}

/// Iterates over an object's members.
#[derive(Clone)]
pub struct Members<'t> {
    entries: Items<'t>,
}

impl<'t> Iterator for Members<'t> {
    type Item = (Text<'t>, Value<'t>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (key, value) = self.entries.next_entry()?;
        Some((key.node().string(key.text), value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn accepts(text: &[u8]) -> bool {
        Tape::new().scan(text).is_ok()
    }

    #[test]
    fn walks_a_body() {
        let mut tape = Tape::new();
        let text = br#" {"a":[1,{"b":"x\"y"},[]],"c":null,"a":-0.5e+3} "#;
        let root = tape.scan(text).unwrap();
        let keys: Vec<_> = root.members().map(|(key, _)| key.raw().to_vec()).collect();
        assert_eq!(keys, [b"a", b"c", b"a"]);
        assert_eq!(root.get("a").unwrap().raw(), b"-0.5e+3", "the last duplicate wins");
        let list = root.members().next().unwrap().1;
        let items: Vec<_> = list.items().map(|item| item.raw().to_vec()).collect();
        assert_eq!(items, [&b"1"[..], br#"{"b":"x\"y"}"#, b"[]"]);
        assert!(root.get("c").unwrap().is_null());
    }

    #[test]
    fn refuses_what_the_grammar_refuses() {
        for text in [
            "",
            " ",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "{a:1}",
            "01",
            "1.",
            "-",
            "1e",
            "+1",
            "NaN",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"a\nb\"",
            "\"a",
            "tru",
            "nulls",
            "1 2",
            "[1}",
            "{\"a\"}",
            "]",
            "\u{feff}1",
        ] {
            assert!(!accepts(text.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |n: usize| [vec![b'['; n], vec![b']'; n]].concat();
        assert!(accepts(&nested(MAX_DEPTH)));
        assert!(!accepts(&nested(MAX_DEPTH + 1)));
        assert!(!accepts(&vec![b'['; 1 << 20]));
    }

    proptest! {
        #[test]
        fn agrees_with_serde_json(text in r#"[\[\]{}:,"\\a-c0-2\.eE+\-tfn ul]{0,24}"#) {
            prop_assert_eq!(accepts(text.as_bytes()), serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok());
        }

        #[test]
        fn a_literal_is_what_the_scanner_takes(raw in r#"[a-c"\\/bu0-9é\n]{0,12}"#) {
            let quoted = format!("\"{raw}\"");
            prop_assert_eq!(is_literal(raw.as_bytes()), accepts(quoted.as_bytes()));
        }
    }
}
