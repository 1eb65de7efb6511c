//! What a chat engine takes, written from the Chat Completions API: it shares no code with core.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Fields of a chat request that some engine knows.
const FIELDS: &[&str] = &[
    "model",
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "stop",
    "seed",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "cache_salt",
    "priority",
    "vllm_xargs",
    "response_format",
    "reasoning_effort",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
    "stream",
    "stream_options",
];

/// Holds a body to the API, as far as its own form goes: whether calls are answered is the client's affair.
pub(crate) fn check(body: &Value) {
    let body = object(body);
    only(body, FIELDS);
    assert!(body["model"].is_string());
    for message in body["messages"].as_array().unwrap() {
        check_message(object(message));
    }
    match body.get("tools") {
        Some(tools) => {
            let tools = tools.as_array().unwrap();
            assert!(!tools.is_empty(), "an empty list of tools");
            for tool in tools {
                check_tool(object(tool));
            }
        }
        None => assert!(!body.contains_key("tool_choice") && !body.contains_key("parallel_tool_calls")),
    }
}

fn check_message(message: &Map<String, Value>) {
    let role = message["role"].as_str().unwrap();
    let content = &message["content"];
    match role {
        "system" => {
            only(message, &["role", "content"]);
            assert!(content.as_str().is_some_and(|text| !text.is_empty()));
        }
        "user" => {
            only(message, &["role", "content"]);
            check_content(content);
        }
        "tool" => {
            only(message, &["role", "tool_call_id", "content"]);
            assert!(message["tool_call_id"].is_string());
            assert!(content.as_str().is_some_and(|text| !text.is_empty()), "an empty result: {message:?}");
        }
        "assistant" => {
            only(message, &["role", "content", "reasoning", "reasoning_content", "tool_calls"]);
            let said = content.as_str().is_some_and(|text| !text.is_empty());
            let calls = message.get("tool_calls");
            let thought = message.keys().any(|key| key.starts_with("reasoning"));
            assert!(said || calls.is_some() || thought, "an assistant that says nothing");
            assert!(said || calls.is_none() || content.is_null(), "null, not empty, beside calls");
            let Some(calls) = calls else { return };
            let calls = calls.as_array().unwrap();
            assert!(!calls.is_empty(), "an empty list of calls");
            for call in calls {
                check_call(object(call));
            }
        }
        other => panic!("no such role: {other}"),
    }
}

fn check_content(content: &Value) {
    let Some(parts) = content.as_array() else { return assert!(content.is_string()) };
    assert!(!parts.is_empty(), "an empty list of parts");
    for part in parts {
        let part = object(part);
        match part["type"].as_str().unwrap() {
            "text" => {
                only(part, &["type", "text"]);
                assert!(part["text"].is_string());
            }
            "image_url" => {
                only(part, &["type", "image_url"]);
                assert!(part["image_url"]["url"].is_string());
            }
            other => panic!("no such part: {other}"),
        }
    }
}

fn check_call(call: &Map<String, Value>) {
    only(call, &["id", "type", "function"]);
    assert!(call["id"].is_string() && call["type"] == "function");
    let function = object(&call["function"]);
    only(function, &["name", "arguments"]);
    assert!(function["name"].is_string());
    // Not read into a value: numbers of any size are JSON.
    let arguments: &RawValue =
        serde_json::from_str(function["arguments"].as_str().unwrap()).expect("arguments are JSON");
    assert!(arguments.get().starts_with('{'), "templates go through the members of arguments: {arguments}");
}

fn check_tool(tool: &Map<String, Value>) {
    only(tool, &["type", "function"]);
    assert_eq!(tool["type"], "function");
    let function = object(&tool["function"]);
    only(function, &["name", "description", "parameters", "strict"]);
    assert!(function["name"].is_string() && function["parameters"].is_object());
    assert!(function.get("description").is_none_or(Value::is_string));
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap_or_else(|| panic!("no object: {value}"))
}

fn only(object: &Map<String, Value>, known: &[&str]) {
    for key in object.keys() {
        assert!(known.contains(&key.as_str()), "unknown key {key}");
    }
}
