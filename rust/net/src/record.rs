//! The exchange record: one JSON object that says how an exchange went. Lengths, names and the engine's own
//! usage; never a text of the conversation, but for the excerpt that an operator has switched on.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use foreword_core::answer::Summary;
use foreword_core::error::{Fault, Source};
use foreword_core::profile::UsageMode;
use foreword_core::prompt::verdict::Verdict;
use foreword_core::request::{Notes, Route};
use foreword_core::usage::EngineUsage;

use crate::json::Object;
use crate::prefixes::write_verdict;
use crate::who::Client;

/// Version of the record's form: grows when a member changes its meaning, not when one is added.
const VERSION: u32 = 1;

/// What is noted while an exchange runs.
#[derive(Debug)]
// Each is a fact of its own, not a state of one machine.
#[allow(clippy::struct_excessive_bools)]
pub struct Record {
    /// The client's route.
    pub route: Route,
    /// The id told to the client.
    pub request_id: String,
    /// Path of the request, for known routes.
    pub entry: &'static str,
    /// Who sent it.
    pub client: Client,
    /// Digest of the session it belongs to.
    pub session: Option<String>,
    /// Its line in the journal, and its turn there.
    pub place: Option<(u64, u32)>,
    /// The model as requested.
    pub model: Option<String>,
    /// The model as the engine was asked for it.
    pub upstream_model: Option<String>,
    /// The engine's kind.
    pub engine: &'static str,
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
    /// How a refusal reads that the client got in the engine's own words.
    pub refusal: Option<Fault>,
    /// Bytes of the body as the client sent it, and as it went upstream.
    pub body_bytes: (usize, usize),
    /// Bytes sent to the client.
    pub answer_bytes: usize,
    /// What the engine said of it, raw.
    pub summary: Summary,
    /// How usage is told, where the client is told it in Anthropic's form.
    pub usage_mode: Option<UsageMode>,
    /// Whether the count of cached tokens comes from the engine's log.
    pub cached_by_log: bool,
    /// Who lost the prefix; none where there is no prompt, or no answer.
    pub verdict: Option<Verdict>,
    /// The prompt's segments, as JSON.
    pub prompt: Option<String>,
    /// Tokens that rules which are off would have saved.
    pub shadow: Vec<(&'static str, u64)>,
    /// What stands where the prompt left its line, as JSON: text, and so only there where excerpts are on.
    pub excerpt: Option<String>,
    /// When the exchange began.
    started: Instant,
    clock: SystemTime,
    prepared: Option<Duration>,
    first: Option<Duration>,
    duration: Option<Duration>,
}

impl Record {
    /// A record that begins now.
    pub fn new(route: Route, request_id: String, body_bytes: usize) -> Self {
        Self {
            route,
            request_id,
            entry: entry(route),
            client: Client::default(),
            session: None,
            place: None,
            model: None,
            upstream_model: None,
            engine: "unknown",
            stream: false,
            notes: None,
            status: 499,
            left: false,
            retried: false,
            estimated: false,
            fault: None,
            refusal: None,
            body_bytes: (body_bytes, 0),
            answer_bytes: 0,
            summary: Summary::default(),
            usage_mode: None,
            cached_by_log: false,
            verdict: None,
            prompt: None,
            shadow: Vec::new(),
            excerpt: None,
            started: Instant::now(),
            clock: SystemTime::now(),
            prepared: None,
            first: None,
            duration: None,
        }
    }

    /// The request is ready to go upstream.
    pub fn prepared(&mut self) {
        self.prepared = Some(self.started.elapsed());
    }

    /// The exchange has ended; its record may still wait for the engine's log.
    pub fn over(&mut self) {
        self.duration = Some(self.started.elapsed());
    }

    /// The first byte of the answer is there; what breaks a silence is none.
    pub fn first_byte(&mut self) {
        self.first.get_or_insert_with(|| self.started.elapsed());
    }

    /// Seconds since 1970 at which it began.
    pub fn began(&self) -> f64 {
        self.clock.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
    }

    /// The route's name, as in labels.
    pub fn route_name(&self) -> &'static str {
        match self.route {
            Route::Messages => "messages",
            Route::CountTokens => "count_tokens",
            Route::Chat => "chat",
            Route::Completions => "completions",
            Route::Responses => "responses",
            Route::Models | Route::Model => "models",
            Route::Other => "other",
        }
    }

    /// Whether requests of this route go through the rules.
    pub fn normalises(&self) -> bool {
        matches!(self.route, Route::Messages | Route::CountTokens | Route::Chat)
    }

    /// Whether the engine answered it to its end.
    pub fn answered(&self) -> bool {
        self.fault.is_none() && !self.left && self.status < 400
    }

    /// Whether it was answered, and all that is missing is what the engine reused.
    pub fn lacks_reuse(&self) -> bool {
        self.answered() && self.summary.usage.cached.is_none() && self.summary.usage.prompt.is_some()
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

    /// The record as JSON: docs/ledger.md has its members. Times are seconds, what is not known is null.
    pub fn to_json(&self) -> Vec<u8> {
        self.object().end().into_bytes()
    }

    /// The record of an exchange whose cached tokens the engine's log has yet to tell.
    pub fn to_pending_json(&self) -> Vec<u8> {
        let mut json = self.object();
        json.raw("pending", "true");
        json.end().into_bytes()
    }

    fn object(&self) -> Object {
        let mut json = Object::default();
        json.raw("v", VERSION.to_string());
        json.text("request_id", Some(&self.request_id));
        json.raw("time", format!("{:.3}", self.began()));
        json.text("route", Some(self.route_name()));
        json.text("entry", Some(self.entry));
        json.text("client", Some(self.client.name));
        json.text("client_version", self.client.version.as_deref());
        json.text("model", self.model.as_deref());
        json.text("upstream_model", self.upstream_model.as_deref());
        json.text("engine", Some(self.engine));
        json.text("session", self.session.as_deref());
        json.count("line", self.place.map(|(line, _)| line));
        json.count("turn", self.place.map(|(_, turn)| u64::from(turn)));
        json.raw("stream", self.stream.to_string());
        json.raw("status", self.status.to_string());
        json.text("outcome", Some(self.outcome()));
        json.raw("fault", self.fault.as_ref().or(self.refusal.as_ref()).map_or_else(|| "null".to_owned(), told));
        self.write_request(&mut json);
        self.write_answer(&mut json);
        match &self.verdict {
            None => json.raw("verdict", "null"),
            Some(verdict) => {
                let mut judged = Object::default();
                write_verdict(verdict, "name", &mut judged);
                json.raw("verdict", judged.end());
            }
        }
        json.raw("prompt", self.prompt.as_deref().unwrap_or("null"));
        let mut shadow = Object::default();
        self.shadow.iter().for_each(|(rule, tokens)| shadow.raw(rule, tokens.to_string()));
        json.raw("shadow", shadow.end());
        if let Some(excerpt) = &self.excerpt {
            json.raw("excerpt", excerpt);
        }
        json
    }

    fn write_request(&self, json: &mut Object) {
        let nothing = Notes::default();
        let notes = self.notes.as_ref().unwrap_or(&nothing);
        json.texts("rules", notes.rules.iter().copied());
        json.texts("unknown_shapes", notes.unknown.iter().copied());
        json.texts("dropped", notes.dropped.iter().map(String::as_str));
        json.raw("body_bytes", self.body_bytes.0.to_string());
        json.raw("upstream_bytes", self.body_bytes.1.to_string());
        json.raw("retried", self.retried.to_string());
        json.seconds("prepare_seconds", self.prepared);
    }

    fn write_answer(&self, json: &mut Object) {
        json.raw("answer_bytes", self.answer_bytes.to_string());
        json.raw("events", self.summary.events.to_string());
        json.raw("unreadable_events", self.summary.unreadable.to_string());
        json.seconds("ttft_seconds", self.first);
        json.seconds("duration_seconds", Some(self.duration.unwrap_or_else(|| self.started.elapsed())));
        json.raw("estimated", self.estimated.to_string());
        json.text("finish", self.summary.finish.as_deref());
        json.text("message_id", self.summary.message_id.as_deref());
        let usage = &self.summary.usage;
        let mut tokens = Object::default();
        tokens.count("prompt_tokens", usage.prompt);
        tokens.count("completion_tokens", usage.completion);
        // The log's count is no usage of the engine's answer, but it is what the engine says.
        tokens.count("cached_tokens", usage.cached);
        tokens.count("created_tokens", usage.created);
        tokens.count("reasoning_tokens", usage.reasoning);
        json.raw("usage", tokens.end());
        let source = if self.cached_by_log { "log" } else { "usage" };
        json.text("cached_source", usage.cached.map(|_| source));
        let told = self.usage_mode.filter(|_| usage.prompt.is_some()).map(|mode| {
            let mut told = Object::default();
            let said = if self.cached_by_log { EngineUsage { cached: None, ..*usage } } else { *usage };
            said.client(mode).members().iter().for_each(|(name, count)| told.raw(name, count.to_string()));
            told.end()
        });
        json.raw("told", told.unwrap_or_else(|| "null".to_owned()));
    }
}

/// The path of a known route, without its query.
fn entry(route: Route) -> &'static str {
    match route {
        Route::Messages => "/v1/messages",
        Route::CountTokens => "/v1/messages/count_tokens",
        Route::Chat => "/v1/chat/completions",
        Route::Completions => "/v1/completions",
        Route::Responses => "/v1/responses",
        Route::Models => "/v1/models",
        Route::Model => "/v1/models/{id}",
        Route::Other => "other",
    }
}

fn told(fault: &Fault) -> String {
    let mut told = Object::default();
    told.text("kind", Some(fault.kind.name()));
    told.text("source", Some(fault.source.name()));
    told.end()
}
