//! What the journal wants of a request: its prompt, its session, and what was asked of the cache. Read apart from what
//! goes upstream (but from the same scan), so that the engine never waits for it and a fault here costs no request.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::cut::{Form, cut};
use super::segment::Prompt;
use crate::json::{Kind, Scanned, Tape, Value};
use crate::profile::{MessagesMode, Profile};
use crate::request::{Route, shortened};

/// A request as the journal sees it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// What the engine will read; it has at least one segment.
    pub prompt: Prompt,
    /// The session that the body names, where it names one.
    pub session: Option<String>,
    /// What cache diagnostics the client asked for, if any.
    pub diagnose: Option<Diagnose>,
}

/// A request for the vendor's own cache diagnostics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnose {
    /// The earlier answer to compare with; none on a first turn.
    pub previous: Option<String>,
}

/// Reads a client's body. `None` for routes without a prompt that is cut, and for what is no body of theirs.
pub fn see(route: Route, body: &Scanned, profile: &Profile) -> Option<Seen> {
    let form = form_of(route, profile)?;
    let read = || {
        let root = body.root();
        let prompt = cut(root, form, profile);
        (!prompt.segments.is_empty()).then(|| Seen { prompt, session: session(root), diagnose: diagnose(root, form) })
    };
    catch_unwind(AssertUnwindSafe(read)).ok().flatten()
}

/// How a route's bodies are cut; `None` for routes without a prompt that is.
pub(super) fn form_of(route: Route, profile: &Profile) -> Option<Form> {
    match (route, profile.messages) {
        (Route::Messages, MessagesMode::Translate) if !profile.anthropic_upstream => Some(Form::Translated),
        (Route::Messages, _) => Some(Form::Messages),
        (Route::Chat, _) => Some(Form::Chat),
        (Route::Responses, _) => Some(Form::Responses),
        (Route::Completions, _) => Some(Form::Completions),
        _ => None,
    }
}

/// What the vendors' own cache diagnostics are asked for: `diagnostics` of the Messages API, whose
/// `previous_message_id` is null on a first turn, and `prompt_cache_options.comparison_response_id` of Responses.
fn diagnose(root: Value<'_>, form: Form) -> Option<Diagnose> {
    let id = |value: Option<Value<'_>>| value.and_then(Value::as_text).map(|id| shortened(&id.decode()));
    match form {
        Form::Translated | Form::Messages => {
            let asked = root.get("diagnostics").filter(|asked| asked.kind() == Kind::Object)?;
            Some(Diagnose { previous: id(asked.get("previous_message_id")) })
        }
        Form::Responses => {
            let previous = id(root.get("prompt_cache_options")?.get("comparison_response_id"))?;
            Some(Diagnose { previous: Some(previous) })
        }
        Form::Chat | Form::Completions => None,
    }
}

/// The session that a body names: in `metadata.user_id`, which is JSON in a string (Claude Code), or as the key of a
/// prompt cache (codex and OpenAI's own).
fn session(root: Value<'_>) -> Option<String> {
    let user = root.get("metadata").and_then(|metadata| metadata.get("user_id")).and_then(Value::as_text);
    let named = user.and_then(|user| {
        let user = user.decode();
        let mut tape = Tape::new();
        let id = tape.scan(user.as_bytes()).ok()?.get("session_id")?.as_text()?;
        Some(shortened(&id.decode()))
    });
    let key = || root.get("prompt_cache_key").and_then(Value::as_text).map(|key| shortened(&key.decode()));
    named.or_else(key).filter(|id| !id.is_empty())
}
