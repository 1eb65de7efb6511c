//! From a client's request to what goes upstream: the one entry of the request side.

use bytes::Bytes;

use crate::answer::{Ask, Reader};
use crate::error::{self, Fault};
use crate::json::{Edits, Kind, Rope, Scanned, Scanning, SyntaxError, Value, write_str};
use crate::normalize;
use crate::profile::{Engine, MessagesMode, Profile};
use crate::translate::request::{self as translated, Source, estimate};

/// What a path is, as far as core cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// POST /v1/messages
    Messages,
    /// POST `/v1/messages/count_tokens`
    CountTokens,
    /// POST /v1/chat/completions
    Chat,
    /// POST /v1/completions
    Completions,
    /// POST /v1/responses
    Responses,
    /// GET /v1/models
    Models,
    /// One model of that list.
    Model,
    /// Anything else: passes untouched.
    Other,
}

/// One request as core sees it.
#[derive(Debug)]
pub struct Request {
    /// Where it was sent.
    pub route: Route,
    /// Its body, already decoded; empty for GET.
    pub body: Body,
    /// Whether it carried `anthropic-version`.
    pub anthropic: bool,
}

/// A request's body.
#[derive(Debug, Default)]
pub struct Body {
    text: Bytes,
    begun: Option<Scanning>,
}

impl Body {
    /// A body of which a scan was begun while it came: [`Scanning::advance`] has seen some of `text`, or nothing yet.
    pub fn scanning(text: Bytes, scanning: Scanning) -> Self {
        let begun = (!text.starts_with(MARK)).then_some(scanning);
        Self { text, begun }
    }

    /// Whether its scan was begun.
    pub fn is_begun(&self) -> bool {
        self.begun.is_some()
    }

    /// All of it.
    pub fn text(&self) -> &Bytes {
        &self.text
    }

    fn scanned(self) -> Result<Scanned, SyntaxError> {
        match self.begun {
            None => Scanned::new(behind_mark(&self.text)),
            Some(scanning) => scanning.end(self.text),
        }
    }
}

impl From<Bytes> for Body {
    fn from(text: Bytes) -> Self {
        Self { text, begun: None }
    }
}

/// What the rules and the translator did, for `x-foreword`, counters and the exchange record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Names of rules that changed the request, in the order of docs/rules.md.
    pub rules: Vec<&'static str>,
    /// Names of rules that met a shape which they do not know and so left alone.
    pub unknown: Vec<&'static str>,
    /// What the translator left out: server tools by type, block types, fields.
    pub dropped: Vec<String>,
    /// Messages of the chat body upstream, where there is one.
    pub messages: Option<usize>,
}

impl Notes {
    /// Takes note that `rule` changed the request.
    pub fn note_rule(&mut self, rule: &'static str) {
        if !self.rules.contains(&rule) {
            self.rules.push(rule);
        }
    }

    /// Takes note that `rule` met a shape which it does not know.
    pub fn note_unknown(&mut self, rule: &'static str) {
        if !self.unknown.contains(&rule) {
            self.unknown.push(rule);
        }
    }

    /// Takes note that `what` was left out. Names come from the request and go into a header, so only plain ones of
    /// at most 64 bytes are kept as they are, and at most 16 of them.
    pub fn note_dropped(&mut self, what: &str) {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        let name = if !what.is_empty() && what.len() <= 64 && what.bytes().all(plain) { what } else { "other" };
        if self.dropped.len() < 16 && !self.dropped.iter().any(|known| known == name) {
            self.dropped.push(name.to_owned());
        }
    }
}

/// A request ready to be sent.
pub struct Prepared {
    /// Path (and query) upstream; `None` keeps the client's.
    pub path: Option<&'static str>,
    /// The body upstream.
    pub body: Rope,
    /// How the engine's answer is to be read.
    pub reader: Reader,
    /// What was done.
    pub notes: Notes,
    /// The model as requested, as far as it could be read (at most 256 bytes).
    pub model: Option<String>,
    /// Whether the client asked for a stream.
    pub stream: bool,
    /// The client's body as it was read here, for whoever else reads it; `None` where it was not.
    pub scanned: Option<Scanned>,
}

/// Prepares one request. `body` is already decoded (see [`crate::encoding`]).
///
/// A body that a pass-through route cannot read goes upstream as it came: the engine answers for it.
///
/// # Errors
/// A [`Fault`] of the client where a translated route cannot be read (not JSON, not UTF-8, `messages` missing, ...).
pub fn prepare(request: Request, profile: &Profile, ids: Ids) -> Result<Prepared, Fault> {
    let plan = Plan::new(&request, profile, ids);
    match request.route {
        Route::Models | Route::Other => Ok(plan.unchanged(request.body.text)),
        Route::Model if profile.anthropic_upstream => Ok(plan.unchanged(request.body.text)),
        Route::Model => Ok(Plan { path: Some("/v1/models"), ..plan }.unchanged(Bytes::new())),
        // Toward Anthropic itself only what the operator set is done: a mapped model name.
        _ if profile.anthropic_upstream => Ok(plan.pass(request.body, |_, _, _| {})),
        Route::Messages | Route::CountTokens => plan.messages(request.body),
        Route::Chat => Ok(plan.pass(request.body, |plan, root, edits| {
            normalize::chat(root, plan.profile, edits, &mut plan.notes);
            plan.ask_for_usage(root, edits);
        })),
        Route::Completions => Ok(plan.pass(request.body, Plan::ask_for_usage)),
        Route::Responses => Ok(plan.pass(request.body, |_, _, _| {})),
    }
}

/// One request under way.
struct Plan<'p> {
    profile: &'p Profile,
    ask: Ask,
    notes: Notes,
    path: Option<&'static str>,
}

impl<'p> Plan<'p> {
    fn new(request: &Request, profile: &'p Profile, ids: Ids) -> Self {
        let ask = Ask {
            route: request.route,
            native: matches!(request.route, Route::Messages | Route::CountTokens),
            stream: false,
            model: String::new(),
            model_mapped: false,
            usage_injected: false,
            effort: None,
            usage: profile.usage,
            ids,
            estimate: 0,
            diagnostics: None,
            anthropic: request.anthropic,
            aliases: if request.route == Route::Models { profile.aliases() } else { Vec::new() },
        };
        Self { profile, ask, notes: Notes::default(), path: None }
    }

    fn unchanged(self, body: Bytes) -> Prepared {
        self.prepared(Rope::from(body))
    }

    /// A body that keeps its dialect: `edit` and the model map are all that touches it.
    fn pass(mut self, body: Body, edit: impl FnOnce(&mut Self, Value<'_>, &mut Edits)) -> Prepared {
        let all = body.text().clone();
        let Some(scanned) = body.scanned().ok().filter(|scanned| scanned.root().kind() == Kind::Object) else {
            return self.unchanged(all);
        };
        let edits = self.edited(scanned.root(), edit);
        let mut edited = edits.apply(scanned.text());
        if scanned.text().len() < all.len() {
            let mut marked = Rope::new();
            marked.push(MARK);
            for part in edited.into_parts() {
                marked.push_slice(&part, 0..part.len());
            }
            edited = marked;
        }
        Prepared { scanned: Some(scanned), ..self.prepared(edited) }
    }

    fn edited(&mut self, root: Value<'_>, edit: impl FnOnce(&mut Self, Value<'_>, &mut Edits)) -> Edits {
        let mut edits = Edits::new();
        self.read(root);
        edit(self, root, &mut edits);
        if let (Some(model), Some(literal)) = (self.upstream_model(), root.get("model")) {
            let mut name = Vec::new();
            write_str(model, &mut name);
            edits.replace(literal.span(), name);
        }
        edits
    }

    fn messages(mut self, body: Body) -> Result<Prepared, Fault> {
        let scanned = readable(body)?;
        let (body, root) = (scanned.text(), scanned.root());
        required(root, self.ask.route)?;
        let counting = self.ask.route == Route::CountTokens;
        if counting {
            self.ask.estimate = estimate::tokens(root);
        }
        let translated = match self.profile.messages {
            MessagesMode::Native => false,
            // Only vLLM is known to count a chat with /tokenize; the others have a count endpoint of their own.
            MessagesMode::Translate => !counting || matches!(self.profile.engine, Engine::Vllm | Engine::Unknown),
        };
        if !translated {
            let edits = self.edited(root, |plan, root, edits| {
                normalize::messages(root, plan.profile, edits, &mut plan.notes);
            });
            let edited = edits.apply(body);
            return Ok(Prepared { scanned: Some(scanned), ..self.prepared(edited) });
        }
        self.read(root);
        self.ask.native = false;
        let profile = self.profile;
        let source = Source { body, root, profile, model: self.upstream_model() };
        let rope = if counting {
            self.path = Some("/tokenize");
            translated::tokenize(&source, &mut self.notes)?
        } else {
            self.path = Some("/v1/chat/completions");
            self.ask.usage_injected = self.ask.stream && profile.stream_options;
            self.ask.effort = translated::effort(root, profile);
            translated::chat(&source, &mut self.notes)?
        };
        Ok(Prepared { scanned: Some(scanned), ..self.prepared(rope) })
    }

    /// Takes note of what the answer's reader must know.
    fn read(&mut self, root: Value<'_>) {
        self.ask.stream = root.get("stream").and_then(Value::as_bool) == Some(true);
        if let Some(model) = root.get("model").and_then(Value::as_text) {
            self.ask.model = model.decode().into_owned();
            self.ask.model_mapped = self.upstream_model().is_some();
        }
    }

    fn upstream_model(&self) -> Option<&'p str> {
        if self.ask.model.is_empty() { None } else { self.profile.upstream_model(&self.ask.model) }
    }

    /// Asks for usage at the end of a stream that would have none. Other options of the client's stay.
    fn ask_for_usage(&mut self, root: Value<'_>, edits: &mut Edits) {
        if !(self.ask.stream && self.profile.stream_options) {
            return;
        }
        match root.get("stream_options") {
            None => edits.add_member(root, r#""stream_options":{"include_usage":true}"#),
            Some(options) if options.is_null() => edits.replace(options.span(), r#"{"include_usage":true}"#),
            Some(options) if options.kind() == Kind::Object => match options.get("include_usage") {
                None => edits.add_member(options, r#""include_usage":true"#),
                Some(asked) if asked.as_bool() == Some(true) => return,
                Some(asked) => edits.replace(asked.span(), "true"),
            },
            // Not an object: the engine says so better than we could.
            Some(_) => return,
        }
        self.ask.usage_injected = true;
    }

    fn prepared(self, body: Rope) -> Prepared {
        let model = (!self.ask.model.is_empty()).then(|| shortened(&self.ask.model));
        let stream = self.ask.stream;
        let reader = Reader::new(self.ask);
        Prepared { path: self.path, body, reader, notes: self.notes, model, stream, scanned: None }
    }
}

/// The first 256 bytes at most, cut between characters.
pub fn shortened(model: &str) -> String {
    let mut end = model.len().min(256);
    while !model.is_char_boundary(end) {
        end -= 1;
    }
    model[..end].to_owned()
}

/// The byte order mark of UTF-8. Some clients write it before their JSON, and engines read over it.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// The text of a body.
pub(crate) fn behind_mark(body: &Bytes) -> Bytes {
    body.slice(if body.starts_with(MARK) { MARK.len() } else { 0 }..)
}

/// Scans the body of a Messages route.
fn readable(body: Body) -> Result<Scanned, Fault> {
    if simdutf8::basic::from_utf8(body.text()).is_err() {
        return Err(invalid("The request body is not valid UTF-8."));
    }
    let scanned = body.scanned().map_err(|error| invalid(format!("The request body is not valid JSON: {error}.")))?;
    let is_object = scanned.root().kind() == Kind::Object;
    if is_object { Ok(scanned) } else { Err(invalid("The request body must be a JSON object.")) }
}

/// How a server that keeps no conversations refuses a `thread` (beta message-threads-2026-08-12): the official SDKs
/// then send the whole history. A thread that was ignored would lose it without a word.
const NO_THREADS: &str = r#"{"error_code":"thread_unsupported_request","unsupported":["thread"]}"#;

/// What no Messages request can do without, in either mode, and what it cannot have.
fn required(root: Value<'_>, route: Route) -> Result<(), Fault> {
    match root.get("model") {
        None => return Err(invalid("model: Field required")),
        Some(model) if model.kind() != Kind::String => return Err(invalid("model: Input should be a valid string")),
        Some(_) => {}
    }
    match root.get("messages") {
        None => return Err(invalid("messages: Field required")),
        Some(list) if list.kind() != Kind::Array => return Err(invalid("messages: Input should be a valid list")),
        Some(list) if list.items().next().is_none() => {
            return Err(invalid("messages: at least one message is required"));
        }
        Some(_) => {}
    }
    if root.get("thread").is_some_and(|thread| !thread.is_null()) {
        return Err(Fault { details: Some(NO_THREADS), ..invalid("thread: this server keeps no conversations") });
    }
    match root.get("max_tokens") {
        _ if route == Route::CountTokens => Ok(()),
        Some(limit) if limit.kind() == Kind::Number => Ok(()),
        Some(limit) if !limit.is_null() => Err(invalid("max_tokens: Input should be a valid integer")),
        _ => Err(invalid("max_tokens: Field required")),
    }
}

/// The client's fault, told with status 400. `message` names the place and never quotes the text.
pub(crate) fn invalid(message: impl Into<String>) -> Fault {
    Fault::new(error::Kind::Invalid, error::Source::Client, 400, message)
}

/// Fresh randomness of one exchange, from outside: core itself stays deterministic.
#[derive(Clone, Copy, Debug)]
pub struct Ids {
    /// 128 random bits: message ids and generated tool ids are drawn from it.
    pub seed: u128,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Added;

    fn prepared(route: Route, body: &[u8]) -> Result<Prepared, Fault> {
        let request = Request { route, body: Bytes::copy_from_slice(body).into(), anthropic: false };
        prepare(request, &Profile::default(), Ids { seed: 0 })
    }

    #[test]
    fn text_that_is_not_utf8_is_refused_where_it_is_read() {
        let body = b"{\"model\":\"m\",\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}";
        assert_eq!(prepared(Route::Messages, body).map(|_| ()).unwrap_err().status, 400);
        assert_eq!(prepared(Route::Chat, body).unwrap().body.to_vec(), body);
    }

    #[test]
    fn what_was_asked_is_told() {
        let chat = prepared(Route::Chat, br#"{"model":"a\u0062","stream":true}"#).unwrap();
        assert_eq!((chat.model.as_deref(), chat.stream), (Some("ab"), true));
        let other = prepared(Route::Other, br#"{"model":"m","stream":true}"#).unwrap();
        assert_eq!((other.model, other.stream), (None, false));
        let long = format!(r#"{{"model":"{}"}}"#, "é".repeat(200));
        assert_eq!(prepared(Route::Chat, long.as_bytes()).unwrap().model.unwrap().len(), 256);
    }

    #[test]
    fn only_what_was_added_can_be_refused() {
        let asked = |effort: &str| {
            let body = format!(
                r#"{{"model":"m","max_tokens":1,"messages":[{{"role":"user","content":"a"}}],"stream":true,"output_config":{{"effort":"{effort}"}}}}"#
            );
            prepared(Route::Messages, body.as_bytes()).unwrap().reader
        };
        let effort = b"Unexpected reasoning effort high. Supported types are xhigh (default), medium, and low.";
        for status in [400, 422, 500] {
            assert_eq!(asked("max").refused_addition(status, effort), Some(Added::Effort("high")));
            assert_eq!(asked("").refused_addition(status, effort), None);
        }
        assert_eq!(asked("high").refused_addition(400, b"prompt is too long"), None);
        assert_eq!(asked("high").refused_addition(503, effort), None);
        let options = b"unknown field: stream_options";
        assert_eq!(asked("high").refused_addition(400, options), Some(Added::StreamOptions));
        assert_eq!(asked("high").refused_addition(500, options), None);
    }

    #[test]
    fn large_texts_are_shared_and_not_copied() {
        let text = "x".repeat(100_000);
        let body =
            Bytes::from(format!(r#"{{"model":"m","max_tokens":1,"messages":[{{"role":"user","content":"{text}"}}]}}"#));
        let request = Request { route: Route::Messages, body: body.clone().into(), anthropic: false };
        let parts = prepare(request, &Profile::default(), Ids { seed: 0 }).unwrap().body.into_parts();
        assert!(parts.iter().any(|part| body.as_ptr_range().contains(&part.as_ptr()) && part.len() == text.len()));
    }

    #[test]
    fn notes_carry_only_names() {
        let mut notes = Notes::default();
        for what in ["web_search_20250305", "web_search_20250305", "", "a b", &"x".repeat(65), "line\r\nbreak"] {
            notes.note_dropped(what);
        }
        assert_eq!(notes.dropped, ["web_search_20250305", "other"]);
        (0..99).for_each(|n| notes.note_dropped(&n.to_string()));
        assert_eq!(notes.dropped.len(), 16);
    }
}
