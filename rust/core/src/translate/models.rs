//! The model list in Anthropic's form, and one model of it in either.

use std::borrow::Cow;

use super::write_str;
use crate::error::{Fault, Kind, Source};
use crate::json::{Tape, Text, Value};

/// `/v1/models` of an engine, for a client that speaks Anthropic. Behind the engine's models come the `aliases`, each
/// with the date and the window of the model that it stands for: clients offer only names that they find here.
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
            let known = entries.iter().find(|entry| entry.id == *model);
            let (created, window) = known.map_or((0, None), |entry| (entry.created, entry.window));
            entries.push(Entry { id: alias.into(), name: alias.into(), created, window });
        }
    }
    let mut list = br#"{"data":["#.to_vec();
    for (place, entry) in entries.iter().enumerate() {
        if place > 0 {
            list.push(b',');
        }
        entry.write(&mut list);
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

/// One model, by the name that a client asks for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// As it is asked for, and as it is told.
    pub name: String,
    /// The served model that the name stands for, where it is not the name of one.
    pub served: Option<String>,
}

/// One model out of `/v1/models` of an engine: few have a path for it. In the OpenAI form it is what the engine wrote,
/// under the name that was asked for.
///
/// # Errors
/// The body is no list of models, or there is no such model in it.
pub(crate) fn one(body: &[u8], wanted: &Wanted, anthropic: bool) -> Result<Vec<u8>, Fault> {
    let mut tape = Tape::new();
    let data = tape.scan(body).ok().and_then(|root| root.get("data"));
    let Some(data) = data else { return Err(Fault::broken("it is not a list of models")) };
    let named = |name: &str| {
        let mut models = data.items().filter(|model| id(*model).is_some_and(|id| id.is(name)));
        models.next()
    };
    let found = named(&wanted.name).or_else(|| named(wanted.served.as_deref()?));
    let Some((model, id)) = found.and_then(|model| Some((model, id(model)?))) else {
        return Err(Fault::new(Kind::NotFound, Source::Client, 404, format!("There is no model {:?}.", wanted.name)));
    };
    let renamed = !id.is(&wanted.name);
    if anthropic {
        let mut out = Vec::new();
        if let Some(mut entry) = Entry::read(model) {
            if renamed {
                (entry.id, entry.name) = (wanted.name.as_str().into(), wanted.name.as_str().into());
            }
            entry.write(&mut out);
        }
        return Ok(out);
    }
    let (whole, place) = (model.span(), model.get("id").map(Value::span).filter(|_| renamed));
    let Some(place) = place else { return Ok(model.raw().to_vec()) };
    let mut out = body.get(whole.start..place.start).unwrap_or_default().to_vec();
    write_str(&wanted.name, &mut out);
    out.extend_from_slice(body.get(place.end..whole.end).unwrap_or_default());
    Ok(out)
}

fn id(model: Value<'_>) -> Option<Text<'_>> {
    model.get("id")?.as_text()
}

/// What the list says of one model.
struct Entry<'m> {
    id: Cow<'m, str>,
    name: Cow<'m, str>,
    /// Seconds since 1970.
    created: u64,
    /// Tokens of the context window, where the engine tells: clients compact by it.
    window: Option<u64>,
}

impl<'m> Entry<'m> {
    fn read(model: Value<'m>) -> Option<Self> {
        let id = model.get("id")?.as_text()?.decode();
        let name = model.get("display_name").and_then(Value::as_text).map_or_else(|| id.clone(), Text::decode);
        // vLLM and SGLang; llama.cpp.
        let window = model.get("max_model_len").or_else(|| model.get("meta")?.get("n_ctx"));
        let window = window.and_then(Value::as_u64).filter(|tokens| *tokens > 0);
        Some(Self { id, name, created: model.get("created").and_then(Value::as_u64).unwrap_or(0), window })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(br#"{"type":"model","id":"#);
        write_str(&self.id, out);
        out.extend_from_slice(br#","display_name":"#);
        write_str(&self.name, out);
        out.extend_from_slice(format!(r#","created_at":"{}""#, rfc3339(self.created)).as_bytes());
        if let Some(window) = self.window {
            out.extend_from_slice(format!(r#","max_input_tokens":{window}"#).as_bytes());
        }
        out.push(b'}');
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
    fn one_model_is_told_as_the_engine_wrote_it_under_the_name_that_was_asked_for() {
        let list =
            br#"{"data":[{"id":"a","created": 1.0,"x":[1]}, {"object":"model", "id" : "org/b","created":1700000000}]}"#;
        let one = |name: &str, served: Option<&str>, anthropic| {
            let wanted = Wanted { name: name.into(), served: served.map(Into::into) };
            super::one(list, &wanted, anthropic).map(|body| String::from_utf8(body).unwrap())
        };
        assert_eq!(one("a", None, false).unwrap(), r#"{"id":"a","created": 1.0,"x":[1]}"#);
        // A name that is served stands for itself, whatever the map says.
        assert_eq!(one("a", Some("org/b"), false).unwrap(), r#"{"id":"a","created": 1.0,"x":[1]}"#);
        assert_eq!(
            one("claude-\"x", Some("org/b"), false).unwrap(),
            r#"{"object":"model", "id" : "claude-\"x","created":1700000000}"#
        );
        let b = r#"{"type":"model","id":"org/b","display_name":"org/b","created_at":"2023-11-14T22:13:20Z"}"#;
        assert_eq!(one("org/b", None, true).unwrap(), b);
        assert_eq!(one("c", Some("org/b"), true).unwrap(), b.replace("org/b", "c"));
        let fault = one("c", None, true).unwrap_err();
        assert_eq!((fault.status, fault.kind), (404, Kind::NotFound));
        assert!(one("", Some("gone"), false).is_err());
        assert_eq!(super::one(b"[]", &Wanted { name: "a".into(), served: None }, false).unwrap_err().status, 502);
    }

    #[test]
    fn an_empty_list_has_no_ends() {
        let list = anthropic(br#"{"object":"list","data":[]}"#, &[]).unwrap();
        assert_eq!(list, br#"{"data":[],"has_more":false,"first_id":null,"last_id":null}"#);
        assert!(anthropic(b"[]", &[]).is_err());
    }
}
