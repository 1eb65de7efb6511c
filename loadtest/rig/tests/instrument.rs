//! The instrument itself: engine and reader agree, and the reader sees every fault that a relay can make.
#![allow(clippy::unwrap_used, clippy::panic, clippy::float_cmp, reason = "tests; the figures compared are whole")]

use std::{
    fmt::Write as _,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    process::{Child, Command, Stdio},
    thread,
};

const RIG: &str = env!("CARGO_BIN_EXE_foreword-rig");

struct Engine {
    child: Child,
    url: String,
}

impl Engine {
    fn start() -> Self {
        let mut child = Command::new(RIG).args(["engine", "--port", "0"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        Self { child, url: url.trim().to_owned() }
    }

    fn chat(&self) -> String {
        format!("{}/v1/chat/completions", self.url)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command of the rig; its exit status and its JSON report.
fn rig(words: &[&str]) -> (i32, String) {
    let output = Command::new(RIG).args(words).arg("--json").output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

fn number(report: &str, name: &str) -> f64 {
    let (_, rest) = report.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name} in {report}"));
    rest.split([',', '}']).next().unwrap().parse().unwrap_or_else(|_| panic!("{name} is no number in {report}"))
}

#[test]
fn every_event_arrives_in_every_mode() {
    let engine = Engine::start();
    for (mode, events) in [("burst", "20"), ("spread", "20"), ("flood", "2000")] {
        let pid = engine.child.id().to_string();
        let (status, report) = rig(&[
            "read",
            "--url",
            &engine.chat(),
            "--control",
            &engine.url,
            "--streams",
            "30",
            "--rate",
            "100",
            "--mode",
            mode,
            "--events",
            events,
            "--pids",
            &pid,
        ]);
        assert_eq!(status, 0, "{mode}: {report}");
        let events: f64 = events.parse().unwrap();
        assert_eq!(number(&report, "received"), 30.0 * events, "{mode}");
        // Role, finish, usage and [DONE] come on top.
        assert_eq!(number(&report, "sse_events"), 30.0 * (events + 4.0), "{mode}");
        assert!(number(&report, "rss_bytes") > 100_000.0);
    }
}

#[test]
fn paced_streams_keep_their_pace() {
    let engine = Engine::start();
    for mode in ["burst", "spread"] {
        let (status, report) =
            rig(&["read", "--url", &engine.chat(), "--streams", "4", "--rate", "50", "--mode", mode, "--events", "26"]);
        assert_eq!(status, 0, "{report}");
        // 25 events after the first; 24 periods between them, and no more than a period between streams.
        let wall = number(&report, "wall_s");
        assert!((0.45..0.8).contains(&wall), "{mode}: {wall}");
    }
}

#[test]
fn a_big_body_arrives_whole() {
    let engine = Engine::start();
    let (status, report) = rig(&["body", "--url", &engine.chat(), "--bytes", "3000000", "--count", "2"]);
    assert_eq!(status, 0, "{report}");
    assert!(number(&report, "engine_bytes") > 2_990_000.0);
    assert!(number(&report, "p50") > 0.0);
}

#[test]
fn bodies_at_once_wait_for_the_word_and_then_all_arrive() {
    let engine = Engine::start();
    let mut child = Command::new(RIG)
        .args(["body", "--url", &engine.chat(), "--bytes", "500000", "--count", "5", "--at-once", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut word = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut word).unwrap();
    assert_eq!(word, "ready\n");
    assert!(child.try_wait().unwrap().is_none());
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{report}");
    assert_eq!(number(&report, "count"), 5.0);
    assert!(number(&report, "ended_ns") > number(&report, "began_ns"));
}

#[test]
fn readers_beside_one_another_have_gates_of_their_own() {
    let engine = Engine::start();
    let reader = |streams: &'static str, ramp: &'static str| {
        let url = engine.chat();
        let words = ["read", "--url", &url, "--streams", streams, "--ramp", ramp, "--rate", "100", "--events", "20"];
        Command::new(RIG).args(words).args(["--json", "--timeout", "5"]).stdout(Stdio::piped()).spawn().unwrap()
    };
    // The single stream comes while the twenty are still gathering, and neither keeps the other from its start.
    let many = reader("20", "20");
    thread::sleep(std::time::Duration::from_millis(300));
    for (child, received) in [(reader("1", "20"), 20.0), (many, 400.0)] {
        let output = child.wait_with_output().unwrap();
        let report = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{report}");
        assert_eq!(number(&report, "received"), received);
    }
}

#[test]
fn the_file_of_ages_has_each_event_but_the_first() {
    let engine = Engine::start();
    let file = std::env::temp_dir().join(format!("foreword-rig-ages-{}", std::process::id()));
    let name = file.to_str().unwrap();
    let words = ["read", "--url", &engine.chat(), "--streams", "3", "--rate", "100", "--events", "11", "--ages", name];
    let (status, report) = rig(&words);
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(status, 0, "{report}");
    let numbers: Vec<u64> = bytes.chunks_exact(8).map(|eight| u64::from_le_bytes(eight.try_into().unwrap())).collect();
    assert_eq!(numbers.len(), 2 * 3 * 10);
    let (came, oldest) = (numbers.iter().step_by(2), numbers.iter().skip(1).step_by(2).max().unwrap());
    assert!(came.is_sorted());
    let oldest = std::time::Duration::from_nanos(*oldest).as_secs_f64();
    assert_eq!(oldest, number(&report[report.find("added_s").unwrap()..], "max"));
}

#[test]
fn streams_that_the_reader_leaves_end_in_the_engine() {
    let engine = Engine::start();
    let (status, report) = rig(&[
        "read",
        "--url",
        &engine.chat(),
        "--control",
        &engine.url,
        "--streams",
        "5",
        "--rate",
        "100",
        "--events",
        "5000",
        "--abort-after",
        "10",
    ]);
    assert_eq!(status, 0, "{report}");
    assert!(number(&report, "released_s") < 5.0);
    assert!(number(&report, "received") >= 50.0);
}

#[test]
fn a_slow_stream_is_read_after_the_others() {
    let engine = Engine::start();
    let (status, report) = rig(&[
        "read",
        "--url",
        &engine.chat(),
        "--streams",
        "5",
        "--mode",
        "flood",
        "--events",
        "50000",
        "--slow-reader",
        "2",
    ]);
    assert_eq!(status, 0, "{report}");
    assert_eq!(number(&report, "received"), 250_000.0);
}

#[test]
fn a_slow_stream_is_held_until_the_word() {
    let engine = Engine::start();
    let mut child = Command::new(RIG)
        .args(["read", "--url", &engine.chat(), "--streams", "2", "--mode", "flood", "--events", "1000"])
        .args(["--slow-reader", "1", "--hold", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(std::time::Duration::from_millis(800));
    assert!(child.try_wait().unwrap().is_none());
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{report}");
    assert_eq!(number(&report, "received"), 2000.0);
}

/// A relay's answer to one request: events with these numbers, then this end.
fn faulty_relay(seqs: &[u32], end: &str) -> String {
    let mut body = String::from("event: message_start\ndata: {\"type\":\"message_start\"}\n\n");
    for seq in seqs {
        let _ = write!(
            body,
            "event: content_block_delta\ndata: {{\"delta\":{{\"text\":\"t={:018} s={seq:06} \"}}}}\n\n",
            1
        );
    }
    body.push_str(end);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1/messages", listener.local_addr().unwrap());
    thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        let _ = socket.read(&mut request).unwrap();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        // Chunks that cut events anywhere.
        let mut answer = head.as_bytes().to_vec();
        for piece in body.as_bytes().chunks(50) {
            answer.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            answer.extend_from_slice(piece);
            answer.extend_from_slice(b"\r\n");
        }
        answer.extend_from_slice(b"0\r\n\r\n");
        socket.write_all(&answer).unwrap();
    });
    url
}

const STOP: &str = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

fn read_faulty(seqs: &[u32], end: &str) -> (i32, String) {
    rig(&["read", "--url", &faulty_relay(seqs, end), "--streams", "1", "--events", "5", "--timeout", "5"])
}

#[test]
fn faults_of_a_relay_are_told_apart() {
    let (status, report) = read_faulty(&[0, 1, 2, 3, 4], STOP);
    assert_eq!(status, 0, "{report}");
    for (seqs, fault) in [
        (&[0, 1, 3, 4][..], "lost"),
        (&[0, 1, 1, 2, 3, 4], "duplicated"),
        (&[0, 2, 1, 3, 4], "out_of_order"),
        (&[0, 1, 2, 3, 4, 5], "unexpected"),
    ] {
        let (status, report) = read_faulty(seqs, STOP);
        assert_eq!(status, 1, "{fault}: {report}");
        for name in ["lost", "duplicated", "out_of_order", "unexpected", "failed_streams"] {
            assert_eq!(number(&report, name), f64::from(u8::from(name == fault)), "{fault}: {report}");
        }
    }
}

#[test]
fn an_end_that_nobody_stated_is_a_failure() {
    let (status, report) = read_faulty(&[0, 1, 2, 3, 4], "");
    assert_eq!((status, number(&report, "failed_streams")), (1, 1.0), "{report}");
    let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\"}}\n\n";
    let (status, report) = read_faulty(&[0, 1, 2, 3, 4], error);
    assert_eq!(status, 1);
    assert!(report.contains("api_error"), "{report}");
}

#[test]
fn a_refusal_is_told_with_its_status() {
    let engine = Engine::start();
    let wrong = format!("{}/v1/nothing", engine.url);
    let (status, text) = rig(&["read", "--url", &wrong, "--streams", "2"]);
    assert_eq!(status, 1);
    assert!(text.contains("status 404") && text.contains("Not Found"), "{text}");
    let (status, text) = rig(&["body", "--url", &wrong, "--bytes", "10000", "--count", "1"]);
    assert_eq!(status, 1);
    assert!(text.contains("status 404"), "{text}");
}

#[test]
fn a_wrong_command_line_is_a_usage_error() {
    for words in [&["read"][..], &["read", "--url", "ftp://x"], &["fly"], &["engine", "--rate", "0"]] {
        assert_eq!(rig(words).0, 2, "{words:?}");
    }
}
