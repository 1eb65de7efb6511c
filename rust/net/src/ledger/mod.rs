//! The ledger: final exchange records as JSON lines in a directory, so that what happened can be asked later.
//!
//! A thread of its own writes behind a bounded queue: an exchange never waits for the disk and never fails for it. While
//! the disk is full, read-only or gone, records wait in the queue and writing is tried again; what finds no room is
//! dropped and counted.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::digest::Key;
use crate::notices::Notices;
use crate::queue::{Portion, Queue};

mod files;
mod key;
mod name;

use files::Files;

/// Bytes that wait for the disk at most: some four thousand records, the better part of a minute of a busy sidecar.
const QUEUED: usize = 8 * 1024 * 1024;

/// What is written at once, as it comes.
const PORTION: Portion = Portion { records: 4096, bytes: 1024 * 1024, gather: Duration::ZERO };

/// Pauses between tries while the disk refuses: the first, doubled up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(15);

/// Where records go and how much of them is kept.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory; made if it is not there.
    pub directory: PathBuf,
    /// Bytes of all files together; above it the oldest file goes.
    pub bytes: u64,
}

/// The key of digests for a ledger in `directory`: the one that its key file holds, or a new one that it holds from now
/// on. Where that cannot be written the key lives as long as the process, and `notices` is told.
///
/// # Errors
/// The system has no randomness.
pub fn key(directory: &Path, notices: &Notices) -> Result<Key, getrandom::Error> {
    let new = Key::random()?;
    let kept = files::make_directory(directory).and_then(|()| key::keep(directory, &new));
    Ok(kept.unwrap_or_else(|error| {
        let directory = directory.display();
        notices.warn(format!("no digest key can be kept in {directory}: {error}; digests change with the next start"));
        new
    }))
}

/// A running ledger.
#[derive(Debug)]
pub struct Ledger {
    queue: Arc<Queue>,
    counts: Arc<Counts>,
}

/// What became of records.
#[derive(Debug, Default)]
struct Counts {
    records: AtomicU64,
    dropped: AtomicU64,
    failures: AtomicU64,
}

impl Counts {
    fn written(&self, records: usize) {
        self.records.fetch_add(records as u64, Ordering::Relaxed);
    }

    fn dropped(&self, records: usize) {
        self.dropped.fetch_add(records as u64, Ordering::Relaxed);
    }

    /// Written, dropped, and failures of the disk.
    fn read(&self) -> [u64; 3] {
        [&self.records, &self.dropped, &self.failures].map(|count| count.load(Ordering::Relaxed))
    }
}

impl Ledger {
    /// Starts the writing thread. The directory may be unusable: then it is tried again later.
    ///
    /// `kept_key` is written into the directory if that is deleted and made again.
    ///
    /// # Errors
    /// The system has no thread to spare.
    pub fn start(config: Config, kept_key: Option<Key>, notices: Arc<Notices>) -> io::Result<Self> {
        let queue = Arc::new(Queue::new(QUEUED));
        let counts = Arc::new(Counts::default());
        let writer = Writer {
            files: Files::new(config.directory, config.bytes, kept_key),
            queue: Arc::clone(&queue),
            counts: Arc::clone(&counts),
            notices,
            failing: false,
        };
        std::thread::Builder::new().name("foreword-ledger".into()).spawn(move || writer.run())?;
        Ok(Self { queue, counts })
    }

    /// Queues one record, one JSON object without a line break. Never waits; what finds no room is dropped and counted.
    pub fn put(&self, record: Bytes) {
        if !self.queue.put(record) {
            self.counts.dropped(1);
        }
    }

    /// Counters by the names that [`crate::stats`] uses.
    pub fn counters(&self) -> [(&'static str, u64); 3] {
        let [records, dropped, failures] = self.counts.read();
        [("ledger_records_total|", records), ("ledger_dropped_total|", dropped), ("ledger_failures_total|", failures)]
    }

    /// Takes no more records; what is queued is still written.
    pub fn close(&self) {
        self.queue.close();
    }

    /// Waits, after [`Ledger::close`], until all is written, at most until `deadline`; whether it is.
    pub fn wait_written(&self, deadline: Instant) -> bool {
        self.queue.wait_finished(deadline)
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// What the writing thread owns.
struct Writer {
    files: Files,
    queue: Arc<Queue>,
    counts: Arc<Counts>,
    notices: Arc<Notices>,
    failing: bool,
}

impl Writer {
    fn run(mut self) {
        let queue = Arc::clone(&self.queue);
        let _finish = queue.finish_on_drop();
        match self.files.mend() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => self.failed(&error),
            _ => (),
        }
        while let Some(mut records) = queue.take(PORTION) {
            self.write(&mut records);
        }
        if let Err(error) = self.files.finish() {
            self.failed(&error);
        }
    }

    /// Writes `records`, again and again until the disk takes them or the process ends.
    fn write(&mut self, records: &mut VecDeque<Bytes>) {
        let mut pause = FIRST_PAUSE;
        while let Err(error) = self.files.append(records, &self.counts) {
            self.failed(&error);
            if self.queue.rest(pause) {
                // The process ends: one last try.
                if self.files.append(records, &self.counts).is_err() {
                    self.counts.dropped(records.len());
                }
                return;
            }
            pause = (pause * 2).min(LAST_PAUSE);
        }
        if std::mem::take(&mut self.failing) {
            let directory = self.files.directory().display();
            let [_, dropped, _] = self.counts.read();
            self.notices.info(format!("the ledger in {directory} is written again; dropped so far: {dropped} records"));
        }
    }

    fn failed(&mut self, error: &io::Error) {
        self.counts.failures.fetch_add(1, Ordering::Relaxed);
        if !std::mem::replace(&mut self.failing, true) {
            let directory = self.files.directory().display();
            self.notices
                .warn(format!("the ledger in {directory} cannot be written: {error}; requests go on, trying again"));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::ops::Deref;

    use super::*;

    /// A directory of a test's own.
    pub(crate) struct Folder(PathBuf);

    impl Folder {
        pub(crate) fn new() -> Self {
            let name = format!("foreword-test-{}", &Key::random().unwrap().text()[..16]);
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        pub(crate) fn files(&self) -> Vec<(PathBuf, String)> {
            files_in(self)
        }
    }

    impl Deref for Folder {
        type Target = Path;

        fn deref(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// The ledger files of a directory with their text, in the order of their names.
    pub(crate) fn files_in(directory: &Path) -> Vec<(PathBuf, String)> {
        let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let mut paths: Vec<PathBuf> =
            paths.filter(|path| name::is_ours(path.file_name().unwrap().to_str().unwrap())).collect();
        paths.sort();
        paths.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
    }

    fn start(directory: &Path, notices: &Arc<Notices>) -> Ledger {
        let config = Config { directory: directory.to_path_buf(), bytes: 1 << 20 };
        Ledger::start(config, None, Arc::clone(notices)).unwrap()
    }

    fn close(ledger: &Ledger) {
        ledger.close();
        assert!(ledger.wait_written(Instant::now() + Duration::from_secs(20)));
    }

    fn wait_for(what: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !what() {
            assert!(Instant::now() < deadline, "it did not come");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn all_that_is_queued_is_written_before_the_end() {
        let folder = Folder::new();
        let ledger = start(&folder, &Arc::default());
        let lines: Vec<String> = (0..2000).map(|number| format!("{{\"n\":{number}}}")).collect();
        for line in &lines {
            ledger.put(Bytes::from(line.clone()));
        }
        close(&ledger);
        ledger.put(Bytes::from_static(b"{}"));
        let text: String = folder.files().into_iter().map(|(_, text)| text).collect();
        assert_eq!(text.lines().collect::<Vec<_>>(), lines);
        assert!(text.ends_with('\n'));
        assert_eq!(ledger.counters().map(|(_, count)| count), [2000, 1, 0]);
    }

    #[test]
    fn a_directory_that_cannot_be_used_is_told_once_and_tried_again() {
        let folder = Folder::new();
        let notices = Arc::default();
        fs::write(folder.join("taken"), "a file where a directory should be").unwrap();
        let ledger = start(&folder.join("taken"), &notices);
        ledger.put(Bytes::from_static(b"{\"n\":1}"));
        wait_for(|| ledger.counters()[2].1 >= 2);
        ledger.put(Bytes::from_static(b"{\"n\":2}"));
        fs::remove_file(folder.join("taken")).unwrap();
        wait_for(|| ledger.counters()[0].1 == 2);
        assert_eq!(files_in(&folder.join("taken"))[0].1, "{\"n\":1}\n{\"n\":2}\n", "nothing is lost meanwhile");
        let told = notices.take();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].1.contains("cannot be written") && told[1].1.contains("written again"), "{told:?}");
        close(&ledger);
        assert_eq!(ledger.counters()[1].1, 0);
    }

    #[test]
    fn what_finds_no_room_is_dropped_and_the_end_does_not_wait_for_a_dead_disk() {
        let folder = Folder::new();
        fs::write(folder.join("taken"), "").unwrap();
        let ledger = start(&folder.join("taken"), &Arc::default());
        let record = Bytes::from(vec![b' '; 64 * 1024]);
        for _ in 0..200 {
            ledger.put(record.clone());
        }
        let dropped = ledger.counters()[1].1;
        // 128 fit into the queue, up to 16 are in the writer's hands.
        assert!((56..=72).contains(&dropped), "{dropped}");
        close(&ledger);
        assert_eq!(ledger.counters()[0..2], [("ledger_records_total|", 0), ("ledger_dropped_total|", 200)]);
    }

    #[test]
    fn the_key_of_a_directory_stays_and_one_that_cannot_be_kept_is_told() {
        let folder = Folder::new();
        let notices = Notices::default();
        let first = key(&folder.join("ledger"), &notices).unwrap();
        assert_eq!(key(&folder.join("ledger"), &notices).unwrap(), first);
        assert!(notices.take().is_empty());
        fs::write(folder.join("taken"), "").unwrap();
        assert_ne!(key(&folder.join("taken"), &notices).unwrap(), first);
        assert_eq!(notices.take().len(), 1);
    }
}
