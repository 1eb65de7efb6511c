//! What of a value a template prints: texts decoded, JSON without the white space between its tokens.

use crate::json::{Kind, Tape, Text, Value};

/// Appends a string value's text.
pub(super) fn push(value: Option<Value<'_>>, out: &mut Vec<u8>) {
    if let Some(text) = value.and_then(Value::as_text) {
        text.decode_into(out);
    }
}

/// Appends JSON as templates spell it anew, in the style of Python's `json.dumps`: white space between tokens and the
/// choice of escapes within strings do not count; the order of keys and the spelling of numbers do.
pub(super) fn push_json(value: Value<'_>, out: &mut Vec<u8>) {
    match value.kind() {
        Kind::Object => {
            out.push(b'{');
            for (index, (name, member)) in value.members().enumerate() {
                if index > 0 {
                    out.extend_from_slice(b", ");
                }
                push_string(name, out);
                out.extend_from_slice(b": ");
                push_json(member, out);
            }
            out.push(b'}');
        }
        Kind::Array => {
            out.push(b'[');
            for (index, item) in value.items().enumerate() {
                if index > 0 {
                    out.extend_from_slice(b", ");
                }
                push_json(item, out);
            }
            out.push(b']');
        }
        Kind::String => value.as_text().into_iter().for_each(|text| push_string(text, out)),
        Kind::Number | Kind::Bool | Kind::Null => out.extend_from_slice(value.raw()),
    }
}

/// The same of a value that may not be there.
pub(super) fn push_any(value: Option<Value<'_>>, out: &mut Vec<u8>) {
    if let Some(value) = value {
        push_json(value, out);
    }
}

/// The same of JSON that is not scanned. What is no JSON is taken as it is.
pub(super) fn push_json_text(raw: &[u8], out: &mut Vec<u8>) {
    match Tape::new().scan(raw) {
        Ok(value) => push_json(value, out),
        Err(_) => out.extend_from_slice(raw),
    }
}

/// Appends a JSON string in its one spelling: the short escapes, and all else plain.
fn push_string(text: Text<'_>, out: &mut Vec<u8>) {
    out.push(b'"');
    if !text.is_escaped() || is_plain(text.raw()) {
        out.extend_from_slice(text.raw());
    } else {
        for &byte in text.decode().as_bytes() {
            match byte {
                b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
                b'\n' => out.extend_from_slice(br"\n"),
                b'\r' => out.extend_from_slice(br"\r"),
                b'\t' => out.extend_from_slice(br"\t"),
                _ => out.push(byte),
            }
        }
    }
    out.push(b'"');
}

/// Whether the inside of a literal is spelt as [`push_string`] would.
fn is_plain(raw: &[u8]) -> bool {
    let mut rest = raw;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        if !matches!(rest.get(at + 1), Some(b'"' | b'\\' | b'n' | b'r' | b't')) {
            return false;
        }
        rest = &rest[at + 2..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelt(raw: &str) -> String {
        let mut out = Vec::new();
        push_json_text(raw.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn spacing_and_escapes_do_not_count_but_order_and_numbers_do() {
        let odd = r#"{ "a b" : [1,2.0],
            "c":"\u00e9 \" \/x\u000a\\" }"#;
        assert_eq!(spelt(odd), r#"{"a b": [1, 2.0], "c": "é \" /x\n\\"}"#);
        assert_eq!(spelt(&spelt(odd)), spelt(odd));
        assert_ne!(spelt(r#"{"a":1,"b":2}"#), spelt(r#"{"b":2,"a":1}"#));
        assert_ne!(spelt("5000"), spelt("5000.0"));
        for odd in ["{\"a", "\"", "\\", "\"\\", "{\"a\":\"b\\", "[1,2", ""] {
            assert_eq!(spelt(odd), odd);
        }
    }
}
