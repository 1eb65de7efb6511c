//! `foreword-rig body`: big requests one after the other, timed to their arrival in the engine. Makes the bodies of
//! `read` too.

use std::{
    fmt::Write as _,
    io::{self, Read, Write},
    net::TcpStream,
    thread,
    time::Duration,
};

use crate::{
    Failure,
    cli::{Options, Usage},
    clock,
    http::{Framing, Head, Malformed, Url},
    reader::events::{Lines, Seen, setting},
    report::{Times, Value},
};

/// Text of one message: a page of a source file, as coding agents send them.
const MESSAGE: usize = 4_000;

const LINES: [&str; 12] = [
    r"def resolve(self, path: str, *, strict: bool = False) -> Path:\n",
    r"    for entry in sorted(index.items(), key=lambda item: item[1]):\n",
    r#"        if entry.name.startswith(\"test_\") and entry.size > limit:\n"#,
    r"            yield Result(entry.name, digest=entry.digest, line=",
    r"\treturn self._cache.setdefault(key, compute(key))\n",
    r"The function reads the file twice; the second read can be dropped because the buffer is still valid. ",
    r"Größe und Maß – Überlauf möglich. ",
    r#"{\"path\": \"src/main.rs\", \"line\": 42}\n"#,
    r"    # Keep the order of insertion: callers rely on it.\n",
    r"error[E0502]: cannot borrow `*self` as mutable because it is also borrowed as immutable\n",
    r"I will look at the tests first and then change the smallest part that makes them pass. ",
    r"\n",
];

/// A request body of about `bytes` bytes: a conversation of many messages. The last message holds `number`, so that no
/// two are the same.
pub(crate) fn make(messages_dialect: bool, bytes: usize, max_tokens: u32, number: usize) -> String {
    let mut body = String::with_capacity(bytes + MESSAGE);
    let _ = write!(body, r#"{{"model":"rig","max_tokens":{max_tokens},"stream":true,"#);
    body.push_str(if messages_dialect {
        r#""system":[{"type":"text","text":"You are a careful programmer."}],"messages":["#
    } else {
        r#""stream_options":{"include_usage":true},"messages":[{"role":"system","content":"You are a careful programmer."},"#
    });
    let mut random: u32 = 1;
    for turn in 0.. {
        let is_last = body.len() + MESSAGE >= bytes;
        let role = if turn % 2 == 0 { "user" } else { "assistant" };
        // The conversation ends with the user.
        let is_end = is_last && turn % 2 == 0;
        body.push_str(if messages_dialect { r#"{"role":""# } else { r#"{"content":""# });
        if messages_dialect {
            let _ = write!(body, r#"{role}","content":[{{"type":"text","text":""#);
        }
        let end = (body.len() + MESSAGE).min(bytes.max(body.len() + 40));
        while body.len() < end {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            body.push_str(LINES.get(random as usize >> 16 & 15).copied().unwrap_or("value, "));
        }
        if is_end {
            let _ = write!(body, "Request number {number}.");
        }
        if messages_dialect {
            body.push_str(r#""}]}"#);
        } else {
            let _ = write!(body, r#"","role":"{role}"}}"#);
        }
        if is_end {
            break;
        }
        body.push(',');
    }
    body.push_str("]}");
    body
}

/// The head of a request with such a body; `extra` are whole header lines.
pub(crate) fn head(url: &Url, length: usize, extra: &str) -> String {
    let Url { authority, path, .. } = url;
    let version = if url.is_messages() { "anthropic-version: 2023-06-01\r\n" } else { "" };
    format!(
        "POST {path} HTTP/1.1\r\nhost: {authority}\r\nuser-agent: foreword-rig\r\naccept: text/event-stream\r\n\
         content-type: application/json\r\n{version}{extra}content-length: {length}\r\n\r\n"
    )
}

/// What one request showed; all times count from the first byte that was sent, in nanoseconds.
struct Arrival {
    /// First and last byte of the request in the engine.
    first_ns: u64,
    received_ns: u64,
    /// First content event at the reader.
    ttft_ns: u64,
    /// Bytes of the body that came to the engine: a relay may have changed it.
    engine_bytes: u64,
}

pub(crate) fn command(words: Vec<String>) -> Result<bool, Failure> {
    let mut options = Options::new(words);
    let url: Url = options.required("--url")?;
    let bytes: usize = options.value("--bytes")?.unwrap_or(5_000_000);
    let count: usize = options.value("--count")?.unwrap_or(20);
    let timeout = Duration::from_secs(options.value("--timeout")?.unwrap_or(30));
    let at_once = options.switch("--at-once");
    let json = options.switch("--json");
    options.finish()?;
    if count == 0 || timeout.is_zero() {
        return Err(Usage("--count and --timeout must be above 0".into()).into());
    }

    let request = |number| {
        let body = make(url.is_messages(), bytes, 1, number);
        [head(&url, body.len(), "").as_bytes(), body.as_bytes()].concat()
    };
    let requests: Vec<Vec<u8>> = if at_once { (0..count).map(request).collect() } else { Vec::new() };
    if at_once {
        eprintln!("ready");
        io::copy(&mut io::stdin(), &mut io::sink())?;
    }
    let began_ns = clock::now_ns();
    let arrivals = if at_once {
        send_all(&url, &requests, timeout)
    } else {
        (0..count).map(|number| send(&url, &request(number), timeout).map_err(|error| error.to_string())).collect()
    };
    let ended_ns = clock::now_ns();
    let (mut first, mut received, mut ttft) = (Times::default(), Times::default(), Times::default());
    let mut engine_bytes = 0;
    for (number, arrival) in arrivals.into_iter().enumerate() {
        let arrival = arrival.map_err(|error| format!("body {} of {count}: {error}", number + 1))?;
        first.add(arrival.first_ns);
        received.add(arrival.received_ns);
        ttft.add(arrival.ttft_ns);
        engine_bytes = arrival.engine_bytes;
    }
    let percentiles = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)];
    Value::Object(vec![
        ("url", Value::Text(url.text.clone())),
        ("count", Value::Integer(count as u64)),
        ("bytes", Value::Integer(make(url.is_messages(), bytes, 1, 0).len() as u64)),
        ("engine_bytes", Value::Integer(engine_bytes)),
        ("first_byte_s", first.percentiles(&percentiles)),
        ("received_s", received.percentiles(&percentiles)),
        ("ttft_s", ttft.percentiles(&percentiles)),
        ("began_ns", Value::Integer(began_ns)),
        ("ended_ns", Value::Integer(ended_ns)),
    ])
    .print(json);
    Ok(true)
}

/// Sends all requests at the same time, each from a thread of its own.
fn send_all(url: &Url, requests: &[Vec<u8>], timeout: Duration) -> Vec<Result<Arrival, String>> {
    thread::scope(|scope| {
        let threads: Vec<_> = requests
            .iter()
            .map(|request| scope.spawn(move || send(url, request, timeout).map_err(|error| error.to_string())))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("its thread broke".into()))).collect()
    })
}

/// Sends one request on a connection of its own and reads its answer to the end.
fn send(url: &Url, request: &[u8], timeout: Duration) -> Result<Arrival, Failure> {
    let mut socket = TcpStream::connect(url.address)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(timeout))?;
    socket.set_write_timeout(Some(timeout))?;
    let start = clock::now_ns();
    // A relay that refuses closes early: its answer says more than the broken pipe.
    let sent = socket.write_all(request);
    match receive(&mut socket, start) {
        Ok(arrival) => Ok(arrival),
        Err(answer) => Err(sent.err().map_or(answer, |error| format!("sending: {error}").into())),
    }
}

fn receive(socket: &mut TcpStream, start: u64) -> Result<Arrival, Failure> {
    let mut buffer = vec![0; 64 * 1024];
    let (mut input, mut head) = (Vec::new(), None);
    let (mut lines, mut arrival, mut ended, mut refusal) = (Lines::default(), None, false, None);
    loop {
        let count = socket.read(&mut buffer)?;
        let now = clock::now_ns();
        let (bytes, _) = buffer.split_at(count);
        input.extend_from_slice(bytes);
        if head.is_none()
            && let Some((parsed, length)) = Head::parse(&input)?
        {
            let framing = parsed.framing(Framing::ToEnd)?;
            input.drain(..length);
            head = Some((parsed.status(), framing));
        }
        if let Some((status, framing)) = &mut head {
            let mut text = Vec::new();
            framing.take(&input, |piece| {
                text.extend_from_slice(piece);
                lines.take(piece, |seen| match seen {
                    Seen::Content { text, .. } if arrival.is_none() => arrival = arrive(text, start, now),
                    Seen::End => ended = true,
                    Seen::Error(data) => refusal = Some(String::from_utf8_lossy(data).into_owned()),
                    Seen::Content { .. } | Seen::Event => {}
                });
            })?;
            input.clear();
            if *status != Some(200) {
                return Err(format!("status {}: {}", status.unwrap_or(0), String::from_utf8_lossy(&text)).into());
            }
            if framing.is_done() || count == 0 {
                break;
            }
        } else if count == 0 {
            return Err(Malformed("closed before an answer").into());
        }
    }
    match (refusal, arrival) {
        (Some(refusal), _) => Err(refusal.into()),
        (None, Some(arrival)) if ended => Ok(arrival),
        (None, Some(_)) => Err("the body ended before the stream".into()),
        (None, None) => Err("the answer has no stamped event".into()),
    }
}

fn arrive(text: &[u8], start: u64, now: u64) -> Option<Arrival> {
    let since = |name| setting(text, name).map(|ns| ns.saturating_sub(start));
    Some(Arrival {
        first_ns: since("first_ns")?,
        received_ns: since("recv_ns")?,
        ttft_ns: now - start,
        engine_bytes: setting(text, "body_bytes")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_have_the_size_asked_for_and_differ() {
        for dialect in [true, false] {
            for bytes in [10_000, 5_000_000] {
                let body = make(dialect, bytes, 1, 1);
                assert!(body.len().abs_diff(bytes) < 3 * MESSAGE, "{} for {bytes}", body.len());
                assert_eq!(body.matches('{').count(), body.matches('}').count());
                assert_ne!(body, make(dialect, bytes, 1, 2));
            }
            assert!(make(dialect, 200, 1, 1).len() < 400);
        }
    }
}
