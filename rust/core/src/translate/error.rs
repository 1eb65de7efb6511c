//! An engine's refusals and failures, in whatever shape, as a [`Fault`].

use std::borrow::Cow;

use super::overflow;
use crate::error::{Fault, Kind, Source};
use crate::json::{Kind as Json, Tape, Text, Value};
use crate::wire::chat::says_something;

/// Longer messages of an engine are cut.
const MAX_MESSAGE: usize = 4096;

/// The fault that an answer with an error status tells of.
pub(crate) fn from_answer(status: u16, body: &[u8], retry_after: Option<&str>) -> Fault {
    let mut fault = match Tape::new().scan(body) {
        Ok(root) if root.kind() != Json::Null => told(root, Some(status)),
        _ => untold(status, body),
    };
    fault.retry_after = retry_after.map(str::to_owned);
    fault
}

/// The fault that a frame within a 200 answer tells of: `frame` is its `error` member, or all of it.
/// A numeric code stands for the status; else the type's name does; else it is a failure of the engine.
pub(crate) fn from_frame(frame: Value<'_>) -> Fault {
    told(frame, None)
}

/// Reads every shape: `{"error":{...}}`, `{"error":"text"}`, flat, the `{"detail":...}` of `FastAPI`, or a bare text.
fn told(root: Value<'_>, status: Option<u16>) -> Fault {
    // Google's servers, and those after them, put it into a list.
    let root = root.items().next().filter(|first| first.kind() == Json::Object).unwrap_or(root);
    let inner = root.get("error").filter(|error| says_something(*error)).unwrap_or(root);
    // `{"error":"Bad Request","message":"why"}`: the first is the status in words.
    let inner = if inner.kind() == Json::String && root.get("message").is_some() { root } else { inner };
    let text = |name: &str| inner.get(name).and_then(Value::as_text).map(Text::decode);
    let kind = text("type").unwrap_or_default();
    let code = inner.get("code");
    let status = status.or_else(|| code.and_then(status_of_code)).unwrap_or_else(|| status_of_type(&kind));
    // Of an unknown form all is told, rather than no reason.
    let formless = ["error", "message"].iter().all(|name| inner.get(name).is_none());
    let message = inner
        .as_text()
        .map(Text::decode)
        .or_else(|| inner.get("message").filter(|message| !message.is_null()).map(plain))
        .or_else(|| inner.get("detail").or_else(|| root.get("detail")).map(plain))
        .or_else(|| (formless && says_something(inner)).then(|| plain(inner)))
        .filter(|message| !message.trim().is_empty())
        .unwrap_or_else(|| Cow::Owned(format!("The engine answered {status} and gave no reason.")));
    let code = code.and_then(Value::as_text).map(Text::decode).unwrap_or_default();
    let hint = overflow::Hint {
        named: kind == "exceed_context_size_error" || code == "context_length_exceeded",
        prompt: inner.get("n_prompt_tokens").and_then(Value::as_u64),
        context: inner.get("n_ctx").and_then(Value::as_u64),
    };
    if matches!(status, 400 | 413 | 422 | 500)
        && let Some((kind, message)) = overflow::told(&message, &hint)
    {
        return Fault::new(kind, Source::Client, 400, message);
    }
    let status = if status == 500 && message.contains("Jinja Exception") { 400 } else { status };
    let busy = kind == "model_busy" || code == "model_busy" || message.contains("model_busy");
    let status = if status == 409 && busy { 503 } else { status };
    with_status(status, cut(&message))
}

/// A body that is no JSON: a page of some proxy on the way, or nothing.
fn untold(status: u16, body: &[u8]) -> Fault {
    let text = String::from_utf8_lossy(&body[..body.len().min(MAX_MESSAGE)]);
    let text = text.trim();
    let message = if text.is_empty() {
        format!("The engine answered {status} with an empty body.")
    } else if text.starts_with('<') {
        format!(
            "The engine's side answered {status} with an HTML page, not JSON. A proxy in front of the engine may have made it; check FOREWORD_UPSTREAM."
        )
    } else {
        cut(text)
    };
    with_status(status, message)
}

/// A fault of an engine's status. What is no error status comes from an engine that speaks another protocol.
fn with_status(status: u16, message: String) -> Fault {
    let (kind, source) = match status {
        401 => (Kind::Unauthorized, Source::Client),
        403 => (Kind::Forbidden, Source::Client),
        404 => (Kind::NotFound, Source::Client),
        405 => (Kind::MethodNotAllowed, Source::Client),
        413 => (Kind::TooLarge, Source::Engine),
        429 => (Kind::RateLimited, Source::Engine),
        503 | 507 | 529 => (Kind::Overloaded, Source::Engine),
        408 | 504 => (Kind::Timeout, Source::Engine),
        400..=499 => (Kind::Invalid, Source::Client),
        500..=599 => (Kind::Engine, Source::Engine),
        _ => return Fault::broken(&format!("status {status} where an answer was expected")),
    };
    Fault::new(kind, source, status, message)
}

/// A `code` that is a status, as a number or in digits.
fn status_of_code(code: Value<'_>) -> Option<u16> {
    let digits = match code.as_text() {
        Some(text) => text.decode().into_owned(),
        None => String::from_utf8_lossy(code.raw()).into_owned(),
    };
    digits.parse().ok().filter(|status| (400..600).contains(status))
}

/// The status that goes with an error type's name, as engines and first parties name them.
fn status_of_type(kind: &str) -> u16 {
    match kind {
        "BadRequestError" | "Bad Request" | "invalid_request_error" | "exceed_context_size_error" => 400,
        "AuthenticationError" | "authentication_error" => 401,
        "PermissionDeniedError" | "permission_error" => 403,
        "NotFoundError" | "not_found_error" => 404,
        "request_too_large" => 413,
        "RateLimitError" | "rate_limit_error" | "rate_limit_exceeded" | "rate_limit" => 429,
        "ServiceUnavailableError" | "unavailable_error" => 503,
        "timeout_error" => 504,
        "overloaded_error" => 529,
        _ => 500,
    }
}

/// A value as text: a string itself, anything else as it is written.
fn plain(value: Value<'_>) -> Cow<'_, str> {
    value.as_text().map_or_else(|| String::from_utf8_lossy(value.raw()), Text::decode)
}

/// `text`, at most [`MAX_MESSAGE`] bytes of it.
fn cut(text: &str) -> String {
    if text.len() <= MAX_MESSAGE {
        return text.to_owned();
    }
    let mut end = MAX_MESSAGE;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{} [...]", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(status: u16, body: &str) -> Fault {
        from_answer(status, body.as_bytes(), None)
    }

    #[test]
    fn every_shape_is_read() {
        for body in [
            r#"{"error":{"message":"no","type":"x"}}"#,
            r#"{"error":"no"}"#,
            r#"{"object":"error","message":"no","type":"NotFoundError","code":404}"#,
            r#"{"detail":"no"}"#,
            r#"{"type":"error","error":{"type":"not_found_error","message":"no"}}"#,
            r#""no""#,
            "no",
        ] {
            assert_eq!(fault(404, body).message, "no", "{body}");
        }
        assert_eq!(fault(422, r#"{"detail":[{"loc":["body"]}]}"#).message, r#"[{"loc":["body"]}]"#);
        assert!(fault(500, r#"{"error":{}}"#).message.contains("no reason"));
        assert!(fault(502, "").message.contains("empty body"));
    }

    #[test]
    fn pages_are_summed_up() {
        let fault = fault(502, "<html><body>secret proxy page</body></html>");
        assert!(fault.message.contains("HTML page") && !fault.message.contains("secret"), "{}", fault.message);
        assert_eq!((fault.status, fault.anthropic_type()), (502, "api_error"));
    }

    #[test]
    fn status_and_type_go_together() {
        for (status, kind) in [
            (400, "invalid_request_error"),
            (401, "authentication_error"),
            (402, "billing_error"),
            (403, "permission_error"),
            (404, "not_found_error"),
            (413, "request_too_large"),
            (422, "invalid_request_error"),
            (429, "rate_limit_error"),
            (500, "api_error"),
            (502, "api_error"),
            (503, "overloaded_error"),
            (504, "timeout_error"),
            (529, "overloaded_error"),
        ] {
            let fault = fault(status, r#"{"error":{"message":"x"}}"#);
            assert_eq!((fault.status, fault.anthropic_type()), (status, kind));
        }
        let busy = fault(409, r#"{"error":{"message":"loading","type":"model_busy"}}"#);
        assert_eq!((busy.status, busy.anthropic_type()), (503, "overloaded_error"));
        assert_eq!(fault(302, "").status, 502);
    }

    #[test]
    fn a_frame_tells_its_status() {
        let frame = |text: &str| from_frame(Tape::new().scan(text.as_bytes()).unwrap()).status;
        assert_eq!(frame(r#"{"message":"x","type":"BadRequestError","code":400}"#), 400);
        assert_eq!(frame(r#"{"message":"x","type":"weird","code":"429"}"#), 429);
        assert_eq!(frame(r#"{"message":"x","type":"overloaded_error"}"#), 529);
        assert_eq!(frame(r#"{"message":"boom","type":"server_error"}"#), 500);
        assert_eq!(frame(r#""boom""#), 500);
    }

    #[test]
    fn retry_after_is_kept() {
        assert_eq!(from_answer(429, b"{}", Some("7")).retry_after.as_deref(), Some("7"));
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let fault = fault(400, &"é".repeat(5000));
        assert!(fault.message.len() < MAX_MESSAGE + 10);
    }
}
