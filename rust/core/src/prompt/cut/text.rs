//! What of a value a template prints: texts decoded, JSON without the white space between its tokens.

use std::borrow::Cow;

use crate::json::{Text, Value};

/// A string's text. Spelling (escapes) does not count.
pub(super) fn decoded(text: Text<'_>) -> Cow<'_, [u8]> {
    if text.raw().contains(&b'\\') { Cow::Owned(text.decode().into_owned().into_bytes()) } else { text.raw().into() }
}

/// Appends a string value's text.
pub(super) fn push(value: Option<Value<'_>>, out: &mut Vec<u8>) {
    if let Some(text) = value.and_then(Value::as_text) {
        out.extend_from_slice(&decoded(text));
    }
}

/// Appends JSON as templates spell it anew: white space between tokens and escapes within strings do not count; the
/// order of keys and the spelling of numbers do. What is no JSON is taken as it is.
pub(super) fn push_json(raw: &[u8], out: &mut Vec<u8>) {
    let mut rest = raw;
    while let Some(at) = rest.iter().position(|&byte| byte == b'"' || byte.is_ascii_whitespace()) {
        out.extend_from_slice(&rest[..at]);
        if rest[at] != b'"' {
            rest = &rest[at + 1..];
            continue;
        }
        let inside = &rest[at + 1..];
        let Some(length) = string_length(inside) else { return out.extend_from_slice(&rest[at..]) };
        out.push(b'"');
        out.extend_from_slice(&decoded(Text::new(&inside[..length])));
        out.push(b'"');
        rest = &inside[length + 1..];
    }
    out.extend_from_slice(rest);
}

/// Bytes up to the closing quote.
fn string_length(inside: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'\\', inside.get(at..)?)?;
        if inside[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelt(raw: &str) -> String {
        let mut out = Vec::new();
        push_json(raw.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn spacing_and_escapes_do_not_count_but_order_and_numbers_do() {
        assert_eq!(spelt("{ \"a b\" : [1, 2.0],\n\"c\":\"\\u00e9 \\\" x\" }"), "{\"a b\":[1,2.0],\"c\":\"é \" x\"}");
        assert_ne!(spelt(r#"{"a":1,"b":2}"#), spelt(r#"{"b":2,"a":1}"#));
        assert_ne!(spelt("5000"), spelt("5000.0"));
        for odd in ["{\"a", "\"", "\\", "\"\\", "{\"a\":\"b\\"] {
            spelt(odd);
        }
    }
}
