//! String literals: compared, decoded and written without surprises.

use std::borrow::Cow;

/// The inside of a JSON string literal, escapes and all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text<'t> {
    raw: &'t [u8],
}

impl<'t> Text<'t> {
    /// Takes the bytes between the quotes of a scanned literal.
    pub fn new(raw: &'t [u8]) -> Self {
        Self { raw }
    }

    /// The bytes between the quotes, as written.
    pub fn raw(self) -> &'t [u8] {
        self.raw
    }

    /// Whether the string is empty.
    pub fn is_empty(self) -> bool {
        self.raw.is_empty()
    }

    /// Whether the string reads `plain` (escapes decoded).
    pub fn is(self, plain: &str) -> bool {
        if self.raw == plain.as_bytes() {
            return !plain.contains('\\');
        }
        self.raw.contains(&b'\\') && self.decode() == plain
    }

    /// The string itself. Lone surrogate escapes and invalid UTF-8 become U+FFFD.
    pub fn decode(self) -> Cow<'t, str> {
        if !self.raw.contains(&b'\\') {
            return String::from_utf8_lossy(self.raw);
        }
        let mut plain = Vec::with_capacity(self.raw.len());
        let mut rest = self.raw;
        while let Some(at) = memchr::memchr(b'\\', rest) {
            plain.extend_from_slice(&rest[..at]);
            let (character, used) = unescape(&rest[at..]);
            plain.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            rest = &rest[at + used..];
        }
        plain.extend_from_slice(rest);
        Cow::Owned(match String::from_utf8(plain) {
            Ok(plain) => plain,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }
}

/// Decodes the escape at the head of `raw`: its character and how many bytes it takes.
fn unescape(raw: &[u8]) -> (char, usize) {
    let simple = match raw.get(1) {
        Some(b'n') => '\n',
        Some(b't') => '\t',
        Some(b'r') => '\r',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'u') => return unescape_unicode(raw),
        Some(&other) => char::from(other),
        None => return (char::REPLACEMENT_CHARACTER, raw.len()),
    };
    (simple, 2)
}

fn unescape_unicode(raw: &[u8]) -> (char, usize) {
    let Some(first) = code_unit(raw) else { return (char::REPLACEMENT_CHARACTER, raw.len().min(2)) };
    if let Some(character) = char::from_u32(first) {
        return (character, 6);
    }
    let low = raw.get(6..).and_then(code_unit).filter(|low| (0xDC00..0xE000).contains(low));
    match low {
        Some(low) if first < 0xDC00 => {
            let joined = 0x1_0000 + ((first - 0xD800) << 10) + (low - 0xDC00);
            (char::from_u32(joined).unwrap_or(char::REPLACEMENT_CHARACTER), 12)
        }
        _ => (char::REPLACEMENT_CHARACTER, 6),
    }
}

/// The UTF-16 code unit of the `\uXXXX` at the head of `raw`.
fn code_unit(raw: &[u8]) -> Option<u32> {
    let digits = raw.strip_prefix(b"\\u")?.get(..4)?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Appends `plain` to `out` as a JSON string literal, quotes included.
pub fn write_str(plain: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for character in plain.chars() {
        match character {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            '\n' => out.extend_from_slice(b"\\n"),
            '\r' => out.extend_from_slice(b"\\r"),
            '\t' => out.extend_from_slice(b"\\t"),
            control if control < ' ' => out.extend_from_slice(format!("\\u{:04x}", control as u32).as_bytes()),
            other => out.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decodes_escapes_and_surrogates() {
        assert_eq!(Text::new(br#"a\n\u00e9\/\ud83d\ude42"#).decode(), "a\né/🙂");
        assert_eq!(Text::new(br"x\ud83d y\ude42").decode(), "x\u{fffd} y\u{fffd}");
        assert_eq!(Text::new(b"a\xf0\x9f").decode(), "a\u{fffd}");
    }

    #[test]
    fn compares_through_escapes() {
        assert!(Text::new(br"syst\u0065m").is("system"));
        assert!(!Text::new(br"a\n").is("a\\n"));
    }

    proptest! {
        #[test]
        fn a_written_string_reads_back(plain in any::<String>()) {
            let mut literal = Vec::new();
            write_str(&plain, &mut literal);
            prop_assert_eq!(&serde_json::from_slice::<String>(&literal).unwrap(), &plain);
            let text = Text::new(&literal[1..literal.len() - 1]);
            prop_assert_eq!(text.decode(), plain.as_str());
            prop_assert!(text.is(&plain));
        }
    }
}
