//! The seeds of the fuzz targets, taken from the golden files.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::Path;

use serde_json::Value;

/// The seeds of a target: what the golden files hold for it, and `fuzz/TARGET/*`, where inputs that once failed stay.
pub fn of(target: &str, fixtures: &Path) -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = match target {
        "scanner" => with_head(&[], requests(fixtures).chain(answers(fixtures))),
        "splicer" => with_head(b"\x00\x00\x51\x01\xa2\x02\xf3\x03\n", requests(fixtures)),
        "sse" => with_head(b"\x07", streams(fixtures)),
        "request" => (0..16).step_by(5).flat_map(|head| with_head(&[head, 0], requests(fixtures))).collect(),
        "stream" => [0, 1, 2, 3].into_iter().flat_map(|head| with_head(&[head, 7], streams(fixtures))).collect(),
        "chunks" => (0..64_u8).map(|seed| (0..96_u8).map(|at| at.wrapping_mul(seed) ^ (at >> 1)).collect()).collect(),
        "header" => HEADERS.iter().map(|text| [b"\x00", text.as_bytes()].concat()).collect(),
        "decompression" => {
            (0..8).flat_map(|head| with_head(&[head], BODIES.iter().map(|body| body.to_vec()))).collect()
        }
        "http1" => with_head(b"\x05", ANSWERS.iter().map(|answer| answer.as_bytes().to_vec())),
        other => panic!("no such target: {other}"),
    };
    let mut kept: Vec<_> = fs::read_dir(fixtures.join("fuzz").join(target))
        .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
        .unwrap_or_default();
    kept.sort();
    seeds.extend(kept.iter().map(|path| fs::read(path).unwrap()));
    seeds
}

const HEADERS: &[&str] = &[
    "x-anthropic-billing-header: cc_version=2.1.116.fcf; cc_entrypoint=sdk-cli; cch=5d5a2;",
    "x-anthropic-billing-header: cc_version=2.1.332.307; cc_entrypoint=cli; cc_is_subagent=true;\nYou are",
    " \n\tx-anthropic-billing-header:cch=1You are; mode=plan;",
    "x-anthropic-billing-header: cch=00000;\n\nx-anthropic-billing-header: cc_version=1;text",
    "The x-anthropic-billing-header: cch=1; is a header.",
    "x-anthropic-billing-header: of an unknown shape",
];

const ANSWERS: &[&str] = &[
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
     1c;x=\"y\"\r\ndata: {\"choices\":[],\"a\":1}\n\n\r\n0e\r\ndata: [DONE]\n\n\r\n0\r\nx-took: 1\r\n\r\n",
    "HTTP/1.1 200 OK\r\ncontent-length: 12\r\nconnection: close\r\n\r\n{\"id\":\"a\"} \nHTTP/1.1",
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\nHTTP/1.1 404 Not Found\r\n\r\nno",
    "HTTP/1.0 200 OK\r\nserver: old\r\n\r\nuntil the end",
    "HTTP/1.1 204 No Content\r\ncontent-length: 3\r\n\r\nabc",
    "HTTP/1.1 503 Service Unavailable\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\ncontent-length: 3, 3\r\nTransfer-Encoding: identity\r\n\r\nabc",
];

const BODIES: &[&[u8]] = &[
    b"",
    br#"{"model":"m","input":"hi"}"#,
    // gzip, zlib and zstd of short texts.
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x4b\x4c\x4a\x06\x00\xc2\x41\x24\x35\x03\x00\x00\x00",
    b"\x78\x9c\x4b\x4c\x4a\x06\x00\x02\x4d\x01\x27",
    b"\x28\xb5\x2f\xfd\x00\x58\xd9\x00\x00{\"model\":\"m\",\"messages\":[]}",
];

fn with_head(head: &[u8], bodies: impl Iterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    bodies.map(|body| [head, &body].concat()).collect()
}

fn golden(fixtures: &Path, folder: &str) -> Vec<Value> {
    let mut paths: Vec<_> = fs::read_dir(fixtures.join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()).collect()
}

/// The bytes that a body stands for.
fn bytes_of(body: &Value) -> Vec<u8> {
    body.as_str().map_or_else(|| body.to_string().into_bytes(), |text| text.as_bytes().to_vec())
}

fn requests(fixtures: &Path) -> impl Iterator<Item = Vec<u8>> {
    golden(fixtures, "requests").into_iter().map(|case| bytes_of(&case["request"]))
}

fn answers(fixtures: &Path) -> impl Iterator<Item = Vec<u8>> {
    golden(fixtures, "answers")
        .into_iter()
        .filter(|case| !case["upstream"]["body"].is_null())
        .map(|case| bytes_of(&case["upstream"]["body"]))
}

fn streams(fixtures: &Path) -> impl Iterator<Item = Vec<u8>> {
    golden(fixtures, "answers").into_iter().filter_map(|case| {
        let upstream = &case["upstream"];
        if let Some(events) = upstream["data"].as_array() {
            let event = |data: &Value| [b"data: ", &bytes_of(data)[..], b"\n\n"].concat();
            return Some(events.iter().flat_map(event).collect());
        }
        upstream["text"].as_str().map(|text| text.as_bytes().to_vec())
    })
}
