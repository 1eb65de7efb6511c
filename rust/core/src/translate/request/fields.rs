//! The fields around the conversation: sampling, limits, output format, reasoning.
//!
//! Only what is listed here goes upstream. Everything else that Anthropic's API knows (metadata, service tier, context
//! management, betas, ...) has no meaning for an engine, and some engines refuse fields that they do not know.

use super::Source;
use super::out::Writer;
use super::reasoning::{self, Thinking};
use crate::json::{Kind, Value};
use crate::profile::Engine;

/// Which engines take a field.
#[derive(Clone, Copy)]
enum Takers {
    All,
    /// All but [`Engine::OpenAi`].
    Local,
    /// vLLM.
    Vllm,
}

impl Takers {
    fn include(self, engine: Engine) -> bool {
        match self {
            Self::All => true,
            Self::Local => engine != Engine::OpenAi,
            Self::Vllm => matches!(engine, Engine::Vllm | Engine::Unknown),
        }
    }
}

/// Name in the Messages request, name upstream, who takes it. Values go as written.
const COPIED: [(&str, &str, Takers); 5] = [
    ("max_tokens", "max_tokens", Takers::All),
    ("temperature", "temperature", Takers::All),
    ("top_p", "top_p", Takers::All),
    ("top_k", "top_k", Takers::Local),
    ("stop_sequences", "stop", Takers::All),
];

/// Engines' own fields that a client may put into a Messages request.
const ENGINES_OWN: [(&str, Takers); 9] = [
    ("seed", Takers::All),
    ("min_p", Takers::Local),
    ("repetition_penalty", Takers::Local),
    ("presence_penalty", Takers::All),
    ("frequency_penalty", Takers::All),
    ("logit_bias", Takers::All),
    ("cache_salt", Takers::Local),
    ("priority", Takers::Local),
    ("vllm_xargs", Takers::Vllm),
];

/// Writes the sampling fields, the output format and the effort.
pub(super) fn write_sampling(source: &Source<'_>, out: &mut Writer<'_>) {
    let Source { root, profile, .. } = *source;
    for (name, upstream, takers) in COPIED {
        let value = given(root, name).filter(|_| takers.include(profile.engine));
        match value.filter(|value| value.kind() != Kind::Array || value.items().next().is_some()) {
            // Anthropic fills its cache and generates nothing; engines refuse 0, and 1 is the least that fills theirs.
            Some(value) if name == "max_tokens" && value.as_u64() == Some(0) => out.raw(",\"max_tokens\":1"),
            Some(value) => write(upstream, value, out),
            None => {}
        }
    }
    for (name, takers) in ENGINES_OWN {
        if let Some(value) = given(root, name).filter(|_| takers.include(profile.engine)) {
            write(name, value, out);
        }
    }
    write_format(root, out);
    if let Some(effort) = reasoning::effort(root, profile) {
        out.raw(",\"reasoning_effort\":\"");
        out.raw(effort);
        out.raw("\"");
    }
}

/// Writes `chat_template_kwargs`: the thinking switches, then the client's own members, which win.
///
/// llama.cpp refuses a `prefill` where the template thinks by default. With Anthropic it excludes thinking, so that is
/// switched off there.
pub(super) fn write_template_kwargs(source: &Source<'_>, prefill: bool, out: &mut Writer<'_>) {
    let engine = source.profile.engine;
    let own =
        given(source.root, "chat_template_kwargs").filter(|own| own.kind() == Kind::Object && engine != Engine::OpenAi);
    let mut comma = ",\"chat_template_kwargs\":{";
    let thinking = match Thinking::of(source.root) {
        Thinking::Default if prefill && engine == Engine::LlamaCpp => Thinking::Disabled,
        thinking => thinking,
    };
    for (name, value) in thinking.template_switches(engine) {
        if own.and_then(|own| own.get(name)).is_none() {
            for piece in [comma, "\"", name, "\":", value] {
                out.raw(piece);
            }
            comma = ",";
        }
    }
    for (name, value) in own.into_iter().flat_map(Value::entries) {
        out.raw(comma);
        out.value(name);
        out.raw(":");
        out.value(value);
        comma = ",";
    }
    if comma == "," {
        out.raw("}");
    }
}

/// Writes the switches that make the engine go on with the last message instead of starting a new one, where it has them.
pub(super) fn write_prefill(engine: Engine, out: &mut Writer<'_>) {
    if matches!(engine, Engine::Vllm | Engine::Unknown | Engine::Sglang) {
        out.raw(",\"continue_final_message\":true,\"add_generation_prompt\":false");
    }
}

/// The JSON schema of the output, from `output_config.format` or the older `output_format`.
fn write_format(root: Value<'_>, out: &mut Writer<'_>) {
    let format =
        root.get("output_config").and_then(|config| given(config, "format")).or_else(|| given(root, "output_format"));
    let Some(format) = format.filter(|format| crate::normalize::is_type(*format, "json_schema")) else { return };
    let Some(schema) = given(format, "schema") else { return };
    out.raw(",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"output\",\"schema\":");
    out.value(schema);
    if format.get("strict").and_then(Value::as_bool) == Some(true) {
        out.raw(",\"strict\":true");
    }
    out.raw("}}");
}

/// The member `name`, unless it is `null`.
fn given<'t>(object: Value<'t>, name: &str) -> Option<Value<'t>> {
    object.get(name).filter(|value| !value.is_null())
}

fn write(name: &str, value: Value<'_>, out: &mut Writer<'_>) {
    out.raw(",\"");
    out.raw(name);
    out.raw("\":");
    out.value(value);
}
