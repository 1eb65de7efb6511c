//! What the scanner and the splicer cost: `cargo bench -p foreword-core --bench json`. Rates are of the body's bytes.

#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use bytes::Bytes;
use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use foreword_core::json::{Edits, Tape};

fn main() {
    divan::main();
}

const SIZES: [usize; 3] = [5_000, 500_000, 5_000_000];

#[divan::bench(args = SIZES)]
fn scan(bencher: Bencher<'_, '_>, bytes: usize) {
    let body = support::body(bytes);
    let mut tape = Tape::new();
    bencher
        .counter(BytesCount::new(body.len()))
        .bench_local(|| tape.scan(black_box(body.as_bytes())).unwrap().span().len());
}

/// One edit in each message.
fn edits(body: &str) -> Edits {
    let mut tape = Tape::new();
    let mut edits = Edits::new();
    for message in tape.scan(body.as_bytes()).unwrap().get("messages").unwrap().items() {
        edits.replace(message.get("role").unwrap().span(), r#""someone""#);
    }
    edits
}

/// Into a rope that shares what stays: what a body goes through.
#[divan::bench(args = SIZES)]
fn splice(bencher: Bencher<'_, '_>, bytes: usize) {
    let body = support::body(bytes);
    let edits = edits(&body);
    let body = Bytes::from(body);
    bencher
        .counter(BytesCount::new(body.len()))
        .with_inputs(|| edits.clone())
        .bench_local_values(|edits| edits.apply(black_box(&body)).into_parts());
}

/// Into one buffer: what an event of a stream goes through.
#[divan::bench(args = SIZES)]
fn splice_copied(bencher: Bencher<'_, '_>, bytes: usize) {
    let body = support::body(bytes);
    let edits = edits(&body);
    let mut out = Vec::with_capacity(body.len() * 2);
    bencher.counter(BytesCount::new(body.len())).with_inputs(|| edits.clone()).bench_local_values(|edits| {
        out.clear();
        edits.write(black_box(body.as_bytes()), &mut out);
        out.len()
    });
}
