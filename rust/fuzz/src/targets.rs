//! The fuzz targets: each takes any bytes and panics where a promise of core's is broken.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fmt::Write as _;
use std::io::Write as _;

use bytes::Bytes;
use foreword_core::answer::Reader;
use foreword_core::encoding;
use foreword_core::error::Fault;
use foreword_core::http1::{Malformed, read_head};
use foreword_core::json::{Edits, Kind, MAX_DEPTH, Scanning, Tape, Text, Value as Span};
use foreword_core::normalize::billing_header::{self, Header};
use foreword_core::profile::{Engine, LateSystem, MessagesMode, ModelMap, Profile, UsageMode};
use foreword_core::request::{Ids, Request, Route, prepare};
use foreword_core::sse::{Event, Overlong, Splitter};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::support::{self, upstream};

/// A target's name, and what it does with an input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const ALL: &[Target] = &[
    ("scanner", scanner),
    ("splicer", splicer),
    ("sse", sse),
    ("request", request),
    ("stream", stream),
    ("chunks", chunks),
    ("header", header),
    ("decompression", decompression),
    ("http1", http1),
];

/// The scanner takes exactly what JSON is, and its spans make up the text again.
pub fn scanner(data: &[u8]) {
    let mut tape = Tape::new();
    let scanned = tape.scan(data);
    if let Ok(text) = std::str::from_utf8(data) {
        let strict = serde_json::from_str::<&RawValue>(text).is_ok() && depth(data) <= MAX_DEPTH;
        assert_eq!(scanned.is_ok(), strict, "{scanned:?}");
    }
    // However it arrives, it is the same text.
    let mut scanning = Scanning::default();
    for cut in [data.len() / 3, data.len().div_ceil(3), data.len() - data.len() / 3] {
        scanning.advance(data.get(..cut).unwrap_or_default());
    }
    let arrived = scanning.end(Bytes::copy_from_slice(data));
    assert_eq!(arrived.as_ref().err(), scanned.as_ref().err());
    let (Ok(root), Ok(arrived)) = (scanned, arrived) else { return };
    for root in [root, arrived.root()] {
        let mut walked = Vec::new();
        walk(root, &mut walked);
        assert_eq!(walked, compact(data));
    }
}

fn walk(value: Span<'_>, out: &mut Vec<u8>) {
    match value.kind() {
        Kind::Object => {
            for (place, (name, value)) in value.entries().enumerate() {
                out.push(if place == 0 { b'{' } else { b',' });
                walk(name, out);
                out.push(b':');
                walk(value, out);
            }
            out.extend_from_slice(if value.entries().next().is_none() { b"{}" } else { b"}" });
        }
        Kind::Array => {
            for (place, item) in value.items().enumerate() {
                out.push(if place == 0 { b'[' } else { b',' });
                walk(item, out);
            }
            out.extend_from_slice(if value.items().next().is_none() { b"[]" } else { b"]" });
        }
        Kind::String => {
            check_text(value);
            out.extend_from_slice(value.raw());
        }
        _ => out.extend_from_slice(value.raw()),
    }
}

fn check_text(literal: Span<'_>) {
    let text = literal.as_text().unwrap();
    let plain = text.decode();
    if let Ok(strict) = serde_json::from_slice::<String>(literal.raw()) {
        assert_eq!(plain, strict);
        assert!(text.is(&strict));
    }
    if std::str::from_utf8(literal.raw()).is_ok() {
        assert_eq!(text.decoded_len(), plain.len());
        assert_eq!(text.chars().map(|(character, _)| character).collect::<String>(), plain);
    }
}

/// The nesting of a text that is JSON.
fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    outside_strings(json, |byte| match byte {
        b'{' | b'[' => {
            depth += 1;
            deepest = deepest.max(depth);
        }
        b'}' | b']' => depth = depth.saturating_sub(1),
        _ => {}
    });
    deepest
}

/// Calls `each` for every byte that is not within a string.
fn outside_strings(json: &[u8], mut each: impl FnMut(u8)) {
    let (mut inside, mut escaped) = (false, false);
    for &byte in json {
        if inside {
            inside = byte != b'"' || escaped;
            escaped = byte == b'\\' && !escaped;
        } else {
            inside = byte == b'"';
            each(byte);
        }
    }
}

/// The text without white space between its tokens.
fn compact(json: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(json.len());
    let (mut inside, mut escaped) = (false, false);
    for &byte in json {
        if inside || !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            text.push(byte);
        }
        if inside {
            inside = byte != b'"' || escaped;
            escaped = byte == b'\\' && !escaped;
        } else {
            inside = byte == b'"';
        }
    }
    text
}

/// A JSON text as a tree of what was written.
#[derive(Debug)]
enum Tree {
    Object(Vec<(Vec<u8>, Tree)>),
    Array(Vec<Tree>),
    Leaf(Vec<u8>),
}

impl Tree {
    fn of(value: Span<'_>) -> Self {
        match value.kind() {
            Kind::Object => {
                Self::Object(value.entries().map(|(name, value)| (name.raw().to_vec(), Self::of(value))).collect())
            }
            Kind::Array => Self::Array(value.items().map(Self::of).collect()),
            _ => Self::Leaf(value.raw().to_vec()),
        }
    }

    /// The container with that number, counted from the root.
    fn container(&mut self, at: &mut usize) -> Option<&mut Self> {
        if !matches!(self, Self::Leaf(_)) {
            if *at == 0 {
                return Some(self);
            }
            *at -= 1;
        }
        match self {
            Self::Object(members) => members.iter_mut().find_map(|(_, value)| value.container(at)),
            Self::Array(items) => items.iter_mut().find_map(|item| item.container(at)),
            Self::Leaf(_) => None,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Object(members) => {
                out.push(b'{');
                for (place, (name, value)) in members.iter().enumerate() {
                    if place > 0 {
                        out.push(b',');
                    }
                    out.extend_from_slice(name);
                    out.push(b':');
                    value.write(out);
                }
                out.push(b'}');
            }
            Self::Array(items) => {
                out.push(b'[');
                for (place, item) in items.iter().enumerate() {
                    if place > 0 {
                        out.push(b',');
                    }
                    item.write(out);
                }
                out.push(b']');
            }
            Self::Leaf(raw) => out.extend_from_slice(raw),
        }
    }
}

fn container<'t>(value: Span<'t>, at: &mut usize) -> Option<Span<'t>> {
    if matches!(value.kind(), Kind::Object | Kind::Array) {
        if *at == 0 {
            return Some(value);
        }
        *at -= 1;
    }
    match value.kind() {
        Kind::Object => value.entries().find_map(|(_, value)| container(value, at)),
        Kind::Array => value.items().find_map(|item| container(item, at)),
        _ => None,
    }
}

/// Splices do to a text what the same operations do to its tree, one after the other. The input's first line says
/// which operations, two bytes each.
pub fn splicer(data: &[u8]) {
    let Some(line) = data.iter().position(|&byte| byte == b'\n') else { return };
    let mut text = Bytes::copy_from_slice(&data[line + 1..]);
    if depth(&text) > 100 {
        return;
    }
    for operation in data[..line.min(16)].chunks_exact(2) {
        let mut tape = Tape::new();
        let Ok(root) = tape.scan(&text) else { return };
        let mut tree = Tree::of(root);
        let (number, which) = (usize::from(operation[1]), operation[0]);
        let Some(target) = container(root, &mut number.clone()) else { continue };
        let mut edits = Edits::new();
        match (tree.container(&mut number.clone()).unwrap(), which & 3) {
            (Tree::Array(items), _) => {
                let gone = |place: usize| which >> (2 + place % 6) & 1 == 1;
                edits.remove_items(target, gone);
                let mut place = 0..;
                items.retain(|_| !gone(place.next().unwrap()));
            }
            (Tree::Object(members), 0 | 1) => {
                edits.add_member(target, "\"added\":[1, 2]");
                members.push((b"\"added\"".to_vec(), Tree::Leaf(b"[1,2]".to_vec())));
            }
            (Tree::Object(members), 2) => {
                let Some((name, _)) = target.entries().nth(usize::from(which >> 2)) else { continue };
                let name = name.as_text().unwrap().decode().into_owned();
                edits.remove_member(target, &name);
                members.retain(|(other, _)| !Text::new(&other[1..other.len() - 1]).is(&name));
            }
            (Tree::Object(members), _) => {
                let Some((_, value)) = target.entries().nth(usize::from(which >> 2)) else { continue };
                edits.replace(value.span(), *b"null");
                members[usize::from(which >> 2)].1 = Tree::Leaf(b"null".to_vec());
            }
            (Tree::Leaf(_), _) => unreachable!("a leaf is no container"),
        }
        let mut wanted = Vec::new();
        tree.write(&mut wanted);
        let mut written = Vec::new();
        edits.clone().write(&text, &mut written);
        let rope = edits.apply(&text);
        assert_eq!(rope.len(), written.len());
        assert_eq!(rope.to_vec(), written);
        assert_eq!(rope.into_parts().concat(), written);
        assert_eq!(String::from_utf8_lossy(&compact(&written)), String::from_utf8_lossy(&wanted));
        text = written.into();
    }
}

type Read = (Option<Vec<u8>>, Vec<u8>);

/// Any cut gives the same events, all bytes come back, and names and data are those of the published algorithm. The
/// first byte says where the cuts are.
pub fn sse(data: &[u8]) {
    let Some((&seed, stream)) = data.split_first() else { return };
    let whole = events(&[stream]);
    let raw: Vec<u8> = whole.iter().flat_map(|(raw, _)| raw.clone()).collect();
    assert_eq!(raw, stream);
    assert_eq!(whole, events(&cut(stream, seed)));
    assert_eq!(whole, events(&stream.chunks(1).collect::<Vec<_>>()));
    let read: Vec<_> = whole.into_iter().filter_map(|(_, read)| read).collect();
    assert_eq!(read, published(stream));
}

/// Any cut of an answer reads the same, up to its end and not beyond, and a head is found when its last byte is there.
/// The first byte says where the cuts are.
pub fn http1(data: &[u8]) {
    let Some((&seed, answer)) = data.split_first() else { return };
    let whole = read_answer(&[answer]);
    assert_eq!(whole, read_answer(&cut(answer, seed)));
    assert_eq!(whole, read_answer(&answer.chunks(1).collect::<Vec<_>>()));
}

/// What was read of an answer: its status, its content, how many bytes stand behind it, whether it ended.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answered {
    status: Option<u16>,
    content: Vec<u8>,
    behind: usize,
    ended: bool,
    malformed: bool,
}

fn read_answer(reads: &[&[u8]]) -> Answered {
    let mut answer = Answered::default();
    let mut body = None;
    let mut head = Vec::new();
    for read in reads {
        let mut piece = read.to_vec();
        if body.is_none() {
            head.extend_from_slice(&piece);
            match read_head(&head, &http::Method::POST) {
                Ok(None) => continue,
                Ok(Some((found, framing, length))) => {
                    answer.status = Some(found.status.as_u16());
                    body = Some(framing);
                    piece = head.split_off(length);
                }
                Err(reason) => {
                    assert!(matches!(reason, Malformed::Head(_)));
                    answer.malformed = true;
                    return answer;
                }
            }
        }
        let Some(framing) = &mut body else { continue };
        let Ok(decoded) = framing.decode(&mut piece) else {
            answer.malformed = true;
            return answer;
        };
        assert!(decoded.content <= decoded.used && decoded.used <= piece.len());
        answer.content.extend_from_slice(&piece[..decoded.content]);
        if framing.check().is_err() {
            answer.malformed = true;
            return answer;
        }
        answer.behind += piece.len() - decoded.used;
        assert!(answer.behind == 0 || framing.is_over());
    }
    answer.ended = body.is_some_and(|mut framing| framing.close().is_ok());
    answer
}

fn events(reads: &[&[u8]]) -> Vec<(Vec<u8>, Option<Read>)> {
    let mut splitter = Splitter::new();
    let mut list = Vec::new();
    let mut take = |event: Event<'_>| -> Result<(), Overlong> {
        let mut scratch = Vec::new();
        let read = event.data(&mut scratch).map(|data| (event.name().map(<[u8]>::to_vec), data.to_vec()));
        list.push((event.raw().to_vec(), read));
        Ok(())
    };
    for read in reads {
        splitter.feed(read, &mut take).unwrap();
    }
    splitter.finish(&mut take).unwrap();
    list
}

/// The events of a stream, read line by line as the HTML standard tells it; but what stands behind the last blank line
/// counts as well.
fn published(stream: &[u8]) -> Vec<Read> {
    let stream = stream.strip_prefix(b"\xef\xbb\xbf").unwrap_or(stream);
    let mut list = Vec::new();
    let (mut name, mut data): (Option<Vec<u8>>, Vec<Vec<u8>>) = (None, Vec::new());
    let mut rest = stream;
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')).unwrap_or(rest.len());
        let line = &rest[..end];
        let skip = if rest[end..].starts_with(b"\r\n") { 2 } else { 1 };
        rest = rest.get(end + skip..).unwrap_or_default();
        let colon = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value).to_vec();
        match &line[..colon] {
            b"event" => name = Some(value),
            b"data" => data.push(value),
            _ => {}
        }
        if line.is_empty() || rest.is_empty() {
            let joined = data.join(&b'\n');
            if !joined.is_empty() {
                list.push((name.take(), joined));
            }
            name = None;
            data.clear();
        }
    }
    list
}

/// Cuts a stream at places that follow from `seed`.
fn cut(stream: &[u8], seed: u8) -> Vec<&[u8]> {
    let mut state = u32::from(seed) | 0x100;
    let mut reads = Vec::new();
    let mut rest = stream;
    while !rest.is_empty() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (read, tail) = rest.split_at(((state >> 24) as usize % 37 + 1).min(rest.len()));
        reads.push(read);
        rest = tail;
    }
    reads
}

/// What goes upstream for any body is JSON, of a chat engine's form where it was translated, and the same each time. The
/// first two bytes say route and settings.
pub fn request(data: &[u8]) {
    let &[head, more, ref body @ ..] = data else { return };
    let routes = [Route::Messages, Route::CountTokens, Route::Chat, Route::Completions, Route::Responses];
    let route = routes[usize::from(head & 15) % 5];
    let engines = [Engine::Vllm, Engine::Strata, Engine::Sglang, Engine::LlamaCpp, Engine::OpenAi, Engine::Unknown];
    let late = [LateSystem::Tool, LateSystem::User, LateSystem::System, LateSystem::Off];
    let profile = Profile {
        engine: engines[usize::from(head >> 4) % 6],
        messages: if more & 1 == 0 { MessagesMode::Translate } else { MessagesMode::Native },
        late_system: late[usize::from(more >> 1 & 3)],
        billing_header: more & 8 == 0,
        stream_options: more & 16 == 0,
        model_map: if more & 32 == 0 {
            ModelMap::Auto
        } else {
            ModelMap::Globs(vec![("*".to_owned(), "s".to_owned())])
        },
        ..Profile::default()
    };
    let Some(sent) = sent(route, body, &profile) else { return };
    assert_eq!(Some(&sent), self::sent(route, body, &profile).as_ref(), "another time, another body");
    let is_json = |text: &[u8]| Tape::new().scan(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)).is_ok();
    if !is_json(body) {
        return assert_eq!(sent, body, "what is not read is not changed");
    }
    assert!(is_json(&sent), "{}", String::from_utf8_lossy(&sent));
    let translated =
        matches!(route, Route::Messages | Route::CountTokens) && profile.messages == MessagesMode::Translate;
    if translated && (route == Route::Messages || matches!(profile.engine, Engine::Vllm | Engine::Unknown)) {
        // serde_json reads 128 levels and neither lone surrogates nor duplicates are its business.
        if let Ok(sent) = serde_json::from_slice::<Value>(&sent) {
            upstream::check(&sent);
        }
        return;
    }
    if let Some(twice) = self::sent(route, &sent, &profile) {
        assert_eq!(String::from_utf8_lossy(&twice), String::from_utf8_lossy(&sent), "once is enough");
    }
}

fn sent(route: Route, body: &[u8], profile: &Profile) -> Option<Vec<u8>> {
    let request = Request { route, body: Bytes::copy_from_slice(body).into(), anthropic: false };
    Some(prepare(request, profile, Ids { seed: 1 }).ok()?.body.to_vec())
}

/// Any bytes of an engine give a client of each route a sound stream, the same at any cut, with and without pings, and
/// the same message as a whole answer. The first two bytes say route, settings and cuts.
pub fn stream(data: &[u8]) {
    let &[head, seed, ref body @ ..] = data else { return };
    let mut ask =
        support::ask([Route::Messages, Route::Messages, Route::Chat, Route::Responses][usize::from(head & 3)], true);
    ask.native = head & 3 == 1;
    ask.model_mapped = head & 4 != 0;
    ask.usage_injected = head & 8 != 0;
    if head & 16 != 0 {
        ask.usage = UsageMode::Raw;
    }
    let broken = (head & 32 != 0).then(|| Fault::broken("the connection was reset"));
    let read = |reads: &[&[u8]], pings: bool| {
        let mut reader = Reader::new(ask.clone());
        let mut out = Vec::new();
        let mut result = Ok(());
        for read in reads {
            result = result.and_then(|()| reader.feed(read, &mut out));
            if pings && result.is_ok() {
                reader.ping(&mut out);
            }
        }
        let result = result.and_then(|()| reader.end(broken.clone(), &mut out));
        assert_eq!(reader.started(), !out.is_empty());
        (out, result.err())
    };
    let (out, fault) = read(&[body], false);
    assert_eq!(read(&cut(body, seed), false), (out.clone(), fault.clone()), "another cut, another answer");
    assert_eq!(read(&body.chunks(1).collect::<Vec<_>>(), false), (out.clone(), fault.clone()), "byte by byte");
    match (ask.route, ask.native) {
        (Route::Messages, false) => {
            check_stream(&out, fault.as_ref());
            let (pinged, pinged_fault) = read(&cut(body, seed), true);
            if !body.is_empty() {
                let pinged = support::follow(&pinged);
                assert_eq!(pinged_fault, fault);
                if !out.is_empty() && broken.is_none() {
                    let quiet = support::follow(&out);
                    assert_eq!((pinged.stopped, &pinged.error), (quiet.stopped, &quiet.error));
                    assert_eq!(pinged.message["content"], quiet.message["content"]);
                }
            }
            if broken.is_none() {
                check_folded(body, &ask, &out, fault.as_ref());
            }
        }
        // Where nothing is to be changed, nothing is.
        (Route::Chat | Route::Responses, _) if !ask.model_mapped && !ask.usage_injected && fault.is_none() => {
            assert!(out.starts_with(body), "{}", String::from_utf8_lossy(&out));
        }
        _ => {}
    }
    ask.stream = false;
    if let Ok(answer) = Reader::new(ask.clone()).whole(&Bytes::copy_from_slice(body))
        && ask.route == Route::Messages
        && !ask.native
    {
        support::check_message(&serde_json::from_slice(&answer).expect("a message is JSON"));
    }
}

fn check_stream(out: &[u8], fault: Option<&Fault>) {
    let seen = support::follow(out);
    match fault {
        None => assert!(seen.stopped, "no fault, but no end"),
        Some(_) => assert!(out.is_empty() || seen.error.is_some(), "a fault that the client does not see"),
    }
}

/// A stream that nobody asked for says as a whole answer what it says as a stream.
fn check_folded(body: &[u8], ask: &foreword_core::answer::Ask, out: &[u8], fault: Option<&Fault>) {
    let head = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body).trim_ascii_start();
    if fault.is_some() || !head.starts_with(b"data:") || head.len() != body.len() {
        return;
    }
    let mut ask = ask.clone();
    ask.stream = false;
    let folded = Reader::new(ask).whole(&Bytes::copy_from_slice(body)).expect("the stream was sound");
    let folded: Value = serde_json::from_slice(&folded).unwrap();
    let mut streamed = support::follow(out).message;
    for block in streamed["content"].as_array_mut().unwrap() {
        if let Some(raw) = block["input"].get("__unparsedToolInput") {
            // The two forms tell broken input differently: the client of a stream has it already.
            assert!(raw.is_object());
            block["input"] = Value::Null;
        }
    }
    for (streamed, folded) in streamed["content"].as_array().unwrap().iter().zip(folded["content"].as_array().unwrap())
    {
        if !streamed["input"].is_null() || streamed["type"] != "tool_use" {
            assert_eq!(streamed, folded);
        }
    }
    for name in ["id", "model", "stop_reason", "stop_sequence", "usage"] {
        assert_eq!(streamed[name], folded[name], "{name}");
    }
    assert_eq!(streamed["content"].as_array().unwrap().len(), folded["content"].as_array().unwrap().len());
}

/// A stream of chunks that knows the shapes but no order, drawn from the input.
pub fn chunks(data: &[u8]) {
    stream(&drawn(data));
}

/// The input of [`stream`] that is drawn from `data`.
pub fn drawn(data: &[u8]) -> Vec<u8> {
    let mut draw = Draw { data };
    let (head, seed) = (draw.byte() & 0b11_0000, draw.byte());
    let mut body = vec![head, seed];
    while !draw.data.is_empty() && body.len() < 1 << 14 {
        body.extend_from_slice(&draw.event());
    }
    body
}

/// Draws from the input.
struct Draw<'d> {
    data: &'d [u8],
}

const TEXTS: [&str; 12] = ["", "a", " ", "\n", "é", "🙂", "\u{2028}", "\"", "\\", "{}", "END", "<think>"];
const FRAGMENTS: [&str; 16] =
    ["", "{", "}", "{}", "{\"a\":", "1", "\"", "\\", "[", "]", ",", " ", "null", "\"{}\"", "{\"a\":1}", "\\\"é"];

impl Draw<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.data.split_first() else { return 0 };
        self.data = rest;
        byte
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.byte()) % of.len()]
    }

    fn event(&mut self) -> Vec<u8> {
        let mut chunk = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": null}]});
        let choice = &mut chunk["choices"][0];
        let kind = self.byte();
        match kind % 16 {
            0..=2 => choice["delta"]["content"] = json!(self.one(&TEXTS)),
            3 => choice["delta"]["reasoning_content"] = json!(self.one(&TEXTS)),
            4 => choice["delta"]["reasoning"] = json!(self.one(&TEXTS)),
            5..=9 => {
                let count = usize::from(kind >> 6 == 3) + 1;
                let calls: Vec<_> = (0..count).map(|_| self.call()).collect();
                choice["delta"]["tool_calls"] = json!(calls);
                if kind & 32 != 0 {
                    choice["delta"]["content"] = json!(self.one(&TEXTS));
                }
            }
            10 => {
                let reasons = ["stop", "length", "tool_calls", "", "content_filter", "abort"];
                choice["finish_reason"] = json!(self.one(&reasons));
            }
            11 => {
                choice["finish_reason"] = json!("stop");
                choice["stop_reason"] = json!("END");
            }
            12 => chunk["usage"] = json!({"prompt_tokens": self.byte(), "completion_tokens": 1}),
            13 => chunk = json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}),
            14 => choice["message"] = json!({"content": self.one(&TEXTS), "tool_calls": [self.call()]}),
            _ => {
                let other = [
                    ": comment\n\n",
                    "data:\n\n",
                    "data: : keepalive\n\n",
                    "data: {\"choices\":[{\"delta\":{\"content\":\"\\ud83d\"}}]}\n\n",
                    "data: {\"choices\":[{\"delta\":{\"content\":\"\\ude42\"}}]}\n\n",
                    "data: {\"choices\":[{\"delta\":{\"content\":\"a\nb\"}}]}\n\n",
                    "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"x\"}}]}\n\n",
                    "data: {\"error\":{\"message\":\"x\",\"code\":503}}\n\n",
                    "event: error\ndata: {\"message\":\"x\"}\n\n",
                    "data: [DONE]\n\n",
                    "data: {\"choices\":\ndata: []}\n\n",
                    "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\ndata: {\"choices\":[{\"delta\":{\"content\":\"y\"}}]}\n\n",
                ];
                return self.one(&other).as_bytes().to_vec();
            }
        }
        format!("data: {chunk}\n\n").into_bytes()
    }

    fn call(&mut self) -> Value {
        let shape = self.byte();
        let mut call = json!({"function": {}});
        if shape & 1 == 0 {
            call["index"] = json!(shape >> 5 & 1);
        }
        if shape & 2 == 0 {
            call["id"] = json!(self.one(&["a", "b", "f.x:0", "", "a"]));
        }
        if shape & 4 == 0 {
            call["function"]["name"] = json!(self.one(&["f", "g", ""]));
        }
        if shape & 0x18 != 0 {
            call["function"]["arguments"] = json!(self.one(&FRAGMENTS));
        }
        call
    }
}

/// Only a header goes, all of it, and what is left begins no other. The first byte says which characters are escaped.
pub fn header(data: &[u8]) {
    let Some((&escapes, text)) = data.split_first() else { return };
    let plain = String::from_utf8_lossy(text);
    let mut literal = String::new();
    for (place, character) in plain.chars().enumerate() {
        let written = json!(character).to_string();
        if escapes >> (place % 8) & 1 == 1 {
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(literal, "\\u{unit:04X}").unwrap();
            }
        } else {
            literal.push_str(&written[1..written.len() - 1]);
        }
    }
    let left = match billing_header::find(Text::new(literal.as_bytes())) {
        Header::Absent => {
            assert!(!begins_header(&plain), "{plain:?} begins a header");
            return;
        }
        Header::Unknown => return,
        Header::Whole => String::new(),
        Header::Prefix(cut) => {
            assert!(cut > 0 && cut < literal.len());
            Text::new(&literal.as_bytes()[cut..]).decode().into_owned()
        }
    };
    let gone = plain.strip_suffix(&left).expect("what is left is the end of what was");
    assert!(is_headers(gone), "{gone:?} is more than headers");
    assert!(!begins_header(&left), "{left:?} is left");
    let literal = json!(left).to_string();
    let again = billing_header::find(Text::new(&literal.as_bytes()[1..literal.len() - 1]));
    assert!(matches!(again, Header::Absent | Header::Unknown), "{left:?} is left");
}

const NAME: &str = "x-anthropic-billing-header:";

/// Whether a text begins with a header of the plainest form.
fn begins_header(text: &str) -> bool {
    let Some(pair) = text.trim_start().strip_prefix(NAME).and_then(|rest| rest.strip_prefix(" cch=")) else {
        return false;
    };
    pair.split_once(';').is_some_and(|(value, _)| value.len() < 100 && !value.contains(char::is_whitespace))
}

/// Whether a text is headers and white space and nothing else.
fn is_headers(text: &str) -> bool {
    let mut rest = text.trim_start();
    if !rest.starts_with(NAME) {
        return false;
    }
    while let Some(behind) = rest.strip_prefix(NAME) {
        rest = behind.trim_start();
        while rest.starts_with("cc") {
            let end = rest.find([';', '\n', '\r']).unwrap_or(rest.len());
            let pair = rest[..end].trim_end();
            let Some((key, value)) = pair.split_once('=') else { return false };
            let plain = |character: char| matches!(character, 'a'..='z' | '0'..='9' | '_');
            if !key.chars().all(plain) || value.chars().any(char::is_whitespace) {
                return false;
            }
            rest = rest[end..].trim_start_matches(';').trim_start();
        }
    }
    rest.is_empty()
}

const LIMIT: usize = 1 << 16;

/// Decoding ends within its limit, and undoes what an encoder did. The first byte says which codings.
pub fn decompression(data: &[u8]) {
    let Some((&which, body)) = data.split_first() else { return };
    let codings = ["gzip", "deflate", "zstd", "identity", "gzip, zstd", "deflate, gzip", "zstd,zstd", "br"];
    let coding = codings[usize::from(which & 7)];
    let body = &body[..body.len().min(LIMIT)];
    match encoding::decode(coding, Bytes::copy_from_slice(body), LIMIT) {
        Ok(plain) => assert!(plain.len() <= LIMIT),
        Err(fault) => assert!(matches!(fault.status, 400 | 413 | 415), "{fault:?}"),
    }
    if coding != "br" {
        let encoded = coding.split(',').fold(body.to_vec(), |body, coding| encoded(coding.trim(), &body));
        let decoded = encoding::decode(coding, encoded.into(), 2 * LIMIT);
        assert_eq!(decoded.as_deref().ok(), Some(body), "{coding}");
    }
}

fn encoded(coding: &str, plain: &[u8]) -> Vec<u8> {
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};
    match coding {
        "gzip" => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(plain).unwrap();
            encoder.finish().unwrap()
        }
        "deflate" => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(plain).unwrap();
            encoder.finish().unwrap()
        }
        "zstd" => ruzstd::encoding::compress_to_vec(plain, ruzstd::encoding::CompressionLevel::Fastest),
        _ => plain.to_vec(),
    }
}
