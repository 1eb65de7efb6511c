//! String literals: compared, decoded and written without surprises.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

use super::marks::{Escapes, Marks};

/// The inside of a JSON string literal, escapes and all.
#[derive(Clone, Copy, Debug)]
pub struct Text<'t> {
    raw: &'t [u8],
    /// Known to have no escapes.
    plain: bool,
}

impl<'t> Text<'t> {
    /// Takes the bytes between the quotes of a literal.
    pub fn new(raw: &'t [u8]) -> Self {
        Self { raw, plain: false }
    }

    /// The same of a literal of which the scanner knows whether it has escapes.
    #[inline]
    pub(super) fn scanned(raw: &'t [u8], escaped: bool) -> Self {
        Self { raw, plain: !escaped }
    }

    /// The bytes between the quotes, as written.
    pub fn raw(self) -> &'t [u8] {
        self.raw
    }

    /// Whether the string is empty.
    pub fn is_empty(self) -> bool {
        self.raw.is_empty()
    }

    /// Whether there are escapes in the string.
    pub fn is_escaped(self) -> bool {
        !self.plain && memchr::memchr(b'\\', self.raw).is_some()
    }

    /// Whether the string reads `plain` (escapes decoded).
    #[inline]
    pub fn is(self, plain: &str) -> bool {
        if self.plain { self.raw == plain.as_bytes() } else { self.reads(plain) }
    }

    fn reads(self, plain: &str) -> bool {
        match self.raw.len().cmp(&plain.len()) {
            Ordering::Less => false,
            Ordering::Equal => self.raw == plain.as_bytes() && !plain.contains('\\'),
            // An escape takes at most six bytes for one of UTF-8.
            Ordering::Greater => self.raw.len() <= plain.len() * 6 && self.is_escaped() && self.decode() == plain,
        }
    }

    /// The characters with escapes decoded, each with the offset in [`Text::raw`] just behind it.
    pub fn chars(self) -> Chars<'t> {
        Chars { raw: self.raw, at: 0 }
    }

    /// How many bytes of UTF-8 the string is.
    pub fn decoded_len(self) -> usize {
        let mut len = self.raw.len();
        if !self.plain {
            let mut marks = Marks::<Escapes>::new(self.raw);
            let mut at = marks.next(0);
            while let Some(rest @ [_, ..]) = self.raw.get(at..) {
                let (character, used) = unescape(rest);
                len = len + character.len_utf8() - used;
                at = marks.next(at + used);
            }
        }
        len
    }

    /// The string itself. Lone surrogate escapes and invalid UTF-8 become U+FFFD.
    pub fn decode(self) -> Cow<'t, str> {
        match self.bytes() {
            Cow::Borrowed(plain) => match std::str::from_utf8(plain) {
                Ok(plain) => Cow::Borrowed(plain),
                Err(_) => String::from_utf8_lossy(plain),
            },
            Cow::Owned(decoded) => Cow::Owned(match String::from_utf8(decoded) {
                Ok(plain) => plain,
                Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
            }),
        }
    }

    /// The string's bytes. Lone surrogate escapes become U+FFFD; what is not UTF-8 stays as it is.
    pub fn bytes(self) -> Cow<'t, [u8]> {
        if !self.is_escaped() {
            return Cow::Borrowed(self.raw);
        }
        let mut decoded = Vec::new();
        self.decode_into(&mut decoded);
        Cow::Owned(decoded)
    }

    /// Appends [`Text::bytes`] to `out`.
    pub fn decode_into(self, out: &mut Vec<u8>) {
        if self.plain {
            return out.extend_from_slice(self.raw);
        }
        let mut marks = Marks::<Escapes>::new(self.raw);
        let mut gathered = Gathered::new(out);
        let mut from = 0;
        loop {
            let at = marks.next(from);
            gathered.add_run(self.raw, from..at);
            let Some(rest @ [_, ..]) = self.raw.get(at..) else { break };
            match rest.get(1).map_or(0, |&letter| SHORT_ESCAPES[usize::from(letter)]) {
                0 => {
                    let (character, used) = unescape(rest);
                    gathered.add(character.encode_utf8(&mut [0; 4]).as_bytes());
                    from = at + used;
                }
                short => {
                    gathered.add_byte(short);
                    from = at + 2;
                }
            }
        }
        gathered.flush();
    }
}

/// What is decoded, on its way to a vector. Short runs are gathered first: copied as pieces of one size, whatever their
/// length, they cost a few instructions each, where appending them one by one would cost a call.
struct Gathered<'o> {
    pieces: [u8; ROOM],
    len: usize,
    out: &'o mut Vec<u8>,
}

/// Bytes of a piece. In source code, a run between two escapes is rarely longer.
const PIECE: usize = 64;
const ROOM: usize = 1024;

impl<'o> Gathered<'o> {
    fn new(out: &'o mut Vec<u8>) -> Self {
        Self { pieces: [0; ROOM], len: 0, out }
    }

    #[inline]
    fn add_run(&mut self, raw: &[u8], run: Range<usize>) {
        let len = run.end - run.start;
        if len <= PIECE
            && let Some(from) = raw.get(run.start..).and_then(<[u8]>::first_chunk::<PIECE>)
            && let Some(to) = self.pieces.get_mut(self.len..).and_then(<[u8]>::first_chunk_mut)
        {
            *to = *from;
            self.len += len;
        } else {
            self.add(raw.get(run).unwrap_or_default());
        }
    }

    #[inline]
    fn add_byte(&mut self, byte: u8) {
        match self.pieces.get_mut(self.len) {
            Some(place) => {
                *place = byte;
                self.len += 1;
            }
            None => self.add(&[byte]),
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.flush();
        self.out.extend_from_slice(bytes);
    }

    fn flush(&mut self) {
        self.out.extend_from_slice(self.pieces.get(..self.len).unwrap_or_default());
        self.len = 0;
    }
}

/// What a letter behind a backslash stands for, where that alone says it; else 0.
pub(super) const SHORT_ESCAPES: [u8; 256] = {
    let mut short = [0; 256];
    let mut letters: &[[u8; 2]] = &[*b"\"\"", *b"\\\\", *b"//", *b"b\x08", *b"f\x0c", *b"n\n", *b"r\r", *b"t\t"];
    while let [[letter, byte], rest @ ..] = letters {
        short[*letter as usize] = *byte;
        letters = rest;
    }
    short
};

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
    match raw.get(1) {
        Some(b'u') => unescape_unicode(raw),
        Some(&letter) => match SHORT_ESCAPES[usize::from(letter)] {
            0 => (char::from(letter), 2),
            short => (char::from(short), 2),
        },
        None => (char::REPLACEMENT_CHARACTER, raw.len()),
    }
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
    let plain = plain.as_bytes();
    let mut written = 0;
    for (at, &byte) in plain.iter().enumerate() {
        if byte >= b' ' && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&plain[written..at]);
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            control => out.extend_from_slice(format!("\\u{control:04x}").as_bytes()),
        }
        written = at + 1;
    }
    out.extend_from_slice(&plain[written..]);
    out.push(b'"');
}

/// Appends `number` to `out`.
pub fn write_u64(mut number: u64, out: &mut Vec<u8>) {
    // The longest has twenty digits.
    let mut digits = [b'0'; 20];
    let mut first = digits.len() - 1;
    for (place, digit) in digits.iter_mut().enumerate().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
        first = place;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[first..]);
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

    /// The same as [`Text::decode_into`], byte after byte.
    fn decoded_slowly(raw: &[u8]) -> Vec<u8> {
        let mut decoded = Vec::new();
        let mut rest = raw;
        while let Some(&byte) = rest.first() {
            if byte == b'\\' {
                let (character, used) = unescape(rest);
                decoded.extend_from_slice(character.to_string().as_bytes());
                rest = &rest[used..];
            } else {
                decoded.push(byte);
                rest = &rest[1..];
            }
        }
        decoded
    }

    #[test]
    fn numbers_are_written_in_full() {
        for number in [0, 7, 10, 1_234_567_890, u64::MAX] {
            let mut out = Vec::new();
            write_u64(number, &mut out);
            assert_eq!(out, number.to_string().as_bytes());
        }
    }

    proptest! {
        #[test]
        fn long_texts_are_decoded_as_byte_after_byte(
            pieces in prop::collection::vec(
                prop_oneof!["[a-z ]{0,150}", r#"(\\["\\/bfnrt]){1,9}"#, r"(\\u[0-9a-f]{4}){1,3}", r"\\u[dD][89c-f][0-9a-f]{2}", "é{1,40}", r"\\.?"],
                0..40,
            ),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let mut raw = pieces.concat().into_bytes();
            if let Some(cut) = cut.filter(|_| !raw.is_empty()) {
                raw.truncate(cut.index(raw.len()));
            }
            let slow = decoded_slowly(&raw);
            let text = Text::new(&raw);
            let mut decoded = b"before ".to_vec();
            text.decode_into(&mut decoded);
            prop_assert_eq!(&decoded[7..], &slow);
            prop_assert_eq!(&*text.bytes(), &slow);
            prop_assert_eq!(text.decode(), String::from_utf8_lossy(&slow));
            if std::str::from_utf8(&raw).is_ok() {
                prop_assert_eq!(text.decoded_len(), slow.len());
            }
        }

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
