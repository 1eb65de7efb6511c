//! What `prepare` costs: `cargo bench -p foreword-core --bench request`.
//!
//! Made bodies have the shape of a coding agent's: a system prompt behind a billing header, 23 tools, and turns of calls
//! and results whose text is source code, so with an escape every few dozen bytes. Recorded ones are a real client's, with
//! the messages repeated: many short texts. Rates are of the body's bytes.

mod support;

use bytes::Bytes;
use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use foreword_core::profile::Profile;
use foreword_core::request::{Ids, Request, Route, prepare};

fn main() {
    divan::main();
}

const SIZES: [usize; 3] = [5_000, 500_000, 5_000_000];
const HEADER: &str = r"x-anthropic-billing-header: cc_version=2.1.0.abc; cc_entrypoint=cli; cch=1a2b3;\n";
const CODE: &str = r#"    let Some(first) = self.items.get(index) else { return Err(Missing { name: \"first\", index }) };\n        total += first.weight * scale;\n"#;

fn lines(bytes: usize) -> String {
    CODE.repeat(bytes / CODE.len() + 1)
}

/// Calls `turn` until about `bytes` are filled.
fn filled(bytes: usize, turn: impl Fn(usize) -> String) -> String {
    let mut turns = String::new();
    let mut index = 0;
    while turns.len() < bytes {
        turns.push_str(&turn(index));
        index += 1;
    }
    turns
}

fn messages(bytes: usize) -> Bytes {
    let tool = |n: usize| {
        format!(
            r#"{{"name":"tool_{n}","description":"{}","input_schema":{{"type":"object","properties":{{"path":{{"type":"string"}}}}}}}}"#,
            lines(bytes / 200)
        )
    };
    let tools: Vec<_> = (0..23).map(tool).collect();
    let text = lines((bytes / 40).min(6_000));
    let turns = filled(bytes * 4 / 5, |n| {
        format!(
            r#",{{"role":"assistant","content":[{{"type":"tool_use","id":"c{n}","name":"tool_1","input":{{"path":"/a/{n}"}}}}]}},{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"c{n}","content":"{text}"}}]}}"#
        )
    });
    Bytes::from(format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":"go"}}{turns}],"system":[{{"type":"text","text":"{HEADER}{}"}}],"tools":[{}],"max_tokens":32000,"stream":true}}"#,
        lines(bytes / 20),
        tools.join(",")
    ))
}

fn chat(bytes: usize) -> Bytes {
    let text = lines((bytes / 40).min(6_000));
    let turns = filled(bytes, |n| {
        format!(
            r#",{{"role":"assistant","content":null,"tool_calls":[{{"id":"c{n}","type":"function","function":{{"name":"f","arguments":"{{}}"}}}}]}},{{"role":"tool","tool_call_id":"c{n}","content":"{text}"}}"#
        )
    });
    Bytes::from(format!(
        r#"{{"model":"m","stream":true,"messages":[{{"role":"system","content":"{HEADER}You are"}}{turns}]}}"#
    ))
}

fn run(bencher: Bencher, route: Route, body: &Bytes) {
    let profile = Profile::default();
    bencher.counter(BytesCount::new(body.len())).bench(|| {
        let request = Request { route, body: body.clone().into(), anthropic: false };
        prepare(black_box(request), &profile, Ids { seed: 1 })
    });
}

#[divan::bench(args = SIZES)]
fn translated(bencher: Bencher, bytes: usize) {
    run(bencher, Route::Messages, &messages(bytes));
}

#[divan::bench(args = SIZES)]
fn translated_recorded(bencher: Bencher, bytes: usize) {
    run(bencher, Route::Messages, &Bytes::from(support::body(bytes)));
}

#[divan::bench(args = SIZES)]
fn passed(bencher: Bencher, bytes: usize) {
    run(bencher, Route::Chat, &chat(bytes));
}

#[divan::bench(args = SIZES)]
fn counted(bencher: Bencher, bytes: usize) {
    run(bencher, Route::CountTokens, &messages(bytes));
}
