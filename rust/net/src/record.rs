//! The exchange record: one JSON object that says how an exchange went. Lengths, names and the engine's own
//! usage; never a text of the conversation.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use foreword_core::answer::Summary;
use foreword_core::error::{Fault, Source};
use foreword_core::json::write_str;
use foreword_core::request::{Notes, Route};

/// What is noted while an exchange runs.
#[derive(Debug)]
// Each is a fact of its own, not a state of one machine.
#[allow(clippy::struct_excessive_bools)]
pub struct Record {
    /// The client's route.
    pub route: Route,
    /// The id told to the client.
    pub request_id: String,
    /// The model as requested.
    pub model: Option<String>,
    /// Whether a stream was asked for.
    pub stream: bool,
    /// What rules and translator did; none if the request could not be prepared.
    pub notes: Option<Notes>,
    /// Status that the client got; 499 where it left before there was one.
    pub status: u16,
    /// Whether the client left.
    pub left: bool,
    /// Whether the request was sent twice.
    pub retried: bool,
    /// Whether a token count is Foreword's own estimate.
    pub estimated: bool,
    /// What failed, if anything did.
    pub fault: Option<Fault>,
    /// Bytes of the body as the client sent it, and as it went upstream.
    pub body_bytes: (usize, usize),
    /// Bytes sent to the client.
    pub answer_bytes: usize,
    /// What the engine said of it, raw.
    pub summary: Summary,
    /// When the exchange began.
    started: Instant,
    clock: SystemTime,
    prepared: Option<Duration>,
    first: Option<Duration>,
}

impl Record {
    /// A record that begins now.
    pub fn new(route: Route, request_id: String, body_bytes: usize) -> Self {
        Self {
            route,
            request_id,
            model: None,
            stream: false,
            notes: None,
            status: 499,
            left: false,
            retried: false,
            estimated: false,
            fault: None,
            body_bytes: (body_bytes, 0),
            answer_bytes: 0,
            summary: Summary::default(),
            started: Instant::now(),
            clock: SystemTime::now(),
            prepared: None,
            first: None,
        }
    }

    /// The request is ready to go upstream.
    pub fn prepared(&mut self) {
        self.prepared = Some(self.started.elapsed());
    }

    /// The first byte for the client is there.
    pub fn first_byte(&mut self) {
        self.first.get_or_insert_with(|| self.started.elapsed());
    }

    /// The route's name, as in labels.
    pub fn route_name(&self) -> &'static str {
        match self.route {
            Route::Messages => "messages",
            Route::CountTokens => "count_tokens",
            Route::Chat => "chat",
            Route::Completions => "completions",
            Route::Responses => "responses",
            Route::Models => "models",
            Route::Other => "other",
        }
    }

    /// Whether requests of this route go through the rules.
    pub fn normalises(&self) -> bool {
        matches!(self.route, Route::Messages | Route::CountTokens | Route::Chat)
    }

    /// How it ended, in one word.
    pub fn outcome(&self) -> &'static str {
        match &self.fault {
            _ if self.left => "left",
            Some(Fault { source: Source::Client, .. }) => "client-error",
            Some(Fault { source: Source::Sidecar, .. }) => "sidecar-error",
            Some(Fault { source: Source::Engine, .. }) => "engine-error",
            None if self.status >= 400 => "refused",
            None => "ok",
        }
    }

    /// The record as JSON. Times are seconds, what is not known is null.
    pub fn to_json(&self) -> Vec<u8> {
        let mut json = Object::default();
        json.text("request_id", Some(&self.request_id));
        let clock = self.clock.duration_since(UNIX_EPOCH).unwrap_or_default();
        json.raw("time", format!("{:.3}", clock.as_secs_f64()));
        json.text("route", Some(self.route_name()));
        json.text("model", self.model.as_deref());
        json.raw("stream", self.stream.to_string());
        json.raw("status", self.status.to_string());
        json.text("outcome", Some(self.outcome()));
        let nothing = Notes::default();
        let notes = self.notes.as_ref().unwrap_or(&nothing);
        json.list("rules", notes.rules.iter().copied());
        json.list("unknown_shapes", notes.unknown.iter().copied());
        json.list("dropped", notes.dropped.iter().map(String::as_str));
        json.raw("body_bytes", self.body_bytes.0.to_string());
        json.raw("upstream_bytes", self.body_bytes.1.to_string());
        json.raw("answer_bytes", self.answer_bytes.to_string());
        json.raw("events", self.summary.events.to_string());
        json.raw("unreadable_events", self.summary.unreadable.to_string());
        json.seconds("prepare_seconds", self.prepared);
        json.seconds("ttft_seconds", self.first);
        json.seconds("duration_seconds", Some(self.started.elapsed()));
        json.raw("retried", self.retried.to_string());
        json.raw("estimated", self.estimated.to_string());
        json.text("finish", self.summary.finish.as_deref());
        let usage = &self.summary.usage;
        let mut tokens = Object::default();
        tokens.count("prompt_tokens", usage.prompt);
        tokens.count("completion_tokens", usage.completion);
        tokens.count("cached_tokens", usage.cached);
        tokens.count("created_tokens", usage.created);
        tokens.count("reasoning_tokens", usage.reasoning);
        json.raw("usage", tokens.end());
        match &self.fault {
            None => json.raw("fault", "null"),
            Some(fault) => {
                let mut told = Object::default();
                told.text("kind", Some(fault.kind.name()));
                told.text("source", Some(fault.source.name()));
                json.raw("fault", told.end());
            }
        }
        json.end().into_bytes()
    }
}

/// Writes one JSON object member by member.
#[derive(Default)]
struct Object {
    members: Vec<u8>,
}

impl Object {
    fn raw(&mut self, key: &str, value: impl AsRef<str>) {
        if !self.members.is_empty() {
            self.members.push(b',');
        }
        write_str(key, &mut self.members);
        self.members.push(b':');
        self.members.extend_from_slice(value.as_ref().as_bytes());
    }

    fn text(&mut self, key: &str, value: Option<&str>) {
        self.raw(key, value.map_or_else(|| "null".into(), literal));
    }

    fn count(&mut self, key: &str, value: Option<u64>) {
        self.raw(key, value.map_or_else(|| "null".into(), |value| value.to_string()));
    }

    fn seconds(&mut self, key: &str, value: Option<Duration>) {
        self.raw(key, value.map_or_else(|| "null".into(), |value| format!("{:.6}", value.as_secs_f64())));
    }

    fn list<'a>(&mut self, key: &str, values: impl Iterator<Item = &'a str>) {
        let values: Vec<String> = values.map(literal).collect();
        self.raw(key, format!("[{}]", values.join(",")));
    }

    fn end(self) -> String {
        format!("{{{}}}", String::from_utf8_lossy(&self.members))
    }
}

fn literal(text: &str) -> String {
    let mut quoted = Vec::new();
    write_str(text, &mut quoted);
    String::from_utf8_lossy(&quoted).into_owned()
}
