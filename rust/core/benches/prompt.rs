//! What the journal costs a request: `cargo bench -p foreword-core --bench prompt`.
//!
//! Bodies are a recorded session of Claude Code's, its messages repeated until the body has the wanted size: as recorded,
//! where a segment has some 300 bytes of text, and with the results of tools as long as files are. Rates are of decoded
//! text, which is what is hashed.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::io::Read;

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use flate2::read::GzDecoder;
use foreword_core::json::Tape;
use foreword_core::profile::{Engine, Profile};
use foreword_core::prompt::cut::{Form, cut};
use foreword_core::prompt::journal::{Entry, Journal, Limits, Told, Who};
use foreword_core::prompt::segment::Prompt;
use foreword_core::usage::EngineUsage;
use serde_json::{Value, json};

fn main() {
    divan::main();
}

const SIZES: [usize; 2] = [500_000, 5_000_000];
const SESSION: &[u8] =
    include_bytes!("../../../tests/fixtures/corpus/claude-code-2.1.332_rich_live.json.gz").as_slice();

fn profile() -> Profile {
    Profile { engine: Engine::Vllm, ..Profile::default() }
}

/// The session's last body, its messages repeated up to `bytes`, the text of each tool's result `longer` times.
fn body(bytes: usize, longer: usize) -> String {
    let mut text = String::new();
    GzDecoder::new(SESSION).read_to_string(&mut text).unwrap();
    let requests: Vec<Value> = serde_json::from_str(&text).unwrap();
    let last = requests.iter().rfind(|request| request["path"].as_str().unwrap().starts_with("/v1/messages"));
    let mut body = last.unwrap()["body"].clone();
    let mut messages = body["messages"].as_array().unwrap().clone();
    let blocks = messages.iter_mut().filter_map(|message| message["content"].as_array_mut()).flatten();
    for block in blocks.filter(|block| block["type"] == "tool_result" && block["content"].is_string()) {
        block["content"] = json!(block["content"].as_str().unwrap().repeat(longer));
    }
    let more = messages.iter().map(|message| message.to_string().len()).sum::<usize>();
    body["messages"] = json!([]);
    let times = bytes.saturating_sub(body.to_string().len()) / more;
    body["messages"] = json!((0..times.max(1)).flat_map(|_| messages.clone()).collect::<Vec<_>>());
    body.to_string()
}

fn prompt(body: &str, tape: &mut Tape) -> Prompt {
    cut(tape.scan(body.as_bytes()).unwrap(), Form::Translated, &profile())
}

/// Scan, segments, chain: from the body to its prompt.
#[divan::bench(args = SIZES)]
fn scan_and_cut(bencher: Bencher<'_, '_>, bytes: usize) {
    scanned_and_cut(bencher, &body(bytes, 1));
}

/// The same with results as long as files.
#[divan::bench(args = SIZES)]
fn scan_and_cut_files(bencher: Bencher<'_, '_>, bytes: usize) {
    scanned_and_cut(bencher, &body(bytes, 20));
}

fn scanned_and_cut(bencher: Bencher<'_, '_>, body: &str) {
    let mut tape = Tape::new();
    let text = prompt(body, &mut tape).bytes();
    bencher.counter(BytesCount::new(text)).bench_local(|| prompt(black_box(body), &mut tape).bytes());
}

/// The same without the scan, which `prepare` has done already.
#[divan::bench(args = SIZES)]
fn cut_alone(bencher: Bencher<'_, '_>, bytes: usize) {
    cut_of(bencher, &body(bytes, 1));
}

/// The same with results as long as files.
#[divan::bench(args = SIZES)]
fn cut_alone_files(bencher: Bencher<'_, '_>, bytes: usize) {
    cut_of(bencher, &body(bytes, 20));
}

fn cut_of(bencher: Bencher<'_, '_>, body: &str) {
    let mut tape = Tape::new();
    let root = tape.scan(body.as_bytes()).unwrap();
    let profile = profile();
    let text = cut(root, Form::Translated, &profile).bytes();
    bencher.counter(BytesCount::new(text)).bench_local(|| cut(black_box(root), Form::Translated, &profile).bytes());
}

/// A line of so many turns of 4 KB each, and its next two prompts.
fn long_line(turns: usize) -> (Journal, Vec<Prompt>, Who) {
    let who = Who { session: Some(1), client: "claude-code", shown: None };
    let mut journal = Journal::new(Limits { lines: 4096, bytes: 128 << 20 });
    let mut body = json!({"model": "m", "system": "You are.".repeat(2000), "messages": []});
    let mut next = Vec::new();
    let mut tape = Tape::new();
    for turn in 0..turns + 2 {
        let messages = body["messages"].as_array_mut().unwrap();
        if turn > 0 {
            messages.push(json!({"role": "assistant", "content": format!("answer {turn} ").repeat(60)}));
        }
        messages.push(json!({"role": "user", "content": format!("words of turn {turn} ").repeat(180)}));
        let prompt = prompt(&body.to_string(), &mut tape);
        if turn < turns {
            turn_of(&mut journal, &prompt, &who);
        } else {
            next.push(prompt);
        }
    }
    (journal, next, who)
}

fn turn_of(journal: &mut Journal, prompt: &Prompt, who: &Who) -> Entry {
    let standing = journal.look(prompt, who);
    let entry = journal.enter(prompt, &standing, who, "m", 0.0).unwrap();
    let usage = EngineUsage {
        prompt: Some(prompt.bytes() / 4),
        cached: Some(prompt.bytes() / 4 / 16 * 16),
        ..EngineUsage::default()
    };
    let told = Told { request_id: "req", message_id: None, time: 0.0, usage };
    journal.settle(&entry, &standing, &told, &profile());
    entry
}

/// Where one more turn of a long line stands.
#[divan::bench(args = [100, 1000])]
fn look(bencher: Bencher<'_, '_>, turns: usize) {
    let (journal, next, who) = long_line(turns);
    bencher.bench_local(|| journal.look(black_box(&next[0]), &who));
}

/// Where a prompt stands that changed in the midst of a long line: it is compared with the line's whole prompt.
#[divan::bench(args = [100, 1000])]
fn look_changed(bencher: Bencher<'_, '_>, turns: usize) {
    let (journal, next, who) = long_line(turns);
    let mut changed = next[0].clone();
    let half = changed.segments.len() / 2;
    changed.segments[half..].iter_mut().for_each(|segment| segment.chain ^= 1);
    changed.segments[half].digest ^= 1;
    let from = changed.segments[half - 1].blocks as usize;
    changed.blocks[from..].iter_mut().for_each(|block| *block ^= 1);
    bencher.bench_local(|| journal.look(black_box(&changed), &who));
}

/// One more turn of a long line, from the look to the verdict.
#[divan::bench(args = [100, 1000])]
fn one_more_turn(bencher: Bencher<'_, '_>, turns: usize) {
    let (mut journal, next, who) = long_line(turns);
    bencher.bench_local(|| turn_of(&mut journal, black_box(&next[0]), &who));
}
