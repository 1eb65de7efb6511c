//! Ships records to ClickHouse by its HTTP interface, in batches, from a thread of its own.
//!
//! What was accepted waits in memory, up to a bound, while the server is away; a batch is sent again, unchanged, until
//! the server has said that it took it. So a batch whose answer was lost may arrive twice: the table keeps one row of a
//! request id. Exchanges never wait for any of it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use tokio::runtime::{Builder, Runtime};

use crate::notices::Notices;
use crate::queue::{Portion, Queue};
use crate::upstream::{Call, Upstream};

mod table;

pub use table::Table;

/// Bytes that wait for the server at most: some thirty thousand records, an hour of ten exchanges a second.
const QUEUED: usize = 64 * 1024 * 1024;

/// One insert. Every insert makes a part on the server's disk, so that few large ones are wanted; two seconds are soon
/// enough for whoever looks.
const PORTION: Portion = Portion { records: 10_000, bytes: 4 * 1024 * 1024, gather: Duration::from_secs(2) };

/// How long one insert may take.
const PATIENCE: Patience = Patience {
    connect: Duration::from_secs(5),
    answer: Duration::from_secs(30),
    first_pause: Duration::from_millis(500),
    last_pause: Duration::from_secs(30),
};

/// The longest answer that is read, in bytes.
const ANSWER: usize = 1024 * 1024;

/// How much of what the server says against an insert is told, in bytes.
const COMPLAINT: usize = 300;

/// Times of one insert and between tries.
#[derive(Clone, Copy, Debug)]
struct Patience {
    connect: Duration,
    answer: Duration,
    /// The pauses double from the first to the last, each shortened by chance so that a fleet does not come back at once.
    first_pause: Duration,
    last_pause: Duration,
}

/// A running shipper.
#[derive(Debug)]
pub struct ClickHouse {
    queue: Arc<Queue>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    rows: AtomicU64,
    dropped: AtomicU64,
    failures: AtomicU64,
}

impl ClickHouse {
    /// Starts the shipping thread. The server may be away.
    ///
    /// # Errors
    /// A system without threads, descriptors or, for https, root certificates.
    pub fn start(table: Table, notices: Arc<Notices>) -> io::Result<Self> {
        Self::start_with(table, notices, QUEUED, PORTION, PATIENCE)
    }

    fn start_with(
        table: Table,
        notices: Arc<Notices>,
        queued: usize,
        portion: Portion,
        patience: Patience,
    ) -> io::Result<Self> {
        let queue = Arc::new(Queue::new(queued));
        let counts = Arc::new(Counts::default());
        let shipper = Shipper {
            server: Upstream::new(table.server(), patience.connect).map_err(io::Error::other)?,
            runtime: Builder::new_current_thread().enable_all().max_blocking_threads(1).build()?,
            table,
            patience,
            queue: Arc::clone(&queue),
            counts: Arc::clone(&counts),
            notices,
            failing: false,
        };
        std::thread::Builder::new().name("foreword-rows".into()).spawn(move || shipper.run(portion))?;
        Ok(Self { queue, counts })
    }

    /// Accepts one record, one JSON object without a line break. Never waits; what finds no room is dropped and counted.
    pub fn put(&self, record: Bytes) {
        if !self.queue.put(record) {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counters by the names that [`crate::stats`] uses.
    pub fn counters(&self) -> [(&'static str, u64); 3] {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("clickhouse_rows_total|", read(&self.counts.rows)),
            ("clickhouse_dropped_total|", read(&self.counts.dropped)),
            ("clickhouse_failures_total|", read(&self.counts.failures)),
        ]
    }

    /// Accepts no more records; what is queued is still sent, each batch once more.
    pub fn close(&self) {
        self.queue.close();
    }

    /// Waits, after [`ClickHouse::close`], until all is sent or given up, at most until `deadline`; whether it is.
    pub fn wait_sent(&self, deadline: Instant) -> bool {
        self.queue.wait_finished(deadline)
    }
}

impl Drop for ClickHouse {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// What the shipping thread owns.
struct Shipper {
    server: Upstream,
    runtime: Runtime,
    table: Table,
    patience: Patience,
    queue: Arc<Queue>,
    counts: Arc<Counts>,
    notices: Arc<Notices>,
    failing: bool,
}

impl Shipper {
    fn run(mut self, portion: Portion) {
        let queue = Arc::clone(&self.queue);
        let _finish = queue.finish_on_drop();
        while let Some(records) = queue.take(portion) {
            let rows = records.len() as u64;
            let mut text = Vec::with_capacity(records.iter().map(|record| record.len() + 1).sum());
            for record in records {
                text.extend_from_slice(&record);
                text.push(b'\n');
            }
            let taken = self.deliver(&Bytes::from(text));
            let count = if taken { &self.counts.rows } else { &self.counts.dropped };
            count.fetch_add(rows, Ordering::Relaxed);
        }
    }

    /// Sends one batch until the server has taken it; false if the process ends before.
    fn deliver(&mut self, batch: &Bytes) -> bool {
        let token = format!("{:032x}", chance());
        let mut pause = self.patience.first_pause;
        let mut last = false;
        loop {
            match self.insert(batch, &token) {
                Ok(()) => break,
                Err(reason) => self.failed(&reason),
            }
            if last {
                return false;
            }
            last = self.queue.rest(pause.mul_f64(share()));
            pause = (pause * 2).min(self.patience.last_pause);
        }
        if std::mem::take(&mut self.failing) {
            self.notices.info(format!("ClickHouse at {} takes records again", self.table));
        }
        true
    }

    /// One insert. The error says why the server may not have taken it.
    fn insert(&self, batch: &Bytes, token: &str) -> Result<(), String> {
        let call = Call {
            method: Method::POST,
            target: self.table.insert(token),
            headers: self.table.headers(),
            body: vec![batch.clone()],
        };
        self.runtime.block_on(async {
            tokio::time::timeout(self.patience.answer, self.ask(&call))
                .await
                .unwrap_or_else(|_| Err("no answer in time".into()))
        })
    }

    async fn ask(&self, call: &Call) -> Result<(), String> {
        let mut answer = self.server.send(call).await.map_err(|failure| failure.to_string())?;
        let status = answer.head.status;
        // A failure behind the head of an answer; its text is in the body.
        let failed = answer.head.headers.contains_key("x-clickhouse-exception-code");
        let body = answer.body.collect(ANSWER).await.map_err(|broken| broken.to_string())?;
        match status.as_u16() {
            200 if !failed => Ok(()),
            // What is said to somebody unknown repeats who they said they are.
            401 | 403 => Err(format!("status {}: the credentials are not accepted", status.as_u16())),
            status => {
                let text = String::from_utf8_lossy(body.get(..COMPLAINT).unwrap_or(&body));
                Err(format!("status {status}: {}", text.lines().next().unwrap_or_default()))
            }
        }
    }

    fn failed(&mut self, reason: &str) {
        self.counts.failures.fetch_add(1, Ordering::Relaxed);
        if !std::mem::replace(&mut self.failing, true) {
            self.notices.warn(format!(
                "ClickHouse at {} does not take records: {reason}; they are kept in memory and sent again",
                self.table
            ));
        }
    }
}

fn chance() -> u128 {
    let mut bytes = [0; 16];
    // Without randomness tokens repeat and pauses are equal: no harm that a record would notice in a plain table.
    let _ = getrandom::fill(&mut bytes);
    u128::from_le_bytes(bytes)
}

/// Between a half and one.
fn share() -> f64 {
    let [byte, ..] = chance().to_le_bytes();
    0.5 + f64::from(byte) / 512.0
}

#[cfg(test)]
mod tests;
