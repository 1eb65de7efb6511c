//! What benches and the instruction counts work on: recorded requests of real clients, and a recorded stream.

// Each bench is a program of its own and takes what it needs.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::GzDecoder;
use foreword_core::answer::Ask;
use foreword_core::json::Tape;
use foreword_core::profile::{Engine, Profile, UsageMode};
use foreword_core::prompt::cut::{Form, cut};
use foreword_core::prompt::journal::{Entry, Journal, Told, Who};
use foreword_core::prompt::segment::Prompt;
use foreword_core::request::{Ids, Route};
use foreword_core::usage::EngineUsage;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// A session of Claude Code's: its last body has 64 KB, most of it system and tools.
const SESSION: &[u8] =
    include_bytes!("../../../../tests/fixtures/corpus/claude-code-2.1.332_rich_live.json.gz").as_slice();
/// A session of opencode's, whose first request asks for a title: 2.6 KB without tools.
const TITLE: &[u8] = include_bytes!("../../../../tests/fixtures/corpus/opencode-1.18.33_anthropic.json.gz").as_slice();
/// Text, thinking and two tool calls, as vLLM 0.32.0 sent them.
const STREAM: &[u8] =
    include_bytes!("../../../../tests/fixtures/captures/vllm-0.32.0/say_chat_think_text_tools2_stream.resp.txt")
        .as_slice();

/// The bodies of a recorded session that went to `/v1/messages`, in order, byte for byte.
fn recorded(session: &[u8]) -> Vec<String> {
    let mut text = String::new();
    GzDecoder::new(session).read_to_string(&mut text).unwrap();
    let requests: Vec<BTreeMap<String, Box<RawValue>>> = serde_json::from_str(&text).unwrap();
    let sent = requests.iter().filter(|request| request["path"].get().starts_with("\"/v1/messages"));
    sent.map(|request| request["body"].get().to_owned()).collect()
}

/// The bodies of the recorded session of Claude Code's.
pub(crate) fn session() -> Vec<String> {
    recorded(SESSION)
}

/// A recorded Messages body, its messages repeated as often as fit into about `bytes`: of a title request where a
/// session's head alone would be larger, else of the session.
pub(crate) fn body(bytes: usize) -> String {
    let bodies = session();
    let last = bodies.last().unwrap();
    if bytes < last.len() { repeated(&recorded(TITLE)[0], bytes) } else { repeated(last, bytes) }
}

/// The session's last body, the text of each tool's result as often as `longer` says, its messages repeated.
pub(crate) fn body_with_files(bytes: usize, longer: usize) -> String {
    let mut body: Value = serde_json::from_str(session().last().unwrap()).unwrap();
    let messages = body["messages"].as_array_mut().unwrap();
    let blocks = messages.iter_mut().filter_map(|message| message["content"].as_array_mut()).flatten();
    for block in blocks.filter(|block| block["type"] == "tool_result" && block["content"].is_string()) {
        block["content"] = json!(block["content"].as_str().unwrap().repeat(longer));
    }
    repeated(&body.to_string(), bytes)
}

/// `body` with its messages repeated as often as fit into `bytes`, at least once; every other byte as it was.
fn repeated(body: &str, bytes: usize) -> String {
    let mut tape = Tape::new();
    let messages = tape.scan(body.as_bytes()).unwrap().get("messages").unwrap().span();
    let inner = &body[messages.start + 1..messages.end - 1];
    let times = (bytes.saturating_sub(body.len() - inner.len()) / inner.len()).max(1);
    let all = vec![inner; times].join(",");
    format!("{}{all}{}", &body[..=messages.start], &body[messages.end - 1..])
}

/// The recorded stream as the engine sent it: one chunk of HTTP after the other, an event in each.
pub(crate) fn chunks() -> Vec<Vec<u8>> {
    let head = STREAM.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let mut rest = &STREAM[head + 4..];
    let mut chunks = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let len = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
        if len == 0 {
            break;
        }
        chunks.push(rest[end + 2..end + 2 + len].to_vec());
        rest = &rest[end + 4 + len..];
    }
    chunks
}

/// A streamed request to `route`, answered by chat completions.
pub(crate) fn ask(route: Route, mapped: bool) -> Ask {
    Ask {
        route,
        native: false,
        stream: true,
        model: "claude-opus-5-5".to_owned(),
        model_mapped: mapped,
        usage_injected: true,
        effort: None,
        usage: UsageMode::Net,
        ids: Ids { seed: 7 },
        estimate: 0,
        diagnostics: None,
        anthropic: false,
        aliases: Vec::new(),
    }
}

/// vLLM behind the default settings.
pub(crate) fn profile() -> Profile {
    Profile { engine: Engine::Vllm, ..Profile::default() }
}

/// The prompt of a Messages body that is to be translated.
pub(crate) fn prompt(body: &str, tape: &mut Tape) -> Prompt {
    cut(tape.scan(body.as_bytes()).unwrap(), Form::Translated, &profile())
}

/// What the journal does for one exchange, from the look to the verdict; the engine reuses all that it could.
pub(crate) fn turn_of(journal: &mut Journal, prompt: &Prompt, who: &Who, profile: &Profile) -> Entry {
    let standing = journal.look(prompt, who);
    let entry = journal.enter(prompt, &standing, who, "m", 0.0).unwrap();
    let usage = EngineUsage {
        prompt: Some(prompt.bytes() / 4),
        cached: Some(prompt.bytes() / 4 / 16 * 16),
        ..EngineUsage::default()
    };
    let told = Told { request_id: "req", message_id: None, time: 0.0, usage };
    journal.settle(&entry, &standing, &told, profile);
    entry
}
