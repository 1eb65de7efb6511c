//! The insides of JSON string literals, carried from the engine's stream into the client's.
//!
//! A delta's text is copied as the literal that the engine wrote, without decoding it. Three things may not reach
//! a client and are put right on the way: bytes that are not UTF-8, halves of surrogate pairs (an engine may cut
//! a pair between two deltas; Python clients cannot encode a half), and the raw line separators U+0085, U+2028 and
//! U+2029, at which clients that split lines the Unicode way would cut the event.

use memchr::memchr_iter;

const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// Cleans the literals of one text, delta by delta.
#[derive(Debug, Default)]
pub(crate) struct Cleaner {
    /// The escape of a high surrogate that ended the last delta.
    half: Option<[u8; 6]>,
    scratch: Vec<u8>,
}

impl Cleaner {
    /// The literal as it may go out. A high half at its end is kept back for the next one.
    pub(crate) fn clean<'a>(&'a mut self, literal: &'a [u8]) -> &'a [u8] {
        if literal.is_empty() || (self.half.is_none() && is_clean(literal)) {
            return literal;
        }
        self.scratch.clear();
        let mut rest = literal;
        if let Some(half) = self.half.take() {
            match escaped_unit(rest) {
                Some(unit) if is_low(unit) => {
                    self.scratch.extend_from_slice(&half);
                    self.scratch.extend_from_slice(&rest[..6]);
                    rest = &rest[6..];
                }
                _ => self.scratch.extend_from_slice(REPLACEMENT),
            }
        }
        while !rest.is_empty() {
            rest = &rest[self.step(rest)..];
        }
        &self.scratch
    }

    /// What ends the text: U+FFFD for a half that nothing completed.
    pub(crate) fn finish(&mut self) -> Option<&'static [u8]> {
        self.half.take().map(|_| REPLACEMENT)
    }

    /// Cleans what stands at the head of `rest`: one escape, one character, or a run of plain bytes. Returns its length.
    fn step(&mut self, rest: &[u8]) -> usize {
        let plain = rest.iter().position(|&byte| byte == b'\\' || byte >= 0x80).unwrap_or(rest.len());
        if plain > 0 {
            self.scratch.extend_from_slice(&rest[..plain]);
            return plain;
        }
        if rest[0] == b'\\' { self.escape(rest) } else { self.character(rest) }
    }

    fn escape(&mut self, rest: &[u8]) -> usize {
        let Some(unit) = escaped_unit(rest) else {
            let len = rest.len().min(2);
            self.scratch.extend_from_slice(&rest[..len]);
            return len;
        };
        let kept = match escaped_unit(&rest[6..]) {
            _ if !is_high(unit) && !is_low(unit) => 6,
            Some(low) if is_high(unit) && is_low(low) => 12,
            _ => 0,
        };
        match rest.first_chunk() {
            Some(half) if kept == 0 && is_high(unit) && rest.len() == 6 => self.half = Some(*half),
            _ if kept == 0 => self.scratch.extend_from_slice(REPLACEMENT),
            _ => self.scratch.extend_from_slice(&rest[..kept]),
        }
        kept.max(6)
    }

    fn character(&mut self, rest: &[u8]) -> usize {
        let head = &rest[..rest.len().min(4)];
        let Some(chunk) = head.utf8_chunks().next() else { return head.len() };
        let Some(character) = chunk.valid().chars().next() else {
            self.scratch.extend_from_slice(REPLACEMENT);
            return chunk.invalid().len();
        };
        let len = character.len_utf8();
        match character {
            '\u{85}' => self.scratch.extend_from_slice(b"\\u0085"),
            '\u{2028}' => self.scratch.extend_from_slice(b"\\u2028"),
            '\u{2029}' => self.scratch.extend_from_slice(b"\\u2029"),
            _ => self.scratch.extend_from_slice(&rest[..len]),
        }
        len
    }
}

/// Appends `plain` as a JSON string literal, quotes included, that may stand in an event.
pub(crate) fn write_str(plain: &str, out: &mut Vec<u8>) {
    if plain.is_ascii() || !plain.contains(is_separator) {
        return crate::json::write_str(plain, out);
    }
    let mut literal = Vec::new();
    crate::json::write_str(plain, &mut literal);
    out.extend_from_slice(Cleaner::default().clean(&literal));
}

fn is_separator(character: char) -> bool {
    matches!(character, '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Whether a literal needs no care at all.
fn is_clean(literal: &[u8]) -> bool {
    let surrogates = || memchr_iter(b'\\', literal).any(|at| matches!(literal[at + 1..], [b'u', b'd' | b'D', ..]));
    if literal.is_ascii() {
        return !surrogates();
    }
    std::str::from_utf8(literal).is_ok_and(|text| !text.contains(is_separator)) && !surrogates()
}

/// The code unit of the `\uXXXX` at the head of `literal`.
fn escaped_unit(literal: &[u8]) -> Option<u16> {
    let digits = literal.strip_prefix(b"\\u")?.get(..4)?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn is_high(unit: u16) -> bool {
    (0xD800..0xDC00).contains(&unit)
}

fn is_low(unit: u16) -> bool {
    (0xDC00..0xE000).contains(&unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The cleaned literals, one after the other.
    fn cleaned(deltas: &[&[u8]]) -> Vec<u8> {
        let mut cleaner = Cleaner::default();
        let mut all = Vec::new();
        for delta in deltas {
            all.extend_from_slice(cleaner.clean(delta));
        }
        all.extend_from_slice(cleaner.finish().unwrap_or_default());
        all
    }

    #[test]
    fn plain_text_is_not_copied() {
        let mut cleaner = Cleaner::default();
        let literal = "a\\n\\u00e9 é 你 \\\\ud83d".as_bytes();
        // The last escape is a backslash, not half of a pair: care is taken, and nothing changes.
        assert_eq!(cleaner.clean(literal), literal);
        let literal = "a\\n\\u00e9 é 你".as_bytes();
        assert_eq!(cleaner.clean(literal).as_ptr(), literal.as_ptr());
    }

    #[test]
    fn halves_are_joined_or_replaced() {
        assert_eq!(cleaned(&[br"x \ud83d", br"\ude42 y"]), br"x \ud83d\ude42 y");
        assert_eq!(cleaned(&[br"x \ud83d", b"", br"\uDE42"]), br"x \ud83d\uDE42");
        assert_eq!(cleaned(&[br"x \ud83d", b" y"]), "x \u{fffd} y".as_bytes());
        assert_eq!(cleaned(&[br"\ude42 \ud83d"]), "\u{fffd} \u{fffd}".as_bytes());
        assert_eq!(cleaned(&[br"\ud83d\ude42 \ud83d\ud83d\ude42"]), "\\ud83d\\ude42 \u{fffd}\\ud83d\\ude42".as_bytes());
    }

    #[test]
    fn broken_bytes_and_separators_are_put_right() {
        assert_eq!(cleaned(&[b"a\xf0\x9f", b"\xc3\xa9"]), "a\u{fffd}é".as_bytes());
        assert_eq!(cleaned(&["a\u{2028}b\u{2029}c\u{85}d".as_bytes()]), br"a\u2028b\u2029c\u0085d");
    }

    proptest! {
        #[test]
        fn what_goes_out_is_json_and_says_the_same(
            parts in prop::collection::vec(prop_oneof![
                "[a-z ]{0,3}", Just("\\ud83d".into()), Just("\\ude42".into()), Just("\\\\".into()), Just("\\n".into()),
                Just("\u{2028}".into()), Just("é🙂".into()), Just("\\u0041".into()),
            ], 0..8),
        ) {
            let whole = parts.concat();
            let deltas: Vec<_> = parts.iter().map(String::as_bytes).collect();
            let out = cleaned(&deltas);
            let quoted = format!("\"{}\"", std::str::from_utf8(&out).unwrap());
            prop_assert!(!quoted.contains(is_separator));
            let read: String = serde_json::from_str(&quoted).unwrap();
            prop_assert_eq!(read, crate::json::Text::new(whole.as_bytes()).decode());
        }
    }
}
