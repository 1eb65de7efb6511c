//! Answers that pass in their own dialect: bytes untouched, but for the listed edits, while usage, end and errors
//! are noted on the way.

pub(crate) mod chat;
pub(crate) mod messages;
pub(crate) mod responses;

use crate::json::{Edits, Value};
use crate::sse::{Event, Line};
use crate::translate::write_str;

/// What becomes of a `data` line.
enum Fate {
    Stays,
    Goes,
    Changes(Edits),
}

/// Writes an event with each `data` line's fate carried out; every other byte stays as it came. An event that loses
/// all its data goes as a whole.
fn write_event<'e>(event: Event<'e>, out: &mut Vec<u8>, mut fate: impl FnMut(&'e [u8]) -> Fate) {
    let start = out.len();
    let mut kept = 0_usize;
    let mut gone = 0_usize;
    out.extend_from_slice(event.mark());
    for line in event.lines() {
        if line.field != b"data" {
            out.extend_from_slice(line.raw);
            continue;
        }
        match fate(line.value) {
            Fate::Goes => {
                gone += 1;
                continue;
            }
            Fate::Stays => out.extend_from_slice(line.raw),
            Fate::Changes(edits) => {
                let Line { head, tail, .. } = line;
                out.extend_from_slice(head);
                edits.write(line.value, out);
                out.extend_from_slice(tail);
            }
        }
        kept += 1;
    }
    if gone > 0 && kept == 0 {
        out.truncate(start);
    }
}

/// The id of a message or response.
fn identity(object: Value<'_>) -> Option<String> {
    object.get("id").and_then(Value::as_text).map(|id| id.decode().chars().take(128).collect())
}

/// Puts the requested model name in the place of the one that the engine serves.
fn rename(edits: &mut Edits, object: Value<'_>, model: &str) {
    for (name, value) in object.members() {
        if name.is("model") && value.as_text().is_some_and(|served| !served.is(model)) {
            let mut literal = Vec::new();
            write_str(model, &mut literal);
            edits.replace(value.span(), literal);
        }
    }
}
