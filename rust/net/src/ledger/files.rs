//! The files of a ledger: appended to, rotated, held under a bound, mended after a crash.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use rustix::fs::{FlockOperation, flock};

use super::name::{file_name, is_ours};
use super::{Counts, key};
use crate::digest::Key;

/// Files of one ledger: the bound goes in steps of one file, so an eighth of it is always the past.
const FILES: u64 = 8;

/// A file is never larger than this, so that opening one stays quick and deleting one loses little.
const LARGEST: u64 = 32 * 1024 * 1024;

/// Restarts leave small files; so many are kept.
const MOST_FILES: usize = 4096;

/// The bound is looked at again each time this share of a file has been written: others may write here too.
const LOOKS: u64 = 8;

/// How much of a file's end is read at a time in search of the last line's end.
const TAIL: u64 = 64 * 1024;

/// The directory and the file that is being written.
#[derive(Debug)]
pub(super) struct Files {
    directory: PathBuf,
    /// Bytes of all files together.
    bound: u64,
    /// Bytes of one file.
    limit: u64,
    current: Option<Current>,
    /// Time in the last name: names sort even when the clock goes back.
    named: Duration,
    /// Bytes since the bound was looked at.
    unlooked: u64,
    /// What the directory's key file must hold if it has none.
    key: Option<Key>,
}

#[derive(Debug)]
struct Current {
    file: File,
    path: PathBuf,
    inode: (u64, u64),
    /// Length up to the end of the last whole line.
    bytes: u64,
}

impl Current {
    /// Whether the file still is where it was made: it may have been moved or deleted.
    fn is_in_place(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|there| inode(&there) == self.inode)
    }
}

impl Files {
    /// The ledger in `directory`, of at most `bound` bytes. Touches nothing yet.
    pub(super) fn new(directory: PathBuf, bound: u64, key: Option<Key>) -> Self {
        let limit = (bound / FILES).clamp(1, LARGEST);
        Self { directory, bound, limit, current: None, named: Duration::ZERO, unlooked: 0, key }
    }

    /// The ledger's directory.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Appends `lines`, taking each from the front once it is written, or dropped because no file can hold it.
    ///
    /// # Errors
    /// The first failure; lines that are not written stay. No file keeps a part of a line.
    pub(super) fn append(&mut self, lines: &mut VecDeque<Bytes>, counts: &Counts) -> io::Result<()> {
        while let Some(first) = lines.front() {
            if length(first) > self.limit {
                lines.pop_front();
                counts.dropped(1);
                continue;
            }
            let needed = length(first);
            let mut current = self.with_room_for(needed)?;
            let mut text = Vec::new();
            let mut taken = 0;
            for line in &*lines {
                if current.bytes + text.len() as u64 + length(line) > self.limit {
                    break;
                }
                text.extend_from_slice(line);
                text.push(b'\n');
                taken += 1;
            }
            // One write, so that a reader rarely meets half a line.
            if let Err(error) = current.file.write_all(&text) {
                // The next line must not be glued to half of this one.
                if current.file.set_len(current.bytes).is_ok() {
                    self.current = Some(current);
                }
                return Err(error);
            }
            current.bytes += text.len() as u64;
            self.unlooked += text.len() as u64;
            self.current = Some(current);
            lines.drain(..taken);
            counts.written(taken);
        }
        Ok(())
    }

    /// Cuts off lines that a crash left unfinished, in files that no living process writes.
    ///
    /// # Errors
    /// The directory cannot be read. A file that cannot be mended stays as it is.
    pub(super) fn mend(&self) -> io::Result<()> {
        for (path, found) in self.list()? {
            if found.len() > 0 {
                // One file's trouble is not the others'.
                let _ = mend(&path);
            }
        }
        Ok(())
    }

    /// Makes what was written survive a power cut, and lets go of the file.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.current.take().map_or(Ok(()), |current| current.file.sync_data())
    }

    /// The file being written if it has room, else a new one. It is taken out: whoever used it well puts it back.
    fn with_room_for(&mut self, bytes: u64) -> io::Result<Current> {
        if let Some(current) = self.current.take()
            && current.is_in_place()
        {
            if current.bytes + bytes <= self.limit {
                if self.unlooked >= self.limit / LOOKS {
                    self.make_room(self.limit - current.bytes, Some(&current.path))?;
                    self.unlooked = 0;
                }
                return Ok(current);
            }
            current.file.sync_data()?;
        }
        self.open()
    }

    fn open(&mut self) -> io::Result<Current> {
        make_directory(&self.directory)?;
        if let Some(key) = &self.key {
            // Records matter more than that their digests can be compared.
            let _ = key::keep(&self.directory, key);
        }
        self.make_room(self.limit, None)?;
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.named = clock.max(self.named + Duration::from_millis(1));
        let path = self.directory.join(file_name(self.named, u32::from_le_bytes(random)));
        let file = OpenOptions::new().append(true).create_new(true).mode(0o640).open(&path)?;
        // Held until this process ends, however it ends: while it lives, nobody mends this file. Where a file system
        // has no locks nobody mends at all.
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        let inode = inode(&file.metadata()?);
        self.unlooked = 0;
        Ok(Current { file, path, inode, bytes: 0 })
    }

    /// Deletes the oldest files until `headroom` fits under the bound. The file `keep` stays.
    fn make_room(&self, headroom: u64, keep: Option<&Path>) -> io::Result<()> {
        let mut files = self.list()?;
        files.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let mut total: u64 = files.iter().map(|(_, found)| found.len()).sum();
        let mut count = files.len();
        for (path, found) in files {
            if total + headroom <= self.bound && count < MOST_FILES {
                break;
            }
            if keep == Some(path.as_path()) {
                continue;
            }
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {
                    total -= found.len();
                    count -= 1;
                }
            }
        }
        Ok(())
    }

    /// Our files in the directory, in no order.
    fn list(&self) -> io::Result<Vec<(PathBuf, Metadata)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            if entry.file_name().to_str().is_some_and(is_ours)
                && let Ok(found) = entry.metadata()
                && found.is_file()
            {
                files.push((entry.path(), found));
            }
        }
        Ok(files)
    }
}

/// Makes the directory and its parents, unless they are there.
pub(super) fn make_directory(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o750).create(directory)
}

/// Bytes of a line with its end.
fn length(line: &Bytes) -> u64 {
    line.len() as u64 + 1
}

fn inode(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// Cuts the file behind its last line end, unless a living process writes it.
fn mend(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let length = file.metadata()?.len();
    let mut end = length;
    let mut piece = Vec::new();
    while end > 0 {
        let begin = end.saturating_sub(TAIL);
        piece.clear();
        file.seek(SeekFrom::Start(begin))?;
        (&file).take(end - begin).read_to_end(&mut piece)?;
        if let Some(at) = piece.iter().rposition(|byte| *byte == b'\n') {
            end = begin + at as u64 + 1;
            break;
        }
        end = begin;
    }
    if end < length { file.set_len(end) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::tests::{Folder, files_in};

    fn lines(texts: &[&str]) -> VecDeque<Bytes> {
        texts.iter().map(|text| Bytes::copy_from_slice(text.as_bytes())).collect()
    }

    fn ledger(folder: &Path, bound: u64) -> Files {
        Files::new(folder.to_path_buf(), bound, None)
    }

    fn put(files: &mut Files, text: &str) {
        files.append(&mut lines(&[text]), &Counts::default()).unwrap();
    }

    /// A line of 100 bytes with its end.
    fn long(number: u32) -> String {
        format!("{{\"n\":{number:093}}}")
    }

    #[test]
    fn lines_are_appended_and_files_rotated_by_size() {
        let folder = Folder::new();
        // Files of 250 bytes: two lines each.
        let mut files = ledger(&folder, 2000);
        for number in 0..5 {
            put(&mut files, &long(number));
        }
        let found = folder.files();
        assert_eq!(found.iter().map(|(_, text)| text.len()).collect::<Vec<_>>(), [200, 200, 100]);
        let all: String = found.into_iter().map(|(_, text)| text).collect();
        assert_eq!(all, (0..5).map(|number| long(number) + "\n").collect::<String>());
    }

    #[test]
    fn each_start_has_a_file_of_its_own_once_there_is_something_to_write() {
        let folder = Folder::new();
        for start in 0..3 {
            let mut files = ledger(&folder, 2000);
            assert_eq!(folder.files().len(), start);
            put(&mut files, "{}");
        }
        assert_eq!(folder.files().len(), 3);
    }

    #[test]
    fn the_oldest_files_go_and_the_bound_always_holds() {
        let folder = Folder::new();
        fs::write(folder.join("notes.jsonl"), vec![b' '; 5000]).unwrap();
        let mut files = ledger(&folder, 2000);
        for number in 0..100 {
            put(&mut files, &long(number));
            let total: usize = folder.files().iter().map(|(_, text)| text.len()).sum();
            assert!(total <= 2000, "{total}");
        }
        let all: String = folder.files().into_iter().map(|(_, text)| text).collect();
        assert!(all.ends_with(&(long(99) + "\n")), "the newest stays");
        assert!(all.len() >= 1500, "{}", all.len());
        assert!(folder.join("notes.jsonl").exists(), "files that are not ours are not ours to delete");

        let mut smaller = ledger(&folder, 1000);
        put(&mut smaller, "{}");
        let total: usize = folder.files().iter().map(|(_, text)| text.len()).sum();
        assert!(total <= 1000, "{total}");
    }

    #[test]
    fn two_writers_share_the_directory_and_its_bound_but_no_file() {
        let folder = Folder::new();
        let mut writers = [1, 2].map(|_| ledger(&folder, 16_000));
        for number in 0..400 {
            for files in &mut writers {
                put(files, &long(number));
            }
            let total: usize = folder.files().iter().map(|(_, text)| text.len()).sum();
            assert!(total <= 16_000, "{total}");
        }
        for (_, text) in folder.files() {
            let numbers: Vec<&str> = text.lines().collect();
            assert!(numbers.is_sorted() && numbers.windows(2).all(|pair| pair[0] != pair[1]));
        }
    }

    #[test]
    fn a_line_that_no_file_can_hold_is_dropped_alone() {
        let folder = Folder::new();
        let mut files = ledger(&folder, 800);
        let mut mixed = lines(&["{\"n\":1}", &long(0).repeat(2), "{\"n\":2}"]);
        let counts = Counts::default();
        files.append(&mut mixed, &counts).unwrap();
        assert!(mixed.is_empty());
        assert_eq!(counts.read(), [2, 1, 0]);
        assert_eq!(folder.files()[0].1, "{\"n\":1}\n{\"n\":2}\n");
    }

    #[test]
    fn a_line_that_a_crash_cut_is_cut_off() {
        let folder = Folder::new();
        let whole = "{\"n\":1}\n{\"n\":2}\n";
        let name = |number| folder.join(file_name(Duration::from_secs(number), 7));
        fs::write(name(1), format!("{whole}{{\"n\":")).unwrap();
        fs::write(name(2), format!("{whole}{}", "x".repeat(200_000))).unwrap();
        fs::write(name(3), "{\"n\"").unwrap();
        fs::write(name(4), whole).unwrap();
        fs::write(folder.join("notes.jsonl"), "cut").unwrap();
        ledger(&folder, 1 << 20).mend().unwrap();
        let texts: Vec<String> = folder.files().into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts, [whole, whole, "", whole]);
        assert_eq!(fs::read(folder.join("notes.jsonl")).unwrap(), b"cut");
    }

    #[test]
    fn a_file_that_is_being_written_is_not_mended() {
        let folder = Folder::new();
        let mut writing = ledger(&folder, 1 << 20);
        put(&mut writing, "{\"n\":1}");
        let path = folder.files()[0].0.clone();
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"n\":").unwrap();
        let other = ledger(&folder, 1 << 20);
        other.mend().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"n\":1}\n{\"n\":");
        drop(writing);
        other.mend().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"n\":1}\n");
    }

    #[test]
    fn what_was_deleted_or_moved_is_made_again() {
        let folder = Folder::new();
        let key = Key::random().unwrap();
        let mut files = Files::new(folder.join("made/here"), 1 << 20, Some(key.clone()));
        put(&mut files, "{\"n\":1}");
        fs::remove_dir_all(folder.join("made")).unwrap();
        put(&mut files, "{\"n\":2}");
        let (path, text) = files_in(&folder.join("made/here")).remove(0);
        assert_eq!(text, "{\"n\":2}\n");
        assert_eq!(key::read(&folder.join("made/here")).unwrap(), Some(key));
        fs::rename(&path, folder.join("moved")).unwrap();
        put(&mut files, "{\"n\":3}");
        assert_eq!(fs::read_to_string(folder.join("moved")).unwrap(), "{\"n\":2}\n");
        assert_eq!(files_in(&folder.join("made/here"))[0].1, "{\"n\":3}\n");
    }
}
