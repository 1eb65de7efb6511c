//! What holds of every answer, whatever an engine sends.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use bytes::Bytes;
use foreword_core::answer::Reader;
use foreword_core::error::Fault;
use foreword_core::request::Route;
use proptest::prelude::*;
use serde_json::{Value, json};

/// One step of an engine that knows the shapes but not the order.
fn any_step() -> impl Strategy<Value = String> {
    let text = prop_oneof![Just(String::new()), "[a-z\"\\\\\n é🙂\u{2028}]{0,6}"];
    let arguments = prop_oneof![
        Just(String::new()),
        Just("{}".to_owned()),
        Just("{\"a\":".to_owned()),
        Just("1}".to_owned()),
        Just("[1]".to_owned()),
        Just("\"{}\"".to_owned()),
        "[{}\"\\\\ ,:1]{0,4}",
    ];
    let call = (
        prop::option::of(0_u64..3),
        prop::option::of(prop_oneof![Just(""), Just("a"), Just("b"), Just("f.x:0")]),
        prop::option::of(prop_oneof![Just(""), Just("f"), Just("g")]),
        prop::option::of(arguments),
    )
        .prop_map(|(index, id, name, arguments)| {
            let mut call = json!({"function": {}});
            if let Some(index) = index {
                call["index"] = json!(index);
            }
            if let Some(id) = id {
                call["id"] = json!(id);
            }
            if let Some(name) = name {
                call["function"]["name"] = json!(name);
            }
            if let Some(arguments) = arguments {
                call["function"]["arguments"] = json!(arguments);
            }
            call
        });
    let finish = prop::option::weighted(
        0.1,
        prop_oneof![Just("stop"), Just("length"), Just("tool_calls"), Just("content_filter"), Just("abort")],
    );
    let delta = (
        prop::option::of(text.clone()),
        prop::option::weighted(0.3, text),
        prop::option::of(prop::collection::vec(call, 0..3)),
        finish,
        prop::option::weighted(0.2, 0_u64..100),
    )
        .prop_map(|(content, reasoning, calls, finish, tokens)| {
            let mut delta = json!({"content": content, "reasoning": reasoning});
            if let Some(calls) = calls {
                delta["tool_calls"] = json!(calls);
            }
            let usage = tokens.map(|tokens| json!({"prompt_tokens": tokens, "completion_tokens": 1}));
            let chunk = json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": usage});
            format!("data: {chunk}\n\n")
        });
    let other = prop_oneof![
        Just(": comment\n\n"),
        Just("data:\n\n"),
        Just("data: : keepalive\n\n"),
        Just("data: {\"choices\":[]}\n\n"),
        Just("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":2}}\n\n"),
        Just("data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"x\"}}]}\n\n"),
        Just("data: {\"choices\":[{\"delta\":{\"content\":\"\\ud83d\"}}]}\n\n"),
        Just("data: {\"choices\":[{\"delta\":{\"content\":\"\\ude42\"}}]}\n\n"),
        Just("data: {\"error\":{\"message\":\"x\",\"code\":503}}\n\n"),
        Just("data: [DONE]\n\n"),
        Just("data: {\"choices\":"),
    ];
    prop_oneof![8 => delta, 1 => other.prop_map(str::to_owned)]
}

/// What a stream gives, read as said; the fault, if it ended with one.
fn read(route: Route, reads: &[&[u8]]) -> (Vec<u8>, Option<Fault>) {
    let mut reader = Reader::new(support::ask(route, true));
    let mut out = Vec::new();
    let mut result = reads.iter().try_for_each(|read| reader.feed(read, &mut out));
    if result.is_ok() {
        result = reader.end(None, &mut out);
    }
    (out, result.err())
}

/// One turn as an engine means it.
#[derive(Clone, Debug)]
struct Turn {
    reasoning: String,
    content: String,
    calls: Vec<(String, String)>,
    finish: &'static str,
}

fn any_turn() -> impl Strategy<Value = Turn> {
    let text = "[a-z\"\\\\\n é🙂]{0,12}";
    let arguments = prop_oneof![
        Just(String::new()),
        Just("null".to_owned()),
        Just("{}".to_owned()),
        Just("[1, 2]".to_owned()),
        Just(" {\"a\":1.0}\n".to_owned()),
        Just("\"{\\\"a\\\":[1e3]}\"".to_owned()),
        Just("{\"a\": oops}".to_owned()),
        Just("{\"a\":\"é🙂\\n".to_owned()),
        ("[a-z]{1,3}", text).prop_map(|(key, value)| json!({key: value}).to_string()),
    ];
    let finish = prop_oneof![Just("stop"), Just("tool_calls"), Just("length")];
    (text, text, prop::collection::vec(("[a-z_]{1,6}", arguments), 0..4), finish)
        .prop_map(|(reasoning, content, calls, finish)| Turn { reasoning, content, calls, finish })
}

/// `text` in pieces of `size` characters.
fn pieces(text: &str, size: usize) -> Vec<String> {
    let characters: Vec<_> = text.chars().collect();
    characters.chunks(size).map(|piece| piece.iter().collect()).collect()
}

impl Turn {
    fn usage() -> Value {
        json!({"prompt_tokens": 20, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 16}})
    }

    fn whole(&self) -> Vec<u8> {
        let calls: Vec<_> = (0..)
            .zip(&self.calls)
            .map(|(id, (name, arguments))| json!({"id": format!("call_{id}"), "function": {"name": name, "arguments": arguments}}))
            .collect();
        let message =
            json!({"role": "assistant", "reasoning": self.reasoning, "content": self.content, "tool_calls": calls});
        let choice = json!({"index": 0, "message": message, "finish_reason": self.finish});
        json!({"choices": [choice], "usage": Self::usage()}).to_string().into_bytes()
    }

    fn streamed(&self, size: usize, mix: bool) -> Vec<u8> {
        let mut deltas = vec![json!({"role": "assistant", "content": ""})];
        deltas.extend(pieces(&self.reasoning, size).into_iter().map(|piece| json!({"reasoning": piece})));
        deltas.extend(pieces(&self.content, size).into_iter().map(|piece| json!({"content": piece})));
        let mut fragments = Vec::new();
        for (index, (name, arguments)) in self.calls.iter().enumerate() {
            let first = json!({"index": index, "id": format!("call_{index}"), "function": {"name": name}});
            let rest = pieces(arguments, size)
                .into_iter()
                .map(|piece| json!({"index": index, "function": {"arguments": piece}}));
            fragments.push(std::iter::once(first).chain(rest).collect::<Vec<_>>());
        }
        if mix {
            // All calls at once, fragment by fragment.
            let longest = fragments.iter().map(Vec::len).max().unwrap_or(0);
            for at in 0..longest {
                let row: Vec<_> = fragments.iter().filter_map(|call| call.get(at)).collect();
                deltas.push(json!({"tool_calls": row}));
            }
        } else {
            deltas.extend(fragments.concat().into_iter().map(|fragment| json!({"tool_calls": [fragment]})));
        }
        let mut chunks: Vec<_> = deltas
            .into_iter()
            .map(|delta| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]}))
            .collect();
        chunks.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": self.finish}]}));
        chunks.push(json!({"choices": [], "usage": Self::usage()}));
        let mut body: Vec<u8> = chunks.iter().flat_map(|chunk| format!("data: {chunk}\n\n").into_bytes()).collect();
        body.extend_from_slice(b"data: [DONE]\n\n");
        body
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_order_of_chunks_gives_a_valid_stream(steps in prop::collection::vec(any_step(), 0..12)) {
        let body = steps.concat().into_bytes();
        let (out, fault) = read(Route::Messages, &[&body]);
        let seen = support::follow(&out);
        match fault {
            None => prop_assert!(seen.stopped),
            Some(_) => prop_assert!(out.is_empty() || seen.error.is_some() || seen.stopped),
        }
    }

    #[test]
    fn any_cut_gives_the_same_bytes(
        steps in prop::collection::vec(any_step(), 0..12),
        size in 1_usize..64,
        route in prop_oneof![Just(Route::Messages), Just(Route::Chat), Just(Route::Responses)],
    ) {
        let body = steps.concat().into_bytes();
        let cut: Vec<_> = body.chunks(size).collect();
        prop_assert_eq!(read(route, &[&body]), read(route, &cut));
    }

    #[test]
    fn a_stream_says_what_the_whole_answer_says(turn in any_turn(), size in 1_usize..9, mix: bool) {
        let (out, fault) = read(Route::Messages, &[&turn.streamed(size, mix)]);
        prop_assert_eq!(fault, None);
        let streamed = support::follow(&out).message;
        let whole = Reader::new(support::ask(Route::Messages, false)).whole(&Bytes::from(turn.whole())).unwrap();
        let whole: Value = serde_json::from_slice(&whole).unwrap();
        prop_assert_eq!(&streamed, &whole);
        // And a stream that was not asked for says the same.
        let folded = Reader::new(support::ask(Route::Messages, false)).whole(&Bytes::from(turn.streamed(size, mix))).unwrap();
        prop_assert_eq!(&serde_json::from_slice::<Value>(&folded).unwrap(), &whole);
    }

    #[test]
    fn a_whole_answer_becomes_a_stream(turn in any_turn()) {
        let mut reader = Reader::new(support::ask(Route::Messages, true));
        let mut out = Vec::new();
        reader.whole_as_stream(&Bytes::from(turn.whole()), &mut out).unwrap();
        let whole = Reader::new(support::ask(Route::Messages, false)).whole(&Bytes::from(turn.whole())).unwrap();
        prop_assert_eq!(support::follow(&out).message, serde_json::from_slice::<Value>(&whole).unwrap());
    }

    #[test]
    fn pings_go_between_events(turn in any_turn(), size in 1_usize..200) {
        let body = turn.streamed(3, false);
        let quiet = support::follow(&read(Route::Messages, &[&body]).0).message;
        let mut reader = Reader::new(support::ask(Route::Messages, true));
        let mut out = Vec::new();
        for read in body.chunks(size) {
            reader.feed(read, &mut out).unwrap();
            reader.ping(&mut out);
        }
        reader.end(None, &mut out).unwrap();
        let seen = support::follow(&out);
        prop_assert!(seen.stopped);
        prop_assert_eq!(seen.message, quiet);
    }

    #[test]
    fn passed_bytes_are_untouched(
        steps in prop::collection::vec(any_step(), 0..12),
        route in prop_oneof![Just(Route::Chat), Just(Route::Completions), Just(Route::Responses)],
    ) {
        let whole = steps.into_iter().filter(|step| step.ends_with("\n\n")).collect::<String>().into_bytes();
        let (out, fault) = read(route, &[&whole]);
        // A stream without an end has an error event behind its own bytes.
        prop_assert!(out.starts_with(&whole));
        prop_assert!(out.len() == whole.len() || fault.is_some());
    }

    #[test]
    fn no_bytes_make_it_fail(
        soup in prop::collection::vec(any::<u8>(), 0..400),
        route in prop_oneof![
            Just(Route::Messages), Just(Route::Chat), Just(Route::Responses), Just(Route::Models), Just(Route::CountTokens),
        ],
        native: bool,
        status in 400_u16..600,
    ) {
        let mut ask = support::ask(route, true);
        (ask.native, ask.model_mapped, ask.usage_injected, ask.anthropic) = (native, true, true, true);
        let mut reader = Reader::new(ask.clone());
        let mut out = Vec::new();
        let _ = reader.feed(&soup, &mut out).and_then(|()| reader.end(None, &mut out));
        let _ = Reader::new(ask.clone()).whole(&Bytes::from(soup.clone()));
        let _ = Reader::new(ask).refused(status, &soup, None);
    }
}
