//! The model list in Anthropic's form.

use std::borrow::Cow;

use super::write_str;
use crate::error::Fault;
use crate::json::{Tape, Text, Value};

/// `/v1/models` of an engine, for a client that speaks Anthropic. Behind the engine's models come the `aliases`, each
/// with the date of the model that it stands for: clients offer only names that they find here.
///
/// # Errors
/// The body is no list of models.
pub(crate) fn anthropic(body: &[u8], aliases: &[(String, String)]) -> Result<Vec<u8>, Fault> {
    let mut tape = Tape::new();
    let data = tape.scan(body).ok().and_then(|root| root.get("data"));
    let Some(data) = data else { return Err(Fault::broken("it is not a list of models")) };
    let mut entries: Vec<_> = data.items().filter_map(Entry::read).collect();
    for (alias, model) in aliases {
        if !entries.iter().any(|entry| entry.id == *alias) {
            let created = entries.iter().find(|entry| entry.id == *model).map_or(0, |entry| entry.created);
            entries.push(Entry { id: alias.into(), name: alias.into(), created });
        }
    }
    let mut list = br#"{"data":["#.to_vec();
    for (place, Entry { id, name, created }) in entries.iter().enumerate() {
        list.extend_from_slice(if place == 0 { br#"{"type":"model","id":"# } else { br#",{"type":"model","id":"# });
        write_str(id, &mut list);
        list.extend_from_slice(br#","display_name":"#);
        write_str(name, &mut list);
        list.extend_from_slice(format!(r#","created_at":"{}"}}"#, rfc3339(*created)).as_bytes());
    }
    list.extend_from_slice(br#"],"has_more":false"#);
    for (name, entry) in [("first_id", entries.first()), ("last_id", entries.last())] {
        list.extend_from_slice(format!(r#","{name}":"#).as_bytes());
        match entry {
            Some(entry) => write_str(&entry.id, &mut list),
            None => list.extend_from_slice(b"null"),
        }
    }
    list.push(b'}');
    Ok(list)
}

/// What the list says of one model.
struct Entry<'m> {
    id: Cow<'m, str>,
    name: Cow<'m, str>,
    /// Seconds since 1970.
    created: u64,
}

impl<'m> Entry<'m> {
    fn read(model: Value<'m>) -> Option<Self> {
        let id = model.get("id")?.as_text()?.decode();
        let name = model.get("display_name").and_then(Value::as_text).map_or_else(|| id.clone(), Text::decode);
        Some(Self { id, name, created: model.get("created").and_then(Value::as_u64).unwrap_or(0) })
    }
}

/// Seconds since 1970 as a date and time in UTC. Years beyond 9999 have no such form and become the epoch.
fn rfc3339(seconds: u64) -> String {
    const LAST: u64 = 253_402_300_799;
    let seconds = if seconds > LAST { 0 } else { seconds };
    let (mut days, of_day) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_700_000_000, "2023-11-14T22:13:20Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
            (u64::MAX, "1970-01-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), date);
        }
    }

    #[test]
    fn an_empty_list_has_no_ends() {
        let list = anthropic(br#"{"object":"list","data":[]}"#, &[]).unwrap();
        assert_eq!(list, br#"{"data":[],"has_more":false,"first_id":null,"last_id":null}"#);
        assert!(anthropic(b"[]", &[]).is_err());
    }
}
