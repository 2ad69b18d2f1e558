//! The open log files: opened at the first byte, closed when too many are open, given up when the disk refuses.

use super::LogError;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
};

/// Maximum number of open log files; the least recently written one is closed.
const OPEN_FILES_MAX: usize = 128;

#[derive(Debug, Default)]
pub(super) struct LogFiles {
    open: BTreeMap<PathBuf, (File, u64)>,
    /// Number of writes so far; a file's value is that of its last write.
    writes: u64,
    /// Files that could not be written; they are not tried again.
    refused: BTreeSet<PathBuf>,
    /// Maximum bytes of copies that no flag asked for; `None`: unlimited.
    copies_max: Option<u64>,
    /// Bytes of such copies so far.
    copied: u64,
    /// Whether it was reported that the copies are full.
    copies_ended: bool,
}

impl LogFiles {
    /// Makes the set without open files; all copies together have at most `copies_max` bytes.
    pub(super) fn new(copies_max: Option<u64>) -> Self {
        Self { copies_max, ..Self::default() }
    }

    /// Appends to a copy that no flag asked for, up to the limit of all copies. Reaching the limit is reported once.
    pub(super) fn append_copy(&mut self, path: &Path, bytes: &[u8]) -> Result<(), LogError> {
        let bytes_all = self.copied.saturating_add(bytes.len() as u64);
        if let Some(max) = self.copies_max.filter(|max| bytes_all > *max) {
            // Later and smaller pieces would make a copy with a hole.
            self.copied = u64::MAX;
            if std::mem::replace(&mut self.copies_ended, true) {
                return Ok(());
            }
            return Err(LogError::CopiesFull { max, path: path.to_owned() });
        }
        self.copied = bytes_all;
        self.append(path, bytes)
    }

    /// Appends to a file. A failure is reported once, and the file is not written any more.
    pub(super) fn append(&mut self, path: &Path, bytes: &[u8]) -> Result<(), LogError> {
        if bytes.is_empty() || self.refused.contains(path) {
            return Ok(());
        }
        self.write(path, bytes).map_err(|source| {
            self.open.remove(path);
            self.refused.insert(path.to_owned());
            LogError::File { path: path.to_owned(), source }
        })
    }

    /// Closes the file of a worker that has ended.
    pub(super) fn close(&mut self, path: &Path) {
        self.open.remove(path);
        self.refused.remove(path);
    }

    fn write(&mut self, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
        self.writes += 1;
        if !self.open.contains_key(path) {
            self.make_room();
            let file = OpenOptions::new().append(true).create(true).open(path)?;
            self.open.insert(path.to_owned(), (file, 0));
        }
        let Some((file, last)) = self.open.get_mut(path) else { return Ok(()) };
        *last = self.writes;
        file.write_all(bytes)
    }

    fn make_room(&mut self) {
        if self.open.len() >= OPEN_FILES_MAX
            && let Some(oldest) = self.open.iter().min_by_key(|(_, (_, last))| *last).map(|(path, _)| path.clone())
        {
            self.open.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_files_than_may_be_open_are_all_complete() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = LogFiles::default();
        let path = |n: usize| dir.path().join(n.to_string());
        for round in 0..3 {
            for n in 0..OPEN_FILES_MAX + 20 {
                files.append(&path(n), format!("{round}\n").as_bytes()).unwrap();
                assert!(files.open.len() <= OPEN_FILES_MAX);
            }
        }
        for n in 0..OPEN_FILES_MAX + 20 {
            assert_eq!(std::fs::read_to_string(path(n)).unwrap(), "0\n1\n2\n");
        }
    }

    #[test]
    fn copies_end_at_their_limit_and_what_was_asked_for_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("copy");
        let asked = dir.path().join("asked");
        let mut files = LogFiles::new(Some(10));
        files.append_copy(&copy, b"12345678").unwrap();
        let error = files.append_copy(&copy, b"abc").unwrap_err().to_string();
        assert!(error.contains("10 bytes") && error.contains("--keep-size"), "{error}");
        files.append_copy(&copy, b"z").unwrap();
        files.append(&asked, b"all of it").unwrap();
        assert_eq!(std::fs::read(&copy).unwrap(), b"12345678");
        assert_eq!(std::fs::read(&asked).unwrap(), b"all of it");
    }

    #[test]
    fn a_full_disk_is_told_once() {
        let full = Path::new("/dev/full");
        let mut files = LogFiles::default();
        let error = files.append(full, b"x\n").unwrap_err();
        assert!(error.to_string().contains("/dev/full"), "{error}");
        files.append(full, b"y\n").unwrap();
    }
}
