//! What can go wrong with an exchange: kind, source, whether a retry may help, and what to do about it.

use crate::translate::write_str;

/// Who is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The request itself.
    Client,
    /// Foreword: a limit or a setting of its own.
    Sidecar,
    /// The engine, or the way to it.
    Engine,
}

impl Source {
    /// The name in records, labels and `x-foreword`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Sidecar => "sidecar",
            Self::Engine => "engine",
        }
    }
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request cannot be understood or is refused.
    Invalid,
    /// The prompt alone exceeds the context window.
    PromptTooLong,
    /// Prompt and wanted output together exceed the context window.
    OutputTooLong,
    /// No or wrong credentials.
    Unauthorized,
    /// Credentials are known but not enough.
    Forbidden,
    /// No such path or model.
    NotFound,
    /// The path exists, the method does not.
    MethodNotAllowed,
    /// The body is larger than allowed.
    TooLarge,
    /// The body came too slowly, or the engine took too long.
    Timeout,
    /// Too many requests.
    RateLimited,
    /// The engine has no capacity.
    Overloaded,
    /// No connection to the engine.
    Unreachable,
    /// The engine's answer broke off or could not be read.
    BrokenAnswer,
    /// Any other failure of the engine.
    Engine,
    /// A bug in Foreword.
    Internal,
}

impl Kind {
    /// The name in records and `x-foreword`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::PromptTooLong => "prompt-too-long",
            Self::OutputTooLong => "output-too-long",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not-found",
            Self::MethodNotAllowed => "method-not-allowed",
            Self::TooLarge => "too-large",
            Self::Timeout => "timeout",
            Self::RateLimited => "rate-limited",
            Self::Overloaded => "overloaded",
            Self::Unreachable => "unreachable",
            Self::BrokenAnswer => "broken-answer",
            Self::Engine => "engine",
            Self::Internal => "internal",
        }
    }
}

/// The dialect that an error is told in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Anthropic Messages: `{"type":"error","error":{"type","message"},"request_id"}`.
    Messages,
    /// OpenAI: `{"error":{"message","type","param","code"}}`.
    OpenAi,
}

/// One failure, ready to be told to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What went wrong.
    pub kind: Kind,
    /// Who is at fault.
    pub source: Source,
    /// HTTP status for the client when no byte has been sent yet.
    pub status: u16,
    /// One sentence for the client: what happened and what to do. Never the request's text.
    pub message: String,
    /// Seconds for `retry-after`, where a retry may help and a delay is known.
    pub retry_after: Option<String>,
    /// A JSON object for `error.details` of the Messages dialect, where the protocol has one for this error.
    pub details: Option<&'static str>,
}

/// Seconds that Foreword itself asks a client to wait. Claude Code gives up at once when told to wait more than 60.
const RETRY_SECONDS: &str = "5";

impl Fault {
    pub(crate) fn new(kind: Kind, source: Source, status: u16, message: impl Into<String>) -> Self {
        Self { kind, source, status, message: message.into(), retry_after: None, details: None }
    }

    /// The request is not what the protocol takes. `path` says where, as the client wrote it (`messages[3].role`); it may be empty.
    pub fn invalid(path: &str, what: &str) -> Self {
        let message = if path.is_empty() { what.to_owned() } else { format!("{path}: {what}") };
        Self::new(Kind::Invalid, Source::Client, 400, message)
    }

    /// None of the keys that the client sent is accepted.
    pub fn unauthorized() -> Self {
        let message = "No valid API key. Send one of FOREWORD_API_KEYS as `Authorization: Bearer` or `x-api-key`.";
        Self::new(Kind::Unauthorized, Source::Client, 401, message)
    }

    /// No such path.
    pub fn not_found(path: &str) -> Self {
        let message = format!("No such path: {path}. The API begins at /v1; check the client's base URL.");
        Self::new(Kind::NotFound, Source::Client, 404, message)
    }

    /// The path exists, the method does not.
    pub fn method_not_allowed(method: &str, path: &str) -> Self {
        Self::new(Kind::MethodNotAllowed, Source::Client, 405, format!("{path} does not take {method}."))
    }

    /// The request's body is larger than `limit` bytes.
    pub fn too_large(limit: u64) -> Self {
        let mib = limit >> 20;
        let message = format!("The request body is larger than {mib} MiB. FOREWORD_MAX_BODY_MIB raises the limit.");
        Self::new(Kind::TooLarge, Source::Sidecar, 413, message)
    }

    /// The request's body stood still for `seconds`.
    pub fn slow_body(seconds: u64) -> Self {
        let message = format!("The request body stood still for {seconds} s. FOREWORD_BODY_SECONDS raises the limit.");
        Self::new(Kind::Timeout, Source::Client, 408, message)
    }

    /// No connection to the engine. `why` is the system's own word for it.
    pub fn unreachable(why: &str) -> Self {
        let message = format!("The engine cannot be reached ({why}). Is it running, and is FOREWORD_UPSTREAM right?");
        let fault = Self::new(Kind::Unreachable, Source::Engine, 502, message);
        Self { retry_after: Some(RETRY_SECONDS.to_owned()), ..fault }
    }

    /// The engine took too long. `limit` names the setting that was exceeded.
    pub fn timeout(limit: &str, seconds: u64) -> Self {
        let message = format!("The engine was silent for {seconds} s. {limit} raises the limit.");
        Self::new(Kind::Timeout, Source::Engine, 504, message)
    }

    /// The engine's answer broke off or could not be read.
    pub fn broken(what: &str) -> Self {
        let message = format!("The engine's answer is broken: {what}. Its log may say why; try again.");
        Self::new(Kind::BrokenAnswer, Source::Engine, 502, message)
    }

    /// The engine answered 200 and nothing else.
    pub fn empty() -> Self {
        Self::broken("an empty response from the engine, with status 200")
    }

    /// A stream ended, and the engine had not said that this is its end.
    pub fn unfinished() -> Self {
        Self::broken("it ended without a finish_reason and without [DONE]")
    }

    /// The sidecar is shutting down or has no room.
    pub fn overloaded(what: &str) -> Self {
        let fault = Self::new(Kind::Overloaded, Source::Sidecar, 503, what);
        Self { retry_after: Some(RETRY_SECONDS.to_owned()), ..fault }
    }

    /// A bug in Foreword.
    pub fn internal(what: &str) -> Self {
        let message =
            format!("Foreword failed: {what}. This is a bug; please report it with this answer's request-id.");
        Self::new(Kind::Internal, Source::Sidecar, 500, message)
    }

    /// The error body for a client of `dialect`. `request_id` is the answer's `request-id` header.
    pub fn body(&self, dialect: Dialect, request_id: &str) -> Vec<u8> {
        match dialect {
            Dialect::Messages => {
                let mut body = self.messages_error();
                body.extend_from_slice(br#","request_id":"#);
                write_str(request_id, &mut body);
                body.push(b'}');
                body
            }
            Dialect::OpenAi => self.openai_error(),
        }
    }

    /// The event that ends a stream of `dialect`.
    pub fn event(&self, dialect: Dialect) -> Vec<u8> {
        let (mut event, data) = match dialect {
            Dialect::Messages => (b"event: error\ndata: ".to_vec(), self.messages_error()),
            Dialect::OpenAi => (b"data: ".to_vec(), self.openai_error()),
        };
        event.extend_from_slice(&data);
        if dialect == Dialect::Messages {
            event.push(b'}');
        }
        event.extend_from_slice(b"\n\n");
        event
    }

    /// What `x-foreword` says of it: `fault=unreachable; source=engine`.
    pub fn describe(&self) -> String {
        format!("fault={}; source={}", self.kind.name(), self.source.name())
    }

    /// Anthropic's name for the error: by its status, as published.
    pub fn anthropic_type(&self) -> &'static str {
        match self.status {
            401 => "authentication_error",
            402 => "billing_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 | 507 | 529 => "overloaded_error",
            504 => "timeout_error",
            400..=499 => "invalid_request_error",
            _ => "api_error",
        }
    }

    /// The error object, still open for a request id.
    fn messages_error(&self) -> Vec<u8> {
        let mut object =
            format!(r#"{{"type":"error","error":{{"type":"{}","message":"#, self.anthropic_type()).into_bytes();
        write_str(&self.message, &mut object);
        if let Some(details) = self.details {
            object.extend_from_slice(br#","details":"#);
            object.extend_from_slice(details.as_bytes());
        }
        object.push(b'}');
        object
    }

    fn openai_error(&self) -> Vec<u8> {
        let (kind, code) = match (self.kind, self.status) {
            (Kind::PromptTooLong | Kind::OutputTooLong, _) => ("invalid_request_error", "\"context_length_exceeded\""),
            (Kind::Unauthorized, _) => ("authentication_error", "\"invalid_api_key\""),
            (Kind::RateLimited, _) => ("rate_limit_error", "\"rate_limit_exceeded\""),
            (_, 400..=499) => ("invalid_request_error", "null"),
            _ => ("server_error", "null"),
        };
        let mut object = br#"{"error":{"message":"#.to_vec();
        write_str(&self.message, &mut object);
        object.extend_from_slice(format!(r#","type":"{kind}","param":null,"code":{code}}}}}"#).as_bytes());
        object
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, from_slice, json};

    #[test]
    fn each_dialect_has_its_own_form() {
        let fault = Fault::invalid("messages[0].role", "a \"quoted\"\u{2028} thing");
        let body: Value = from_slice(&fault.body(Dialect::Messages, "req_1")).unwrap();
        let error = json!({"type": "invalid_request_error", "message": "messages[0].role: a \"quoted\"\u{2028} thing"});
        assert_eq!(body, json!({"type": "error", "error": error, "request_id": "req_1"}));
        let body: Value = from_slice(&fault.body(Dialect::OpenAi, "req_1")).unwrap();
        assert_eq!(body["error"]["type"], "invalid_request_error");
        assert_eq!(body["error"]["code"], Value::Null);
    }

    #[test]
    fn events_are_one_line_of_json() {
        let event = String::from_utf8(Fault::broken("a\nb\u{2028}c").event(Dialect::Messages)).unwrap();
        let data = event.strip_prefix("event: error\ndata: ").and_then(|rest| rest.strip_suffix("\n\n")).unwrap();
        assert!(!data.contains(['\n', '\u{2028}']));
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!((&data["type"], &data["error"]["type"]), (&json!("error"), &json!("api_error")));
        assert!(Fault::broken("x").event(Dialect::OpenAi).starts_with(br#"data: {"error":{"#));
    }

    #[test]
    fn foreword_never_asks_for_a_long_wait() {
        for fault in [Fault::unreachable("refused"), Fault::overloaded("full")] {
            assert!(fault.retry_after.unwrap().parse::<u32>().unwrap() <= 50);
        }
    }
}
