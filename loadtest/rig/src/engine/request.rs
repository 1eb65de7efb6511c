//! A request's body: read at any size without being kept.

use crate::http::Head;

/// How much of a body's beginning and of its end is kept.
const EDGE: usize = 16 * 1024;

/// A request that has been received to its last byte.
pub(crate) struct Received {
    pub(crate) head: Head,
    pub(crate) body: Edges,
    /// When its first and its last byte were read; `CLOCK_MONOTONIC` nanoseconds.
    pub(crate) first_ns: u64,
    pub(crate) recv_ns: u64,
}

/// Both ends of a body. Top-level settings stand there in what clients and relays send; the middle is conversation.
#[derive(Default)]
pub(crate) struct Edges {
    head: Vec<u8>,
    tail: Vec<u8>,
    /// Bytes of the whole body.
    pub(crate) length: usize,
}

impl Edges {
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.length += piece.len();
        let (head, rest) = piece.split_at(piece.len().min(EDGE - self.head.len()));
        self.head.extend_from_slice(head);
        let (_, last) = rest.split_at(rest.len().saturating_sub(EDGE));
        self.tail.extend_from_slice(last);
        if self.tail.len() > 2 * EDGE {
            self.tail.drain(..self.tail.len() - EDGE);
        }
    }

    /// Whether nothing was dropped.
    fn is_whole(&self) -> bool {
        self.head.len() + self.tail.len() == self.length
    }

    /// Whether the client wants a stream. A body whose middle was dropped and that says nothing at its ends counts as a
    /// yes: the rig's own readers always stream.
    pub(crate) fn wants_stream(&self) -> bool {
        self.find("stream", boolean).unwrap_or(!self.is_whole())
    }

    pub(crate) fn wants_usage(&self) -> bool {
        self.find("include_usage", boolean).unwrap_or(false)
    }

    /// The bound on the answer's tokens, under either of its names.
    pub(crate) fn max_tokens(&self) -> Option<u32> {
        self.find("max_completion_tokens", number).or_else(|| self.find("max_tokens", number))
    }

    fn find<T>(&self, key: &str, read: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
        let seam: &[u8] = if self.is_whole() { b"" } else { b"\n" };
        let text = [&self.head, seam, &self.tail].concat();
        let key = format!("\"{key}\"");
        // A key quoted inside a string has backslashes before its quotes, the last of which keeps it from matching.
        text.windows(key.len()).enumerate().filter(|(_, window)| *window == key.as_bytes()).find_map(|(at, _)| {
            let after = text.get(at + key.len()..)?.trim_ascii_start();
            read(after.strip_prefix(b":")?.trim_ascii_start())
        })
    }
}

fn boolean(text: &[u8]) -> Option<bool> {
    if text.starts_with(b"true") { Some(true) } else { text.starts_with(b"false").then_some(false) }
}

fn number(text: &[u8]) -> Option<u32> {
    let digits: Vec<u8> = text.iter().copied().take_while(u8::is_ascii_digit).take(10).collect();
    std::str::from_utf8(&digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(body: &[u8], step: usize) -> Edges {
        let mut edges = Edges::default();
        body.chunks(step).for_each(|piece| edges.push(piece));
        edges
    }

    #[test]
    fn settings_are_found_at_both_ends_of_a_big_body() {
        let text = "word ".repeat(40_000);
        let body = format!(
            r#"{{"max_tokens" : 7,"messages":[{{"content":"{text}"}}],"stream":true,"stream_options":{{"include_usage": true}}}}"#
        );
        for step in [1, 1000, 65_536, body.len()] {
            let edges = edges(body.as_bytes(), step);
            assert_eq!((edges.length, edges.max_tokens()), (body.len(), Some(7)), "cut every {step}");
            assert!(edges.wants_stream() && edges.wants_usage(), "cut every {step}");
            assert!(edges.head.len() + edges.tail.len() <= 3 * EDGE);
        }
    }

    #[test]
    fn quoted_keys_do_not_count() {
        let body = br#"{"messages":[{"content":"\"stream\": true, \"max_tokens\": 9"}]}"#;
        let edges = edges(body, 5);
        assert!(!edges.wants_stream() && !edges.wants_usage());
        assert_eq!(edges.max_tokens(), None);
    }

    #[test]
    fn a_schema_property_is_not_the_setting() {
        let body = br#"{"tools":[{"properties":{"stream":{"type":"boolean"}}}],"stream":true}"#;
        assert!(edges(body, 7).wants_stream());
    }
}
