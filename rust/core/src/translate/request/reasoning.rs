//! How `thinking` and `output_config.effort` reach an engine.
//!
//! | Anthropic | upstream | engines |
//! |---|---|---|
//! | `thinking.type` `disabled` | `chat_template_kwargs` `{"enable_thinking":false,"thinking":false}` | all but `openai` |
//! | `thinking.type` `enabled` | `chat_template_kwargs` `{"enable_thinking":true,"thinking":true}` | all but `openai` |
//! | `thinking.type` `adaptive`, any other, none | nothing: the template's own default | |
//! | `effort` `low`, `medium`, `high` | `reasoning_effort` as it is | all but `openai` |
//! | `effort` `minimal` | `reasoning_effort` `low` | all but `openai` |
//! | `effort` `xhigh`, `max` | `reasoning_effort` `high` | all but `openai` |
//! | any other effort, one that the engine refused before, or `thinking` `disabled` | nothing | |
//!
//! Some families of templates read `enable_thinking` (Qwen, GLM), others `thinking` (`DeepSeek`); a template ignores the
//! one that it does not know. `budget_tokens` has no counterpart. To a plain server of the `openai` kind neither goes: it
//! refuses what its model does not know, and agents send an effort with every request. Members of the client's own
//! `chat_template_kwargs` win.
//!
//! Thinking in the history goes back as the field that the engine itself answers with ([`history_field`]).

use crate::json::Value;
use crate::profile::{Engine, Profile};

/// What a request says about thinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thinking {
    Enabled,
    Disabled,
    /// Adaptive, not given, or of a type that we do not know.
    Default,
}

impl Thinking {
    pub(super) fn of(root: Value<'_>) -> Self {
        match root.get("thinking").and_then(|thinking| thinking.get("type")).and_then(Value::as_text) {
            Some(kind) if kind.is("enabled") => Self::Enabled,
            Some(kind) if kind.is("disabled") => Self::Disabled,
            _ => Self::Default,
        }
    }

    /// Members for `chat_template_kwargs`.
    pub(super) fn template_switches(self, engine: Engine) -> &'static [(&'static str, &'static str)] {
        match self {
            _ if engine == Engine::OpenAi => &[],
            Self::Enabled => &[("enable_thinking", "true"), ("thinking", "true")],
            Self::Disabled => &[("enable_thinking", "false"), ("thinking", "false")],
            Self::Default => &[],
        }
    }
}

/// The value of `reasoning_effort`, if any goes upstream: none that the engine refused before.
pub(crate) fn effort(root: Value<'_>, profile: &Profile) -> Option<&'static str> {
    if profile.engine == Engine::OpenAi || Thinking::of(root) == Thinking::Disabled {
        return None;
    }
    let value = match &*root.get("output_config")?.get("effort")?.as_text()?.decode() {
        "minimal" | "low" => "low",
        "medium" => "medium",
        "high" | "xhigh" | "max" => "high",
        _ => return None,
    };
    (!profile.refused_efforts.contains(&value)).then_some(value)
}

/// The message field that carries earlier thinking; `None` where the engine takes none.
pub(super) fn history_field(engine: Engine) -> Option<&'static str> {
    match engine {
        Engine::Vllm | Engine::Unknown => Some("reasoning"),
        Engine::Strata | Engine::Sglang | Engine::LlamaCpp => Some("reasoning_content"),
        Engine::OpenAi => None,
    }
}
