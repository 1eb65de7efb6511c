//! Server-sent events of both dialects, as far as counting them needs.

use crate::mark::{self, Mark};

/// What a line of an event stream says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen<'a> {
    /// A stamped content delta; `text` is what follows the mark.
    Content { mark: Mark, text: &'a [u8] },
    /// A `data:` line of any kind.
    Event,
    /// The end that the engine stated: `[DONE]` or `message_stop`.
    End,
    /// An error event; its data.
    Error(&'a [u8]),
}

/// Splits a body into lines, however it is cut, and finds the marks.
#[derive(Default)]
pub(crate) struct Lines {
    /// A line's beginning whose end has not come.
    partial: Vec<u8>,
    /// Where the last mark stood in its line: nearly always where the next one stands.
    hint: usize,
}

impl Lines {
    pub(crate) fn take(&mut self, mut bytes: &[u8], mut sink: impl FnMut(Seen<'_>)) {
        while let Some(end) = newline(bytes) {
            let (line, rest) = bytes.split_at(end);
            bytes = rest.get(1..).unwrap_or_default();
            if self.partial.is_empty() {
                read_line(line, &mut self.hint, &mut sink);
            } else {
                self.partial.extend_from_slice(line);
                read_line(&self.partial, &mut self.hint, &mut sink);
                self.partial.clear();
            }
        }
        self.partial.extend_from_slice(bytes);
    }
}

/// The first line feed. `contains` is the standard library's fast search; it does not say where.
fn newline(bytes: &[u8]) -> Option<usize> {
    const STEP: usize = 64;
    let block = bytes.chunks(STEP).position(|block| block.contains(&b'\n'))?;
    let start = block * STEP;
    bytes.iter().skip(start).position(|byte| *byte == b'\n').map(|at| start + at)
}

fn read_line(line: &[u8], hint: &mut usize, sink: &mut impl FnMut(Seen<'_>)) {
    let Some(data) = line.strip_prefix(b"data:") else { return };
    sink(Seen::Event);
    let mut from = 0;
    let guess = data.get(*hint..).and_then(Mark::parse).map(|mark| (*hint, mark));
    let mut found = guess.or_else(|| find_mark(data, 0));
    if found.is_none() {
        read_other(data.trim_ascii(), sink);
    }
    while let Some((at, mark)) = found {
        if from == 0 {
            *hint = at;
        }
        from = at + mark::LEN;
        let text = data.get(from..).unwrap_or_default();
        sink(Seen::Content { mark, text });
        // The end of the JSON string right after the mark: no second one in this delta.
        found = if text.starts_with(b"\"") { None } else { find_mark(data, from) };
    }
}

fn find_mark(data: &[u8], from: usize) -> Option<(usize, Mark)> {
    let rest = data.get(from..)?;
    let mut starts = rest.windows(2).enumerate().filter(|(_, two)| *two == b"t=").map(|(at, _)| at);
    starts.find_map(|at| Some((from + at, Mark::parse(rest.get(at..)?)?)))
}

fn read_other(data: &[u8], sink: &mut impl FnMut(Seen<'_>)) {
    if data == b"[DONE]"
        || contains(data, b"\"type\":\"message_stop\"")
        || contains(data, b"\"type\": \"message_stop\"")
    {
        sink(Seen::End);
    } else if data.starts_with(b"{\"error\"")
        || data.starts_with(b"{\"type\":\"error\"")
        || data.starts_with(b"{\"type\": \"error\"")
    {
        sink(Seen::Error(data));
    }
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

/// The number after `name=` in a text.
pub(crate) fn setting(text: &[u8], name: &str) -> Option<u64> {
    let text = String::from_utf8_lossy(text);
    let (_, value) = text.split_once(&format!("{name}="))?;
    value.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(body: &str, step: usize) -> (usize, Vec<u32>, usize, usize) {
        let (mut events, mut seqs, mut ends, mut errors) = (0, Vec::new(), 0, 0);
        let mut lines = Lines::default();
        for piece in body.as_bytes().chunks(step) {
            lines.take(piece, |seen| match seen {
                Seen::Event => events += 1,
                Seen::Content { mark, .. } => seqs.push(mark.seq),
                Seen::End => ends += 1,
                Seen::Error(_) => errors += 1,
            });
        }
        (events, seqs, ends, errors)
    }

    fn mark(seq: u32) -> String {
        String::from_utf8(Mark { t_ns: 1, seq }.bytes().to_vec()).unwrap()
    }

    #[test]
    fn chat_is_the_same_for_any_cut() {
        let content = |seq| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n", mark(seq));
        let first = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}recv_ns=5 t=\"}}}}]}}\n\n", mark(0));
        let body = format!("data: {{\"role\":1}}\n\n{first}{}{}data: [DONE]\n\n", content(1), content(2));
        for step in 1..=body.len() {
            assert_eq!(counts(&body, step), (5, vec![0, 1, 2], 1, 0), "cut every {step}");
        }
    }

    #[test]
    fn messages_is_the_same_for_any_cut_and_merged_deltas_count_each() {
        let body = format!(
            "event: content_block_delta\ndata: {{\"delta\":{{\"text\":\"{}{}\"}}}}\r\n\r\n: ping\n\nevent: message_stop\ndata: {{\"type\":\"message_stop\"}}\n\n",
            mark(7),
            mark(8)
        );
        for step in 1..=body.len() {
            assert_eq!(counts(&body, step), (2, vec![7, 8], 1, 0), "cut every {step}");
        }
    }

    #[test]
    fn errors_of_both_dialects() {
        assert_eq!(counts("data: {\"error\":{\"message\":\"x\"}}\n\n", 9).3, 1);
        assert_eq!(counts("event: error\ndata: {\"type\":\"error\",\"error\":{}}\n\n", 9).3, 1);
    }

    #[test]
    fn settings_of_the_first_event() {
        assert_eq!(setting(b"recv_ns=123 first_ns=45 \"}", "first_ns"), Some(45));
        assert_eq!(setting(b"recv_ns=123", "body"), None);
    }
}
