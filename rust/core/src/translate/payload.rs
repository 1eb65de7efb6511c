//! What the events of a chat stream say, in the forms that engines give them.

use memchr::memchr;

use crate::error::Fault;
use crate::json::{Kind, SyntaxError, Tape, Value};
use crate::sse::Event;

/// One thing that an event says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload<'p> {
    /// `[DONE]`
    Done,
    /// A chunk (where the event is named an error: any JSON), and its text.
    Chunk(Value<'p>, &'p [u8]),
    /// Anything else, such as a heartbeat that is no comment.
    Unreadable(&'p [u8]),
}

/// The text of an event, and whether it tells of an error by the event's name or field. `None` where it says nothing.
pub(super) fn text<'s>(event: Event<'s>, joined: &'s mut Vec<u8>) -> Option<(&'s [u8], bool)> {
    match event.data(joined) {
        Some(data) => Some((data, event.name() == Some(b"error"))),
        None => event.error().map(|data| (data, true)),
    }
}

/// Calls `each` for what `event` says. `data` is the event's data.
///
/// Some engines end an event with one line end: where several lines of data are no JSON together, each is an event of
/// its own.
pub(super) fn read(
    event: Event<'_>,
    data: &[u8],
    named_error: bool,
    tape: &mut Tape,
    mut each: impl FnMut(Payload<'_>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    if memchr(b'\n', data).is_none() || tape.scan(data).is_ok() {
        return line(data, named_error, tape, each);
    }
    event.data_lines().try_for_each(|data| line(data, named_error, tape, &mut each))
}

fn line(
    data: &[u8],
    named_error: bool,
    tape: &mut Tape,
    mut each: impl FnMut(Payload<'_>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let data = data.trim_ascii();
    if data == b"[DONE]" {
        return each(Payload::Done);
    }
    let is_chunk = |root: Value<'_>| root.kind() == Kind::Object || named_error;
    let error = match tape.scan(data) {
        Ok(root) if is_chunk(root) => return each(Payload::Chunk(root, data)),
        Ok(_) => return each(Payload::Unreadable(data)),
        Err(error) => error,
    };
    if let Some(repaired) = repaired(data, error)
        && let Ok(root) = tape.scan(&repaired)
        && is_chunk(root)
    {
        return each(Payload::Chunk(root, &repaired));
    }
    if data.is_empty() { Ok(()) } else { each(Payload::Unreadable(data)) }
}

/// The fault of an event that is named an error and tells no more than a text.
pub(super) fn named_error(data: &[u8]) -> Fault {
    Fault::broken(&String::from_utf8_lossy(data))
}

/// The text with raw control characters inside strings escaped, if those are what keeps it from being JSON.
pub(super) fn repaired(data: &[u8], error: SyntaxError) -> Option<Vec<u8>> {
    data.get(error.at).filter(|&&byte| byte < b' ')?;
    let mut text = Vec::with_capacity(data.len() + 16);
    let mut in_string = false;
    let mut escaped = false;
    for &byte in data {
        if in_string && byte < b' ' {
            text.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
            continue;
        }
        in_string ^= byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        text.push(byte);
    }
    Some(text)
}
