//! The hot path of an answer: vLLM's chunks split, translated or passed. `cargo bench -p foreword-core --bench stream`.

#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use foreword_core::answer::Reader;
use foreword_core::request::Route;
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
    let ask = support::ask(route, mapped);
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

/// A recorded stream of text, thinking and two calls, one event a read, as the engine sent it.
#[divan::bench]
fn translate_recorded(bencher: Bencher<'_, '_>) {
    let ask = support::ask(Route::Messages, false);
    let chunks = support::chunks();
    let bytes: usize = chunks.iter().map(Vec::len).sum();
    let mut out = Vec::with_capacity(bytes * 2);
    bencher.counter(BytesCount::new(bytes)).counter(ItemsCount::new(chunks.len())).bench_local(|| {
        let mut reader = Reader::new(ask.clone());
        out.clear();
        for chunk in &chunks {
            reader.feed(divan::black_box(chunk), &mut out).unwrap();
        }
        reader.end(None, &mut out).unwrap();
        out.len()
    });
}
