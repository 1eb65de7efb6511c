//! A whole chat completion into an Anthropic message. It goes the way of a stream with one chunk, so that both
//! forms of one answer say the same.

use super::events::Items;
use super::payload::{self, Payload};
use super::turn::{Stop, Turn, chunk_fault};
use super::{ids, write_str};
use crate::answer::{Ask, Summary};
use crate::error::Fault;
use crate::json::{Tape, Value};
use crate::sse::{Event, Splitter};
use crate::wire::chat::Chunk;

/// The message, and what is known of the answer.
///
/// An engine that streams although it was not asked to is understood as well.
///
/// # Errors
/// The body is empty, is no completion, or tells of a failure.
pub(crate) fn message(body: &[u8], ask: &Ask, summary: &mut Summary) -> Result<Vec<u8>, Fault> {
    let mut turn = Turn::new(Items::default(), ask.ids);
    let mut content = Vec::new();
    let read = if is_event_stream(body) {
        fold(body, &mut turn, &mut content)
    } else {
        complete(body, &mut turn, &mut content)
    };
    let stop = read.map(|()| turn.end(&mut content));
    summary.clone_from(&turn.summary);
    let Stop { reason, sequence } = stop?;
    let id = ids::message(ask.ids);
    let mut message = format!(r#"{{"id":"{id}","type":"message","role":"assistant","model":"#).into_bytes();
    write_str(&ask.model, &mut message);
    message.extend_from_slice(br#","content":["#);
    message.extend_from_slice(&content);
    message.extend_from_slice(format!(r#"],"stop_reason":"{reason}","stop_sequence":"#).as_bytes());
    match sequence {
        Some(sequence) => write_str(&sequence, &mut message),
        None => message.extend_from_slice(b"null"),
    }
    if let Some(diagnostics) = &ask.diagnostics {
        message.extend_from_slice(format!(r#","diagnostics":{diagnostics}"#).as_bytes());
    }
    summary.message_id = Some(id);
    message.extend_from_slice(br#","usage":"#);
    summary.usage.client(ask.usage).write(&mut message);
    message.push(b'}');
    Ok(message)
}

fn complete(body: &[u8], turn: &mut Turn<Items>, content: &mut Vec<u8>) -> Result<(), Fault> {
    completion(body, &mut Tape::new(), |root| {
        let chunk = Chunk::read(root);
        turn.note_usage(&chunk);
        turn.read(&chunk, content)
    })
}

/// Calls `take` for a whole completion, to be read as the one chunk that it amounts to.
///
/// # Errors
/// The body is empty, is no completion, or tells of a failure; or what `take` returns.
pub(super) fn completion(
    body: &[u8],
    tape: &mut Tape,
    take: impl FnOnce(Value<'_>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    if body.trim_ascii().is_empty() {
        return Err(Fault::empty());
    }
    let repaired = tape.scan(body).err().and_then(|error| payload::repaired(body, error));
    let Ok(root) = tape.scan(repaired.as_deref().unwrap_or(body)) else { return Err(Fault::broken("it is not JSON")) };
    let chunk = Chunk::read(root);
    if let Some(fault) = chunk_fault(&chunk, false, root) {
        return Err(fault);
    }
    if chunk.first_choice().all(|choice| choice.delta.is_none()) {
        return Err(Fault::broken("it has no message"));
    }
    take(root)
}

/// Whether the body is a stream of events.
fn is_event_stream(body: &[u8]) -> bool {
    let head = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body).trim_ascii_start();
    [&b"data:"[..], b"event:", b"id:", b"retry:", b":"].iter().any(|field| head.starts_with(field))
}

/// Reads a stream as if it were one answer. It says the same as the stream would.
fn fold(body: &[u8], turn: &mut Turn<Items>, content: &mut Vec<u8>) -> Result<(), Fault> {
    let mut tape = Tape::new();
    let mut joined = Vec::new();
    let (mut heard, mut over) = (false, false);
    let mut event = |event: Event<'_>| -> Result<(), Fault> {
        let Some((data, named_error)) = payload::text(event, &mut joined) else { return Ok(()) };
        turn.summary.events += 1;
        payload::read(event, data, named_error, &mut tape, |payload| {
            match payload {
                _ if over => {}
                Payload::Chunk(root, _) => {
                    let chunk = Chunk::read(root);
                    if let Some(fault) = chunk_fault(&chunk, named_error, root) {
                        return Err(fault);
                    }
                    heard |= !chunk.says_nothing();
                    turn.note_usage(&chunk);
                    turn.read(&chunk, content)?;
                    over = turn.is_finished() && chunk.brings_only_usage();
                }
                Payload::Done if heard => over = true,
                Payload::Done => return Err(Fault::empty()),
                Payload::Unreadable(data) if named_error => return Err(payload::named_error(data)),
                Payload::Unreadable(_) => turn.summary.unreadable += 1,
            }
            Ok(())
        })
    };
    let mut splitter = Splitter::new();
    splitter.feed(body, &mut event)?;
    splitter.finish(&mut event)?;
    match (heard, over || turn.is_finished()) {
        (false, _) => Err(Fault::empty()),
        (true, false) => Err(Fault::unfinished()),
        (true, true) => Ok(()),
    }
}
