//! Whole requests, with their text, for whoever must see what a client really sends. Off until it is asked for, and then
//! bounded in number, in bytes and in time.
//!
//! Each order has a folder of its own, `until-SECONDS-RANDOM`, whose name says when it goes (seconds since 1970): so
//! what a process left behind is deleted by the next one that is given the same directory. A thread of the order writes
//! and deletes; an exchange waits for neither.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use foreword_core::json::write_str;

use crate::notices::Notices;
use crate::outbox::locked;

/// Bytes of all bodies of one order.
const BYTES: usize = 256 * 1024 * 1024;

/// Bodies that wait to be written; more at a time are not captured. They are large and held in memory.
const WAITING: usize = 8;

/// How often the clock is looked at while folders wait for their end: it may be set.
const LOOK: Duration = Duration::from_secs(60);

const PREFIX: &str = "until-";

/// What is to be captured.
#[derive(Clone, Debug)]
pub struct Order {
    /// Where; made, for its owner only, if it is not there.
    pub directory: PathBuf,
    /// The next so many prompts. None only deletes what has expired.
    pub requests: u32,
    /// After this capturing ends and what it wrote is deleted.
    pub lasting: Duration,
}

/// One request as it is written.
struct Request {
    route: &'static str,
    id: String,
    time: Duration,
    body: Bytes,
}

/// The order under way, if any.
struct Armed {
    requests: u32,
    bytes: usize,
    until: Instant,
    writer: SyncSender<Request>,
}

/// Captures what it is armed for.
pub(crate) struct Capture {
    /// Whether there is an order: all that a request pays for while there is none.
    is_armed: AtomicBool,
    armed: Mutex<Option<Armed>>,
    notices: Arc<Notices>,
}

impl Capture {
    pub(crate) fn new(notices: Arc<Notices>) -> Self {
        Self { is_armed: AtomicBool::new(false), armed: Mutex::default(), notices }
    }

    /// Begins an order; it replaces the one under way. Returns the folder that it writes to.
    ///
    /// # Errors
    /// The folder cannot be made, or there is no thread to spare.
    pub(crate) fn arm(&self, order: Order) -> io::Result<PathBuf> {
        let Order { directory, requests, lasting } = order;
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let folder = directory.join(folder_name(since_1970() + lasting)?);
        if requests == 0 {
            std::thread::Builder::new().name("foreword-capture".into()).spawn(move || expire_all(&directory))?;
            return Ok(folder);
        }
        DirBuilder::new().mode(0o700).create(&folder)?;
        let (writer, waiting) = sync_channel(WAITING);
        let until = Instant::now() + lasting;
        let thread = Writer { folder: folder.clone(), until, notices: Arc::clone(&self.notices) };
        std::thread::Builder::new().name("foreword-capture".into()).spawn(move || {
            thread.run(&waiting);
            drop(waiting);
            expire_all(&directory);
        })?;
        self.notices.warn(format!(
            "capturing the next {requests} prompts WITH THEIR TEXT into {}; they are deleted after {} s",
            folder.display(),
            lasting.as_secs()
        ));
        *locked(&self.armed) = Some(Armed { requests, bytes: BYTES, until, writer });
        self.is_armed.store(true, Ordering::Relaxed);
        Ok(folder)
    }

    /// Takes a request if there is an order for it. Never waits, never fails.
    pub(crate) fn take(&self, route: &'static str, request_id: &str, body: &Bytes) {
        if !self.is_armed.load(Ordering::Relaxed) {
            return;
        }
        let mut armed = locked(&self.armed);
        let Some(order) = &mut *armed else { return };
        let over = order.until <= Instant::now() || body.len() > order.bytes || {
            let request = Request { route, id: request_id.to_owned(), time: since_1970(), body: body.clone() };
            match order.writer.try_send(request) {
                Ok(()) => {
                    order.requests -= 1;
                    order.bytes -= body.len();
                    order.requests == 0
                }
                Err(TrySendError::Full(_)) => false,
                Err(TrySendError::Disconnected(_)) => true,
            }
        };
        if over {
            *armed = None;
            self.is_armed.store(false, Ordering::Relaxed);
        }
    }
}

/// The thread of one order.
struct Writer {
    folder: PathBuf,
    until: Instant,
    notices: Arc<Notices>,
}

impl Writer {
    /// Writes what comes until the order is over, and says so.
    fn run(&self, waiting: &Receiver<Request>) {
        let mut written = 0;
        let end = loop {
            match waiting.recv_timeout(self.until.saturating_duration_since(Instant::now())) {
                Ok(request) => match write(&self.folder, written, &request) {
                    Ok(()) => written += 1,
                    Err(error) => break format!(" because writing failed: {error}"),
                },
                Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => break String::new(),
            }
        };
        self.notices.warn(format!("capture ended{end}; {written} prompts are in {}", self.folder.display()));
    }
}

fn write(folder: &Path, number: u32, request: &Request) -> io::Result<()> {
    let mut json = Vec::with_capacity(request.body.len() + request.body.len() / 8 + 200);
    json.extend_from_slice(b"{\"request_id\":");
    write_str(&request.id, &mut json);
    write!(json, ",\"time\":{:.3},\"route\":", request.time.as_secs_f64())?;
    write_str(request.route, &mut json);
    json.extend_from_slice(b",\"body\":");
    write_str(&String::from_utf8_lossy(&request.body), &mut json);
    json.extend_from_slice(b"}\n");
    let id: String = request.id.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
    let path = folder.join(format!("{number:04}-{id}.json"));
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(&json)
}

/// Deletes each folder of the directory at its end; returns when there is none left.
fn expire_all(directory: &Path) {
    while let Some(next) = expire(directory, since_1970()) {
        std::thread::sleep(next.saturating_sub(since_1970()).clamp(Duration::from_millis(10), LOOK));
    }
}

/// Deletes folders whose time is over at `now`; when the next one's is.
fn expire(directory: &Path, now: Duration) -> Option<Duration> {
    let mut next: Option<Duration> = None;
    for entry in fs::read_dir(directory).ok()?.flatten() {
        let Some(until) = entry.file_name().to_str().and_then(end_of) else { continue };
        let again = if until > now {
            until
        } else if fs::remove_dir_all(entry.path()).is_err() {
            now + LOOK
        } else {
            continue;
        };
        next = Some(next.map_or(again, |next| next.min(again)));
    }
    next
}

fn folder_name(until: Duration) -> io::Result<String> {
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(format!("{PREFIX}{}-{:08x}", until.as_secs_f64().ceil(), u32::from_le_bytes(random)))
}

/// The end of a folder of ours, since 1970.
fn end_of(name: &str) -> Option<Duration> {
    let (seconds, random) = name.strip_prefix(PREFIX)?.split_once('-')?;
    let ours = random.len() == 8 && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    seconds.parse().ok().filter(|_| ours).map(Duration::from_secs)
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::ledger::tests::Folder;

    const LONG: Duration = Duration::from_secs(600);

    fn order(folder: &Folder, requests: u32, lasting: Duration) -> Order {
        Order { directory: folder.join("captures"), requests, lasting }
    }

    fn wait_for(what: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !what() {
            assert!(Instant::now() < deadline, "it did not come");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn texts(folder: &Path) -> Vec<String> {
        let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
    }

    #[test]
    fn the_next_requests_are_written_whole_for_their_owner_only() {
        let folder = Folder::new();
        let notices = Arc::new(Notices::default());
        let capture = Capture::new(Arc::clone(&notices));
        let body = Bytes::from_static(b"{\"messages\":[\"a \\\"secret\\\"\"]}");
        capture.take("chat", "req_0", &body);
        let made = capture.arm(order(&folder, 2, LONG)).unwrap();
        for number in 1..=3 {
            capture.take("chat", &format!("req_{number}"), &body);
        }
        assert!(!capture.is_armed.load(Ordering::Relaxed));
        wait_for(|| texts(&made).len() == 2 && texts(&made).iter().all(|text| text.ends_with("}\n")));
        let written = texts(&made);
        assert!(written[0].starts_with("{\"request_id\":\"req_1\",\"time\":1"), "{}", written[0]);
        assert!(
            written[1]
                .ends_with(",\"route\":\"chat\",\"body\":\"{\\\"messages\\\":[\\\"a \\\\\\\"secret\\\\\\\"\\\"]}\"}\n")
        );
        assert_eq!((mode(&folder.join("captures")), mode(&made)), (0o700, 0o700));
        assert_eq!(mode(&made.join("0000-req_1.json")), 0o600);
        let mut told = Vec::new();
        while told.len() < 2 {
            told.extend(notices.take());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(told[0].1.contains("WITH THEIR TEXT") && told[1].1.contains("capture ended; 2 prompts"), "{told:?}");
        assert!(!format!("{told:?}").contains("secret"));
    }

    #[test]
    fn captures_end_and_are_deleted_when_their_time_is_over() {
        let folder = Folder::new();
        let capture = Capture::new(Arc::default());
        let made = capture.arm(order(&folder, 5, Duration::from_millis(100))).unwrap();
        capture.take("chat", "req_1", &Bytes::from_static(b"{}"));
        wait_for(|| !made.exists());
        capture.take("chat", "req_2", &Bytes::from_static(b"{}"));
        assert!(!capture.is_armed.load(Ordering::Relaxed));
        assert!(folder.join("captures").exists());
    }

    #[test]
    fn what_an_earlier_process_left_is_deleted_and_nothing_else() {
        let folder = Folder::new();
        let directory = folder.join("captures");
        let now = since_1970();
        let old = folder_name(now.saturating_sub(LONG)).unwrap();
        let young = folder_name(now + LONG).unwrap();
        for name in [old.as_str(), young.as_str(), "until-1-notes", "mine"] {
            fs::create_dir_all(directory.join(name)).unwrap();
            fs::write(directory.join(name).join("0000-req_1.json"), "{}").unwrap();
        }
        Capture::new(Arc::default()).arm(order(&folder, 0, LONG)).unwrap();
        wait_for(|| !directory.join(&old).exists());
        for name in [young.as_str(), "until-1-notes", "mine"] {
            assert!(directory.join(name).join("0000-req_1.json").exists(), "{name}");
        }
    }

    #[test]
    fn a_new_order_replaces_the_old_one_and_too_many_bytes_end_it() {
        let folder = Folder::new();
        let capture = Capture::new(Arc::default());
        let first = capture.arm(order(&folder, 5, LONG)).unwrap();
        let second = capture.arm(order(&folder, 5, LONG)).unwrap();
        capture.take("chat", "req_1", &Bytes::from_static(b"{}"));
        wait_for(|| texts(&second).len() == 1);
        assert!(texts(&first).is_empty());
        capture.take("chat", "req_2", &Bytes::from(vec![b' '; BYTES]));
        assert!(!capture.is_armed.load(Ordering::Relaxed));
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_an_error() {
        let folder = Folder::new();
        fs::write(folder.join("captures"), "").unwrap();
        assert!(Capture::new(Arc::default()).arm(order(&folder, 5, LONG)).is_err());
    }
}
