//! Server-sent events: an incremental splitter. Any cut of the input gives the same events.
//!
//! Lines end with LF, CRLF or CR, mixed as they come. A blank line ends an event. The bytes of each event are
//! available as they arrived, so that a pass-through can copy them; an event that lies within one read is not copied.

use std::fmt;

use memchr::memchr2;

/// An event longer than this is an error: no engine sends such, and it must not fill the memory.
pub const MAX_EVENT: usize = 16 << 20;

/// An event grew beyond [`MAX_EVENT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlong;

impl fmt::Display for Overlong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an event is longer than {MAX_EVENT} bytes")
    }
}

impl std::error::Error for Overlong {}

/// Cuts a stream of bytes into events.
#[derive(Debug, Default)]
pub struct Splitter {
    /// The bytes of an event whose end has not been read yet.
    pending: Vec<u8>,
    state: Lines,
    /// Whether the first event has passed: a byte order mark may stand before it only.
    begun: bool,
}

/// Where the line scanner stands between two bytes.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
struct Lines {
    /// The current line has no bytes yet.
    blank: bool,
    /// The byte before was a CR that ended a line: an LF now belongs to it.
    after_cr: bool,
    /// The last line of this event ended with CRLF.
    crlf: bool,
    /// A CR ended the event, in a stream of CRLF: an LF now belongs to it.
    closing: bool,
    /// Lines of this event that were not blank.
    count: u32,
}

impl Default for Lines {
    fn default() -> Self {
        Self { blank: true, after_cr: false, crlf: false, closing: false, count: 0 }
    }
}

impl Lines {
    /// Offset behind the end of the current event, if `input` holds it; the count of its lines.
    ///
    /// Whether a CR at the end of a read is half of a CRLF is not known yet. The line ends there in any case, and
    /// an LF that follows is skipped as its second half. Only the CR that ends a whole event waits for one byte
    /// more, and only where the line before ended with CRLF: a stream of bare CR is never held up.
    fn find_end(&mut self, input: &[u8]) -> Option<(usize, u32)> {
        let mut at = 0;
        loop {
            let byte = *input.get(at)?;
            if self.closing {
                return Some(self.end(if byte == b'\n' { at + 1 } else { at }, false));
            }
            if self.after_cr {
                self.after_cr = false;
                if byte == b'\n' {
                    self.crlf = true;
                    at += 1;
                    continue;
                }
            }
            if self.blank {
                match byte {
                    b'\n' => return Some(self.end(at + 1, false)),
                    b'\r' if self.crlf => {
                        self.closing = true;
                        at += 1;
                        continue;
                    }
                    b'\r' => return Some(self.end(at + 1, true)),
                    _ => self.blank = false,
                }
            }
            at += memchr2(b'\n', b'\r', &input[at..])?;
            self.after_cr = input[at] == b'\r';
            self.crlf = false;
            self.blank = true;
            self.count += 1;
            at += 1;
        }
    }

    fn end(&mut self, at: usize, after_cr: bool) -> (usize, u32) {
        let count = self.count;
        *self = Self { after_cr, ..Self::default() };
        (at, count)
    }
}

impl Splitter {
    /// A splitter at the head of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `each` for every event that `input` completes. Bytes of an unfinished event are kept.
    ///
    /// # Errors
    /// What `each` returns, or [`Overlong`]. The splitter is not to be used afterwards.
    pub fn feed<E: From<Overlong>>(
        &mut self,
        mut input: &[u8],
        mut each: impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some((end, lines)) = self.state.find_end(input) {
            let (head, rest) = input.split_at(end);
            if self.pending.is_empty() {
                each(Event::new(head, lines, !self.begun))?;
            } else {
                self.keep(head)?;
                each(Event::new(&self.pending, lines, !self.begun))?;
                self.pending.clear();
            }
            self.begun = true;
            input = rest;
        }
        self.keep(input)?;
        Ok(())
    }

    /// Ends the stream: bytes behind the last blank line count as an event of their own.
    ///
    /// # Errors
    /// What `each` returns.
    pub fn finish<E>(&mut self, each: impl FnOnce(Event<'_>) -> Result<(), E>) -> Result<(), E> {
        let pending = std::mem::take(&mut self.pending);
        let lines = self.state.count + u32::from(!self.state.blank);
        self.state = Lines::default();
        if pending.is_empty() { Ok(()) } else { each(Event::new(&pending, lines, !self.begun)) }
    }

    fn keep(&mut self, bytes: &[u8]) -> Result<(), Overlong> {
        if self.pending.len() + bytes.len() > MAX_EVENT {
            return Err(Overlong);
        }
        self.pending.extend_from_slice(bytes);
        Ok(())
    }
}

/// One event as it arrived.
#[derive(Clone, Copy, Debug)]
pub struct Event<'e> {
    raw: &'e [u8],
    /// The raw bytes without a byte order mark.
    text: &'e [u8],
    lines: u32,
}

impl<'e> Event<'e> {
    fn new(raw: &'e [u8], lines: u32, first: bool) -> Self {
        let text = if first { raw.strip_prefix(b"\xef\xbb\xbf").unwrap_or(raw) } else { raw };
        Self { raw, text, lines }
    }

    /// Every byte of the event, its blank line included. The events' bytes together are the stream's bytes.
    pub fn raw(self) -> &'e [u8] {
        self.raw
    }

    /// The byte order mark before the first event, if there is one.
    pub fn mark(self) -> &'e [u8] {
        &self.raw[..self.raw.len() - self.text.len()]
    }

    /// The event's name; of several the last.
    pub fn name(self) -> Option<&'e [u8]> {
        if self.is_single() {
            return None;
        }
        self.lines().filter(|line| line.field == b"event").last().map(|line| line.value)
    }

    /// The event's data; lines are joined with LF in `scratch`. `None` where there is none (comments, blank lines)
    /// or it is empty.
    pub fn data<'s>(self, scratch: &'s mut Vec<u8>) -> Option<&'s [u8]>
    where
        'e: 's,
    {
        if let Some(value) = self.single() {
            return (!value.is_empty()).then_some(value);
        }
        let mut values = self.data_lines();
        let first = values.next()?;
        let Some(second) = values.next() else { return (!first.is_empty()).then_some(first) };
        scratch.clear();
        scratch.extend_from_slice(first);
        for value in std::iter::once(second).chain(values) {
            scratch.push(b'\n');
            scratch.extend_from_slice(value);
        }
        Some(scratch)
    }

    /// The value of a field `error`. The format knows no such field; llama.cpp until September 2025 tells a failure in it,
    /// without data, and then ends its stream as if all were well.
    pub fn error(self) -> Option<&'e [u8]> {
        self.lines().find(|line| line.field == b"error").map(|line| line.value)
    }

    /// The values of the `data` lines, one by one.
    pub fn data_lines(self) -> impl Iterator<Item = &'e [u8]> {
        self.lines().filter(|line| line.field == b"data").map(|line| line.value)
    }

    /// The lines, blank ones included, each with its place.
    pub fn lines(self) -> impl Iterator<Item = Line<'e>> {
        let mut at = 0;
        let text = self.text;
        std::iter::from_fn(move || {
            if at == text.len() {
                return None;
            }
            let start = at;
            let end = memchr2(b'\n', b'\r', &text[at..]).map_or(text.len(), |found| at + found);
            at = match text.get(end..) {
                Some([b'\r', b'\n', ..]) => end + 2,
                Some([_, ..]) => end + 1,
                _ => end,
            };
            Some(Line::new(&text[start..end], &text[start..at]))
        })
    }

    /// Whether the event is one `data` line and nothing else: nearly every event of an engine.
    fn is_single(self) -> bool {
        self.lines == 1 && self.text.starts_with(b"data:")
    }

    /// The value, where the event is one `data` line and nothing else.
    fn single(self) -> Option<&'e [u8]> {
        let mut value = self.text.strip_prefix(b"data:").filter(|_| self.lines == 1)?;
        while let [rest @ .., b'\n' | b'\r'] = value {
            value = rest;
        }
        Some(value.strip_prefix(b" ").unwrap_or(value))
    }
}

/// One line of an event.
#[derive(Clone, Copy, Debug)]
pub struct Line<'e> {
    /// The field's name; empty for comments and blank lines.
    pub field: &'e [u8],
    /// What follows the colon, without one leading space.
    pub value: &'e [u8],
    /// The line as it arrived, with its end.
    pub raw: &'e [u8],
    /// What stands before the value.
    pub head: &'e [u8],
    /// The line's end.
    pub tail: &'e [u8],
}

impl<'e> Line<'e> {
    fn new(text: &'e [u8], raw: &'e [u8]) -> Self {
        let colon = text.iter().position(|&byte| byte == b':');
        let (field, value) = match colon {
            Some(at) => (&text[..at], &text[at + 1..]),
            None => (text, &text[text.len()..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let (head, tail) = (&raw[..text.len() - value.len()], &raw[text.len()..]);
        Self { field, value, raw, head, tail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Name, data and raw bytes of every event, with the input cut as said.
    fn events(reads: &[&[u8]]) -> Vec<(Option<String>, Option<String>, Vec<u8>)> {
        let mut splitter = Splitter::new();
        let mut list = Vec::new();
        let mut take = |event: Event<'_>| -> Result<(), Overlong> {
            let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let mut scratch = Vec::new();
            let data = event.data(&mut scratch).map(lossy);
            list.push((event.name().map(lossy), data, event.raw().to_vec()));
            Ok(())
        };
        for read in reads {
            splitter.feed(read, &mut take).unwrap();
        }
        splitter.finish(&mut take).unwrap();
        list
    }

    fn data(text: &str) -> Vec<String> {
        events(&[text.as_bytes()]).into_iter().filter_map(|event| event.1).collect()
    }

    #[test]
    fn every_line_end_ends_a_line() {
        for end in ["\n", "\r\n", "\r"] {
            let text = format!("event: a{end}data: 1{end}{end}data: 2{end}{end}");
            assert_eq!(data(&text), ["1", "2"], "{end:?}");
            assert_eq!(events(&[text.as_bytes()])[0].0.as_deref(), Some("a"));
        }
        assert_eq!(data("data: 1\r\n\ndata: 2\n\r\ndata: 3\r\n\rdata: 4\n\n"), ["1", "2", "3", "4"]);
    }

    #[test]
    fn a_bare_cr_is_not_half_of_a_crlf_for_ever() {
        let mut splitter = Splitter::new();
        let mut seen = 0;
        let count = |_: Event<'_>| -> Result<(), Overlong> {
            seen += 1;
            Ok(())
        };
        splitter.feed(b"data: x\r\r", count).unwrap();
        assert_eq!(seen, 1);
    }

    #[test]
    fn fields_are_read_as_the_standard_says() {
        assert_eq!(
            data("data:a\n\ndata:  b\n\ndata\n\ndata:\n\n: comment\n\nid: 7\nretry: 3\ndata: c\n\n"),
            ["a", " b", "c"]
        );
        assert_eq!(data("data: a\ndata: b\n\n"), ["a\nb"]);
        assert_eq!(data(": note\ndata: a\n\n"), ["a"]);
        assert_eq!(data("dataset: no\n\n"), Vec::<String>::new());
        assert_eq!(data("data: cut"), ["cut"], "what stands behind the last blank line is not lost");
    }

    #[test]
    fn one_mark_at_the_head_is_skipped_but_not_lost() {
        let list = events(&[b"\xef", b"\xbb\xbfdata: a\n\n", b"\xef\xbb\xbfdata: b\n\n"]);
        assert_eq!(list[0].1.as_deref(), Some("a"));
        assert_eq!(list[0].2, b"\xef\xbb\xbfdata: a\n\n");
        assert_eq!(list[1].1, None);
    }

    #[test]
    fn a_boundless_event_is_an_error() {
        let mut splitter = Splitter::new();
        let block = vec![b'x'; 1 << 20];
        let result = (0..17).try_for_each(|_| splitter.feed::<Overlong>(&block, |_| Ok(())));
        assert_eq!(result, Err(Overlong));
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_events(
            text in prop::collection::vec(prop_oneof![
                Just("data: x"), Just("data:"), Just("event: e"), Just(": c"), Just("\n"), Just("\r\n"), Just("\r"), Just("\n\n"),
            ], 0..24),
            cuts in prop::collection::vec(0_usize..120, 0..8),
        ) {
            let text = text.concat().into_bytes();
            let mut cuts: Vec<_> = cuts.into_iter().map(|at| at.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let reads: Vec<_> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            let whole = events(&[&text]);
            prop_assert_eq!(&whole, &events(&reads));
            let bytes: Vec<_> = text.chunks(1).collect();
            prop_assert_eq!(&whole, &events(&bytes));
            let raw: Vec<u8> = whole.into_iter().flat_map(|event| event.2).collect();
            prop_assert_eq!(raw, text);
        }
    }
}
