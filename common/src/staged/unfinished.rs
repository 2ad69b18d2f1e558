//! How far a staging has come that may be cut off: a journal in the unfinished directory.
//!
//! ```text
//! .staging-<digest>/
//!   lock        held while somebody stages here
//!   progress    a mark a line: "<crc32c, 8 hex digits> <JSON>⏎"; gone as soon as rows are changed where they lie
//!   hashes      16 bytes a row, where repeated rows are looked for
//!   cells-0 …   of a source's long table, its rows as far as its last mark says: cell, row and values
//!   x.npy …     the rows as far as the last mark says, perhaps more, without a header
//! ```
//! The directory's name is the digest of what the sources hold and of what was asked for: whoever finds it stages the same.
//!
//! **Invariant:** a mark is appended when all it counts is durable. What is behind the last whole mark is cut off and made again.

use crate::fs::FileError;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

pub const PROGRESS: &str = "progress";
/// The name of the rows' hashes.
pub const HASHES: &str = "hashes";
/// The name of a long table's rows, before the number of its source.
pub const CELLS: &str = "cells-";

/// Whether a file of the directory is of use for another attempt alone.
pub fn is_for_another(name: &str) -> bool {
    [PROGRESS, HASHES].contains(&name) || name.starts_with(CELLS)
}

/// How far one pass over the sources is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ResumePoint {
    /// Which pass, from 0.
    pub pass: u32,
    /// Whether the pass is over.
    pub ended: bool,
    /// File whose turn it is, index into the configured files.
    pub file: usize,
    /// Where the next piece of it begins, as its source counts; `None` at its beginning.
    pub at: Option<u64>,
    /// Lines or rows of the file before that.
    pub before: u64,
    /// Source bytes read.
    pub bytes: u64,
    pub rows: u64,
    /// Rows delivered of each file.
    pub file_rows: Vec<u64>,
    /// Per wanted column: cells that were missing, not finite, out of range, clamped.
    pub counts: Vec<[u64; 4]>,
    /// Rows left out for their width.
    pub wrong_width: u64,
    /// Line of the first of them.
    pub wrong_width_line: Option<u64>,
    pub kept: Kept,
}

/// State that a layout needs to continue after a resume point.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Kept {
    #[default]
    None,
    /// Table rows that are samples.
    Rows {
        /// Of each category column: the categories that are new since the mark before.
        words: Vec<Vec<String>>,
        /// Names of samples that are new since the mark before.
        names: Vec<String>,
        /// Whether a row had a name that is no number.
        has_text_keys: bool,
        /// Rows whose hashes are kept.
        hashes: u64,
    },
    /// Labels that are new since the mark before, of each column of labels.
    Labels {
        /// In order of first appearance.
        words: Vec<Vec<String>>,
    },
    Arrays {
        /// Rows whose hashes are kept.
        hashes: u64,
    },
    /// The keys of a long table.
    Keys {
        /// Entities that are new since the mark before, or have rows before or behind those that they had.
        entities: Vec<String>,
        /// First and last step of each of them, where it has rows with a time.
        #[serde(default)]
        spans: Vec<Option<(i64, i64)>>,
        /// First and last step with a row.
        steps: Option<(i64, i64)>,
        /// Rows that are keyed, lack a key, lie between steps, are of entities that the model does not know.
        rows: [u64; 4],
        /// Some of those entities.
        strangers: Vec<String>,
        /// Microseconds between rows of an entity, and how often.
        #[serde(default)]
        gaps: Vec<(i64, u64)>,
    },
    /// The cells of a long table.
    Cells {
        /// Stretches of the kept rows that are new since the mark before: part of the grid, offset, bytes.
        runs: Vec<(u64, u64, u64)>,
        /// Bytes of all kept rows.
        bytes: u64,
    },
}

/// The journal of one staging, open at its end.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
}

impl Journal {
    /// Opens that of a directory, or makes it: with the whole marks it has, its torn end cut off.
    pub fn open(dir: &Path) -> Result<(Self, Vec<ResumePoint>), FileError> {
        let path = dir.join(PROGRESS);
        let file = File::options().append(true).create(true).open(&path).map_err(FileError::of("create", &path))?;
        let text = fs::read(&path).map_err(FileError::of("read", &path))?;
        let mut marks = Vec::new();
        let mut whole = 0;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            let Some(mark) = parse(line) else { break };
            marks.push(mark);
            whole += line.len() as u64;
        }
        if whole < text.len() as u64 {
            file.set_len(whole).map_err(FileError::of("cut", &path))?;
        }
        Ok((Self { file, path }, marks))
    }

    /// Appends a mark and makes it durable.
    pub fn append(&mut self, mark: &ResumePoint) -> Result<(), FileError> {
        let json = serde_json::to_string(mark).map_err(|error| FileError::of("write", &self.path)(error.into()))?;
        let line = format!("{:08x} {json}\n", crc32c::crc32c(json.as_bytes()));
        self.file.write_all(line.as_bytes()).map_err(FileError::of("write", &self.path))?;
        self.file.sync_data().map_err(FileError::of("sync", &self.path))
    }
}

/// The mark of a line; `None` where it is torn.
fn parse(line: &[u8]) -> Option<ResumePoint> {
    let line = line.strip_suffix(b"\n")?;
    let (sum, json) = line.split_at_checked(9)?;
    let sum = u32::from_str_radix(std::str::from_utf8(sum).ok()?.trim_end(), 16).ok()?;
    (sum == crc32c::crc32c(json)).then(|| serde_json::from_slice(json).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(rows: u64) -> ResumePoint {
        let kept = Kept::Rows { words: vec![vec!["a\nb".into()]], names: vec![], has_text_keys: true, hashes: rows };
        ResumePoint { pass: 1, at: Some(rows * 10), rows, counts: vec![[1, 2, 3, 4]], kept, ..ResumePoint::default() }
    }

    #[test]
    fn a_torn_end_is_cut_wherever_it_was_torn() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, marks) = Journal::open(dir.path()).unwrap();
        assert!(marks.is_empty());
        (1..=3).for_each(|rows| journal.append(&mark(rows)).unwrap());
        let whole = fs::read(dir.path().join(PROGRESS)).unwrap();
        let lines: Vec<usize> =
            whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1).collect();
        for length in 0..=whole.len() {
            fs::write(dir.path().join(PROGRESS), &whole[..length]).unwrap();
            let (mut journal, marks) = Journal::open(dir.path()).unwrap();
            let expected = lines.iter().filter(|end| **end <= length).count() as u64;
            assert_eq!(marks, (1..=expected).map(mark).collect::<Vec<_>>(), "cut to {length} bytes");
            journal.append(&mark(9)).unwrap();
            assert_eq!(Journal::open(dir.path()).unwrap().1.last(), Some(&mark(9)));
        }
    }

    #[test]
    fn a_flipped_bit_ends_what_is_believed() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(dir.path()).unwrap();
        (1..=2).for_each(|rows| journal.append(&mark(rows)).unwrap());
        let mut text = fs::read(dir.path().join(PROGRESS)).unwrap();
        let at = text.len() - 20;
        text[at] ^= 1;
        fs::write(dir.path().join(PROGRESS), &text).unwrap();
        assert_eq!(Journal::open(dir.path()).unwrap().1, [mark(1)]);
    }
}
