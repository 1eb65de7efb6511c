//! Segments: the parts of a prompt that a client writes and edits as wholes.

use std::fmt;

use super::chain::Voice;
use super::raw::Raw;

/// Where a segment stands in the body, as the client wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// The top-level member.
    pub root: Root,
    /// Item of that member, where it is a list.
    pub item: Option<u32>,
    /// What of the item.
    pub part: Part,
}

/// The member of the body that a segment lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Root {
    /// `system` of the Messages API.
    System,
    /// `instructions` of the Responses API.
    Instructions,
    /// `tools`
    Tools,
    /// `messages`
    Messages,
    /// `input` of the Responses API.
    Input,
    /// `prompt` of completions.
    Prompt,
}

/// The part of an item that a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// All of it.
    Whole,
    /// Its `content`, a string.
    Content,
    /// One block of its `content`.
    Block(u32),
    /// One of its `tool_calls`.
    Call(u32),
    /// Its `reasoning` or `reasoning_content`.
    Reasoning,
}

impl Path {
    /// A whole top-level member.
    pub fn member(root: Root) -> Self {
        Self { root, item: None, part: Part::Whole }
    }

    /// Item `index` of a top-level list.
    pub fn item(root: Root, index: usize) -> Self {
        Self { item: Some(narrow(index)), ..Self::member(root) }
    }

    /// The same item, and of it `part`.
    #[must_use]
    pub fn part(self, part: Part) -> Self {
        Self { part, ..self }
    }
}

impl Part {
    /// Block `index` of a content.
    pub fn block(index: usize) -> Self {
        Self::Block(narrow(index))
    }

    /// Tool call `index`.
    pub fn call(index: usize) -> Self {
        Self::Call(narrow(index))
    }
}

/// Bodies are far smaller than what does not fit.
fn narrow(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.root {
            Root::System => "system",
            Root::Instructions => "instructions",
            Root::Tools => "tools",
            Root::Messages => "messages",
            Root::Input => "input",
            Root::Prompt => "prompt",
        })?;
        if let Some(item) = self.item {
            write!(f, "[{item}]")?;
        }
        match self.part {
            Part::Whole => Ok(()),
            Part::Content => f.write_str(".content"),
            Part::Block(index) => write!(f, ".content[{index}]"),
            Part::Call(index) => write!(f, ".tool_calls[{index}]"),
            Part::Reasoning => f.write_str(".reasoning"),
        }
    }
}

/// What a segment is to the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// A billing header in front of the system text.
    Header,
    /// A tool's definition.
    Tools,
    /// The system text at the head.
    System,
    /// A system message inside the conversation.
    LateSystem,
    /// The first user message.
    FirstUser,
    /// What lies between the first user message and the last answer, that answer included.
    History,
    /// What came after the last answer.
    LastTurn,
    /// An image.
    Image,
}

impl Class {
    /// All of them, in the order of a prompt.
    pub const ALL: [Self; 8] = [
        Self::Header,
        Self::Tools,
        Self::System,
        Self::LateSystem,
        Self::FirstUser,
        Self::History,
        Self::LastTurn,
        Self::Image,
    ];

    /// Its name, as in records and labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Tools => "tools",
            Self::System => "system",
            Self::LateSystem => "late-system",
            Self::FirstUser => "first-user",
            Self::History => "history",
            Self::LastTurn => "last-turn",
            Self::Image => "image",
        }
    }

    /// Whether it stands in front of the conversation.
    pub fn is_head(self) -> bool {
        matches!(self, Self::Header | Self::Tools | Self::System)
    }
}

/// One segment of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where the client wrote it.
    pub path: Path,
    /// What it is to the prompt.
    pub class: Class,
    /// Who says it, and in what form.
    pub voice: Voice,
    /// XXH3-128 of what is rendered of it, with who says it: the same digest is the same segment, wherever it stands.
    pub digest: u128,
    /// Chained digest of the prompt up to its end.
    pub chain: u128,
    /// Bytes of rendered text (UTF-8, decoded) in it.
    pub bytes: u32,
    /// Bytes of the prompt up to its end.
    pub end: u64,
    /// Blocks of the prompt up to its end.
    pub blocks: u32,
}

impl Segment {
    /// Whether an assistant's turn or a tool said it: what no other conversation repeats by chance.
    pub fn is_history(&self) -> bool {
        matches!(self.class, Class::History)
    }

    /// Bytes of it that stand within the first `bytes` of the prompt.
    pub(super) fn bytes_within(&self, bytes: u64) -> u64 {
        let behind = self.end.saturating_sub(bytes);
        u64::from(self.bytes).saturating_sub(behind)
    }
}

/// Bytes in front of the first reasoning behind the last words of a user, which many templates drop once the user speaks
/// again; `None` where there is none.
pub(super) fn open_reasoning(segments: &[Segment]) -> Option<u64> {
    let open = segments.iter().rposition(|segment| segment.voice == Voice::User).map_or(0, |last| last + 1);
    let mut behind = segments.get(open..)?.iter();
    behind.find(|segment| segment.voice == Voice::Reasoning).map(|it| it.end.saturating_sub(u64::from(it.bytes)))
}

/// Whether a user says any of `segments`.
pub(super) fn user_speaks<'s>(segments: impl IntoIterator<Item = &'s Segment>) -> bool {
    segments.into_iter().any(|segment| segment.voice == Voice::User)
}

/// A request's prompt as it is compared with others.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    /// In the order of the engine's template.
    pub segments: Vec<Segment>,
    /// Chained digests of its blocks, the low halves.
    pub blocks: Vec<u64>,
    /// What else decides over the prompt's first token.
    pub parameters: Parameters,
    /// Messages that it is sent as, where it goes to a chat endpoint.
    pub messages: Option<usize>,
    /// Whether it begins with the summary of an earlier conversation, in the words of a known client.
    pub summary: bool,
    /// The text of a prompt that nobody has marked parts in.
    pub raw: Option<Raw>,
}

impl Prompt {
    /// Bytes of rendered text.
    pub fn bytes(&self) -> u64 {
        self.segments.last().map_or(0, |segment| segment.end)
    }
}

/// What changes a prompt without being a part of it. Digests; 0 where nothing was said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// The model's name upstream.
    pub model: u64,
    /// Effort, thinking and template switches.
    pub template: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reads_as_the_client_wrote_it() {
        let message = Path::item(Root::Messages, 7);
        assert_eq!(message.part(Part::block(1)).to_string(), "messages[7].content[1]");
        assert_eq!(message.part(Part::Content).to_string(), "messages[7].content");
        assert_eq!(message.part(Part::call(0)).to_string(), "messages[7].tool_calls[0]");
        assert_eq!(Path::item(Root::Tools, 3).to_string(), "tools[3]");
        assert_eq!(Path::member(Root::System).to_string(), "system");
    }
}
