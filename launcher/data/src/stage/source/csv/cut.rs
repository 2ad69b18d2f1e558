//! Cuts a text table into pieces of whole records. One thread at a time does this, so it reads as few bytes as possible: without
//! quotes it only searches the last newline.
//!
//! **Invariant:** every piece begins where a record begins. Cutter and decoder agree on what a quoted field is: one whose first
//! byte is a quote.

use super::{decode::CsvPiece, dialect::Dialect, quotes::next_quoted};
use crate::stage::{
    error::{Location, Position, StageError},
    source::{Piece, Pieces, Request},
};
use enn_common::fs::{FileError, regular};
use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Bytes that are read at once: text and columns of a piece fit into a core's second-level cache.
pub(crate) const PIECE_BYTES: usize = 512 * 1024;

const RECORD_BYTES_MAX: usize = 64 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct CsvPieces {
    file: File,
    path: PathBuf,
    request: Arc<Request>,
    separator: u8,
    width: usize,
    /// Offset of the next byte to read.
    at: u64,
    /// Beginning of the record that the last piece ended in.
    rest: Vec<u8>,
    /// Lines of the header, for the first piece.
    first: Option<u64>,
    done: bool,
}

impl CsvPieces {
    /// Starts after the header, or at offset `from`, where a record begins.
    pub(crate) fn start(
        path: &Path,
        dialect: &Dialect,
        request: Arc<Request>,
        from: Option<u64>,
    ) -> Result<Self, StageError> {
        let file = regular::open(path)?;
        Ok(Self {
            file,
            path: path.to_path_buf(),
            request,
            separator: dialect.separator,
            width: dialect.header.len(),
            at: from.unwrap_or(dialect.data_at),
            rest: Vec::new(),
            first: from.is_none().then_some(dialect.lines),
            done: false,
        })
    }

    /// Appends up to `PIECE_BYTES` to `buffer`; returns whether the file ended.
    fn fill(&mut self, buffer: &mut Vec<u8>) -> Result<bool, StageError> {
        let start = buffer.len();
        buffer.resize(start + PIECE_BYTES, 0);
        let mut filled = start;
        while filled < buffer.len() {
            let read = self.file.read_at(&mut buffer[filled..], self.at);
            match read.map_err(FileError::of("read", &self.path))? {
                0 => break,
                count => {
                    filled += count;
                    self.at += count as u64;
                }
            }
        }
        let ended = filled < buffer.len();
        buffer.truncate(filled);
        Ok(ended)
    }

    /// Returns the error of an endless record at the end of `text`: an open quote, or a record without line end.
    fn endless(&self, text: &[u8]) -> StageError {
        let from = self.at.saturating_sub(text.len() as u64);
        match open_quote(text, self.separator) {
            Some(open) => StageError::OpenQuote { place: self.locate(from + open as u64) },
            None => StageError::EndlessRecord { place: self.locate(from), bytes_max: RECORD_BYTES_MAX },
        }
    }

    /// Returns the location of a byte by reading the file again, which only happens for an error.
    fn locate(&self, mut left: u64) -> Location {
        let mut at = 0;
        let mut line = 1;
        let mut buffer = vec![0; PIECE_BYTES];
        while left > 0 {
            let want = usize::try_from(left).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
            match self.file.read_at(&mut buffer[..want], at) {
                Ok(count @ 1..) => {
                    line += memchr::memchr_iter(b'\n', &buffer[..count]).count() as u64;
                    at += count as u64;
                    left -= count as u64;
                }
                _ => break,
            }
        }
        Location { path: self.path.clone(), position: Position::Line(line) }
    }
}

impl Pieces for CsvPieces {
    fn next(&mut self) -> Result<Option<Box<dyn Piece>>, StageError> {
        if self.done {
            return Ok(None);
        }
        let mut text = Vec::with_capacity(self.rest.len() + PIECE_BYTES);
        text.append(&mut self.rest);
        let end = loop {
            self.done = self.fill(&mut text)?;
            match last_end(&text, self.separator) {
                // The last record may lack its newline, but not its closing quote.
                _ if self.done && open_quote(&text, self.separator).is_none() => break text.len(),
                Some(end) if !self.done => break end,
                _ if self.done || text.len() > RECORD_BYTES_MAX => return Err(self.endless(&text)),
                _ => {}
            }
        };
        if text.is_empty() {
            return Ok(None);
        }
        self.rest.extend_from_slice(&text[end..]);
        text.truncate(end);
        let lines_before = self.first.take().unwrap_or(0);
        Ok(Some(Box::new(CsvPiece {
            text,
            separator: self.separator,
            width: self.width,
            lines_before,
            is_last: self.done,
            end: self.at - self.rest.len() as u64,
            request: self.request.clone(),
        })))
    }
}

/// Returns the offset after the first line end behind `offset`, where a record begins unless a quoted field has several lines; `None` if no
/// line ends there.
pub(crate) fn record_after(path: &Path, offset: u64) -> Option<u64> {
    let mut buffer = vec![0; PIECE_BYTES];
    let count = regular::open(path).ok()?.read_at(&mut buffer, offset).ok()?;
    let end = memchr::memchr(b'\n', &buffer[..count])?;
    Some(offset + end as u64 + 1)
}

/// Returns the end of the last whole record of `text`, which begins with a record; `None` when no record ends.
fn last_end(text: &[u8], separator: u8) -> Option<usize> {
    if memchr::memchr(b'"', text).is_none() {
        return memchr::memrchr(b'\n', text).map(|at| at + 1);
    }
    let mut last = None;
    let mut at = 0;
    while let Some((open, close)) = next_quoted(text, at, separator) {
        last = memchr::memrchr(b'\n', &text[at..open]).map(|newline| at + newline + 1).or(last);
        match close {
            Some(close) => at = close,
            None => return last,
        }
    }
    memchr::memrchr(b'\n', &text[at..]).map(|newline| at + newline + 1).or(last)
}

/// Returns the offset of the quote that is open at the end of `text`.
fn open_quote(text: &[u8], separator: u8) -> Option<usize> {
    let mut at = 0;
    while let Some((open, close)) = next_quoted(text, at, separator) {
        match close {
            Some(close) => at = close,
            None => return Some(open),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_end_outside_quotes_only() {
        let end = |text: &str| last_end(text.as_bytes(), b',');
        assert_eq!(end("1,2\n3,4"), Some(4));
        assert_eq!(end("1,\"a\nb\"\n3"), Some(8));
        assert_eq!(end("1,\"a\nb"), None);
        assert_eq!(end("1,2\n3,\"a\n"), Some(4), "the newline inside the open quote does not count");
        assert_eq!(end("1,\"say \"\"hi\n\"\"\"\n2,"), Some(16));
        assert_eq!(end("1,5\" pipe\n2,6\" pipe\n3"), Some(20), "a quote inside a field is a letter");
        let open = |text: &[u8]| open_quote(text, b',');
        assert_eq!((open(b"1,\"a\""), open(b"1,\"a"), open(b"\"a\",\"b\"\"")), (None, Some(2), Some(4)));
    }
}
