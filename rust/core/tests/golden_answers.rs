//! Golden files of the answer side: `tests/fixtures/answers`, in the form that `tests/fixtures/README.md` tells.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::Path;

use bytes::Bytes;
use foreword_core::answer::{Ask, Reader, Refused};
use foreword_core::error::Fault;
use foreword_core::profile::UsageMode;
use foreword_core::request::Route;
use serde_json::{Value, json};

/// A case's answer as the engine sends it.
struct Upstream {
    status: u16,
    body: Vec<u8>,
    retry_after: Option<String>,
    cut: Option<Fault>,
}

#[test]
fn answers_are_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/answers");
    let mut count = 0;
    let mut failures = Vec::new();
    let mut paths: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths.into_iter().filter(|path| path.extension().is_some_and(|end| end == "json")) {
        let case: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        count += 1;
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if let Err(panic) = std::panic::catch_unwind(|| run(&case)) {
            let text = panic.downcast_ref::<String>().cloned();
            failures.push(format!("{name}: {}", text.unwrap_or_else(|| "panicked".to_owned())));
        }
    }
    assert!(failures.is_empty(), "{} of {count} failed:\n{}", failures.len(), failures.join("\n"));
    assert!(count > 100, "only {count} cases found in {}", folder.display());
}

fn run(case: &Value) {
    let ask = ask(&case["ask"]);
    let upstream = upstream(&case["upstream"]);
    let client = &case["client"];
    if upstream.status != 200 {
        refused(&ask, &upstream, client);
    } else if ask.stream {
        streamed(&ask, &upstream, client);
    } else {
        whole(&ask, &upstream, client);
    }
}

fn ask(case: &Value) -> Ask {
    let route = match case["route"].as_str().unwrap() {
        "messages" => Route::Messages,
        "count_tokens" => Route::CountTokens,
        "chat" => Route::Chat,
        "completions" => Route::Completions,
        "responses" => Route::Responses,
        "models" => Route::Models,
        other => panic!("no such route: {other}"),
    };
    let says = |name: &str| case[name].as_bool().unwrap_or(false);
    let mut ask = support::ask(route, says("stream"));
    ask.native = says("native");
    ask.model_mapped = says("model_mapped");
    ask.usage_injected = says("usage_injected");
    ask.anthropic = says("anthropic");
    ask.estimate = case["estimate"].as_u64().unwrap_or(0);
    if case["aliases"].is_array() {
        ask.aliases = serde_json::from_value(case["aliases"].clone()).unwrap();
    }
    if let Some(model) = case["model"].as_str() {
        model.clone_into(&mut ask.model);
    }
    if says("raw_usage") {
        ask.usage = UsageMode::Raw;
    }
    ask
}

fn upstream(case: &Value) -> Upstream {
    let body = if let Some(events) = case["data"].as_array() {
        let line = |event: &Value| event.as_str().map_or_else(|| event.to_string(), str::to_owned);
        events.iter().flat_map(|event| format!("data: {}\n\n", line(event)).into_bytes()).collect()
    } else if let Some(text) = case["text"].as_str() {
        text.as_bytes().to_vec()
    } else if let Some(digits) = case["bytes_hex"].as_str() {
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    } else {
        case["body"].to_string().into_bytes()
    };
    Upstream {
        status: case["status"].as_u64().map_or(200, |status| status.try_into().unwrap()),
        body,
        retry_after: case["retry_after"].as_str().map(str::to_owned),
        cut: case["cut"].as_str().map(|what| match what {
            "timeout" => Fault::timeout("FOREWORD_IDLE_SECONDS", 1),
            _ => Fault::broken("the connection was reset"),
        }),
    }
}

fn streamed(ask: &Ask, upstream: &Upstream, client: &Value) {
    let mut first: Option<(Vec<u8>, Option<Fault>)> = None;
    for reads in support::cuts(&upstream.body) {
        let mut reader = Reader::new(ask.clone());
        let mut out = Vec::new();
        if client["pinged"].as_bool() == Some(true) {
            reader.ping(&mut out);
            assert!(reader.started());
        }
        let mut result = reads.iter().try_for_each(|read| reader.feed(read, &mut out));
        if result.is_ok() {
            result = reader.end(upstream.cut.clone(), &mut out);
        }
        assert_eq!(reader.started(), !out.is_empty());
        let now = (out, result.err());
        if let Some(first) = &first {
            assert_eq!(String::from_utf8_lossy(&first.0), String::from_utf8_lossy(&now.0), "another cut, other bytes");
            assert_eq!(first.1, now.1);
        } else {
            fault(now.1.as_ref(), &client["fault"]);
            summary(&reader, &client["summary"]);
            first = Some(now);
        }
    }
    let (out, _) = first.unwrap();
    if let Some(bytes) = client["bytes"].as_str() {
        assert_eq!(String::from_utf8_lossy(&out), bytes);
    } else if ask.route == Route::Messages {
        let seen = support::follow(&out);
        assert!(out.is_empty() || seen.stopped || seen.error.is_some(), "the stream has no end");
        let events: Vec<_> = support::events(&out).into_iter().map(plain_ids).collect();
        let wanted = client["events"].as_array().cloned().unwrap_or_default();
        for (at, (got, wanted)) in events.iter().zip(&wanted).enumerate() {
            assert!(matches(got, wanted), "event {at}:\n got {got}\nwant {wanted}");
        }
        assert_eq!(events.len(), wanted.len(), "{events:#?}");
    } else {
        assert!(out.is_empty(), "{}", String::from_utf8_lossy(&out));
    }
}

fn whole(ask: &Ask, upstream: &Upstream, client: &Value) {
    let mut reader = Reader::new(ask.clone());
    let body = Bytes::from(upstream.body.clone());
    match reader.whole(&body) {
        Ok(answer) => {
            assert!(client["fault"].is_null(), "no fault, but {}", String::from_utf8_lossy(&answer));
            if let Some(bytes) = client["bytes"].as_str() {
                assert_eq!(String::from_utf8_lossy(&answer), bytes);
            } else {
                let answer = plain_ids(serde_json::from_slice(&answer).unwrap());
                assert_eq!(answer, client["body"]);
            }
            for piece in client["contains"].as_array().into_iter().flatten() {
                let text = String::from_utf8_lossy(&answer);
                assert!(text.contains(piece.as_str().unwrap()), "{piece} is not in {text}");
            }
        }
        Err(told) => fault(Some(&told), &client["fault"]),
    }
    assert_eq!(reader.estimated(), client["estimated"].as_bool().unwrap_or(false));
    summary(&reader, &client["summary"]);
}

fn refused(ask: &Ask, upstream: &Upstream, client: &Value) {
    let mut reader = Reader::new(ask.clone());
    match reader.refused(upstream.status, &upstream.body, upstream.retry_after.as_deref()) {
        Refused::Pass => assert_eq!(client["passes"], true),
        Refused::Fault(told) => {
            fault(Some(&told), &client["fault"]);
            let body: Value = serde_json::from_slice(&told.body(reader.dialect(), "req_1")).unwrap();
            assert_eq!(body["error"]["type"], told.anthropic_type());
            assert_eq!(body["request_id"], "req_1");
        }
        Refused::Answer(body) => assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), client["body"]),
    }
    assert_eq!(reader.estimated(), client["estimated"].as_bool().unwrap_or(false));
}

fn fault(told: Option<&Fault>, wanted: &Value) {
    let Some(told) = told else {
        assert!(wanted.is_null(), "no fault, but {wanted} is wanted");
        return;
    };
    assert_eq!(wanted["status"], told.status, "{told:?}");
    assert_eq!(wanted["type"], told.anthropic_type(), "{told:?}");
    if let Some(message) = wanted["message"].as_str() {
        assert_eq!(told.message, message);
    }
    if let Some(part) = wanted["says"].as_str() {
        assert!(told.message.contains(part), "{part:?} is not in {:?}", told.message);
    }
    assert_eq!(wanted["retry_after"].as_str(), told.retry_after.as_deref());
}

fn summary(reader: &Reader, wanted: &Value) {
    let summary = reader.summary();
    let usage = summary.usage;
    let told = json!({
        "prompt": usage.prompt, "completion": usage.completion, "cached": usage.cached, "created": usage.created,
        "reasoning": usage.reasoning, "finish": summary.finish, "events": summary.events, "unreadable": summary.unreadable,
    });
    for (name, wanted) in wanted.as_object().into_iter().flatten() {
        assert_eq!(&told[name], wanted, "{name} of {told}");
    }
}

/// Replaces what is drawn at random by a name for it.
fn plain_ids(mut value: Value) -> Value {
    match &mut value {
        Value::Object(members) => members.values_mut().for_each(|member| *member = plain_ids(member.take())),
        Value::Array(items) => items.iter_mut().for_each(|item| *item = plain_ids(item.take())),
        Value::String(text) => {
            let drawn = |head: &str, len: usize| {
                let rest = text.strip_prefix(head)?.get(..len)?;
                rest.bytes().all(|byte| byte.is_ascii_alphanumeric()).then(|| text[head.len() + len..].to_owned())
            };
            if drawn("msg_", 24).is_some_and(|rest| rest.is_empty()) {
                "msg_NEW".clone_into(text);
            } else if drawn("toolu_01", 22).is_some_and(|rest| rest.is_empty()) {
                "toolu_NEW".clone_into(text);
            } else if let Some(rest) = drawn("toolu_x", 8) {
                *text = format!("toolu_xSALT{rest}");
            }
        }
        _ => {}
    }
    value
}

/// Equal; but `"..."` in a golden file stands for any text.
fn matches(got: &Value, wanted: &Value) -> bool {
    match (got, wanted) {
        (Value::String(_), Value::String(any)) if any == "..." => true,
        (Value::Object(got), Value::Object(wanted)) => {
            got.len() == wanted.len()
                && wanted.iter().all(|(name, wanted)| got.get(name).is_some_and(|got| matches(got, wanted)))
        }
        _ => got == wanted,
    }
}
