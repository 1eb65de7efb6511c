//! String literals: compared, decoded and written without surprises.

use std::borrow::Cow;
use std::cmp::Ordering;

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
    #[inline]
    pub fn is(self, plain: &str) -> bool {
        // Nearly every comparison fails by length or first byte: this is what a look-up by key costs.
        match self.raw.len().cmp(&plain.len()) {
            Ordering::Less => false,
            Ordering::Equal => self.raw == plain.as_bytes() && !plain.contains('\\'),
            Ordering::Greater => match self.raw.first() {
                Some(&first) if first == b'\\' || plain.as_bytes().first() == Some(&first) => self.is_by_escapes(plain),
                _ => false,
            },
        }
    }

    #[cold]
    fn is_by_escapes(self, plain: &str) -> bool {
        // An escape takes at most six bytes for one of UTF-8.
        self.raw.len() <= plain.len() * 6 && self.raw.contains(&b'\\') && self.decode() == plain
    }

    /// The characters with escapes decoded, each with the offset in [`Text::raw`] just behind it.
    pub fn chars(self) -> Chars<'t> {
        Chars { raw: self.raw, at: 0 }
    }

    /// How many bytes of UTF-8 the string is.
    pub fn decoded_len(self) -> usize {
        let mut len = self.raw.len();
        let mut rest = self.raw;
        while let Some(at) = memchr::memchr(b'\\', rest) {
            let (character, used) = unescape(&rest[at..]);
            len = len + character.len_utf8() - used;
            rest = &rest[at + used..];
        }
        len
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

/// Iterates over a string's characters; see [`Text::chars`].
#[derive(Clone, Debug)]
pub struct Chars<'t> {
    raw: &'t [u8],
    at: usize,
}

impl Iterator for Chars<'_> {
    type Item = (char, usize);

    fn next(&mut self) -> Option<(char, usize)> {
        let rest = self.raw.get(self.at..)?;
        let (character, used) = match *rest.first()? {
            b'\\' => unescape(rest),
            ascii if ascii.is_ascii() => (char::from(ascii), 1),
            lead => {
                let bytes = rest.get(
                    ..match lead {
                        0xF0.. => 4,
                        0xE0.. => 3,
                        _ => 2,
                    },
                );
                let character = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok()?.chars().next());
                character.map_or((char::REPLACEMENT_CHARACTER, 1), |character| (character, character.len_utf8()))
            }
        };
        self.at += used;
        Some((character, self.at))
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
        assert_eq!(Text::new(br"a\n\u00e9\/\ud83d\ude42").decode(), "a\né/🙂");
        assert_eq!(Text::new(br"x\ud83d y\ude42").decode(), "x\u{fffd} y\u{fffd}");
        assert_eq!(Text::new(b"a\xf0\x9f").decode(), "a\u{fffd}");
    }

    #[test]
    fn compares_through_escapes() {
        assert!(Text::new(br"syst\u0065m").is("system"));
        assert!(!Text::new(br"a\n").is("a\\n"));
    }

    #[test]
    fn characters_tell_where_they_end() {
        let text = Text::new("a\\né\\ud83d\\ude42🙂".as_bytes());
        let all: Vec<_> = text.chars().collect();
        assert_eq!(all, [('a', 1), ('\n', 3), ('é', 5), ('🙂', 17), ('🙂', 21)]);
        assert_eq!(Text::new(b"\xf0\x9f").chars().count(), 2);
    }

    proptest! {
        #[test]
        fn a_written_string_reads_back(plain in any::<String>()) {
            let mut literal = Vec::new();
            write_str(&plain, &mut literal);
            prop_assert_eq!(&serde_json::from_slice::<String>(&literal).unwrap(), &plain);
            let text = Text::new(&literal[1..literal.len() - 1]);
            prop_assert_eq!(text.decode(), plain.as_str());
            prop_assert_eq!(text.chars().map(|(character, _)| character).collect::<String>(), plain.as_str());
            prop_assert_eq!(text.decoded_len(), plain.len());
            prop_assert!(text.is(&plain));
            let escaped = plain.encode_utf16().fold(String::new(), |all, unit| format!("{all}\\u{unit:04x}"));
            prop_assert!(Text::new(escaped.as_bytes()).is(&plain));
            let longer = [&plain, "x"].concat();
            prop_assert!(!text.is(&longer));
        }
    }
}
