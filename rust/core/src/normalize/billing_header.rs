//! Rule 1: the billing header that Claude Code puts in front of its system prompt.
//!
//! Its `cch` differs in every request and its version suffix in every conversation, so that a prompt which
//! begins with it shares nothing with any other. The grammar is narrow on purpose: the name, then `key=value;`
//! pairs whose keys begin with `cc`. Text that is joined to the header, even with no newline, is never eaten.

use crate::json::Text;

const NAME: &str = "x-anthropic-billing-header:";

/// No real value is longer, in bytes of UTF-8; a longer one is not a header's.
const MAX_VALUE: usize = 256;

/// What the head of a system text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// No header.
    Absent,
    /// Nothing but the header (and white space).
    Whole,
    /// The header, then text: what goes is that many bytes at the head of the literal's inside.
    Prefix(usize),
    /// The header's name with something behind it that the grammar does not know: left alone, and counted.
    Unknown,
}

/// Looks at the head of a system text. White space in front of the header is looked through.
///
/// A newline behind the header goes with it, and all white space up to the text; where no newline parts the two,
/// the text begins right behind the last pair and keeps every byte. A header behind the header goes as well, so that
/// looking again finds none.
pub fn find(text: Text<'_>) -> Header {
    let mut cut = 0;
    loop {
        match find_one(Text::new(text.raw().get(cut..).unwrap_or_default())) {
            Header::Prefix(bytes) => cut += bytes,
            Header::Whole => return Header::Whole,
            other => return if cut == 0 { other } else { Header::Prefix(cut) },
        }
    }
}

/// Whether a text has nothing but white space.
pub fn is_blank(text: Text<'_>) -> bool {
    text.chars().all(|(character, _)| character.is_whitespace())
}

fn find_one(text: Text<'_>) -> Header {
    let mut cursor = Cursor { text, at: 0 };
    cursor.skip(char::is_whitespace);
    if !NAME.chars().all(|expected| cursor.take(expected)) {
        return Header::Absent;
    }
    let Some(end) = pairs(&mut cursor) else { return Header::Unknown };
    cursor.at = end;
    let newline = cursor.skip(char::is_whitespace);
    match cursor.peek() {
        None => Header::Whole,
        Some(_) if newline => Header::Prefix(cursor.at),
        Some(_) => Header::Prefix(end),
    }
}

/// Reads the pairs; the offset behind the last one, or `None` if there is none.
fn pairs(cursor: &mut Cursor<'_>) -> Option<usize> {
    let mut end = None;
    loop {
        cursor.skip(|character| matches!(character, ' ' | '\t'));
        match pair(cursor) {
            Pair::Closed => end = Some(cursor.at),
            Pair::Last => return Some(cursor.at),
            Pair::None => return end,
        }
    }
}

enum Pair {
    /// `key=value;`
    Closed,
    /// `key=value` at the end of the text or line.
    Last,
    /// No pair here.
    None,
}

fn pair(cursor: &mut Cursor<'_>) -> Pair {
    if !(cursor.take('c') && cursor.take('c')) {
        return Pair::None;
    }
    cursor.skip(|character| matches!(character, 'a'..='z' | '0'..='9' | '_'));
    if !cursor.take('=') {
        return Pair::None;
    }
    let value = cursor.at;
    cursor.skip(|character| character != ';' && !character.is_whitespace());
    let value = cursor.text.raw().get(value..cursor.at).unwrap_or_default();
    if Text::new(value).decoded_len() > MAX_VALUE {
        return Pair::None;
    }
    let end = cursor.at;
    if cursor.take(';') {
        return Pair::Closed;
    }
    let newline = cursor.skip(char::is_whitespace);
    let last = newline || cursor.peek().is_none();
    cursor.at = end;
    if last { Pair::Last } else { Pair::None }
}

/// Reads a literal's inside character by character.
struct Cursor<'t> {
    text: Text<'t>,
    at: usize,
}

impl Cursor<'_> {
    fn next(&self) -> Option<(char, usize)> {
        let (character, used) = Text::new(self.text.raw().get(self.at..)?).chars().next()?;
        Some((character, self.at + used))
    }

    fn peek(&self) -> Option<char> {
        self.next().map(|(character, _)| character)
    }

    fn take(&mut self, expected: char) -> bool {
        match self.next() {
            Some((character, end)) if character == expected => {
                self.at = end;
                true
            }
            _ => false,
        }
    }

    /// Skips what `belongs`; whether a newline was in it.
    fn skip(&mut self, belongs: impl Fn(char) -> bool) -> bool {
        let mut newline = false;
        while let Some((character, end)) = self.next().filter(|(character, _)| belongs(*character)) {
            newline |= matches!(character, '\n' | '\r');
            self.at = end;
        }
        newline
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::write_str;
    use proptest::prelude::*;

    /// What is left of `plain`; `None` if nothing.
    fn stripped(plain: &str) -> Option<String> {
        let mut literal = Vec::new();
        write_str(plain, &mut literal);
        let inside = &literal[1..literal.len() - 1];
        match find(Text::new(inside)) {
            Header::Absent | Header::Unknown => Some(plain.to_owned()),
            Header::Whole => None,
            Header::Prefix(bytes) => Some(Text::new(&inside[bytes..]).decode().into_owned()),
        }
    }

    #[test]
    fn whole_headers_of_every_version_go() {
        for header in [
            "x-anthropic-billing-header: cc_version=2.1.116.fcf; cc_entrypoint=sdk-cli; cch=5d5a2;",
            "x-anthropic-billing-header: cc_version=2.1.332.307; cc_entrypoint=sdk-cli;",
            "x-anthropic-billing-header: cc_version=2.1.332.307; cc_entrypoint=cli; cc_is_subagent=true;",
            "x-anthropic-billing-header:cch=1",
            " \n\tx-anthropic-billing-header: cc_version=1;\r\n",
        ] {
            assert_eq!(stripped(header), None, "{header:?}");
        }
    }

    #[test]
    fn joined_text_is_kept() {
        let header = "x-anthropic-billing-header: cc_version=2.1.0.abc; cch=1a2b3;";
        for (joined, text) in [
            ("\nYou are", "You are"),
            ("\n\n  \r\nYou are", "You are"),
            ("  \n You are", "You are"),
            ("You are", "You are"),
            (" You are", " You are"),
            ("mode=plan; cch=2;", "mode=plan; cch=2;"),
            (" mode=plan;\nx", " mode=plan;\nx"),
            ("cc is a compiler", "cc is a compiler"),
            ("cc_key=with space;", "cc_key=with space;"),
            ("é\"\\", "é\"\\"),
        ] {
            assert_eq!(stripped(&format!("{header}{joined}")).as_deref(), Some(text), "{joined:?}");
            assert_eq!(stripped(&format!("\n {header}{joined}")).as_deref(), Some(text), "{joined:?}");
        }
        assert_eq!(stripped("x-anthropic-billing-header: cch=1\nYou").as_deref(), Some("You"));
        assert_eq!(stripped(&format!("{header}\n{header}You")).as_deref(), Some("You"));
        assert_eq!(stripped(&format!("{header}{header}")), None);
    }

    #[test]
    fn other_shapes_are_left_and_told_apart() {
        let long = format!("x-anthropic-billing-header: cch={};", "a".repeat(MAX_VALUE + 1));
        for text in [
            "x-anthropic-billing-header:",
            "x-anthropic-billing-header: is added by the CLI",
            "x-anthropic-billing-header: mode=1; cch=2;",
            "x-anthropic-billing-header: cch=1 2;",
            "x-anthropic-billing-header: CCH=1;",
            &long,
        ] {
            assert_eq!(find(Text::new(text.as_bytes())), Header::Unknown, "{text}");
        }
        for text in [
            "",
            "Docs: x-anthropic-billing-header: cch=1;",
            "x-anthropic-billing",
            "X-Anthropic-Billing-Header: cch=1;",
        ] {
            assert_eq!(find(Text::new(text.as_bytes())), Header::Absent, "{text}");
        }
    }

    #[test]
    fn escapes_are_read_as_characters() {
        assert_eq!(find(Text::new(br"\u0078-anthropic-billing-header:\u0020cch\u003d1;\u000aX")), Header::Prefix(55));
    }

    proptest! {
        #[test]
        fn any_joined_text_survives(
            pairs in prop::collection::vec("(cch|cc_version|cc[a-z0-9_]{0,8})=[A-Za-z0-9.-]{0,12}", 1..4),
            space in "[ \n\t]{0,3}", gap in "[ \t]{0,2}\n[ \n]{0,2}", text in "[A-Zm-z<é\"\\\\][ -~é\n]{0,40}",
        ) {
            let header = format!("{space}x-anthropic-billing-header: {};", pairs.join("; "));
            prop_assert_eq!(stripped(&header), None);
            prop_assert_eq!(stripped(&format!("{header}{gap}{text}")), Some(text.clone()));
            let joined = stripped(&format!("{header}{text}"));
            prop_assert_eq!(joined.as_deref(), Some(text.as_str()));
            let literal = serde_json::to_string(&joined).unwrap();
            prop_assert_eq!(find(Text::new(&literal.as_bytes()[1..literal.len() - 1])), Header::Absent);
        }

        #[test]
        fn nothing_panics_and_prefixes_fit(tail in ".{0,60}", bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let whole = [NAME.as_bytes(), tail.as_bytes(), &bytes].concat();
            if let Header::Prefix(cut) = find(Text::new(&whole)) {
                prop_assert!(cut < whole.len());
            }
        }
    }
}
