//! Properties of `prepare` that no list of examples can show.

#![allow(clippy::unwrap_used, clippy::panic)]

use bytes::Bytes;
use foreword_core::json::Scanning;
use foreword_core::profile::{Engine, LateSystem, MessagesMode, Profile};
use foreword_core::request::{Body, Ids, Request, Route, prepare};
use proptest::prelude::*;
use serde_json::{Value, json};

const HEADER: &str = "x-anthropic-billing-header: cc_version=2.1.0.abc; cc_entrypoint=cli; cch=1a2b3;";

const ROUTES: [Route; 7] = [
    Route::Messages,
    Route::CountTokens,
    Route::Chat,
    Route::Completions,
    Route::Responses,
    Route::Models,
    Route::Other,
];

fn late_system() -> impl Strategy<Value = LateSystem> {
    prop::sample::select(vec![LateSystem::System, LateSystem::Tool, LateSystem::User, LateSystem::Off])
}

fn profile() -> impl Strategy<Value = Profile> {
    let engines = [Engine::Vllm, Engine::Strata, Engine::Sglang, Engine::LlamaCpp, Engine::OpenAi, Engine::Unknown];
    (prop::sample::select(engines.to_vec()), late_system(), any::<bool>()).prop_map(|(engine, late_system, native)| {
        let messages = if native { MessagesMode::Native } else { MessagesMode::Translate };
        Profile { engine, late_system, messages, models: vec!["served".to_owned()], ..Profile::default() }
    })
}

/// What goes upstream, whether the body was looked at while it came or not; `None` if the request is refused.
fn upstream(route: Route, body: &str, profile: &Profile) -> Option<String> {
    let text = Bytes::from(body.to_owned());
    let mut scanning = Scanning::default();
    for cut in [text.len() / 3, text.len() / 2] {
        scanning.advance(&text[..cut]);
    }
    let [at_once, begun] = [text.clone().into(), Body::scanning(text, scanning)].map(|body| {
        let prepared = prepare(Request { route, body, anthropic: false }, profile, Ids { seed: 7 }).ok()?;
        Some(String::from_utf8(prepared.body.to_vec()).unwrap())
    });
    assert_eq!(at_once, begun);
    at_once
}

/// JSON that is made of the protocols' own words, so that it reaches deep into the translator.
fn protocol_json() -> impl Strategy<Value = Value> {
    let words = [
        "system",
        "user",
        "assistant",
        "developer",
        "tool",
        "text",
        "image",
        "document",
        "tool_use",
        "tool_result",
        "thinking",
        "tool_reference",
        "tool_addition",
        "search_result",
        "content",
        "base64",
        "url",
        "auto",
        "none",
        "any",
        "enabled",
        "disabled",
        "json_schema",
        "high",
        "",
        "c1",
        HEADER,
        "<system-reminder>x</system-reminder>",
    ];
    let keys = [
        "role",
        "content",
        "type",
        "text",
        "source",
        "data",
        "media_type",
        "title",
        "tool_use_id",
        "id",
        "name",
        "input",
        "input_schema",
        "is_error",
        "tool_name",
        "tool",
        "definition",
        "thinking",
        "effort",
        "format",
        "schema",
        "include_usage",
        "tool_calls",
        "cache_control",
        "defer_loading",
        "function",
    ];
    let leaf = prop_oneof![
        4 => prop::sample::select(words.to_vec()).prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => any::<i32>().prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    leaf.prop_recursive(5, 60, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(prop::sample::select(keys.to_vec()).prop_map(str::to_owned), inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn any_body() -> impl Strategy<Value = Value> {
    let fields = [
        "system",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "output_format",
        "stream",
        "stream_options",
        "chat_template_kwargs",
        "stop_sequences",
        "temperature",
    ];
    let rest = prop::collection::hash_map(prop::sample::select(fields.to_vec()), protocol_json(), 0..5);
    (prop::collection::vec(protocol_json(), 0..5), rest).prop_map(|(messages, rest)| {
        let mut body = json!({ "model": "m", "max_tokens": 1, "messages": messages });
        for (name, value) in rest {
            body[name] = value;
        }
        body
    })
}

/// One user turn and the assistant's answer to it, as a client appends them.
#[derive(Clone, Debug)]
struct Exchange {
    user: Vec<Value>,
    assistant: Value,
}

fn text_block() -> impl Strategy<Value = Value> {
    "[a-z\"\\\\é\n]{0,6}".prop_map(|text| json!({ "type": "text", "text": text }))
}

fn image_block() -> impl Strategy<Value = Value> {
    Just(json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "AAAA" } }))
}

fn note() -> impl Strategy<Value = Value> {
    "[a-z<>]{0,5}".prop_map(|text| json!({ "role": "system", "content": text }))
}

fn exchange() -> impl Strategy<Value = Exchange> {
    let result_content = prop_oneof![
        text_block().prop_map(|block| json!([block])),
        (text_block(), image_block()).prop_map(|(text, image)| json!([text, image])),
        Just(json!("")),
    ];
    let result = (result_content, any::<bool>()).prop_map(|(content, failed)| {
        json!({ "type": "tool_result", "tool_use_id": "c", "content": content, "is_error": failed })
    });
    let blocks = prop::collection::vec(prop_oneof![3 => text_block(), 1 => image_block(), 3 => result], 1..4);
    let said = prop_oneof![
        text_block(),
        Just(json!({ "type": "thinking", "thinking": "t", "signature": "s" })),
        Just(json!({ "type": "tool_use", "id": "c", "name": "f", "input": { "b": 1, "a": "x" } })),
    ];
    (
        prop::collection::vec(note(), 0..2),
        blocks,
        prop::collection::vec(note(), 0..3),
        prop::collection::vec(said, 1..4),
    )
        .prop_map(|(before, blocks, behind, said)| {
            let mut user = before;
            user.push(json!({ "role": "user", "content": blocks }));
            user.extend(behind);
            Exchange { user, assistant: json!({ "role": "assistant", "content": said }) }
        })
}

/// The text of `messages` without its closing bracket.
fn open_messages(body: &str) -> String {
    let fields: std::collections::BTreeMap<String, Box<serde_json::value::RawValue>> =
        serde_json::from_str(body).unwrap();
    fields["messages"].get().strip_suffix(']').unwrap().to_owned()
}

proptest! {
    #[test]
    fn nothing_panics_and_json_stays_json(body in any_body(), profile in profile()) {
        let text = body.to_string();
        for route in ROUTES {
            if let Some(sent) = upstream(route, &text, &profile) {
                prop_assert!(serde_json::from_str::<Value>(&sent).is_ok(), "{sent}");
            }
        }
    }

    #[test]
    fn bytes_that_are_no_request_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..60), profile in profile()) {
        for route in ROUTES {
            let request = Request { route, body: Bytes::from(bytes.clone()).into(), anthropic: false };
            let prepared = prepare(request, &profile, Ids { seed: 7 });
            if !matches!(route, Route::Messages | Route::CountTokens) {
                prop_assert_eq!(prepared.unwrap_or_else(|fault| panic!("{}", fault.message)).body.to_vec(), bytes.clone());
            }
        }
    }

    #[test]
    fn what_was_prepared_is_left_alone(body in any_body(), profile in profile()) {
        let text = body.to_string();
        let native = Profile { messages: MessagesMode::Native, ..profile };
        for route in [Route::Chat, Route::Completions, Route::Messages] {
            // A conversation of nothing but a header is empty now, and would be refused for that.
            if let Some(once) = upstream(route, &text, &native).filter(|once| !once.contains("\"messages\":[]")) {
                let twice = upstream(route, &once, &native);
                prop_assert_eq!(twice.as_deref(), Some(once.as_str()));
            }
        }
    }

    #[test]
    fn other_messages_stay_byte_for_byte(
        messages in prop::collection::vec((any::<bool>(), "[ \n]{0,2}", "[a-z\"é]{0,4}"), 0..6), mode in late_system(), joined in any::<bool>(),
    ) {
        let gap = if joined { "" } else { "\\n" };
        let mut list = vec![format!(r#"{{ "role":"system", "content":"{HEADER}{gap}You \u0041re" }}"#)];
        for (late, space, text) in &messages {
            let role = if *late { "system" } else { "user" };
            list.push(format!(r#"{space}{{"n":1e3,{space}"role": "{role}","content":{} }}"#, json!(format!("x{text}"))));
        }
        let body = format!(r#"{{"model":"served", "messages":[{}],"seed":1.0 }}"#, list.join(","));
        let sent = upstream(Route::Chat, &body, &Profile { late_system: mode, ..Profile::default() }).unwrap();
        let kept = r#"{"model":"served", "messages":[{ "role":"system", "content":"You \u0041re" }"#;
        prop_assert!(sent.starts_with(kept) && sent.ends_with("],\"seed\":1.0 }"), "{}", sent);
        let mut from = kept.len();
        for ((late, ..), message) in messages.iter().zip(&list[1..]) {
            if !late {
                let at = sent[from..].find(message.trim_start());
                prop_assert!(at.is_some(), "{} lacks {}", sent, message);
                from += at.unwrap_or_default() + message.trim_start().len();
            }
        }
    }

    #[test]
    fn a_longer_conversation_extends_the_shorter(
        exchanges in prop::collection::vec(exchange(), 1..5), head in prop::option::of("[a-z]{1,5}"), profile in profile(),
    ) {
        let profile = Profile { messages: MessagesMode::Translate, ..profile };
        let mut messages = Vec::new();
        let mut earlier = String::new();
        for exchange in exchanges {
            messages.extend(exchange.user);
            let mut body = json!({ "model": "m", "max_tokens": 1, "messages": messages });
            if let Some(head) = &head {
                body["system"] = json!([{ "type": "text", "text": HEADER }, { "type": "text", "text": head }]);
            }
            let sent = open_messages(&upstream(Route::Messages, &body.to_string(), &profile).unwrap());
            prop_assert!(sent.starts_with(&earlier), "{sent}\ndoes not extend\n{earlier}");
            earlier = sent;
            messages.push(exchange.assistant);
        }
    }
}
