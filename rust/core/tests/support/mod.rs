//! What an Anthropic client does with a stream, written from the published protocol: it shares no code with core.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub(crate) mod upstream;

use foreword_core::answer::Ask;
use foreword_core::profile::UsageMode;
use foreword_core::request::{Ids, Route};
use serde_json::{Map, Value, json};

/// What was asked, where a test does not say otherwise.
pub(crate) fn ask(route: Route, stream: bool) -> Ask {
    Ask {
        route,
        native: false,
        stream,
        model: "m".to_owned(),
        model_mapped: false,
        usage_injected: false,
        effort: None,
        usage: UsageMode::Net,
        ids: Ids { seed: 0x0123_4567_89ab_cdef_0011_2233_4455_6677 },
        estimate: 0,
        diagnostics: None,
        anthropic: false,
        aliases: Vec::new(),
    }
}

/// A stream as a client has understood it.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// The data of every event, pings left out.
    pub(crate) events: Vec<Value>,
    /// The message put together as the SDKs do it; null before its start.
    pub(crate) message: Value,
    /// The error event's `error`, if the stream ended with one.
    pub(crate) error: Option<Value>,
    pub(crate) stopped: bool,
}

/// Cuts a stream into its events and checks their form: a name, one line of JSON with the same type, a blank line.
pub(crate) fn events(bytes: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(bytes).expect("the stream is UTF-8");
    assert!(!text.starts_with('\u{feff}'), "a byte order mark of our own");
    for separator in ['\u{85}', '\u{2028}', '\u{2029}', '\r'] {
        assert!(!text.contains(separator), "raw {separator:?} in {text}");
    }
    assert!(text.is_empty() || text.ends_with("\n\n"), "the last event is not complete: {text}");
    let mut list = Vec::new();
    for event in text.split_terminator("\n\n") {
        let (name, data) = event.split_once('\n').expect("two lines");
        let name = name.strip_prefix("event: ").expect("an event line");
        let data = data.strip_prefix("data: ").expect("a data line");
        assert!(!data.contains('\n'), "one line of data: {event}");
        // serde_json refuses lone surrogates, as Python's encoder does.
        let data: Value = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"));
        assert_eq!(data["type"], name, "{event}");
        list.push(data);
    }
    list
}

/// Follows a stream event by event and holds it to the protocol.
pub(crate) fn follow(bytes: &[u8]) -> Seen {
    let mut seen = Seen::default();
    let mut open: Option<(usize, String)> = None;
    let mut input = String::new();
    let mut ended = false;
    for event in events(bytes) {
        let kind = event["type"].as_str().unwrap().to_owned();
        assert!(!seen.stopped && seen.error.is_none(), "{kind} behind the end");
        if kind == "ping" {
            continue;
        }
        assert_eq!(kind == "message_start", seen.message.is_null() && kind != "error", "{kind} at the wrong place");
        match kind.as_str() {
            "message_start" => start(&mut seen, &event),
            "content_block_start" => {
                assert!(open.is_none() && !ended, "a block starts while another is open, or behind message_delta");
                let index = index(&event);
                let content = seen.message["content"].as_array_mut().unwrap();
                assert_eq!(index, content.len(), "indices count from 0 in the order of starts");
                let block = &event["content_block"];
                check_start(block);
                content.push(block.clone());
                open = Some((index, block["type"].as_str().unwrap().to_owned()));
                input.clear();
            }
            "content_block_delta" => {
                let (at, kind) = open.as_ref().expect("a delta needs an open block");
                assert_eq!(index(&event), *at);
                let block = &mut seen.message["content"][*at];
                delta(block, kind, &event["delta"], &mut input);
            }
            "content_block_stop" => {
                let (at, kind) = open.take().expect("a stop needs an open block");
                assert_eq!(index(&event), at);
                let block = &mut seen.message["content"][at];
                match kind.as_str() {
                    "tool_use" => block["input"] = parsed(&input),
                    "thinking" => {
                        assert_ne!(block["thinking"], "", "an empty block");
                        assert_ne!(block["signature"], "", "thinking ends with a signature");
                    }
                    _ => assert_ne!(block["text"], "", "an empty block"),
                }
            }
            "message_delta" => {
                assert!(open.is_none() && !ended, "message_delta comes once, behind the last block");
                ended = true;
                let delta = event["delta"].as_object().unwrap();
                assert!(delta["stop_reason"].is_string());
                assert!(delta["stop_sequence"].is_string() == (delta["stop_reason"] == "stop_sequence"));
                usage(&event["usage"]);
                for (key, value) in delta {
                    seen.message[key] = value.clone();
                }
                seen.message["usage"] = event["usage"].clone();
                let calls = seen.message["content"].as_array().unwrap().iter().any(|block| block["type"] == "tool_use");
                assert!(calls || delta["stop_reason"] != "tool_use", "tool_use needs a block");
            }
            "message_stop" => {
                assert!(ended, "message_stop comes behind message_delta");
                seen.stopped = true;
            }
            "error" => {
                assert!(event["error"]["type"].is_string() && event["error"]["message"].is_string());
                seen.error = Some(event["error"].clone());
            }
            other => panic!("no such event: {other}"),
        }
        seen.events.push(event);
    }
    seen
}

fn start(seen: &mut Seen, event: &Value) {
    let message = event["message"].as_object().unwrap();
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!((&message["type"], &message["role"]), (&json!("message"), &json!("assistant")));
    assert!(message["model"].is_string());
    assert_eq!(message["content"], json!([]));
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&Value::Null, &Value::Null));
    usage(&message["usage"]);
    seen.message = event["message"].clone();
}

fn usage(usage: &Value) {
    for name in ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"] {
        assert!(usage[name].is_u64(), "{name} is missing in {usage}");
    }
}

fn index(event: &Value) -> usize {
    usize::try_from(event["index"].as_u64().unwrap()).unwrap()
}

fn check_start(block: &Value) {
    match block["type"].as_str().unwrap() {
        "text" => assert_eq!(*block, json!({"type": "text", "text": ""})),
        "thinking" => assert_eq!(*block, json!({"type": "thinking", "thinking": "", "signature": ""})),
        "tool_use" => {
            assert_eq!(block["input"], json!({}));
            check_call(block);
        }
        other => panic!("no such block: {other}"),
    }
}

fn delta(block: &mut Value, kind: &str, delta: &Value, input: &mut String) {
    let (wanted, field) = match delta["type"].as_str().unwrap() {
        "text_delta" => ("text", "text"),
        "thinking_delta" => ("thinking", "thinking"),
        "signature_delta" => ("thinking", "signature"),
        "input_json_delta" => ("tool_use", "partial_json"),
        other => panic!("no such delta: {other}"),
    };
    assert_eq!(kind, wanted, "{delta} in a {kind} block");
    let piece = delta[field].as_str().unwrap();
    match field {
        "partial_json" => input.push_str(piece),
        "signature" => block[field] = json!(piece),
        _ => {
            assert_eq!(block.get("signature").unwrap_or(&json!("")), &json!(""), "text behind the signature");
            let text = format!("{}{piece}", block[field].as_str().unwrap());
            block[field] = json!(text);
        }
    }
}

/// Holds a whole message to the protocol.
pub(crate) fn check_message(message: &Value) {
    assert!(message["id"].as_str().is_some_and(|id| id.starts_with("msg_")));
    assert_eq!((&message["type"], &message["role"]), (&json!("message"), &json!("assistant")));
    assert!(message["model"].is_string());
    usage(&message["usage"]);
    let mut calls = false;
    for block in message["content"].as_array().unwrap() {
        match block["type"].as_str().unwrap() {
            "text" => assert!(block["text"].as_str().is_some_and(|text| !text.is_empty()), "an empty block"),
            "thinking" => {
                assert!(block["thinking"].as_str().is_some_and(|text| !text.is_empty()), "an empty block");
                assert!(block["signature"].as_str().is_some_and(|signature| !signature.is_empty()));
            }
            "tool_use" => {
                calls = true;
                assert!(block["input"].is_object());
                check_call(block);
            }
            other => panic!("no such block: {other}"),
        }
    }
    assert!(calls || message["stop_reason"] != "tool_use", "tool_use needs a block");
    assert!(message["stop_reason"].is_string());
    assert_eq!(message["stop_sequence"].is_string(), message["stop_reason"] == "stop_sequence");
}

fn check_call(block: &Value) {
    assert!(block["name"].as_str().is_some_and(|name| !name.is_empty()));
    let id = block["id"].as_str().unwrap();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    assert!(!id.is_empty() && id.bytes().all(plain), "{id}");
}

/// A streamed input as Claude Code reads it: nothing is no arguments, what does not parse is kept.
fn parsed(input: &str) -> Value {
    match serde_json::from_str::<Map<String, Value>>(if input.is_empty() { "{}" } else { input }) {
        Ok(object) => Value::Object(object),
        Err(_) => json!({"__unparsedToolInput": {"raw": input, "len": input.chars().count()}}),
    }
}

/// Reads of a body, cut in every way that matters: whole, byte by byte, and at random (but the same each time).
pub(crate) fn cuts(body: &[u8]) -> Vec<Vec<&[u8]>> {
    let mut ways = vec![vec![body], body.chunks(1).collect()];
    let mut state = 0x9E37_79B9_7F4A_7C15_u64 ^ body.len() as u64;
    for _ in 0..12 {
        let mut reads = Vec::new();
        let mut rest = body;
        while !rest.is_empty() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let len = ((state >> 33) as usize % 97 + 1).min(rest.len());
            let (read, tail) = rest.split_at(len);
            reads.push(read);
            rest = tail;
        }
        ways.push(reads);
    }
    ways
}
