//! The key file beside a ledger: digests of one ledger stay comparable over restarts.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::digest::Key;

/// Its name in the ledger's directory.
const NAME: &str = "digest.key";

/// Text shorter than this is no key of ours: what a full disk left, or a mistake.
const LEAST: usize = 32;

/// The key that the directory holds, if any.
pub(super) fn read(directory: &Path) -> io::Result<Option<Key>> {
    match fs::read_to_string(directory.join(NAME)) {
        Ok(text) => Ok(Some(Key::from_text(&text)).filter(|key| key.text().len() >= LEAST)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes `key` unless the directory holds one, and returns the one it holds then. Two processes that start at once
/// agree: a key file appears whole or not at all, and the first stays.
pub(super) fn keep(directory: &Path, key: &Key) -> io::Result<Key> {
    if let Some(found) = read(directory)? {
        return Ok(found);
    }
    let random = Key::random().map_err(io::Error::other)?;
    let draft = directory.join(format!(".{NAME}.{}", random.text().get(..8).unwrap_or_default()));
    let written = write(&draft, key).and_then(|()| put_in_place(&draft, &directory.join(NAME)));
    let _ = fs::remove_file(&draft);
    written?;
    Ok(read(directory)?.unwrap_or_else(|| key.clone()))
}

fn write(path: &Path, key: &Key) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{}", key.text())?;
    file.sync_all()
}

fn put_in_place(draft: &Path, place: &Path) -> io::Result<()> {
    match fs::hard_link(draft, place) {
        // Taken: by another process just now, or by something that is no key.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match fs::metadata(place)?.len() {
            length if length >= LEAST as u64 => Ok(()),
            _ => fs::rename(draft, place),
        },
        // A file system without links.
        Err(_) => fs::rename(draft, place),
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::ledger::tests::Folder;

    #[test]
    fn the_first_key_stays_and_only_its_owner_reads_it() {
        let folder = Folder::new();
        assert_eq!(read(&folder).unwrap(), None);
        let (one, two) = (Key::random().unwrap(), Key::random().unwrap());
        assert_eq!(keep(&folder, &one).unwrap(), one);
        assert_eq!(keep(&folder, &two).unwrap(), one);
        assert_eq!(read(&folder).unwrap(), Some(one));
        let mode = fs::metadata(folder.join(NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(&*folder).unwrap().count(), 1, "no draft stays");
    }

    #[test]
    fn what_is_no_key_is_replaced() {
        let folder = Folder::new();
        fs::write(folder.join(NAME), "\n").unwrap();
        let key = Key::random().unwrap();
        assert_eq!(keep(&folder, &key).unwrap(), key);
        assert_eq!(read(&folder).unwrap(), Some(key));
    }

    #[test]
    fn processes_that_start_at_once_agree() {
        let folder = Folder::new();
        let keys = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| keep(&folder, &Key::random().unwrap()).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(keys.iter().all(|key| *key == keys[0]), "{}", keys.len());
    }
}
