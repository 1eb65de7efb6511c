//! Edits to a scanned text, and the rope that carries the result without copying what stayed.

use std::ops::Range;

use bytes::Bytes;

use super::value::Value;

/// Inserts shorter than this are copied together; longer pieces are kept as slices of the input.
const COPY_BELOW: usize = 1024;

/// Bytes in pieces. Large pieces share the buffer that they came from, all others lie in one of the rope's own.
#[derive(Clone, Debug, Default)]
pub struct Rope {
    /// What was copied, one piece behind the other.
    own: Vec<u8>,
    /// What is shared, each with how much of `own` stands before it.
    shared: Vec<(usize, Bytes)>,
    /// Bytes in `shared`.
    shared_len: usize,
}

impl Rope {
    /// An empty rope.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty rope with room for `bytes` that are copied.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { own: Vec::with_capacity(bytes), ..Self::default() }
    }

    /// Appends a copy of `bytes`.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        self.own.extend_from_slice(bytes);
    }

    /// Appends what `write` appends to a vector.
    pub fn push_written(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.own);
    }

    /// Appends a piece of `input`: shared when it is large, copied when that is cheaper.
    pub fn push_slice(&mut self, input: &Bytes, span: Range<usize>) {
        if span.len() < COPY_BELOW {
            self.push(&input[span]);
        } else {
            self.shared_len += span.len();
            self.shared.push((self.own.len(), input.slice(span)));
        }
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.own.len() + self.shared_len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces in order.
    pub fn into_parts(self) -> Vec<Bytes> {
        let own = Bytes::from(self.own);
        let mut parts = Vec::with_capacity(2 * self.shared.len() + 1);
        let mut from = 0;
        for (at, slice) in self.shared {
            if from < at {
                parts.push(own.slice(from..at));
            }
            parts.push(slice);
            from = at;
        }
        if from < own.len() {
            parts.push(own.slice(from..));
        }
        parts
    }

    /// One contiguous copy.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut whole = Vec::with_capacity(self.len());
        let mut from = 0;
        for (at, slice) in &self.shared {
            whole.extend_from_slice(&self.own[from..*at]);
            whole.extend_from_slice(slice);
            from = *at;
        }
        whole.extend_from_slice(&self.own[from..]);
        whole
    }
}

impl From<Bytes> for Rope {
    fn from(whole: Bytes) -> Self {
        Self { own: Vec::new(), shared_len: whole.len(), shared: vec![(0, whole)] }
    }
}

/// Replacements of spans of one text. Spans must not overlap; their order does not matter.
#[derive(Clone, Debug, Default)]
pub struct Edits {
    list: Vec<(Range<usize>, Vec<u8>)>,
}

impl Edits {
    /// No edits yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the text stays as it is.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Puts `replacement` in the place of `span`; an empty span inserts.
    pub fn replace(&mut self, span: Range<usize>, replacement: impl Into<Vec<u8>>) {
        self.list.push((span, replacement.into()));
    }

    /// Inserts `member` (such as `"stream":true`) as the last member of `object`.
    pub fn add_member(&mut self, object: Value<'_>, member: &str) {
        let end = object.span().end - 1;
        let comma = if object.members().next().is_some() { "," } else { "" };
        self.replace(end..end, format!("{comma}{member}"));
    }

    /// Removes the items of `array` for which `gone` says so (by index), each with one comma.
    pub fn remove_items(&mut self, array: Value<'_>, gone: impl Fn(usize) -> bool) {
        let spans: Vec<_> = array.items().map(Value::span).collect();
        self.remove_listed(&spans, gone);
    }

    /// Removes every member of `object` that is named `key`, each with one comma.
    pub fn remove_member(&mut self, object: Value<'_>, key: &str) {
        let mut spans = Vec::new();
        let mut named = Vec::new();
        for (name, value) in object.entries() {
            spans.push(name.span().start..value.span().end);
            named.push(name.as_text().is_some_and(|name| name.is(key)));
        }
        self.remove_listed(&spans, |index| named[index]);
    }

    /// Removes some of the comma-separated `spans`, each with one comma.
    fn remove_listed(&mut self, spans: &[Range<usize>], gone: impl Fn(usize) -> bool) {
        let last_kept = (0..spans.len()).rev().find(|&index| !gone(index));
        for (index, span) in spans.iter().enumerate().filter(|(index, _)| gone(*index)) {
            match last_kept {
                // A kept one follows: what is removed reaches up to the next.
                Some(last) if index < last => self.replace(span.start..spans[index + 1].start, []),
                _ => break,
            }
        }
        let tail = last_kept.map_or(0, |last| last + 1);
        if let (Some(first), Some(end)) = (spans.get(tail), spans.last()) {
            let start = last_kept.map_or(first.start, |last| spans[last].end);
            self.replace(start..end.end, []);
        }
    }

    /// Appends the edited text to `out`: for texts so small that sharing them does not pay.
    pub fn write(mut self, text: &[u8], out: &mut Vec<u8>) {
        self.list.sort_by_key(|(span, _)| (span.start, span.end));
        let mut at = 0;
        for (span, replacement) in self.list {
            debug_assert!(span.start >= at, "edits overlap");
            out.extend_from_slice(&text[at..span.start.max(at)]);
            out.extend_from_slice(&replacement);
            at = span.end.max(at);
        }
        out.extend_from_slice(&text[at..]);
    }

    /// Carries the edits out on the text that they were made for.
    pub fn apply(mut self, text: &Bytes) -> Rope {
        if self.list.is_empty() {
            return Rope::from(text.clone());
        }
        self.list.sort_by_key(|(span, _)| (span.start, span.end));
        let mut rope = Rope::new();
        let mut at = 0;
        for (span, replacement) in self.list {
            debug_assert!(span.start >= at, "edits overlap");
            rope.push_slice(text, at..span.start.max(at));
            rope.push(&replacement);
            at = span.end.max(at);
        }
        rope.push_slice(text, at..text.len());
        rope
    }
}

#[cfg(test)]
mod tests {
    use super::super::scan::Tape;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_untouched_text_is_the_same_buffer() {
        let text = Bytes::from_static(b"{}");
        assert_eq!(Edits::new().apply(&text).into_parts()[0].as_ptr(), text.as_ptr());
    }

    #[test]
    fn adds_members_to_empty_and_filled_objects() {
        for (before, after) in [("{ }", r#"{ "a":1}"#), (r#"{"b":2 }"#, r#"{"b":2 ,"a":1}"#)] {
            let mut tape = Tape::new();
            let mut edits = Edits::new();
            edits.add_member(tape.scan(before.as_bytes()).unwrap(), r#""a":1"#);
            assert_eq!(edits.apply(&Bytes::copy_from_slice(before.as_bytes())).to_vec(), after.as_bytes());
        }
    }

    #[test]
    fn removes_members_by_name() {
        for (before, after) in [
            (r#"{ "a":1 }"#, "{  }"),
            (r#"{"a":1, "b":2,"a":3}"#, r#"{"b":2}"#),
            (r#"{"b":2, "\u0061":3}"#, r#"{"b":2}"#),
            (r#"{"b":2}"#, r#"{"b":2}"#),
        ] {
            let mut tape = Tape::new();
            let mut edits = Edits::new();
            edits.remove_member(tape.scan(before.as_bytes()).unwrap(), "a");
            assert_eq!(edits.apply(&Bytes::copy_from_slice(before.as_bytes())).to_vec(), after.as_bytes());
        }
    }

    proptest! {
        #[test]
        fn removing_items_keeps_the_others(gone in prop::collection::vec(any::<bool>(), 0..8), space in "[ \n]{0,2}") {
            let items: Vec<String> = (0..gone.len()).map(|n| format!("{space}\"i{n}\"{space}")).collect();
            let text = Bytes::from(format!("[{}]", items.join(",")));
            let mut tape = Tape::new();
            let mut edits = Edits::new();
            edits.remove_items(tape.scan(&text).unwrap(), |index| gone[index]);
            let left: Vec<String> = serde_json::from_slice(&edits.apply(&text).to_vec()).unwrap();
            let kept: Vec<String> = (0..gone.len()).filter(|&n| !gone[n]).map(|n| format!("i{n}")).collect();
            prop_assert_eq!(left, kept);
        }

        #[test]
        fn edits_change_only_their_spans(text in prop::collection::vec(any::<u8>(), 0..5000), cuts in prop::collection::vec((0_usize..5000, 0_usize..3, "[a-z]{0,3}"), 0..6)) {
            let mut edits = Edits::new();
            let mut expected = Vec::new();
            let mut at = 0;
            let mut cuts = cuts;
            cuts.sort();
            for (start, len, insert) in cuts {
                let start = start.min(text.len());
                let end = (start + len).min(text.len());
                if start < at || (start == at && at > 0) { continue; }
                expected.extend_from_slice(&text[at..start]);
                expected.extend_from_slice(insert.as_bytes());
                edits.replace(start..end, insert);
                at = end;
            }
            expected.extend_from_slice(&text[at..]);
            let mut written = Vec::new();
            edits.clone().write(&text, &mut written);
            prop_assert_eq!(&written, &expected);
            let rope = edits.apply(&Bytes::from(text));
            prop_assert_eq!(rope.len(), expected.len());
            prop_assert_eq!(rope.to_vec(), expected);
        }
    }
}
