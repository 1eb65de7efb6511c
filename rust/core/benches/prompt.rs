//! What the journal costs a request: `cargo bench -p foreword-core --bench prompt`.
//!
//! Bodies are a recorded session of Claude Code's, its messages repeated until the body has the wanted size: as recorded,
//! where a segment has some 300 bytes of text, and with the results of tools as long as files are. Rates are of decoded
//! text, which is what is hashed.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod support;

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use foreword_core::json::Tape;
use foreword_core::prompt::cut::{Form, cut};
use foreword_core::prompt::journal::{Journal, Limits, Who};
use foreword_core::prompt::segment::Prompt;
use serde_json::json;
use support::{body, body_with_files, profile, prompt, turn_of};

fn main() {
    divan::main();
}

const SIZES: [usize; 2] = [500_000, 5_000_000];
/// How often the text of a tool's result is told so that it is as long as a file.
const FILES: usize = 20;

/// Scan, segments, chain: from the body to its prompt.
#[divan::bench(args = SIZES)]
fn scan_and_cut(bencher: Bencher<'_, '_>, bytes: usize) {
    scanned_and_cut(bencher, &body(bytes));
}

/// The same with results as long as files.
#[divan::bench(args = SIZES)]
fn scan_and_cut_files(bencher: Bencher<'_, '_>, bytes: usize) {
    scanned_and_cut(bencher, &body_with_files(bytes, FILES));
}

fn scanned_and_cut(bencher: Bencher<'_, '_>, body: &str) {
    let mut tape = Tape::new();
    let text = prompt(body, &mut tape).bytes();
    bencher.counter(BytesCount::new(text)).bench_local(|| prompt(black_box(body), &mut tape).bytes());
}

/// The same without the scan, which `prepare` has done already.
#[divan::bench(args = SIZES)]
fn cut_alone(bencher: Bencher<'_, '_>, bytes: usize) {
    cut_of(bencher, &body(bytes));
}

/// The same with results as long as files.
#[divan::bench(args = SIZES)]
fn cut_alone_files(bencher: Bencher<'_, '_>, bytes: usize) {
    cut_of(bencher, &body_with_files(bytes, FILES));
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
            turn_of(&mut journal, &prompt, &who, &profile());
        } else {
            next.push(prompt);
        }
    }
    (journal, next, who)
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
    let profile = profile();
    bencher.bench_local(|| turn_of(&mut journal, black_box(&next[0]), &who, &profile));
}

/// Where one more turn of a line stands among so many lines, all with the same system prompt.
#[divan::bench(args = [100, 300, 1000, 3000, 10_000])]
fn look_among(bencher: Bencher<'_, '_>, lines: u64) {
    let mut journal = Journal::new(Limits { lines: 100_000, bytes: 1 << 30 });
    let mut tape = Tape::new();
    let body = |line: u64| {
        let text = format!("words of line {line} ").repeat(50);
        json!({"model": "m", "system": "You are. ".repeat(200), "messages": [{"role": "user", "content": text}]})
    };
    let who = |line| Who { session: Some(line), client: "claude-code", shown: None };
    for line in 0..lines {
        turn_of(&mut journal, &prompt(&body(line).to_string(), &mut tape), &who(line), &profile());
    }
    let mut next = body(lines / 2);
    let messages = next["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": "an answer"}));
    messages.push(json!({"role": "user", "content": "and another question"}));
    let (next, who) = (prompt(&next.to_string(), &mut tape), who(lines / 2));
    bencher.bench_local(|| journal.look(black_box(&next), &who));
}
