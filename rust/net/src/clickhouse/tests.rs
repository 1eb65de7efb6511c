//! Against a scripted server: away, slow, refusing, cutting connections.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Mutex;

use super::*;
use crate::outbox::locked;

/// What the server does with one request.
#[derive(Clone, Copy)]
enum Does {
    Takes,
    Refuses(&'static str),
    /// Reads the request and closes without an answer.
    Cuts,
    /// Reads the request and says nothing.
    Sleeps,
}

/// One insert as it came.
#[derive(Clone, Debug)]
struct Insert {
    head: String,
    body: String,
}

impl Insert {
    fn token(&self) -> &str {
        let (_, rest) = self.head.split_once("insert_deduplication_token=").unwrap();
        rest.split('&').next().unwrap()
    }
}

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Insert>>>);

impl Seen {
    fn all(&self) -> Vec<Insert> {
        locked(&self.0).clone()
    }
}

/// Serves the script, one connection an entry, then takes everything.
fn serve(listener: TcpListener, script: &'static [Does]) -> Seen {
    let seen = Seen::default();
    let noted = seen.clone();
    std::thread::spawn(move || {
        let mut asleep = Vec::new();
        for (number, stream) in listener.incoming().enumerate() {
            let stream = stream.unwrap();
            let mut reader = BufReader::new(&stream);
            let mut head = String::new();
            while reader.read_line(&mut head).unwrap() > 2 {}
            let lower = head.to_lowercase();
            let (_, length) = lower.split_once("content-length: ").unwrap();
            let mut body = vec![0; length.lines().next().unwrap().parse().unwrap()];
            reader.read_exact(&mut body).unwrap();
            locked(&noted.0).push(Insert { head, body: String::from_utf8(body).unwrap() });
            match script.get(number).copied().unwrap_or(Does::Takes) {
                Does::Takes => (&stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap(),
                Does::Refuses(answer) => (&stream).write_all(answer.as_bytes()).unwrap(),
                Does::Cuts => (),
                Does::Sleeps => asleep.push(stream),
            }
        }
    });
    seen
}

const QUICK: Patience = Patience {
    connect: Duration::from_millis(500),
    answer: Duration::from_millis(300),
    first_pause: Duration::from_millis(20),
    last_pause: Duration::from_millis(50),
};

const SMALL: Portion = Portion { records: 3, bytes: 1 << 20, gather: Duration::from_millis(20) };

fn start(address: SocketAddr, notices: &Arc<Notices>, queued: usize) -> ClickHouse {
    let table = Table::parse(&format!("http://me:hunter2@{address}/db?table=llm")).unwrap();
    ClickHouse::start_with(table, Arc::clone(notices), queued, SMALL, QUICK).unwrap()
}

fn put(clickhouse: &ClickHouse, numbers: std::ops::Range<u32>) {
    for number in numbers {
        clickhouse.put(Bytes::from(format!("{{\"n\":{number}}}")));
    }
}

fn finish(clickhouse: &ClickHouse) {
    clickhouse.close();
    assert!(clickhouse.wait_sent(Instant::now() + Duration::from_secs(20)));
}

fn wait_for(what: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !what() {
        assert!(Instant::now() < deadline, "it did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn bodies(inserts: &[Insert]) -> String {
    inserts.iter().map(|insert| insert.body.as_str()).collect()
}

fn lines(numbers: std::ops::Range<u32>) -> String {
    numbers.fold(String::new(), |text, number| text + &format!("{{\"n\":{number}}}\n"))
}

#[test]
fn records_go_in_batches_as_they_are() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let notices = Arc::default();
    let clickhouse = start(listener.local_addr().unwrap(), &notices, 1 << 20);
    let seen = serve(listener, &[]);
    put(&clickhouse, 0..7);
    finish(&clickhouse);
    let inserts = seen.all();
    assert_eq!(bodies(&inserts), lines(0..7));
    assert!((3..=7).contains(&inserts.len()), "{}", inserts.len());
    for insert in &inserts {
        assert!(
            insert.head.starts_with("POST /?query=INSERT%20INTO%20%60db%60.%60llm%60%20(record)"),
            "{}",
            insert.head
        );
        assert!(insert.head.contains("x-clickhouse-key: hunter2\r\n"));
    }
    assert!(inserts.windows(2).all(|pair| pair[0].token() != pair[1].token()));
    assert_eq!(clickhouse.counters().map(|(_, count)| count), [7, 0, 0]);
    assert!(notices.take().is_empty());
}

#[test]
fn what_was_not_taken_is_sent_again_with_the_same_token() {
    const SCRIPT: &[Does] = &[
        Does::Refuses("HTTP/1.1 500 Oh\r\ncontent-length: 19\r\n\r\nCode: 241. too much"),
        Does::Cuts,
        Does::Sleeps,
        Does::Refuses("HTTP/1.1 200 OK\r\nx-clickhouse-exception-code: 60\r\ncontent-length: 0\r\n\r\n"),
        Does::Refuses("HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\ncut"),
    ];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let notices = Arc::default();
    let clickhouse = start(listener.local_addr().unwrap(), &notices, 1 << 20);
    let seen = serve(listener, SCRIPT);
    put(&clickhouse, 0..3);
    wait_for(|| clickhouse.counters()[0].1 == 3);
    let inserts = seen.all();
    assert_eq!(inserts.len(), 6);
    assert!(inserts.iter().all(|insert| insert.body == lines(0..3) && insert.token() == inserts[0].token()));
    put(&clickhouse, 3..6);
    finish(&clickhouse);
    assert_eq!(bodies(&seen.all()[5..]), lines(0..6));
    assert_eq!(clickhouse.counters().map(|(_, count)| count), [6, 0, 5]);
    let told = notices.take();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].1.contains("status 500: Code: 241. too much") && told[1].1.contains("takes records again"));
    assert!(!format!("{told:?}").contains("hunter2"));
}

#[test]
fn while_the_server_is_away_records_wait_up_to_the_bound() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    // Room for ten records of seven bytes; at most three more are in the shipper's hands.
    let clickhouse = start(address, &Arc::default(), 70);
    put(&clickhouse, 0..3);
    wait_for(|| clickhouse.counters()[2].1 >= 2);
    put(&clickhouse, 3..20);
    let dropped = clickhouse.counters()[1].1;
    assert!((7..=10).contains(&dropped), "{dropped}");
    let seen = serve(TcpListener::bind(address).unwrap(), &[]);
    finish(&clickhouse);
    let kept = u32::try_from(20 - dropped).unwrap();
    assert_eq!(bodies(&seen.all()), lines(0..kept));
    assert_eq!(
        clickhouse.counters()[0..2],
        [("clickhouse_rows_total|", u64::from(kept)), ("clickhouse_dropped_total|", dropped)]
    );
}

#[test]
fn the_end_does_not_wait_for_a_server_that_is_away() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let clickhouse = start(address, &Arc::default(), 1 << 20);
    put(&clickhouse, 0..7);
    let began = Instant::now();
    finish(&clickhouse);
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(clickhouse.counters()[0..2], [("clickhouse_rows_total|", 0), ("clickhouse_dropped_total|", 7)]);
}

#[test]
fn refused_credentials_are_told_without_what_the_server_says_of_them() {
    const SCRIPT: &[Does] =
        &[Does::Refuses("HTTP/1.1 403 No\r\ncontent-length: 40\r\n\r\nme: password hunter2 is not that of `me`")];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let notices = Arc::default();
    let clickhouse = start(listener.local_addr().unwrap(), &notices, 1 << 20);
    let _seen = serve(listener, SCRIPT);
    put(&clickhouse, 0..1);
    wait_for(|| clickhouse.counters()[0].1 == 1);
    let told = notices.take();
    assert!(told[0].1.contains("status 403") && !told[0].1.contains("hunter2"), "{told:?}");
}
