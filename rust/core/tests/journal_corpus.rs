//! The recorded sessions of real clients through the journal, in front of a small model of a block cache.
//!
//! What each client does to its prompts was measured on the clients and is written down here, not read from what comes
//! out: nearly all only append. False alarms on them are what an operator would see every day.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use foreword_core::json::Tape;
use foreword_core::profile::{Engine, Profile};
use foreword_core::prompt::cut::{Form, cut};
use foreword_core::prompt::journal::{Journal, Limits, Told, Who};
use foreword_core::prompt::segment::Prompt;
use foreword_core::usage::EngineUsage;
use serde_json::Value;

/// A verdict, with the line it belongs to: `first` begins line n, `+n` goes on with it and loses nothing.
/// A change is told as path, class and kind.
const SESSIONS: [(&str, &[&str]); 16] = [
    // Three sessions with the same head.
    ("claude-code-2.1.116_fresh3", &["first 1", "+1", "+1", "first 2", "+2", "first 3", "+3"]),
    ("claude-code-2.1.116_rich_live", &ONE_LINE),
    ("claude-code-2.1.175_cch", &["first 1", "+1", "+1"]),
    ("claude-code-2.1.332_context_count-tokens", &["first 1", "+1"]),
    ("claude-code-2.1.332_haiku_total-tokens", &["first 1", "+1", "+1", "+1", "+1", "+1", "+1"]),
    ("claude-code-2.1.332_print_continue_custom-model", &["first 1", "+1", "+1", "+1", "+1", "+1", "+1"]),
    ("claude-code-2.1.332_rich_live", &ONE_LINE),
    // Two requests of the sub-agent between those of its parent.
    ("claude-code-2.1.332_subagent", &["first 1", "+1", "first 2", "+2", "+1", "+2", "+1"]),
    // Two deferred tools are loaded; upstream they stand behind the others, the thirteenth first.
    ("claude-code-2.1.332_toolsearch", &["first 1", "1 tools[10] tools inserted", "+1", "+1", "+1"]),
    ("claude-code-2.1.332_tui_compact", &["first 1", "+1", "+1", "+1", "+1", "1 compacted"]),
    ("codex-0.171.0_responses", &["first 1", "+1", "+1", "+1", "+1", "+1", "+1"]),
    // A request for a title, of another model, before the first turn.
    ("opencode-1.18.33_anthropic", &["first 1", "first 2", "+2", "+2", "+2", "+2", "+2", "+2"]),
    ("opencode-1.18.33_chat", &["first 1", "first 2", "+2", "+2", "+2", "+2", "+2", "+2"]),
    // `--continue` takes the date reminder out of the earlier user message.
    (
        "qwen-code-0.24.4_anthropic",
        &[
            "first 1",
            "+1",
            "+1",
            "1 messages[0].content[3] first-user removed",
            "+1",
            "1 messages[6].content[0] history removed",
            "+1",
        ],
    ),
    (
        "qwen-code-0.24.4_chat",
        &[
            "first 1",
            "+1",
            "+1",
            "1 messages[1].content[3] first-user removed",
            "+1",
            "1 messages[7].content[0] history removed",
            "+1",
        ],
    ),
    ("reasonix-1.38.11_chat", &["first 1", "+1", "+1", "+1", "+1", "+1", "+1"]),
];

const ONE_LINE: [&str; 15] =
    ["first 1", "+1", "+1", "+1", "+1", "+1", "+1", "+1", "+1", "+1", "+1", "+1", "+1", "+1", "+1"];

const BLOCK: u64 = 16;

struct Recorded {
    form: Form,
    headers: BTreeMap<String, String>,
    body: String,
}

fn recorded(file: &str) -> Vec<Recorded> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/corpus");
    let mut text = String::new();
    let packed = File::open(folder.join(format!("{file}.json.gz"))).unwrap();
    GzDecoder::new(packed).read_to_string(&mut text).unwrap();
    let entries: Vec<Value> = serde_json::from_str(&text).unwrap();
    let read = |entry: Value| {
        let path = entry["path"].as_str()?.split('?').next()?;
        let form = match path {
            "/v1/messages" => Form::Translated,
            "/v1/chat/completions" => Form::Chat,
            "/v1/responses" => Form::Responses,
            _ => return None,
        };
        let pairs = entry["headers"].as_array()?.iter();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let headers = pairs.map(|pair| (text(&pair[0]).to_lowercase(), text(&pair[1]))).collect();
        Some(Recorded { form, headers, body: entry["body"].to_string() })
    };
    entries.into_iter().filter_map(read).collect()
}

impl Recorded {
    fn who(&self) -> Who {
        let said = |name: &str| self.headers.get(name).cloned();
        let names = ["x-claude-code-session-id", "session-id", "x-session-id"];
        let session = names.iter().find_map(|name| said(name));
        let agent = said("x-claude-code-agent-id").unwrap_or_default();
        let key = session.map(|session| xxhash_rust::xxh3::xxh3_64((session + "/" + &agent).as_bytes()));
        Who { session: key, client: "recorded", shown: None }
    }
}

/// What an engine keeps: every block that it has read. Four bytes are a token.
#[derive(Default)]
struct Cache(HashSet<u64>);

impl Cache {
    /// Reads a prompt; how many of its tokens were there.
    fn read(&mut self, prompt: &Prompt) -> u64 {
        let have = prompt.blocks.iter().take_while(|block| self.0.contains(*block)).count();
        self.0.extend(&prompt.blocks);
        let segment = prompt.segments.iter().rfind(|segment| segment.blocks as usize <= have);
        let (end, blocks) = segment.map_or((0, 0), |segment| (segment.end, segment.blocks as usize));
        let bytes = end + 256 * (have - blocks) as u64;
        bytes.min(prompt.bytes() - 1) / 4 / BLOCK * BLOCK
    }
}

#[test]
fn real_clients_are_told_as_they_are() {
    let profile = Profile { engine: Engine::Vllm, ..Profile::default() };
    for (file, expected) in SESSIONS {
        let mut journal = Journal::new(Limits { lines: 100, bytes: 64 << 20 });
        let mut cache = Cache::default();
        let mut told = Vec::new();
        for request in recorded(file) {
            let prompt = cut(Tape::new().scan(request.body.as_bytes()).unwrap(), request.form, &profile);
            let who = request.who();
            let standing = journal.look(&prompt, &who);
            let entry = journal.enter(&prompt, &standing, &who, "m", 0.0).unwrap();
            let usage = EngineUsage {
                prompt: Some(prompt.bytes() / 4),
                cached: Some(cache.read(&prompt)),
                ..EngineUsage::default()
            };
            let outcome = Told { request_id: "r", message_id: None, time: 0.0, usage };
            let verdict = journal.settle(&entry, &standing, &outcome, &profile);
            told.push(match (verdict.name.name(), verdict.change) {
                ("first", _) => format!("first {}", entry.line),
                ("append-only", _) if verdict.lost == Some(0) => format!("+{}", entry.line),
                (_, Some(change)) => {
                    format!("{} {} {} {}", entry.line, change.path, change.class.name(), change.kind.name())
                }
                (name, None) => format!("{} {name}", entry.line),
            });
        }
        assert_eq!(told, expected, "{file}");
    }
}
