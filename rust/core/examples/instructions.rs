//! One deterministic workload, for counting its instructions: `instructions NAME`; without a name, the names.
//!
//! `.ci/instructions` runs it under callgrind, which counts inside [`counted_region`] only. What was worked on (bytes,
//! events, turns) is printed, so that a changed input is told from a changed cost.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "../benches/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::process::ExitCode;

use bytes::Bytes;
use foreword_core::answer::Reader;
use foreword_core::json::{Edits, Tape};
use foreword_core::prompt::cut::{Form, cut};
use foreword_core::prompt::journal::{Journal, Limits, Who};
use foreword_core::request::{Ids, Request, Route, prepare};
use foreword_core::sse::{Event, Overlong, Splitter};

/// How much of what is to be worked on, and the work, ready to be done.
type Workload = (usize, &'static str, Box<dyn FnMut()>);
/// A workload's name, and what makes it ready.
type Named = (&'static str, fn() -> Workload);

const WORKLOADS: [Named; 9] = [
    ("scan", scan),
    ("splice", splice),
    ("cut", cut_and_hash),
    ("journal", journal),
    ("split", split),
    ("translate-stream", || stream(Route::Messages)),
    ("pass-stream", || stream(Route::Chat)),
    ("translate-5kb", || translate(5_000)),
    ("translate-500kb", || translate(500_000)),
];

/// Bytes of a long conversation's body.
const LONG: usize = 500_000;
/// How often the recorded stream is read: it has some 50 events.
const STREAMS: usize = 20;

fn main() -> ExitCode {
    let Some(name) = std::env::args().nth(1) else {
        for (name, _) in WORKLOADS {
            println!("{name}");
        }
        return ExitCode::SUCCESS;
    };
    let Some((_, ready)) = WORKLOADS.iter().find(|(known, _)| *known == name) else {
        eprintln!("no workload is called {name}");
        return ExitCode::from(2);
    };
    let (amount, unit, mut work) = ready();
    counted_region(&mut *work);
    println!("{amount} {unit}");
    ExitCode::SUCCESS
}

/// What callgrind counts, found by this name: neither generic nor inlined, so that there is one of it.
#[inline(never)]
fn counted_region(work: &mut dyn FnMut()) {
    work();
    // Keeps the call above from becoming a jump out of this function, at which counting would end.
    black_box(());
}

fn scan() -> Workload {
    let body = support::body(LONG);
    let bytes = body.len();
    let work = move || {
        black_box(Tape::new().scan(body.as_bytes()).unwrap().span());
    };
    (bytes, "bytes", Box::new(work))
}

/// One edit in each message, made and applied; the body is scanned before.
fn splice() -> Workload {
    let body = support::body(LONG);
    let bytes = body.len();
    let mut tape = Tape::new();
    let root = tape.scan(body.as_bytes()).unwrap();
    let roles: Vec<_> =
        root.get("messages").unwrap().items().map(|message| message.get("role").unwrap().span()).collect();
    let body = Bytes::from(body);
    let work = move || {
        let mut edits = Edits::new();
        for role in &roles {
            edits.replace(role.clone(), r#""someone""#);
        }
        black_box(edits.apply(&body).into_parts());
    };
    (bytes, "bytes", Box::new(work))
}

/// Scan, segments and their chained digests.
fn cut_and_hash() -> Workload {
    let body = support::body(LONG);
    let bytes = body.len();
    let profile = support::profile();
    let work = move || {
        let mut tape = Tape::new();
        black_box(cut(tape.scan(body.as_bytes()).unwrap(), Form::Translated, &profile));
    };
    (bytes, "bytes", Box::new(work))
}

/// A recorded session, turn by turn: look, enter, settle.
fn journal() -> Workload {
    let mut tape = Tape::new();
    let prompts: Vec<_> = support::session().iter().map(|body| support::prompt(body, &mut tape)).collect();
    let turns = prompts.len();
    let mut journal = Journal::new(Limits { lines: 4096, bytes: 128 << 20 });
    let who = Who { session: Some(1), client: "claude-code", shown: None };
    let profile = support::profile();
    let work = move || {
        for prompt in &prompts {
            support::turn_of(&mut journal, prompt, &who, &profile);
        }
    };
    (turns, "turns", Box::new(work))
}

fn split() -> Workload {
    let chunks = support::chunks();
    let events = chunks.len() * STREAMS;
    let work = move || {
        for _ in 0..STREAMS {
            let mut splitter = Splitter::new();
            for chunk in &chunks {
                let each = |event: Event<'_>| -> Result<(), Overlong> {
                    black_box(event.raw());
                    Ok(())
                };
                splitter.feed(black_box(chunk), each).unwrap();
            }
        }
    };
    (events, "events", Box::new(work))
}

/// The recorded stream, from head to end, one event a read.
fn stream(route: Route) -> Workload {
    let chunks = support::chunks();
    let events = chunks.len() * STREAMS;
    let work = move || {
        let mut out = Vec::new();
        for _ in 0..STREAMS {
            let mut reader = Reader::new(support::ask(route, false));
            for chunk in &chunks {
                out.clear();
                reader.feed(black_box(chunk), &mut out).unwrap();
            }
            reader.end(None, &mut out).unwrap();
        }
    };
    (events, "events", Box::new(work))
}

/// A Messages body, as it comes, to the chat body upstream.
fn translate(bytes: usize) -> Workload {
    let body = Bytes::from(support::body(bytes));
    let bytes = body.len();
    let profile = support::profile();
    let work = move || {
        let request = Request { route: Route::Messages, body: body.clone().into(), anthropic: true };
        black_box(prepare(request, &profile, Ids { seed: 1 }).map(|prepared| prepared.body).ok().unwrap());
    };
    (bytes, "bytes", Box::new(work))
}
