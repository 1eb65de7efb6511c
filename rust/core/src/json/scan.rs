//! A strict scanner (RFC 8259) that records where each value starts and ends.
//!
//! One pass over the text fills a flat table, which [`Value`] reads: a body of megabytes is read once. Bytes of 0x80 and
//! above are taken as they come; whoever needs UTF-8 checks it.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::marks::{Marks, Specials};
use super::text::SHORT_ESCAPES;
use super::value::Value;

/// How deep arrays and objects may nest. Deeper text is an error, never a deep stack.
pub const MAX_DEPTH: usize = 512;

/// Room for one value or escape is made for so many bytes of text, in which a request's body rarely has more than one.
const BYTES_A_NODE: usize = 16;

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

/// A value's place, or that of an escape in a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) start: u32,
    pub(super) end: u32,
    /// Nodes of the value, its own and those of all that is in it: of a string, its escapes.
    pub(super) count: u32,
    pub(super) kind: Kind,
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
        fits(text)?;
        self.nodes.clear();
        self.open.clear();
        Scanner::run(text, self, Place::default(), true).1?;
        Ok(Value::new(text, &self.nodes))
    }
}

/// A text and its table: what several readers go through, and only the first one scanned. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Scanned {
    text: Bytes,
    tape: Arc<Tape>,
}

impl Scanned {
    /// Scans `text`.
    ///
    /// # Errors
    /// As [`Tape::scan`].
    pub fn new(text: Bytes) -> Result<Self, SyntaxError> {
        Scanning::default().end(text)
    }

    /// The text.
    pub fn text(&self) -> &Bytes {
        &self.text
    }

    /// The value that the text is.
    pub fn root(&self) -> Value<'_> {
        Value::new(&self.text, &self.tape.nodes)
    }
}

/// The scan of a text that is still arriving, so that at its end little is left to do.
#[derive(Debug, Default)]
pub struct Scanning {
    tape: Tape,
    place: Place,
    /// Bytes behind the place that were looked at without going on, as of a number whose end has not come.
    tried: usize,
}

impl Scanning {
    /// Goes on as far as it is certain what `text` says: all that has come, from its first byte on. Where it could not go
    /// on, it tries again when twice as much has come, so that pieces of any size cost no more than the text.
    pub fn advance(&mut self, text: &[u8]) {
        let behind = text.len().saturating_sub(self.place.at);
        if fits(text).is_ok() && behind >= 2 * self.tried {
            // What it met is the text's end so far, or a fault, which is met again at the end.
            (self.place, _) = Scanner::run(text, &mut self.tape, self.place, false);
            self.tried = text.len().saturating_sub(self.place.at);
        }
    }

    /// Ends with `text`: what [`Scanning::advance`] went through last, and whatever came behind it.
    ///
    /// # Errors
    /// As [`Tape::scan`] of `text`.
    pub fn end(mut self, text: Bytes) -> Result<Scanned, SyntaxError> {
        fits(&text)?;
        Scanner::run(&text, &mut self.tape, self.place, true).1?;
        Ok(Scanned { text, tape: Arc::new(self.tape) })
    }
}

fn fits(text: &[u8]) -> Result<(), SyntaxError> {
    if u32::try_from(text.len()).is_ok() { Ok(()) } else { fail(0, "a text under 4 GiB") }
}

/// How far a scan has come.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    at: usize,
    next: Next,
    /// The innermost open container.
    inside: Option<Kind>,
    /// The node of a string that is to be gone on with.
    begun: Option<usize>,
}

/// What comes next by the grammar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    #[default]
    Value,
    Key,
    Colon,
    /// What is first in a container, or its end.
    First,
    /// A comma, or the end of a container or of the text.
    Behind,
}

/// Goes on by steps, which move all of their [`Place`] or nothing of it: where the text ends before a step, it is taken
/// anew when there is more.
struct Scanner<'t> {
    text: &'t [u8],
    /// Quotes, escapes and control characters, for strings.
    marks: Marks<'t, Specials>,
    nodes: &'t mut Vec<Node>,
    /// Nodes of the containers that are open.
    open: &'t mut Vec<u32>,
    place: Place,
}

impl<'t> Scanner<'t> {
    /// Goes on from a place to the end of the text, and says how far it came. Without the `whole` text that is always an
    /// error.
    fn run(text: &'t [u8], tape: &'t mut Tape, place: Place, whole: bool) -> (Place, Result<(), SyntaxError>) {
        tape.nodes.reserve(text.len().saturating_sub(place.at) / BYTES_A_NODE);
        // Made here, so that the compiler can keep all of it in registers.
        let mut scanner = Self { text, marks: Marks::new(text), nodes: &mut tape.nodes, open: &mut tape.open, place };
        let outcome = scanner.steps(whole);
        (scanner.place, outcome)
    }

    #[inline]
    fn steps(&mut self, whole: bool) -> Result<(), SyntaxError> {
        if self.place.begun.is_none() {
            self.skip_space();
        }
        loop {
            if matches!(self.place.next, Next::Key | Next::Value) {
                if self.place.begun.is_some() || self.peek() == Some(b'"') {
                    self.string()?;
                } else {
                    self.value(whole)?;
                }
                self.skip_space();
            }
            if self.place.next == Next::Colon {
                self.colon()?;
                self.skip_space();
                continue;
            }
            if self.place.next == Next::First {
                self.first(whole)?;
                self.skip_space();
            }
            while self.place.next == Next::Behind {
                match (self.place.inside, self.peek()) {
                    (Some(kind), Some(b',')) => {
                        self.place.at += 1;
                        self.place.next = if kind == Kind::Object { Next::Key } else { Next::Value };
                    }
                    (Some(Kind::Object), Some(b'}')) | (Some(Kind::Array), Some(b']')) => self.close(),
                    (Some(Kind::Object), _) => return fail(self.place.at, "',' or '}'"),
                    (Some(_), _) => return fail(self.place.at, "',' or ']'"),
                    (None, None) if whole => return Ok(()),
                    (None, _) => return fail(self.place.at, "the end of the text"),
                }
                self.skip_space();
            }
        }
    }

    #[inline]
    fn colon(&mut self) -> Result<(), SyntaxError> {
        if self.peek() != Some(b':') {
            return fail(self.place.at, "':'");
        }
        self.place.at += 1;
        self.place.next = Next::Value;
        Ok(())
    }

    #[inline]
    fn value(&mut self, whole: bool) -> Result<(), SyntaxError> {
        let start = self.place.at;
        let (end, kind) = match self.peek() {
            _ if self.place.next == Next::Key => return fail(start, "a key in quotes"),
            Some(b'{') => return self.open(Kind::Object),
            Some(b'[') => return self.open(Kind::Array),
            Some(b'-' | b'0'..=b'9') => match number(self.text, start)? {
                end if end == self.text.len() && !whole => return fail(end, "more digits or none"),
                end => (end, Kind::Number),
            },
            Some(b't') => (word(self.text, start, b"true")?, Kind::Bool),
            Some(b'f') => (word(self.text, start, b"false")?, Kind::Bool),
            Some(b'n') => (word(self.text, start, b"null")?, Kind::Null),
            _ => return fail(start, "a value"),
        };
        self.nodes.push(Node { start: narrow(start), end: narrow(end), count: 1, kind });
        self.place.at = end;
        self.place.next = Next::Behind;
        Ok(())
    }

    #[inline]
    fn first(&mut self, whole: bool) -> Result<(), SyntaxError> {
        match (self.place.inside, self.peek()) {
            (_, None) if !whole => return fail(self.place.at, "more"),
            (Some(Kind::Object), Some(b'}')) | (Some(Kind::Array), Some(b']')) => self.close(),
            (Some(Kind::Object), _) => self.place.next = Next::Key,
            (_, _) => self.place.next = Next::Value,
        }
        Ok(())
    }

    /// Goes behind a string. Where the text ends in it, it is gone on with from there.
    #[inline]
    fn string(&mut self) -> Result<(), SyntaxError> {
        let (index, from) = match self.place.begun.take() {
            None => (self.begin(Kind::String), self.place.at + 1),
            Some(index) => (index, self.place.at),
        };
        let mut at = self.marks.next(from);
        let mut fault = "an escape for this control character";
        if self.text.get(at) == Some(&b'\\') {
            (at, fault) = behind_escapes(self.text, at, &mut self.marks, self.nodes);
        }
        if self.text.get(at) == Some(&b'"') {
            self.end(index, at + 1);
            self.place.next = if self.place.next == Next::Key { Next::Colon } else { Next::Behind };
            return Ok(());
        }
        self.place = Place { at, begun: Some(index), ..self.place };
        fail(at, if at == self.text.len() { "a closing quote" } else { fault })
    }

    /// Goes into a container.
    #[inline]
    fn open(&mut self, kind: Kind) -> Result<(), SyntaxError> {
        if self.open.len() == MAX_DEPTH {
            return fail(self.place.at, "less nesting");
        }
        let index = self.begin(kind);
        self.open.push(narrow(index));
        self.place.at += 1;
        self.place.next = Next::First;
        self.place.inside = Some(kind);
        Ok(())
    }

    #[inline]
    fn close(&mut self) {
        if let Some(index) = self.open.pop() {
            self.end(index as usize, self.place.at + 1);
        }
        self.place.next = Next::Behind;
        self.place.inside = self.open.last().and_then(|&index| Some(self.nodes.get(index as usize)?.kind));
    }

    /// A node for what begins here.
    #[inline]
    fn begin(&mut self, kind: Kind) -> usize {
        self.nodes.push(Node { start: narrow(self.place.at), end: 0, count: 1, kind });
        self.nodes.len() - 1
    }

    /// Goes to the end of the value that has this node. What came since is in it.
    #[inline]
    fn end(&mut self, index: usize, end: usize) {
        let count = self.nodes.len() - index;
        if let Some(node) = self.nodes.get_mut(index) {
            (node.end, node.count) = (narrow(end), narrow(count));
        }
        self.place.at = end;
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.get(self.place.at).copied()
    }

    #[inline]
    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.place.at += 1;
        }
    }
}

#[cold]
fn fail<T>(at: usize, expected: &'static str) -> Result<T, SyntaxError> {
    Err(SyntaxError { at, expected })
}

/// Offsets fit: `fits` refuses longer texts, and a text has no more nodes than bytes.
#[allow(clippy::cast_possible_truncation)]
#[inline]
fn narrow(offset: usize) -> u32 {
    offset as u32
}

/// Goes over the escapes of a string, the first of which is at `at`, with a node for each: to the first marked byte that is
/// none, and what the grammar wants there unless it is a quote.
fn behind_escapes(
    text: &[u8],
    mut at: usize,
    marks: &mut Marks<'_, Specials>,
    nodes: &mut Vec<Node>,
) -> (usize, &'static str) {
    while text.get(at) == Some(&b'\\') {
        let Some(end) = behind_escape(text, at) else { return (at, known_escape(text, at)) };
        nodes.push(Node { start: narrow(at), end: narrow(end), count: 1, kind: Kind::String });
        at = marks.next(end);
    }
    (at, "an escape for this control character")
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
fn known_escape(text: &[u8], at: usize) -> &'static str {
    if text.get(at + 1) == Some(&b'u') { "four hex digits after \\u" } else { "a known escape" }
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn accepts(text: &[u8]) -> bool {
        Tape::new().scan(text).is_ok()
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

    fn arriving(text: &[u8], cuts: &[usize]) -> Result<Vec<Node>, SyntaxError> {
        let mut scanning = Scanning::default();
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
        cuts.sort_unstable();
        for cut in cuts {
            scanning.advance(&text[..cut]);
        }
        let scanned = scanning.end(Bytes::copy_from_slice(text))?;
        Ok(scanned.tape.nodes.clone())
    }

    #[test]
    fn what_has_come_of_a_string_is_looked_at_once() {
        let mut text = br#"["a\n"#.to_vec();
        let mut scanning = Scanning::default();
        for _ in 0..3 {
            scanning.advance(&text);
            assert_eq!(scanning.place.at, text.len());
            text.extend_from_slice(b"xx");
        }
        text.extend_from_slice(b"\"]");
        assert_eq!(scanning.end(Bytes::from(text)).unwrap().root().items().count(), 1);
    }

    #[test]
    fn a_number_that_arrives_byte_by_byte_is_looked_at_a_few_times() {
        let text = [&b"[1,"[..], &[b'7'; 10_000], b"]"].concat();
        let mut scanning = Scanning::default();
        let mut looks = 0;
        for end in 0..text.len() {
            let before = scanning.tried;
            scanning.advance(&text[..end]);
            looks += usize::from(scanning.tried != before);
        }
        assert!(looks < 20, "{looks}");
        assert_eq!(scanning.end(Bytes::from(text)).unwrap().root().items().count(), 2);
    }

    proptest! {
        #[test]
        fn a_text_that_arrives_in_pieces_is_the_same_text(
            text in r#"([\[\]{}:,"\\a-c0-2\.eE+\-tfn ul\n]{0,24}|\[?\{"[a-c\\"u0d]{0,8}" ?: ?(-?[0-9e.]{1,4}|true|\[\]|\{\}|null),? ?"b" ?: ?"\\[u\\"n][0-9]{0,4}"\}\]?)"#,
            cuts in prop::collection::vec(any::<usize>(), 0..6),
        ) {
            let mut tape = Tape::new();
            let at_once = tape.scan(text.as_bytes()).map(|_| ());
            prop_assert_eq!(arriving(text.as_bytes(), &cuts), at_once.map(|()| tape.nodes));
        }

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
