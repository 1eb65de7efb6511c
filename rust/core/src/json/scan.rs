//! A strict scanner (RFC 8259) that records where each value starts and ends.
//!
//! One pass over the text fills a flat table; afterwards every step (next member, next item) is a
//! table look-up, so that a body of megabytes is read once. Values are never decoded here: numbers,
//! escapes, duplicate keys and key order stay what the sender wrote. Bytes of 0x80 and above are
//! taken as they come; whoever needs UTF-8 checks it.

use std::fmt;
use std::ops::Range;

use super::text::Text;

/// How deep arrays and objects may nest. Deeper text is an error, never a deep stack.
pub const MAX_DEPTH: usize = 512;

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

/// One value's place: its bytes, and the table index behind its last descendant.
#[derive(Clone, Copy, Debug)]
struct Node {
    start: u32,
    end: u32,
    next: u32,
    kind: Kind,
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
        Scanner { text, at: 0, tape: self }.run()?;
        Ok(Value { text, nodes: &self.nodes, at: 0 })
    }
}

struct Scanner<'t> {
    text: &'t [u8],
    at: usize,
    tape: &'t mut Tape,
}

/// What the grammar allows next inside the innermost container.
enum Expect {
    Value,
    FirstKeyOrEnd,
    FirstItemOrEnd,
    AfterValue,
}

impl Scanner<'_> {
    fn run(&mut self) -> Result<(), SyntaxError> {
        let mut expect = Expect::Value;
        loop {
            self.skip_space();
            match expect {
                Expect::Value => expect = self.value()?,
                Expect::FirstKeyOrEnd => {
                    if self.peek() == Some(b'}') {
                        self.close();
                        expect = Expect::AfterValue;
                    } else {
                        self.key()?;
                        expect = Expect::Value;
                    }
                }
                Expect::FirstItemOrEnd => {
                    if self.peek() == Some(b']') {
                        self.close();
                        expect = Expect::AfterValue;
                    } else {
                        expect = Expect::Value;
                    }
                }
                Expect::AfterValue => {
                    let Some(inside) = self.innermost() else {
                        return if self.at == self.text.len() { Ok(()) } else { self.fail("the end of the text") };
                    };
                    match (inside, self.peek()) {
                        (Kind::Object, Some(b',')) => {
                            self.at += 1;
                            self.skip_space();
                            self.key()?;
                            expect = Expect::Value;
                        }
                        (Kind::Array, Some(b',')) => {
                            self.at += 1;
                            expect = Expect::Value;
                        }
                        (Kind::Object, Some(b'}')) | (Kind::Array, Some(b']')) => self.close(),
                        (Kind::Object, _) => return self.fail("',' or '}'"),
                        _ => return self.fail("',' or ']'"),
                    }
                }
            }
        }
    }

    fn value(&mut self) -> Result<Expect, SyntaxError> {
        match self.peek() {
            Some(b'"') => self.string()?,
            Some(b'{') => {
                self.open(Kind::Object)?;
                return Ok(Expect::FirstKeyOrEnd);
            }
            Some(b'[') => {
                self.open(Kind::Array)?;
                return Ok(Expect::FirstItemOrEnd);
            }
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b't') => self.word(b"true", Kind::Bool)?,
            Some(b'f') => self.word(b"false", Kind::Bool)?,
            Some(b'n') => self.word(b"null", Kind::Null)?,
            _ => return self.fail("a value"),
        }
        Ok(Expect::AfterValue)
    }

    fn key(&mut self) -> Result<(), SyntaxError> {
        if self.peek() != Some(b'"') {
            return self.fail("a key in quotes");
        }
        self.string()?;
        self.skip_space();
        if self.peek() != Some(b':') {
            return self.fail("':'");
        }
        self.at += 1;
        Ok(())
    }

    fn string(&mut self) -> Result<(), SyntaxError> {
        let start = self.at;
        self.at += 1;
        loop {
            self.at = skip_plain(self.text, self.at);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    self.leaf(start, Kind::String);
                    return Ok(());
                }
                Some(b'\\') => self.escape()?,
                Some(_) => return self.fail("an escape for this control character"),
                None => return self.fail("a closing quote"),
            }
        }
    }

    fn escape(&mut self) -> Result<(), SyntaxError> {
        match self.text.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                self.at += 2;
                Ok(())
            }
            Some(b'u') => {
                let hex = self.text.get(self.at + 2..self.at + 6);
                if !hex.is_some_and(|h| h.iter().all(u8::is_ascii_hexdigit)) {
                    return self.fail("four hex digits after \\u");
                }
                self.at += 6;
                Ok(())
            }
            _ => self.fail("a known escape"),
        }
    }

    fn number(&mut self) -> Result<(), SyntaxError> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits()?,
            _ => return self.fail("a digit"),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        self.leaf(start, Kind::Number);
        Ok(())
    }

    fn digits(&mut self) -> Result<(), SyntaxError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { self.fail("a digit") } else { Ok(()) }
    }

    fn word(&mut self, word: &'static [u8], kind: Kind) -> Result<(), SyntaxError> {
        let start = self.at;
        if !self.text[start..].starts_with(word) {
            return self.fail("a value");
        }
        self.at += word.len();
        self.leaf(start, kind);
        Ok(())
    }

    // Offsets fit: `scan` refuses longer texts, and a text has no more nodes than bytes.
    #[allow(clippy::cast_possible_truncation)]
    fn leaf(&mut self, start: usize, kind: Kind) {
        let next = self.tape.nodes.len() as u32 + 1;
        self.tape.nodes.push(Node { start: start as u32, end: self.at as u32, next, kind });
    }

    #[allow(clippy::cast_possible_truncation)]
    fn open(&mut self, kind: Kind) -> Result<(), SyntaxError> {
        if self.tape.open.len() == MAX_DEPTH {
            return self.fail("less nesting");
        }
        self.tape.open.push(self.tape.nodes.len() as u32);
        self.tape.nodes.push(Node { start: self.at as u32, end: 0, next: 0, kind });
        self.at += 1;
        Ok(())
    }

    #[allow(clippy::cast_possible_truncation)]
    fn close(&mut self) {
        self.at += 1;
        let next = self.tape.nodes.len() as u32;
        if let Some(index) = self.tape.open.pop() {
            let node = &mut self.tape.nodes[index as usize];
            node.end = self.at as u32;
            node.next = next;
        }
    }

    fn innermost(&self) -> Option<Kind> {
        self.tape.open.last().map(|&index| self.tape.nodes[index as usize].kind)
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn fail<T>(&self, expected: &'static str) -> Result<T, SyntaxError> {
        Err(SyntaxError { at: self.at, expected })
    }
}

const ONES: u64 = u64::MAX / 255;
const HIGHS: u64 = ONES * 0x80;

/// Offset of the first quote, backslash or control character at or after `at` (or the end).
///
/// Eight bytes a step: strings are nearly all of a body, so this loop is the scanner's speed.
#[inline]
fn skip_plain(text: &[u8], mut at: usize) -> usize {
    while let Some(word) = text.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*word);
        let quote = word ^ (ONES * u64::from(b'"'));
        let backslash = word ^ (ONES * u64::from(b'\\'));
        // The lowest marked byte is exact in each term; marks above it may be carries.
        let special = (quote.wrapping_sub(ONES) & !quote)
            | (backslash.wrapping_sub(ONES) & !backslash)
            | (word.wrapping_sub(ONES * 0x20) & !word);
        let special = special & HIGHS;
        if special != 0 {
            return at + special.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while let Some(&byte) = text.get(at) {
        if byte == b'"' || byte == b'\\' || byte < 0x20 {
            break;
        }
        at += 1;
    }
    at
}

/// Whether `raw` may stand between the quotes of a string literal.
pub fn is_literal(raw: &[u8]) -> bool {
    let mut at = 0;
    loop {
        at = skip_plain(raw, at);
        let escape = match raw.get(at..) {
            Some([]) | None => return true,
            Some([b'\\', escape @ ..]) => escape,
            Some(_) => return false,
        };
        at += match escape {
            [b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => 2,
            [b'u', digits @ ..] if digits.get(..4).is_some_and(|four| four.iter().all(u8::is_ascii_hexdigit)) => 6,
            _ => return false,
        };
    }
}

/// One value of a scanned text. Cheap to copy.
#[derive(Clone, Copy)]
pub struct Value<'t> {
    text: &'t [u8],
    nodes: &'t [Node],
    at: usize,
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", String::from_utf8_lossy(self.raw()))
    }
}

impl<'t> Value<'t> {
    #[inline]
    fn node(self) -> Node {
        self.nodes[self.at]
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
        let raw = self.raw();
        (self.kind() == Kind::String).then(|| Text::new(&raw[1..raw.len() - 1]))
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
        Members { children: self.children(Kind::Object) }
    }

    /// The members of an object with their keys as values, for edits that need the keys' spans.
    pub fn entries(self) -> impl Iterator<Item = (Value<'t>, Value<'t>)> {
        let mut children = self.children(Kind::Object);
        std::iter::from_fn(move || Some((children.next()?, children.next()?)))
    }

    /// The items of an array; nothing for other kinds.
    pub fn items(self) -> Items<'t> {
        self.children(Kind::Array)
    }

    /// The member named `key`; of duplicates the last, as Python and JavaScript read them.
    pub fn get(self, key: &str) -> Option<Value<'t>> {
        self.members().filter(|(name, _)| name.is(key)).last().map(|(_, value)| value)
    }

    fn children(self, kind: Kind) -> Items<'t> {
        let node = self.node();
        let (at, end) = if node.kind == kind { (self.at + 1, node.next as usize) } else { (0, 0) };
        Items { text: self.text, nodes: self.nodes, at, end }
    }
}

/// Iterates over an array's items.
#[derive(Clone)]
pub struct Items<'t> {
    text: &'t [u8],
    nodes: &'t [Node],
    at: usize,
    end: usize,
}

impl<'t> Iterator for Items<'t> {
    type Item = Value<'t>;

    fn next(&mut self) -> Option<Value<'t>> {
        if self.at >= self.end {
            return None;
        }
        let value = Value { text: self.text, nodes: self.nodes, at: self.at };
        self.at = value.node().next as usize;
        Some(value)
    }
}

/// Iterates over an object's members.
#[derive(Clone)]
pub struct Members<'t> {
    children: Items<'t>,
}

impl<'t> Iterator for Members<'t> {
    type Item = (Text<'t>, Value<'t>);

    fn next(&mut self) -> Option<Self::Item> {
        let key = self.children.next()?.as_text()?;
        Some((key, self.children.next()?))
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

        #[test]
        fn finds_the_first_special_byte(bytes in prop::collection::vec(any::<u8>(), 0..64), from in 0_usize..64) {
            let from = from.min(bytes.len());
            let slow = bytes[from..].iter().position(|&b| b == b'"' || b == b'\\' || b < 0x20);
            prop_assert_eq!(skip_plain(&bytes, from), slow.map_or(bytes.len(), |n| from + n));
        }
    }
}
