//! Tool arguments: where a JSON text that arrives in fragments is complete, and the object that a client gets.

use std::borrow::Cow;

use crate::json::{Kind, Tape, Text, write_str};

/// Follows the fragments of one call's arguments, as literals, and tells when the JSON value in them is complete.
///
/// It balances brackets and knows strings; it does not validate. A bare number or word is never seen to end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    first: Option<u8>,
    depth: u32,
    in_string: bool,
    escaped: bool,
    complete: bool,
}

impl Progress {
    /// The first character that is not white space.
    pub(crate) fn first(self) -> Option<u8> {
        self.first
    }

    /// Whether the value is complete.
    pub(crate) fn is_complete(self) -> bool {
        self.complete
    }

    /// Reads one fragment: the inside of a string literal, escapes and all. Returns what of it stands behind the end of
    /// the value.
    pub(crate) fn feed<'l>(&mut self, literal: &'l [u8]) -> &'l [u8] {
        let mut rest = literal;
        while !self.complete {
            let Some((&byte, tail)) = rest.split_first() else { break };
            rest = tail;
            if byte != b'\\' {
                self.step(byte);
                continue;
            }
            let Some((&kind, tail)) = rest.split_first() else { break };
            rest = tail;
            self.step(match kind {
                b'n' | b'r' | b't' => b' ',
                b'u' => {
                    let unit = rest.get(..4).and_then(|digits| std::str::from_utf8(digits).ok());
                    rest = rest.get(4..).unwrap_or_default();
                    let unit = unit.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                    unit.filter(u8::is_ascii).unwrap_or(b'?')
                }
                other => other,
            });
        }
        rest
    }

    fn step(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => {
                    self.in_string = false;
                    self.complete = self.depth == 0;
                }
                _ => {}
            }
            return;
        }
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => return,
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.complete = self.depth == 0;
            }
            _ => {}
        }
        self.first = self.first.or(Some(byte));
    }
}

/// The input object of a call, from the arguments that the engine wrote.
///
/// An object stays as it is written, numbers and key order included. Nothing at all, and `null`, mean no arguments.
/// A string that holds an object (double encoding) is decoded once. Anything else is kept whole for the model to
/// see, in the form that Claude Code itself gives to input which it cannot parse.
pub(crate) fn input_object(arguments: &str) -> Cow<'_, [u8]> {
    let text = arguments.trim_matches([' ', '\t', '\n', '\r']);
    if text.is_empty() || text == "null" {
        return Cow::Borrowed(b"{}");
    }
    let mut tape = Tape::new();
    if let Ok(value) = tape.scan(text.as_bytes()) {
        if value.kind() == Kind::Object {
            return Cow::Borrowed(text.as_bytes());
        }
        if let Some(inner) = value.as_text().map(Text::decode)
            && Tape::new().scan(inner.as_bytes()).is_ok_and(|value| value.kind() == Kind::Object)
        {
            return Cow::Owned(inner.into_owned().into_bytes());
        }
    }
    let mut object = br#"{"__unparsedToolInput":{"raw":"#.to_vec();
    write_str(arguments, &mut object);
    object.extend_from_slice(format!(r#","len":{}}}}}"#, arguments.chars().count()).as_bytes());
    Cow::Owned(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn complete(fragments: &[&str]) -> bool {
        let mut progress = Progress::default();
        for fragment in fragments {
            progress.feed(fragment.as_bytes());
        }
        progress.is_complete()
    }

    #[test]
    fn completeness_is_seen_through_the_literal() {
        assert!(complete(&[r#"{\"a\":\""#, r#"}\\\"{"#, r#"\"}"#]));
        assert!(!complete(&[r#"{\"a\":\"}"#]));
        assert!(!complete(&[r#"{\"a\":[1,{}]"#]));
        assert!(complete(&[r"\u007b\u007D"]));
        assert!(complete(&[r#"\n \"{}\""#]));
        assert!(!complete(&["", " ", "12"]));
    }

    #[test]
    fn an_object_stays_as_written() {
        assert_eq!(&*input_object(" {\"a\":1.0,\"b\":1e3}\n"), b"{\"a\":1.0,\"b\":1e3}");
        assert_eq!(&*input_object(""), b"{}");
        assert_eq!(&*input_object("null"), b"{}");
        assert_eq!(&*input_object(r#""{\"a\":0.10}""#), br#"{"a":0.10}"#);
    }

    #[test]
    fn anything_else_is_kept_whole() {
        for text in ["[1, 2]", "{\"a\": oops}", "12", "\"x\"", "{\"a\":\"é", r#""\"{}\"""#] {
            let object: serde_json::Value = serde_json::from_slice(&input_object(text)).unwrap();
            assert_eq!(object["__unparsedToolInput"]["raw"], text);
            assert_eq!(object["__unparsedToolInput"]["len"], text.chars().count());
        }
    }

    proptest! {
        #[test]
        fn an_input_is_always_an_object(text in r#"[\[\]{}:,"\\a0 ]{0,12}"#) {
            prop_assert!(serde_json::from_slice::<serde_json::Map<_, _>>(&input_object(&text)).is_ok());
        }

        #[test]
        fn every_object_is_complete_at_its_end_only(keys in prop::collection::vec("[a-z\"\\\\{}é]{1,4}", 0..4)) {
            let object: serde_json::Map<String, serde_json::Value> =
                keys.iter().map(|key| (key.clone(), serde_json::json!([key, {}]))).collect();
            let text = serde_json::to_string(&object).unwrap();
            let literal = serde_json::to_string(&text).unwrap();
            let literal = &literal.as_bytes()[1..literal.len() - 1];
            let mut progress = Progress::default();
            progress.feed(&literal[..literal.len() - 1]);
            prop_assert!(!progress.is_complete());
            progress.feed(b"}");
            prop_assert!(progress.is_complete());
        }
    }
}
