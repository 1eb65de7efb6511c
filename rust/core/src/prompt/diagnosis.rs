//! What the vendors' own cache diagnostics say, from the journal: a request against an earlier one, whether or not the
//! engine reused anything.

use super::segment::{Class, Parameters, Prompt, Segment};

/// How a request differs from the one it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Diagnosis {
    /// It begins with all of the earlier prompt.
    Same,
    /// It differs: the tokens of the earlier prompt behind the difference, and those in front of it (estimates).
    Differs(Reason, u64, u64),
    /// The journal does not know the earlier answer.
    NotFound,
}

/// In what it differs first, in the order in which an engine reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Another model.
    Model,
    /// The system text, or the header in front of it.
    System,
    /// Tools.
    Tools,
    /// The conversation.
    Messages,
    /// Effort, thinking or template switches, and nothing else.
    Settings,
}

impl Diagnosis {
    /// The value of `diagnostics` on an answer of the Messages API; null where nothing differs.
    pub fn anthropic(&self) -> String {
        let reason = match self {
            Self::Same => return "null".to_owned(),
            Self::NotFound => r#"{"type":"previous_message_not_found"}"#.to_owned(),
            // What else decides over a prompt has no name of its own there.
            Self::Differs(Reason::Settings, ..) => r#"{"type":"unavailable"}"#.to_owned(),
            Self::Differs(reason, missed, _) => {
                let name = match reason {
                    Reason::Model => "model_changed",
                    Reason::System => "system_changed",
                    Reason::Tools => "tools_changed",
                    Reason::Messages | Reason::Settings => "messages_changed",
                };
                format!(r#"{{"type":"{name}","cache_missed_input_tokens":{missed}}}"#)
            }
        };
        format!(r#"{{"cache_miss_reason":{reason}}}"#)
    }

    /// The value of `prompt_cache_diagnostics` on a response of the Responses API.
    pub fn openai(&self) -> String {
        match self {
            Self::Same => r#"{"type":"cache_hit"}"#.to_owned(),
            Self::NotFound => r#"{"type":"comparison_response_not_found"}"#.to_owned(),
            Self::Differs(reason, missed, reusable) => {
                let name = match reason {
                    Reason::Model => "model_changed",
                    Reason::Tools => "tools_changed",
                    Reason::Settings => "reasoning_effort_changed",
                    Reason::System | Reason::Messages => "input_changed",
                };
                format!(
                    r#"{{"type":"cache_miss","reason":"{name}","cache_missed_tokens":{missed},"comparison_reusable_tokens":{reusable}}}"#
                )
            }
        }
    }
}

/// Compares `prompt` with the segments, parameters and token count of an earlier one.
pub(super) fn compare(earlier: &[&Segment], parameters: Parameters, tokens: Option<u64>, prompt: &Prompt) -> Diagnosis {
    let same = earlier.iter().zip(&prompt.segments).take_while(|(one, other)| one.chain == other.chain).count();
    let before = earlier.last().map_or(0, |segment| segment.end).max(1);
    let reach = same.checked_sub(1).map_or(0, |last| earlier[last].end);
    let estimate = |bytes: u64| match tokens {
        Some(tokens) => u64::try_from(u128::from(bytes) * u128::from(tokens) / u128::from(before)).unwrap_or(u64::MAX),
        // About four bytes of text are a token.
        None => bytes / 4,
    };
    let differs =
        |reason, reach: u64| Diagnosis::Differs(reason, estimate(before.saturating_sub(reach)), estimate(reach));
    if parameters.model != prompt.parameters.model {
        return differs(Reason::Model, 0);
    }
    let classes = [earlier.get(same).copied(), prompt.segments.get(same)].map(|segment| segment.map(|it| it.class));
    let any = |wanted: &[Class]| classes.iter().flatten().any(|class| wanted.contains(class));
    match classes {
        // All of the earlier prompt is there, and what else decides over it is another.
        [None, _] if parameters.template != prompt.parameters.template => differs(Reason::Settings, 0),
        [None, _] => Diagnosis::Same,
        // What is missing or new shows in one of the two places only.
        _ if any(&[Class::Tools]) => differs(Reason::Tools, reach),
        _ if any(&[Class::System, Class::Header]) => differs(Reason::System, reach),
        _ => differs(Reason::Messages, reach),
    }
}
