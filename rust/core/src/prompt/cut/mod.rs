//! From a body to its prompt: ordered segments of what a template prints, in any dialect.
//!
//! What no template prints does not count: `cache_control`, `metadata`, ids, the spelling of strings, and whether a
//! text stands alone or as a list of one. What a rule takes out before the engine sees it does not count either.

mod chat;
mod completions;
mod messages;
mod responses;
mod text;

use std::borrow::Cow;

use xxhash_rust::xxh3::xxh3_64;

use super::chain::{Chain, Tag, Voice};
use super::raw::Raw;
use super::segment::{Class, Parameters, Path, Prompt, Root};
use crate::json::{Kind, Text, Value};
use crate::normalize::billing_header::{self, Header};
use crate::profile::{Profile, TemplateOrder};

/// The dialect of a body, and how far it is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Anthropic Messages, translated into chat.
    Translated,
    /// Anthropic Messages, passed to the engine's own endpoint.
    Messages,
    /// Chat completions.
    Chat,
    /// Responses.
    Responses,
    /// Completions.
    Completions,
}

/// Cuts a body into segments. Never fails: what it does not know counts as it is written.
pub fn cut(root: Value<'_>, form: Form, profile: &Profile) -> Prompt {
    let mut cutter = Cutter::new(profile, form);
    cutter.run(root);
    cutter.finish(root)
}

/// The same, with the text of segment `index` as it is rendered; empty where there is none.
pub fn cut_keeping(root: Value<'_>, form: Form, profile: &Profile, index: usize) -> (Prompt, Vec<u8>) {
    let mut cutter = Cutter::new(profile, form);
    cutter.chain = Chain::keeping(index);
    cutter.run(root);
    let text = cutter.chain.take_kept();
    (cutter.finish(root), text)
}

/// Openings that clients give to the summary with which a conversation goes on after compaction.
const SUMMARIES: [&str; 3] = [
    "This session is being continued from a previous conversation",
    "Another language model started to solve this problem",
    "<state_snapshot>",
];

struct Cutter<'p> {
    profile: &'p Profile,
    form: Form,
    chain: Chain,
    /// Where segments that are no plain text are put together.
    scratch: Vec<u8>,
    /// Whether the next system text is the first one, which may begin with a billing header.
    first_system: bool,
    /// Whether the next segment opens a message.
    opens: bool,
    summary: bool,
    raw: Option<Raw>,
}

impl<'p> Cutter<'p> {
    fn new(profile: &'p Profile, form: Form) -> Self {
        Self {
            profile,
            form,
            chain: Chain::default(),
            scratch: Vec::new(),
            first_system: true,
            opens: true,
            summary: false,
            raw: None,
        }
    }

    fn run(&mut self, root: Value<'_>) {
        match self.form {
            Form::Translated | Form::Messages => messages::cut(root, self),
            Form::Chat => chat::cut(root, self),
            Form::Responses => responses::cut(root, self),
            Form::Completions => completions::cut(root, self),
        }
    }

    fn finish(self, root: Value<'_>) -> Prompt {
        let parameters = parameters(root, self.profile);
        let (segments, blocks) = self.chain.finish();
        Prompt { segments, blocks, parameters, messages: None, summary: self.summary, raw: self.raw }
    }

    /// Adds the system messages in front of the conversation, the first and `more`, and `tools`, in the order of the
    /// engine's template. One that prints the system text first has the tools behind its first message, and prints any
    /// other where it stands.
    fn head(&mut self, system: impl FnOnce(&mut Self), tools: impl FnOnce(&mut Self), more: impl FnOnce(&mut Self)) {
        match self.profile.template_order {
            TemplateOrder::ToolsFirst => {
                tools(self);
                system(self);
            }
            TemplateOrder::SystemFirst => {
                system(self);
                tools(self);
            }
        }
        more(self);
    }

    /// Begins a message: its first segment carries the template's markers.
    fn open(&mut self) {
        self.opens = true;
    }

    fn add(&mut self, path: Path, class: Class, voice: Voice, text: &[u8]) {
        if !text.is_empty() {
            self.chain.add(path, class, Tag { voice, opens: self.opens }, text);
            self.opens = false;
        }
    }

    /// All of a prompt that is one text.
    fn add_raw(&mut self, voice: Voice, text: &[u8]) {
        self.add(Path::member(Root::Prompt), Class::FirstUser, voice, text);
        self.raw = Some(Raw::new(text, Tag { voice, opens: true }.link()));
    }

    fn add_text(&mut self, path: Path, class: Class, voice: Voice, text: Text<'_>) {
        if class == Class::FirstUser && !self.summary {
            self.summary = SUMMARIES.iter().any(|opening| text.raw().starts_with(opening.as_bytes()));
        }
        if text.is_escaped() {
            self.add_made(path, class, voice, |out| text.decode_into(out));
        } else {
            self.add(path, class, voice, text.raw());
        }
    }

    /// A segment that `write` puts together.
    fn add_made(&mut self, path: Path, class: Class, voice: Voice, write: impl FnOnce(&mut Vec<u8>)) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        write(&mut scratch);
        self.add(path, class, voice, &scratch);
        self.scratch = scratch;
    }

    /// A text of the head, with the billing header that may stand in front of it as a segment of its own; where rule 1
    /// takes the header out it never reaches the engine, and is none.
    fn add_system(&mut self, path: Path, text: Text<'_>) {
        let found = if self.first_system { billing_header::find(text) } else { Header::Absent };
        self.first_system &= found == Header::Whole;
        let cut = match found {
            Header::Absent | Header::Unknown => 0,
            Header::Whole => text.raw().len(),
            Header::Prefix(bytes) => bytes,
        };
        let (header, rest) = text.raw().split_at_checked(cut).unwrap_or((b"", text.raw()));
        if !self.strips_header() {
            self.add_text(path, Class::Header, Voice::System, Text::new(header));
        }
        self.add_text(path, Class::System, Voice::System, Text::new(rest));
    }

    fn strips_header(&self) -> bool {
        self.profile.billing_header && !self.profile.anthropic_upstream && self.form != Form::Responses
    }

    /// The texts of a system content: a string, or a list of blocks with `text`.
    fn add_system_content(&mut self, whole: Path, block: impl Fn(usize) -> Path, content: Value<'_>) {
        match content.kind() {
            Kind::String => content.as_text().into_iter().for_each(|text| self.add_system(whole, text)),
            _ => {
                for (index, item) in content.items().enumerate() {
                    match item.get("text").and_then(Value::as_text) {
                        Some(text) => self.add_system(block(index), text),
                        None => self.add_other(block(index), Class::System, item),
                    }
                }
            }
        }
    }

    /// A tool: its name, description and schema, in this order, as engines keep it, in the form that most templates
    /// print. Of a namespace (the Responses API) vLLM prints each function as a tool of its own.
    fn add_tool(&mut self, index: usize, tool: Value<'_>) {
        let function = tool.get("function").unwrap_or(tool);
        self.opens = true;
        self.add_made(Path::item(Root::Tools, index), Class::Tools, Voice::Tool, |out| {
            match (function.get("name"), tool.get("tools")) {
                (None, _) => members(tool, out),
                (space, Some(inner)) if inner.kind() == Kind::Array => {
                    inner.items().for_each(|function| push_function(space, function, out));
                }
                _ => push_function(None, function, out),
            }
        });
    }

    /// A block of a kind that is not known: all of it but what no template prints.
    fn add_other(&mut self, path: Path, class: Class, block: Value<'_>) {
        self.add_made(path, class, Voice::Other, |out| match block.as_text() {
            Some(text) => text.decode_into(out),
            None => members(block, out),
        });
    }
}

/// A function as most templates print it; `space` is the name of the namespace that it stands in.
fn push_function(space: Option<Value<'_>>, function: Value<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"type": "function", "function": {"name": "#);
    for name in [space, function.get("name")].into_iter().flatten() {
        text::push_json(name, out);
    }
    let schema = function.get("parameters").or_else(|| function.get("input_schema"));
    for (label, value) in [("description", function.get("description")), ("parameters", schema)] {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            out.extend_from_slice(format!(", \"{label}\": ").as_bytes());
            text::push_json(value, out);
        }
    }
    out.extend_from_slice(b"}}");
}

/// The members of an object that a template could print.
fn members(object: Value<'_>, out: &mut Vec<u8>) {
    if object.kind() != Kind::Object {
        return text::push_json(object, out);
    }
    for (name, value) in object.members() {
        if !["cache_control", "id", "tool_use_id", "call_id", "citations"].iter().any(|skipped| name.is(skipped)) {
            out.extend_from_slice(name.raw());
            out.push(b':');
            text::push_json(value, out);
            out.push(b'\n');
        }
    }
}

/// The class of message `index` of a conversation whose first user message and last answer are known.
fn class_of(index: usize, first_user: Option<usize>, last_answer: Option<usize>) -> Class {
    if first_user == Some(index) {
        Class::FirstUser
    } else if last_answer.is_none_or(|last| index > last) {
        Class::LastTurn
    } else {
        Class::History
    }
}

/// How many of the `started` system messages in front of a conversation a template that prints the system text first
/// has in front of the tools: the first one, and developer messages behind it, which vLLM joins to it. `instructed`:
/// another text stands in front of them all.
fn joined<'t>(list: impl Iterator<Item = Value<'t>>, started: usize, instructed: bool) -> usize {
    let apart = |(index, item)| (instructed || index > 0) && is_role(item, "system");
    list.take(started).enumerate().position(apart).unwrap_or(started)
}

/// Who says a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    System,
    User,
    Assistant,
    Tool,
    Other,
}

impl Role {
    fn of(role: Option<Value<'_>>) -> Self {
        let Some(role) = role else { return Self::Other };
        match () {
            () if role.reads("user") => Self::User,
            () if role.reads("assistant") => Self::Assistant,
            () if role.reads("tool") => Self::Tool,
            () if role.reads("system") || role.reads("developer") => Self::System,
            () => Self::Other,
        }
    }
}

/// The members with these names, found in one pass; of duplicates the last.
fn pick<'t, const N: usize>(object: Value<'t>, names: [&str; N]) -> [Option<Value<'t>>; N] {
    let mut found = [None; N];
    for (name, value) in object.entries() {
        for (wanted, place) in names.iter().zip(&mut found) {
            if name.reads(wanted) {
                *place = Some(value);
                break;
            }
        }
    }
    found
}

/// Whether the role of `message` is `role`.
fn is_role(message: Value<'_>, role: &str) -> bool {
    message.get("role").is_some_and(|text| text.reads(role))
}

fn is_system(message: Value<'_>) -> bool {
    is_role(message, "system") || is_role(message, "developer")
}

/// Model, effort and template switches, wherever a dialect puts them.
fn parameters(root: Value<'_>, profile: &Profile) -> Parameters {
    let asked = root.get("model").and_then(Value::as_text).map(Text::decode).unwrap_or_default();
    let model = profile.upstream_model(&asked).map_or(asked, |served| Cow::Owned(served.to_owned()));
    let mut said = Vec::new();
    let mut say = |name: &str, value: Option<Value<'_>>| {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            said.extend_from_slice(name.as_bytes());
            text::push_json(value, &mut said);
        }
    };
    say("effort", root.get("reasoning_effort"));
    say("effort", root.get("output_config").and_then(|config| config.get("effort")));
    say("effort", root.get("reasoning").and_then(|reasoning| reasoning.get("effort")));
    say("thinking", root.get("thinking").and_then(|thinking| thinking.get("type")));
    say("kwargs", root.get("chat_template_kwargs"));
    say("salt", root.get("cache_salt"));
    let choice = root.get("tool_choice");
    say("choice", choice.filter(|choice| choice.as_text().is_some_and(|text| text.is("none"))));
    Parameters { model: digest(model.as_bytes()), template: digest(&said) }
}

/// A digest of a text, 0 for none.
fn digest(text: &[u8]) -> u64 {
    if text.is_empty() { 0 } else { xxh3_64(text) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Tape;
    use crate::profile::Engine;
    use crate::prompt::segment::{Segment, open_reasoning};

    fn prompt(body: &str, form: Form, profile: &Profile) -> Prompt {
        cut(Tape::new().scan(body.as_bytes()).unwrap(), form, profile)
    }

    fn told(segments: &[Segment]) -> Vec<String> {
        segments.iter().map(|segment| format!("{} {}", segment.path, segment.class.name())).collect()
    }

    const MESSAGES: &str = r#"{"model":"m","system":[{"type":"text","text":"x-anthropic-billing-header: cc_version=1; cch=1;"},
        {"type":"text","text":"You are."}],"tools":[{"name":"a","description":"d","input_schema":{"type":"object"}}],
        "messages":[{"role":"user","content":"hi"},{"role":"system","content":"note"},
        {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"ok"},
        {"type":"tool_use","id":"1","name":"a","input":{"x": 1}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"done"},{"type":"text","text":"go"}]}]}"#;

    #[test]
    fn a_messages_body_in_the_order_of_the_template() {
        let mut profile = Profile { engine: Engine::Vllm, ..Profile::default() };
        let rest = [
            "messages[0].content first-user",
            "messages[1].content late-system",
            "messages[2].content[0] history",
            "messages[2].content[1] history",
            "messages[2].content[2] history",
            "messages[3].content[0] last-turn",
            "messages[3].content[1] last-turn",
        ];
        let told_of = |profile: &Profile| told(&prompt(MESSAGES, Form::Translated, profile).segments);
        assert_eq!(told_of(&profile), [&["tools[0] tools", "system[1] system"][..], &rest].concat());
        profile.billing_header = false;
        profile.template_order = TemplateOrder::SystemFirst;
        let head = ["system[0] header", "system[1] system", "tools[0] tools"];
        assert_eq!(told_of(&profile), [&head[..], &rest].concat());
    }

    #[test]
    fn behind_the_first_system_message_and_its_tools_stand_the_other_ones() {
        let profile =
            Profile { engine: Engine::Vllm, template_order: TemplateOrder::SystemFirst, ..Profile::default() };
        let order = |key: &str, role: &str, more: &str| {
            let system = |text: &str| format!(r#"{{"role":"{role}","content":"{text}"}}"#);
            let list = format!(r#"[{},{},{{"role":"user","content":"hi"}}]"#, system("one"), system("two"));
            let tools = r#"[{"type":"function","name":"a","parameters":{}}]"#;
            let form = if key == "input" { Form::Responses } else { Form::Chat };
            let body = format!(r#"{{{more}"tools":{tools},"{key}":{list}}}"#);
            let segments = prompt(&body, form, &profile).segments;
            segments.iter().map(|segment| segment.path.to_string().replace(".content", "")).collect::<Vec<_>>()
        };
        let told = r#""instructions":"Do.","#;
        assert_eq!(order("messages", "system", ""), ["messages[0]", "tools[0]", "messages[1]", "messages[2]"]);
        // vLLM joins these to one.
        assert_eq!(order("messages", "developer", ""), ["messages[0]", "messages[1]", "tools[0]", "messages[2]"]);
        assert_eq!(order("input", "developer", ""), ["input[0]", "input[1]", "tools[0]", "input[2]"]);
        assert_eq!(order("input", "system", told), ["instructions", "tools[0]", "input[0]", "input[1]", "input[2]"]);
        assert_eq!(order("input", "developer", told), ["instructions", "input[0]", "input[1]", "tools[0]", "input[2]"]);
    }

    #[test]
    fn the_functions_of_a_namespace_count() {
        let of = |inner: &str| {
            let space = format!(r#"{{"type":"namespace","name":"files","description":"d","tools":[{inner}]}}"#);
            let body = format!(r#"{{"tools":[{space}],"input":"hi"}}"#);
            let prompt = prompt(&body, Form::Responses, &Profile::default());
            (prompt.segments[0].bytes, prompt.segments[0].digest)
        };
        let function = r#"{"type":"function","name":"read","description":"Reads.","parameters":{"type":"object"}}"#;
        let one = of(function);
        assert_ne!(one.1, of(&function.replace("Reads.", "Writes")).1);
        let two = of(&format!("{function},{function}"));
        assert_eq!(two.0, 2 * one.0);
    }

    #[test]
    fn what_no_template_prints_does_not_count() {
        let profile = Profile { engine: Engine::Vllm, ..Profile::default() };
        let one = prompt(MESSAGES, Form::Translated, &profile);
        let other = MESSAGES
            .replace(
                r#""content":"hi""#,
                r#""content":[{"type":"text","text":"h\u0069","cache_control":{"type":"ephemeral"}}]"#,
            )
            .replace(r#"{"x": 1}"#, r#"{ "x":1 }"#)
            .replace(r#""1""#, r#""2""#)
            .replace("cch=1", "cch=2")
            .replace(r#"{"model""#, r#"{"metadata":{"user_id":"u"},"model""#);
        let two = prompt(&other, Form::Translated, &profile);
        let digests = |prompt: &Prompt| prompt.segments.iter().map(|segment| segment.chain).collect::<Vec<_>>();
        assert_eq!(digests(&one), digests(&two));
        assert_eq!(one.blocks, two.blocks);
        assert_eq!(one.parameters, two.parameters);
        assert!(!one.summary);
    }

    #[test]
    fn reasoning_is_open_until_the_user_speaks_again() {
        let profile = Profile { engine: Engine::Vllm, ..Profile::default() };
        let open = |body: &str, profile: &Profile| {
            let prompt = prompt(body, Form::Translated, profile);
            let at = open_reasoning(&prompt.segments)?;
            prompt.segments.iter().find(|segment| segment.end > at).map(|segment| segment.path.to_string())
        };
        assert_eq!(open(MESSAGES, &profile), None);
        let working = MESSAGES.replace(r#",{"type":"text","text":"go"}"#, "");
        assert_eq!(open(&working, &profile).as_deref(), Some("messages[2].content[0]"));
        let dropped = Profile { engine: Engine::OpenAi, ..Profile::default() };
        assert_eq!(open(&working, &dropped), None);
    }

    #[test]
    fn what_it_prints_does() {
        let profile = Profile { engine: Engine::Vllm, ..Profile::default() };
        let one = prompt(MESSAGES, Form::Translated, &profile);
        for (from, to, place) in [
            (r#""input_schema":{"type":"object"}"#, r#""input_schema":{"type":"array"}"#, 0),
            ("You are.", "You were.", 1),
            (r#""content":"hi""#, r#""content":"ho""#, 2),
            (r#"{"x": 1}"#, r#"{"x": 1.0}"#, 6),
            ("done", "gone", 7),
        ] {
            let two = prompt(&MESSAGES.replace(from, to), Form::Translated, &profile);
            let first = one.segments.iter().zip(&two.segments).position(|(a, b)| a.chain != b.chain);
            assert_eq!(first, Some(place), "{to}");
        }
    }

    #[test]
    fn chat_and_responses_have_the_same_classes() {
        let profile = Profile { billing_header: false, ..Profile::default() };
        let chat = r#"{"model":"m","messages":[{"role":"developer","content":"x-anthropic-billing-header: cc_version=1;\nYou are."},
            {"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"data:x"}}]},
            {"role":"assistant","reasoning":"r","content":"a","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]},
            {"role":"tool","tool_call_id":"1","content":"out"}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}]}"#;
        assert_eq!(
            told(&prompt(chat, Form::Chat, &profile).segments),
            [
                "tools[0] tools",
                "messages[0].content header",
                "messages[0].content system",
                "messages[1].content[0] first-user",
                "messages[1].content[1] image",
                "messages[2].reasoning history",
                "messages[2].content history",
                "messages[2].tool_calls[0] history",
                "messages[3].content last-turn",
            ]
        );
        let responses = r#"{"model":"m","instructions":"You are.","input":[{"role":"developer","content":"more"},
            {"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]},
            {"type":"function_call","name":"f","arguments":"{}","call_id":"1"},
            {"type":"function_call_output","call_id":"1","output":"out"}],"tools":[{"type":"function","name":"f","parameters":{}}]}"#;
        assert_eq!(
            told(&prompt(responses, Form::Responses, &profile).segments),
            [
                "tools[0] tools",
                "instructions system",
                "input[0].content system",
                "input[1].content[0] first-user",
                "input[2] history",
                "input[3] last-turn",
            ]
        );
    }

    #[test]
    fn a_completion_is_one_text_or_its_tokens() {
        let profile = Profile::default();
        let cut = |body: &str| prompt(body, Form::Completions, &profile);
        let one = cut(r#"{"prompt":"a \u0062"}"#);
        assert_eq!(told(&one.segments), ["prompt first-user"]);
        assert_eq!(one.bytes(), 3);
        assert_eq!(one.segments, cut(r#"{"prompt":["a b"],"max_tokens":1}"#).segments);
        let ids = cut(r#"{"prompt":[1, 2,128009]}"#);
        assert_eq!((told(&ids.segments), ids.bytes()), (vec!["prompt first-user".to_owned()], 12));
        assert_eq!(ids.segments, cut(r#"{"prompt":[[1,2,128009]]}"#).segments);
        assert_ne!(ids.segments, cut(r#"{"prompt":[1,2,128008]}"#).segments);
        for nothing in [r#"["a","b"]"#, "[[1],[2]]", "[]", "[1.5]", "[-1]", "[[]]", r#""""#, "null", "{}", r#"[1,"a"]"#]
        {
            assert!(cut(&format!(r#"{{"prompt":{nothing}}}"#)).segments.is_empty(), "{nothing}");
        }
    }

    #[test]
    fn odd_bodies_are_cut_as_far_as_they_go() {
        for body in [
            "{}",
            "[]",
            "1",
            r#"{"messages":7}"#,
            r#"{"messages":[1,null,"x",{"role":"user"}]}"#,
            r#"{"system":{"a":1},"tools":"x"}"#,
            r#"{"messages":[{"role":"user","content":{"a":[1]}}],"input":"text"}"#,
        ] {
            for form in [Form::Translated, Form::Messages, Form::Chat, Form::Responses, Form::Completions] {
                prompt(body, form, &Profile::default());
            }
        }
    }
}
