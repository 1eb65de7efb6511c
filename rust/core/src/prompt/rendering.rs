//! Whether an engine's template printed the earlier part of a conversation anew: shown by the engine's own tokens.
//!
//! vLLM renders and tokenises a chat at `/tokenize`. A body and its earlier part, cut where the previous request
//! ended, have the same tokens up to there, unless the template makes another text of the earlier part once more
//! follows: it drops reasoning, or moves a message to the head.

use crate::json::{Kind, Tape, Value};

/// Tokens by which the end of the earlier part may differ: there the template prepares an answer.
const TAIL: usize = 16;

/// What `/tokenize` is asked: all of a chat body, and its first messages. `None` for a body that is no chat of more
/// than so many messages.
pub fn questions(body: &[u8], earlier: usize) -> Option<[Vec<u8>; 2]> {
    let mut tape = Tape::new();
    let root = tape.scan(body).ok()?;
    let messages: Vec<_> = root.get("messages").filter(|list| list.kind() == Kind::Array)?.items().collect();
    let (part, rest) = messages.split_at_checked(earlier)?;
    if part.is_empty() || rest.is_empty() {
        return None;
    }
    Some([question(root, &messages), question(root, part)])
}

fn question(root: Value<'_>, messages: &[Value<'_>]) -> Vec<u8> {
    let mut out = br#"{"add_generation_prompt":true,"messages":["#.to_vec();
    for (index, message) in messages.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(message.raw());
    }
    out.push(b']');
    for name in ["model", "tools", "chat_template_kwargs"] {
        if let Some(value) = root.get(name) {
            out.extend_from_slice(format!(",\"{name}\":").as_bytes());
            out.extend_from_slice(value.raw());
        }
    }
    out.push(b'}');
    out
}

/// Whether the earlier part was printed anew, given the answers to both questions; `None` where they hold no tokens.
pub fn printed_anew(all: &[u8], earlier: &[u8]) -> Option<bool> {
    let (mut whole, mut part) = (Tape::new(), Tape::new());
    let whole = tokens(whole.scan(all).ok()?)?;
    let part = tokens(part.scan(earlier).ok()?)?;
    let length = part.items().count();
    let same = whole.items().zip(part.items()).take_while(|(one, other)| one.raw() == other.raw()).count();
    (length > 0).then_some(same + TAIL < length)
}

fn tokens(root: Value<'_>) -> Option<Value<'_>> {
    root.get("tokens").filter(|list| list.kind() == Kind::Array)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_holds_what_decides_over_the_tokens() {
        let body = br#"{"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"stream":true,"tools":[]}"#;
        let [all, earlier] = questions(body, 1).unwrap();
        let expected =
            r#"{"add_generation_prompt":true,"messages":[{"role":"user","content":"a"}],"model":"m","tools":[]}"#;
        assert_eq!(String::from_utf8(earlier).unwrap(), expected);
        assert!(String::from_utf8(all).unwrap().contains(r#""a"},{"role":"assistant""#));
        for (body, earlier) in [(&body[..], 0), (&body[..], 2), (&body[..], 9), (b"{}", 1), (b"x", 1)] {
            assert_eq!(questions(body, earlier), None);
        }
    }

    #[test]
    fn tokens_that_differ_before_the_end_are_another_print() {
        let tokens =
            |range: std::ops::Range<u32>| format!("{{\"tokens\":{:?}}}", range.collect::<Vec<_>>()).into_bytes();
        assert_eq!(printed_anew(&tokens(0..100), &tokens(0..60)), Some(false));
        // The last few belong to the answer that was to come.
        let mut asked: Vec<_> = (0..60).collect();
        asked.extend([900, 901]);
        assert_eq!(printed_anew(&tokens(0..100), format!("{{\"tokens\":{asked:?}}}").as_bytes()), Some(false));
        assert_eq!(printed_anew(&tokens(1..100), &tokens(0..60)), Some(true));
        assert_eq!(printed_anew(b"{}", &tokens(0..60)), None);
        assert_eq!(printed_anew(&tokens(0..10), &tokens(0..0)), None);
    }
}
