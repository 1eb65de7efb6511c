//! What the vendors' own cache diagnostics say, from the journal: a request against an earlier one, whether or not the
//! engine reused anything.

use super::segment::{Class, Parameters, Prompt, Segment};

/// How a request differs from the one it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Diagnosis {
    /// It begins with all of the earlier prompt.
    Same,
    /// It differs, with the tokens behind the difference (an estimate) and those in front of it.
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
    let differs = |reason, reach: u64| {
        Diagnosis::Differs(reason, estimate(prompt.bytes().saturating_sub(reach)), estimate(reach))
    };
    if parameters.model != prompt.parameters.model {
        return differs(Reason::Model, 0);
    }
    match earlier.get(same).map(|segment| segment.class) {
        Some(Class::Header | Class::System) => differs(Reason::System, reach),
        Some(Class::Tools) => differs(Reason::Tools, reach),
        Some(_) => match prompt.segments.get(same).map(|segment| segment.class) {
            Some(Class::Header | Class::System) => differs(Reason::System, reach),
            Some(Class::Tools) => differs(Reason::Tools, reach),
            _ => differs(Reason::Messages, reach),
        },
        None if parameters.template != prompt.parameters.template => differs(Reason::Settings, 0),
        None => Diagnosis::Same,
    }
}
