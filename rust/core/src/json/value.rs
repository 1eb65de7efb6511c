//! The values of a scanned text: every step (next member, next item) is a look-up in the scanner's table.
//!
//! Nothing is decoded on the way: numbers, escapes, duplicate keys and key order stay what the sender wrote.

use std::fmt;
use std::ops::Range;

use super::scan::{Kind, Node};
use super::text::Text;

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
    /// The value whose own node is the first of `nodes`.
    #[inline]
    pub(super) fn new(text: &'t [u8], nodes: &'t [Node]) -> Self {
        Self { text, nodes }
    }

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
        (self.kind() == Kind::String).then(|| self.string())
    }

    /// The text of what is known to be a string.
    #[inline]
    fn string(self) -> Text<'t> {
        let node = self.node();
        let start = node.start as usize + 1;
        let inside = self.text.get(start..(node.end as usize).saturating_sub(1)).unwrap_or_default();
        Text::scanned(inside, start, self.nodes.get(1..).unwrap_or_default())
    }

    /// Whether it is a string that reads `plain` (escapes decoded).
    #[inline]
    pub fn reads(self, plain: &str) -> bool {
        self.kind() == Kind::String && self.string_reads(plain)
    }

    /// The same of what is known to be a string. Nearly always its length alone says no, which is what a look-up by key
    /// costs.
    #[inline]
    fn string_reads(self, plain: &str) -> bool {
        let node = self.node();
        if node.count > 1 {
            return escaped_reads(self.text, self.nodes, plain);
        }
        let length = (node.end - node.start) as usize;
        let at = node.start as usize + 1;
        length == plain.len() + 2 && self.text.get(at..).is_some_and(|rest| rest.starts_with(plain.as_bytes()))
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
        self.raw().iter().try_fold(0_u64, |number, digit| {
            let digit = digit.is_ascii_digit().then(|| digit - b'0')?;
            number.checked_mul(10)?.checked_add(u64::from(digit))
        })
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
    #[inline]
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
            if name.string_reads(key) {
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

/// [`Value::string_reads`] of a string with escapes.
#[cold]
fn escaped_reads(text: &[u8], nodes: &[Node], plain: &str) -> bool {
    Value { text, nodes }.string().is(plain)
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
        Some((self.next()?, self.next()?))
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
        Some((key.string(), value))
    }
}

#[cfg(test)]
mod tests {
    use crate::json::Tape;

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
    fn whole_numbers_are_those_that_fit() {
        for (text, number) in [
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("100000000000000000000", None),
            ("-0", None),
            ("1.0", None),
            ("1e3", None),
            ("\"1\"", None),
        ] {
            assert_eq!(Tape::new().scan(text.as_bytes()).unwrap().as_u64(), number, "{text}");
        }
    }
}
