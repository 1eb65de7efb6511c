//! Anthropic Messages requests as chat requests.
//!
//! The upstream body is written in one fixed order (model, messages, tools, the rest), and what stands for a message
//! depends on nothing that comes later: a client that appends to its conversation appends to the upstream one.

mod blocks;
pub(crate) mod estimate;
mod fields;
mod messages;
mod out;
mod reasoning;
mod tools;

use bytes::Bytes;

use crate::error::Fault;
use crate::json::{Kind, Rope, Value, write_str};
use crate::profile::{Engine, Profile};
use crate::request::Notes;
use out::Writer;
pub(crate) use reasoning::effort;
pub(crate) use tools::offered as offered_tools;

/// A Messages request to be translated.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    /// The client's body.
    pub(crate) body: &'a Bytes,
    /// The same, scanned.
    pub(crate) root: Value<'a>,
    /// Settings and knowledge of the engine.
    pub(crate) profile: &'a Profile,
    /// The model's name upstream, where it is another than the requested one.
    pub(crate) model: Option<&'a str>,
}

/// The body for `/v1/chat/completions`.
///
/// # Errors
/// A fault of the client that names the place which cannot be translated.
pub(crate) fn chat(source: &Source<'_>, notes: &mut Notes) -> Result<Rope, Fault> {
    let (mut out, tools, prefill) = conversation(source, notes)?;
    tools.write_choice(&mut out);
    fields::write_sampling(source, &mut out);
    fields::write_template_kwargs(source, prefill, &mut out);
    if prefill {
        fields::write_prefill(source.profile.engine, &mut out);
    }
    if source.root.get("stream").and_then(Value::as_bool) == Some(true) {
        out.raw(",\"stream\":true");
        if source.profile.stream_options {
            out.raw(",\"stream_options\":{\"include_usage\":true}");
        }
    }
    out.raw("}");
    Ok(out.finish())
}

/// The body for vLLM's `/tokenize`, which renders the same chat and counts it.
///
/// # Errors
/// As [`chat`].
pub(crate) fn tokenize(source: &Source<'_>, notes: &mut Notes) -> Result<Rope, Fault> {
    let (mut out, _, prefill) = conversation(source, notes)?;
    if prefill {
        fields::write_prefill(source.profile.engine, &mut out);
    } else {
        out.raw(",\"add_generation_prompt\":true");
    }
    fields::write_template_kwargs(source, prefill, &mut out);
    out.raw("}");
    Ok(out.finish())
}

/// `{"model":...,"messages":[...],"tools":[...]`, the tools as read, and whether the engine is to go on with the last
/// message.
fn conversation<'a>(source: &Source<'a>, notes: &mut Notes) -> Result<(Writer<'a>, tools::Tools<'a>, bool), Fault> {
    let mut out = Writer::new(source.body);
    out.raw("{\"model\":");
    match (source.model, source.root.get("model").filter(|model| model.kind() == Kind::String)) {
        (None, Some(requested)) => out.value(requested),
        (mapped, _) => {
            let mut name = Vec::new();
            write_str(mapped.unwrap_or_default(), &mut name);
            out.raw(&String::from_utf8_lossy(&name));
        }
    }
    let conversation = messages::write(source, notes, &mut out)?;
    notes.messages = Some(conversation.messages);
    let tools = tools::tools(source, &conversation.references, notes)?;
    tools.write(source.profile.engine, &mut out);
    Ok((out, tools, conversation.prefill))
}

/// Whether an engine is sent the thinking of earlier turns.
pub(crate) fn prints_reasoning(engine: Engine) -> bool {
    reasoning::history_field(engine).is_some()
}
