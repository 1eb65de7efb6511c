//! Replays the recorded requests of real clients (tests/fixtures/corpus) through `prepare`.
//!
//! The oracle shares no code with the crate: what a client means is its parsed JSON without cache markers, with
//! every string content as one text block. Where that extends an earlier request's, the bytes upstream must too.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use bytes::Bytes;
use flate2::read::GzDecoder;
use foreword_core::profile::{Engine, LateSystem, MessagesMode, Profile};
use foreword_core::request::{Ids, Prepared, Request, Route, prepare};
use serde_json::value::RawValue;
use serde_json::{Value, json};

type Fields = BTreeMap<String, Box<RawValue>>;

/// One recorded POST.
struct Recorded {
    route: Route,
    body: String,
    /// The client's `system` and `messages`, normalised.
    meaning: Vec<Value>,
}

/// How many lines of conversation each client begins: a further session with another prompt, a title request, a
/// sub-agent, a compaction, and with qwen-code each `--continue`, which drops an earlier block.
const LINES: [(&str, usize); 14] = [
    ("claude-code-2.1.116_fresh3.json.gz", 2),
    ("claude-code-2.1.116_rich_live.json.gz", 1),
    ("claude-code-2.1.175_cch.json.gz", 1),
    ("claude-code-2.1.332_haiku_total-tokens.json.gz", 1),
    ("claude-code-2.1.332_print_continue_custom-model.json.gz", 1),
    ("claude-code-2.1.332_rich_live.json.gz", 1),
    ("claude-code-2.1.332_subagent.json.gz", 2),
    ("claude-code-2.1.332_toolsearch.json.gz", 1),
    ("claude-code-2.1.332_tui_compact.json.gz", 2),
    ("opencode-1.18.33_anthropic.json.gz", 2),
    ("opencode-1.18.33_chat.json.gz", 2),
    ("qwen-code-0.24.4_anthropic.json.gz", 3),
    ("qwen-code-0.24.4_chat.json.gz", 3),
    ("reasonix-1.38.11_chat.json.gz", 1),
];

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/corpus")
}

fn files() -> Vec<String> {
    let index: Vec<Value> = serde_json::from_reader(File::open(folder().join("index.json")).unwrap()).unwrap();
    index.iter().map(|entry| entry["file"].as_str().unwrap().to_owned()).collect()
}

fn load(file: &str) -> Vec<Recorded> {
    let mut text = String::new();
    GzDecoder::new(File::open(folder().join(file)).unwrap()).read_to_string(&mut text).unwrap();
    let requests: Vec<Fields> = serde_json::from_str(&text).unwrap();
    requests.iter().filter_map(recorded).collect()
}

fn recorded(fields: &Fields) -> Option<Recorded> {
    let path: String = serde_json::from_str(fields["path"].get()).unwrap();
    let body = fields["body"].get();
    let route = match path.split('?').next()? {
        "/v1/messages" => Route::Messages,
        "/v1/messages/count_tokens" => Route::CountTokens,
        "/v1/chat/completions" => Route::Chat,
        "/v1/responses" => Route::Responses,
        _ => return None,
    };
    let mut parsed: Value = serde_json::from_str(body).unwrap();
    drop_markers(&mut parsed);
    let mut meaning = vec![without_header(parsed["system"].take())];
    meaning.extend(parsed["messages"].as_array().into_iter().flatten().cloned().map(as_blocks));
    Some(Recorded { route, body: body.to_owned(), meaning })
}

fn drop_markers(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(drop_markers),
        Value::Object(members) => {
            members.remove("cache_control");
            members.values_mut().for_each(drop_markers);
        }
        _ => {}
    }
}

fn as_blocks(mut message: Value) -> Value {
    if let Some(text) = message["content"].as_str() {
        message["content"] = json!([{ "type": "text", "text": text }]);
    }
    message
}

fn without_header(mut system: Value) -> Value {
    if let Some(blocks) = system.as_array_mut() {
        blocks.retain(|block| !block["text"].as_str().unwrap_or_default().starts_with("x-anthropic-billing-header:"));
    }
    system
}

fn prepared(recorded: &Recorded, profile: &Profile) -> Prepared {
    let request = Request { route: recorded.route, body: Bytes::from(recorded.body.clone()).into(), anthropic: true };
    prepare(request, profile, Ids { seed: 1 }).unwrap_or_else(|fault| panic!("{}", fault.message))
}

fn upstream(recorded: &Recorded, profile: &Profile) -> String {
    String::from_utf8(prepared(recorded, profile).body.to_vec()).unwrap()
}

/// The text of the list `name` in `body` without its closing bracket; `[` where there is none.
fn open_list(body: &str, name: &str) -> String {
    let fields: Fields = serde_json::from_str(body).unwrap();
    fields.get(name).map_or("[".to_owned(), |list| list.get().strip_suffix(']').unwrap().to_owned())
}

fn profiles() -> Vec<Profile> {
    let engines = [Engine::Vllm, Engine::Strata, Engine::OpenAi];
    let modes = [LateSystem::Tool, LateSystem::User, LateSystem::System];
    let every = engines.iter().flat_map(|&engine| modes.map(|late_system| (engine, late_system)));
    every.map(|(engine, late_system)| Profile { engine, late_system, ..Profile::default() }).collect()
}

#[test]
fn a_request_extends_what_its_client_extends() {
    for (file, lines) in LINES {
        let requests = load(file);
        for profile in profiles() {
            let lists: Vec<_> =
                requests.iter().map(|request| open_list(&upstream(request, &profile), "messages")).collect();
            let mut begun = 0;
            for later in 0..requests.len() {
                let mut extends = false;
                for earlier in 0..later {
                    if requests[later].meaning.starts_with(&requests[earlier].meaning) {
                        extends = true;
                        assert!(lists[later].starts_with(&lists[earlier]), "{file}: {later} does not extend {earlier}");
                    }
                }
                begun += usize::from(!extends);
            }
            assert_eq!(begun, lines, "{file}");
        }
    }
}

#[test]
fn no_billing_header_arrives_and_nothing_else_is_lost() {
    let native = Profile { messages: MessagesMode::Native, ..Profile::default() };
    for file in files() {
        for request in load(&file) {
            for profile in [&Profile::default(), &native] {
                let body = upstream(&request, profile);
                assert!(!body.contains("x-anthropic-billing-header"), "{file}");
                let sent: Value = serde_json::from_str(&body).unwrap();
                let mut arrived = Vec::new();
                texts(&sent, &mut arrived);
                let arrived = arrived.join("\n");
                for text in said(&request) {
                    assert!(arrived.contains(&text), "{file}: lost {text:?}");
                }
            }
        }
    }
}

/// Every string in `value`.
fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(members) => members.values().for_each(|member| texts(member, found)),
        _ => {}
    }
}

/// What the client said: every text, thinking, tool result and tool description that is offered.
fn said(request: &Recorded) -> Vec<String> {
    let mut parsed: Value = serde_json::from_str(&request.body).unwrap();
    let mut said = Vec::new();
    for tool in parsed["tools"].as_array().into_iter().flatten() {
        if tool["defer_loading"] != true {
            said.extend(tool["description"].as_str().map(str::to_owned));
        }
    }
    let conversation = json!([without_header(parsed["system"].take()), parsed["messages"]]);
    collect(&conversation, &mut said);
    said
}

fn collect(value: &Value, said: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, said)),
        Value::Object(members) => {
            for (name, member) in members {
                match member.as_str() {
                    Some(text) if matches!(name.as_str(), "text" | "content" | "thinking" | "name") => {
                        said.push(text.to_owned());
                    }
                    _ => collect(member, said),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn chats_and_responses_pass_byte_for_byte() {
    let mut passed = 0;
    for file in files() {
        for request in load(&file) {
            if matches!(request.route, Route::Chat | Route::Responses) {
                let prepared = prepared(&request, &Profile::default());
                if prepared.notes.rules.is_empty() {
                    assert!(prepared.body.to_vec() == request.body.as_bytes(), "{file}");
                    passed += 1;
                }
            }
        }
    }
    assert!(passed >= 29, "{passed}");
}

#[test]
fn loaded_tools_stand_behind_the_others() {
    let bodies = load("claude-code-2.1.332_toolsearch.json.gz");
    let lists: Vec<_> =
        bodies.iter().map(|request| open_list(&upstream(request, &Profile::default()), "tools")).collect();
    let count = |list: &str| serde_json::from_str::<Vec<Value>>(&format!("{list}]")).unwrap().len();
    assert!(lists.windows(2).all(|pair| pair[1].starts_with(&pair[0])));
    assert_eq!(count(&lists[1]), count(&lists[0]) + 2);
    assert_eq!(lists[1], lists[4]);
}

#[test]
fn counting_is_asked_of_vllm() {
    let mut counted = 0;
    for request in load("claude-code-2.1.332_context_count-tokens.json.gz") {
        if request.route == Route::CountTokens {
            assert_eq!(prepared(&request, &Profile::default()).path, Some("/tokenize"));
            counted += 1;
        }
    }
    assert!(counted >= 17, "{counted}");
}
