use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter, DuplexStream};
use tokio::net::{TcpListener, TcpStream};

use super::connection::Turns;
use super::*;
use crate::lull::{self, Lull};

/// An engine on a port of its own: `serve` has each connection, with its number. The upstream in front of it.
async fn engine<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(TcpStream, usize) -> F + Send + 'static,
) -> Upstream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        for number in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(stream, number));
        }
    });
    Upstream::new(&format!("http://127.0.0.1:{port}"), Duration::from_secs(5)).unwrap()
}

fn call(body: Vec<Bytes>) -> Call {
    Call { method: Method::POST, target: "/v1/x".into(), headers: HeaderMap::new(), body }
}

/// Reads a request of `length` body bytes.
async fn request(stream: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        if end.is_some_and(|end| bytes.len() == end + 4 + length) || stream.read_buf(&mut bytes).await.unwrap() == 0 {
            return bytes;
        }
    }
}

async fn ask(upstream: &Upstream, call: &Call) -> (u16, Bytes, bool) {
    let mut answer = upstream.send(call).await.unwrap();
    let whole = answer.body.collect(1 << 20).await.unwrap();
    answer.body.give_back();
    (answer.head.status.as_u16(), whole, answer.retried)
}

#[tokio::test]
async fn a_connection_serves_one_request_after_the_other() {
    let upstream = engine(|mut stream, number| async move {
        for turn in 0.. {
            let read = request(&mut stream, 5).await;
            if read.is_empty() {
                return;
            }
            assert!(read.starts_with(b"POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:") && read.ends_with(b"\r\n\r\nhello"));
            let body = format!("{number}.{turn}");
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all(head.as_bytes()).await.unwrap();
            tokio::task::yield_now().await;
            stream.write_all(body.as_bytes()).await.unwrap();
        }
    })
    .await;
    let call = call(vec![Bytes::from_static(b"hel"), Bytes::new(), Bytes::from_static(b"lo")]);
    for turn in 0..3 {
        assert_eq!(ask(&upstream, &call).await, (200, format!("0.{turn}").into(), false));
    }
}

#[tokio::test]
async fn only_a_silent_reused_connection_is_tried_again() {
    let served = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&served);
    let upstream = engine(move |mut stream, number| {
        let count = Arc::clone(&count);
        async move {
            request(&mut stream, 0).await;
            count.fetch_add(1, Ordering::Relaxed);
            let ok = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
            match number {
                // Answers once, takes a second request and says nothing to it.
                0 => {
                    stream.write_all(ok.as_bytes()).await.unwrap();
                    request(&mut stream, 0).await;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                1 => {
                    stream.write_all(ok.as_bytes()).await.unwrap();
                    request(&mut stream, 0).await;
                    count.fetch_add(1, Ordering::Relaxed);
                    stream.write_all(b"HTTP/1.1 200").await.unwrap();
                }
                _ => (),
            }
        }
    })
    .await;
    let call = call(vec![]);
    assert_eq!(ask(&upstream, &call).await, (200, Bytes::new(), false));
    assert_eq!(ask(&upstream, &call).await, (200, Bytes::new(), true));
    assert_eq!(served.load(Ordering::Relaxed), 3);
    // Something was said: the request may have had its effect.
    assert!(matches!(upstream.send(&call).await, Err(Failure::Broken(Broken::Malformed(_)))));
    // A fresh connection gets one try.
    assert!(matches!(upstream.send(&call).await, Err(Failure::Broken(Broken::Malformed(_)))));
    assert_eq!(served.load(Ordering::Relaxed), 5);
}

#[tokio::test]
async fn what_stands_behind_an_answer_ends_the_connection() {
    let upstream = engine(|mut stream, number| async move {
        request(&mut stream, 0).await;
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{number}HTTP/1.1 200 OK\r\n");
        stream.write_all(answer.as_bytes()).await.unwrap();
        request(&mut stream, 0).await;
    })
    .await;
    let call = call(vec![]);
    assert_eq!(ask(&upstream, &call).await, (200, "0".into(), false));
    assert_eq!(ask(&upstream, &call).await, (200, "1".into(), false));
}

#[tokio::test]
async fn an_answer_may_come_before_the_request_was_read() {
    let upstream = engine(|mut stream, _| async move {
        stream.read_u8().await.unwrap();
        stream.write_all(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig").await.unwrap();
        // Reads so little that the rest can never be written.
        tokio::time::sleep(Duration::from_secs(60)).await;
    })
    .await;
    let call = call(vec![Bytes::from(vec![b' '; 64 << 20])]);
    assert_eq!(ask(&upstream, &call).await, (413, "big".into(), false));
    assert!(upstream.pool.take().is_none());
}

#[tokio::test]
async fn a_body_without_an_end_ends_with_its_connection() {
    let upstream = engine(|mut stream, _| async move {
        request(&mut stream, 0).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nall there is").await.unwrap();
    })
    .await;
    assert_eq!(ask(&upstream, &call(vec![])).await, (200, "all there is".into(), false));
    assert!(upstream.pool.take().is_none());
}

#[tokio::test]
async fn a_long_answer_is_not_collected_beyond_its_limit() {
    let upstream = engine(|mut stream, _| async move {
        request(&mut stream, 0).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n123456789").await.unwrap();
    })
    .await;
    let mut answer = upstream.send(&call(vec![])).await.unwrap();
    assert!(matches!(answer.body.collect(8).await, Err(Broken::TooLong)));
}

#[tokio::test]
async fn others_have_their_turn_while_megabytes_are_written() {
    let upstream = engine(|mut stream, _| async move {
        request(&mut stream, 8 << 20).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    })
    .await;
    let turns = Arc::new(AtomicUsize::new(0));
    let counter = tokio::spawn({
        let turns = Arc::clone(&turns);
        async move {
            loop {
                turns.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        }
    });
    assert_eq!(ask(&upstream, &call(vec![Bytes::from(vec![b' '; 8 << 20])])).await.0, 200);
    counter.abort();
    assert!(turns.load(Ordering::Relaxed) >= (8 << 20) / connection::WRITE_TURN);
}

/// Large requests beside streams that are never quiet: they go on, a turn at a time.
#[tokio::test]
async fn large_requests_wait_for_streams_and_go_on() {
    async fn take(turns: &mut Turns) {
        let turn = poll_fn(|cx| turns.poll_take(cx));
        tokio::time::timeout(Duration::from_secs(10), turn).await.unwrap();
    }
    let lull = Lull::never_quiet();
    let began = Instant::now();
    let [mut one, mut other] = [Turns::new(lull), Turns::new(lull)];
    assert!(poll_fn(|cx| Poll::Ready(one.poll_take(cx))).await.is_ready());
    // The other one has asked a moment ago, each time.
    take(&mut other).await;
    take(&mut one).await;
    assert!(began.elapsed() >= lull::PATIENCE);
    // Alone it goes on at once, as often as it will.
    drop(one);
    take(&mut other).await;
    assert!(poll_fn(|cx| Poll::Ready(other.poll_take(cx))).await.is_ready());
}

impl address::Duplex for BufWriter<DuplexStream> {}

/// TLS keeps what the socket did not take.
#[tokio::test]
async fn a_stream_that_has_a_buffer_is_flushed_to_the_end() {
    let (near, mut far) = tokio::io::duplex(1024);
    let mut connection = Connection::new(Box::new(BufWriter::with_capacity(64 << 10, near)));
    connection.begin([Bytes::from(vec![b' '; 30_000])]);
    let head = tokio::spawn(async move { Answer::head(connection, Pool::default(), &Method::POST).await });
    let read = async {
        tokio::task::yield_now().await; // the buffer has everything, the other side a part
        far.read_exact(&mut vec![0; 30_000]).await.unwrap();
        far.write_all(b"HTTP/1.1 204 None\r\n\r\n").await.unwrap();
    };
    tokio::time::timeout(Duration::from_secs(10), read).await.unwrap();
    assert!(head.await.unwrap().is_ok());
}

/// Puts a connection into the pool; its other end.
fn put(pool: &Pool) -> DuplexStream {
    let (near, far) = tokio::io::duplex(64);
    pool.put(Connection::new(Box::new(BufWriter::new(near))));
    far
}

/// Waits, at most a minute, until the connection is closed; the time by then.
async fn closed(mut far: DuplexStream) -> tokio::time::Instant {
    let read = tokio::time::timeout(Duration::from_secs(60), far.read_u8()).await;
    assert_eq!(read.unwrap().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    tokio::time::Instant::now()
}

#[tokio::test(start_paused = true)]
async fn what_nobody_comes_for_is_closed_before_the_engine_would() {
    let pool = Pool::default();
    for _ in 0..2 {
        let start = tokio::time::Instant::now();
        let kept = closed(put(&pool)).await - start;
        assert!((pool::KEEP_IDLE..Duration::from_secs(5)).contains(&kept), "{kept:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_came_one_by_one_goes_in_a_few_sweeps() {
    let pool = Pool::default();
    let mut far_ends = Vec::new();
    for _ in 0..100 {
        far_ends.push(put(&pool));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut closings = std::collections::BTreeSet::new();
    for far in far_ends {
        closings.insert(closed(far).await);
    }
    assert!(closings.len() <= 4, "{closings:?}");
}
