//! The hot path of an answer: vLLM's chunks split, translated or passed. `cargo bench -p foreword-core --bench stream`.

#![allow(clippy::unwrap_used, missing_docs)]

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use foreword_core::answer::{Ask, Reader};
use foreword_core::profile::UsageMode;
use foreword_core::request::{Ids, Route};
use foreword_core::sse::{Event, Overlong, Splitter};

const EVENTS: usize = 250;
/// What a socket hands over at once when a stream is read as fast as it comes.
const READ: usize = 16 << 10;

fn main() {
    divan::main();
}

fn chunk(delta: &str) -> String {
    format!(
        r#"data: {{"id":"chatcmpl-a64b6b6cfa5ed454","object":"chat.completion.chunk","created":1796008542,"model":"tiny","choices":[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":null,"token_ids":null}}]}}"#
    ) + "\n\n"
}

/// A stream of one kind of delta, in vLLM 0.32's form.
fn stream(delta: impl Fn(usize) -> String) -> Vec<u8> {
    let mut body = chunk(r#"{"role":"assistant","content":""}"#);
    (0..EVENTS).for_each(|nth| body.push_str(&chunk(&delta(nth))));
    body.into_bytes()
}

fn text() -> Vec<u8> {
    let words = [" the", " prefix", "\\n\\n", " cache", " caf\u{e9}", "(", "\\\"x\\\"", " of"];
    stream(|nth| format!(r#"{{"content":"{}"}}"#, words[nth % words.len()]))
}

fn arguments() -> Vec<u8> {
    let opened = r#"{"content":null,"tool_calls":[{"id":"chatcmpl-tool-1","type":"function","index":0,"function":{"name":"write","arguments":"{\"text\":\""}}]}"#;
    stream(|nth| match nth {
        0 => opened.to_owned(),
        _ => r#"{"content":null,"tool_calls":[{"index":0,"function":{"arguments":" prefix"}}]}"#.to_owned(),
    })
}

fn run(bencher: Bencher<'_, '_>, route: Route, body: &[u8], mapped: bool) {
    let ask = Ask {
        route,
        native: false,
        stream: true,
        model: "claude-opus-5-5".to_owned(),
        model_mapped: mapped,
        usage_injected: true,
        usage: UsageMode::Net,
        ids: Ids { seed: 7 },
        estimate: 0,
        diagnostics: None,
        anthropic: false,
        aliases: Vec::new(),
    };
    let mut out = Vec::with_capacity(body.len() * 2);
    bencher.counter(BytesCount::new(body.len())).counter(ItemsCount::new(EVENTS)).bench_local(|| {
        let mut reader = Reader::new(ask.clone());
        out.clear();
        for read in body.chunks(READ) {
            reader.feed(divan::black_box(read), &mut out).unwrap();
        }
        out.len()
    });
}

#[divan::bench]
fn split_only(bencher: Bencher<'_, '_>) {
    let body = text();
    bencher.counter(BytesCount::new(body.len())).counter(ItemsCount::new(EVENTS)).bench_local(|| {
        let mut splitter = Splitter::new();
        let mut bytes = 0;
        for read in body.chunks(READ) {
            let count = |event: Event<'_>| -> Result<(), Overlong> {
                bytes += event.raw().len();
                Ok(())
            };
            splitter.feed(divan::black_box(read), count).unwrap();
        }
        bytes
    });
}

#[divan::bench]
fn translate_text(bencher: Bencher<'_, '_>) {
    run(bencher, Route::Messages, &text(), false);
}

#[divan::bench]
fn translate_tool_input(bencher: Bencher<'_, '_>) {
    run(bencher, Route::Messages, &arguments(), false);
}

#[divan::bench]
fn pass_text(bencher: Bencher<'_, '_>) {
    run(bencher, Route::Chat, &text(), false);
}

#[divan::bench]
fn pass_text_with_mapped_model(bencher: Bencher<'_, '_>) {
    run(bencher, Route::Chat, &text(), true);
}
