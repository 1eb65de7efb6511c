//! Runs every file of tests/fixtures/requests; tests/fixtures/README.md describes their form.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use foreword_core::profile::{Added, Engine, LateSystem, MessagesMode, ModelMap, Profile, UsageMode};
use foreword_core::request::{Ids, Prepared, Request, Route, prepare};
use serde_json::Value;
use serde_json::value::RawValue;

type Fields = BTreeMap<String, Box<RawValue>>;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/requests")
}

/// A JSON text without the white space between its tokens.
fn compact(json: &str) -> String {
    let mut text = String::new();
    let (mut inside, mut escaped) = (false, false);
    for character in json.chars() {
        if inside || !character.is_ascii_whitespace() {
            text.push(character);
        }
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => inside = !inside,
            _ => {}
        }
    }
    text
}

/// The bytes that a body stands for: a string is meant literally, anything else in compact form.
fn bytes_of(body: &RawValue) -> String {
    serde_json::from_str::<String>(body.get()).unwrap_or_else(|_| compact(body.get()))
}

fn route(name: &str) -> Route {
    match name {
        "messages" => Route::Messages,
        "count_tokens" => Route::CountTokens,
        "chat" => Route::Chat,
        "completions" => Route::Completions,
        "responses" => Route::Responses,
        "models" => Route::Models,
        "other" => Route::Other,
        name => panic!("no route {name}"),
    }
}

fn profile(overrides: &Value) -> Profile {
    let mut profile = Profile::default();
    for (name, value) in overrides.as_object().into_iter().flatten() {
        let word = value.as_str().unwrap_or_default();
        match name.as_str() {
            "engine" => {
                profile.engine = match word {
                    "vllm" => Engine::Vllm,
                    "strata" => Engine::Strata,
                    "sglang" => Engine::Sglang,
                    "llamacpp" => Engine::LlamaCpp,
                    "openai" => Engine::OpenAi,
                    "unknown" => Engine::Unknown,
                    word => panic!("no engine {word}"),
                }
            }
            "messages" => {
                profile.messages = match word {
                    "translate" => MessagesMode::Translate,
                    "native" => MessagesMode::Native,
                    word => panic!("no mode {word}"),
                }
            }
            "late_system" => {
                profile.late_system = match word {
                    "system" => LateSystem::System,
                    "tool" => LateSystem::Tool,
                    "user" => LateSystem::User,
                    "off" => LateSystem::Off,
                    word => panic!("no mode {word}"),
                }
            }
            "usage" => profile.usage = if word == "raw" { UsageMode::Raw } else { UsageMode::Net },
            "billing_header" => profile.billing_header = value.as_bool().unwrap(),
            "stream_options" => profile.stream_options = value.as_bool().unwrap(),
            "refused_effort" => {
                let known = ["low", "medium", "high"].into_iter().find(|known| *known == word);
                profile.leave_out(Added::Effort(known.unwrap()));
            }
            "anthropic_upstream" => profile.anthropic_upstream = value.as_bool().unwrap(),
            "models" => profile.models = serde_json::from_value(value.clone()).unwrap(),
            "model_map" if word == "auto" => profile.model_map = ModelMap::Auto,
            "model_map" if word == "off" => profile.model_map = ModelMap::Off,
            "model_map" => profile.model_map = ModelMap::Globs(serde_json::from_value(value.clone()).unwrap()),
            name => panic!("no setting {name}"),
        }
    }
    profile
}

/// Every mismatch of one file, in words.
fn check(fields: &Fields) -> Result<(), String> {
    let read = |name: &str| fields.get(name).map_or(Value::Null, |raw| serde_json::from_str(raw.get()).unwrap());
    for name in fields.keys() {
        let known = [
            "case", "why", "route", "profile", "request", "also", "upstream", "path", "rules", "unknown", "dropped",
            "fault",
        ];
        assert!(known.contains(&name.as_str()), "unknown field {name}");
    }
    assert!(read("why").as_str().is_some_and(|why| !why.is_empty()), "why is missing");

    let mut requests = vec![bytes_of(&fields["request"])];
    if let Some(also) = fields.get("also") {
        let also: Vec<Box<RawValue>> = serde_json::from_str(also.get()).unwrap();
        requests.extend(also.iter().map(|body| bytes_of(body)));
    }
    for body in requests {
        let request = Request {
            route: route(read("route").as_str().unwrap_or("messages")),
            body: Bytes::from(body.clone()).into(),
            anthropic: false,
        };
        let outcome = prepare(request, &profile(&read("profile")), Ids { seed: 1 });
        match (outcome, fields.get("upstream"), fields.get("fault")) {
            (Ok(prepared), Some(upstream), None) => {
                let expected = if upstream.get() == "\"=\"" { body } else { bytes_of(upstream) };
                check_prepared(&prepared, &expected, &read("path"), &read)?;
            }
            (Err(fault), None, Some(_)) => {
                let told = serde_json::json!({ "status": fault.status, "message": fault.message });
                same("fault", &told, &read("fault"))?;
            }
            (Err(fault), ..) => return Err(format!("refused: {}", fault.message)),
            (Ok(prepared), ..) => return Err(format!("accepted: {}", text(&prepared))),
        }
    }
    Ok(())
}

fn text(prepared: &Prepared) -> String {
    String::from_utf8(prepared.body.to_vec()).unwrap()
}

fn same(what: &str, found: &Value, expected: &Value) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}\n   found {found}\nexpected {expected}")) }
}

fn check_prepared(prepared: &Prepared, body: &str, path: &Value, read: &dyn Fn(&str) -> Value) -> Result<(), String> {
    let found = text(prepared);
    if found != body {
        return Err(format!("upstream\n   found {found}\nexpected {body}"));
    }
    if prepared.path == Some("/v1/chat/completions") {
        support::upstream::check(&serde_json::from_str(&found).unwrap());
    }
    let or_empty = |value: Value| if value.is_null() { Value::Array(Vec::new()) } else { value };
    same("path", &prepared.path.into(), path)?;
    same("rules", &prepared.notes.rules.clone().into(), &or_empty(read("rules")))?;
    same("unknown", &prepared.notes.unknown.clone().into(), &or_empty(read("unknown")))?;
    same("dropped", &prepared.notes.dropped.clone().into(), &or_empty(read("dropped")))
}

#[test]
fn every_file_holds() {
    let mut files: Vec<_> = fs::read_dir(fixtures()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 50, "the fixtures are missing");
    let mut failures = Vec::new();
    for file in &files {
        let name = file.file_name().unwrap().to_string_lossy();
        let text = fs::read_to_string(file).unwrap();
        let fields = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        if let Err(what) = check(&fields) {
            failures.push(format!("{name}: {what}"));
        }
    }
    assert!(failures.is_empty(), "{} of {} files fail:\n{}", failures.len(), files.len(), failures.join("\n\n"));
}
