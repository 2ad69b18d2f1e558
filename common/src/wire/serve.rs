//! Between `enn predict --data - --out -`, or `enn serve`, and a worker, over the worker's standard input and output: a line of JSON
//! each way, and behind some lines numbers.
//!
//! ```text
//! enn ─► Begin                worker ─► Ready | Streaming | Failed
//!     ─► Staged                      ─► Warned*, Answered | Failed        once for every batch
//!     ─► Rows, x (rows, F) f32       ─► Warned*, Told, answers (rows, numbers) f32, status (rows) u8 | Failed
//!     ─► Stream, x, states f32       ─► Carried, answers, states f32, status u8 | Failed      where streams were begun
//!     ─► end of input                ─► ends
//! ```

use crate::{config::train::Precision, fs::mmap::bytes_of};
use serde::{Deserialize, Serialize};
use std::{
    io::{self, BufRead, Read, Write},
    path::PathBuf,
};

/// Longest line either side reads, bytes.
pub const LINE_BYTES_MAX: u64 = 64 << 10;
/// Most bytes that follow a line.
pub const NUMBERS_BYTES_MAX: u64 = 1 << 30;

/// The first line to the worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServeSetup {
    /// `message::PROTOCOL`.
    pub protocol: u32,
    pub checkpoint: PathBuf,
    /// "cpu" or "cuda".
    pub device: String,
    pub threads: u32,
    pub precision: Precision,
    /// Directory of what is exchanged, which the worker removes when its input ends, however whoever asked has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch: Option<PathBuf>,
    /// Whether there will be streams: a model that carries nothing is refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stream: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServeQuestion {
    /// Every row of a staged directory.
    Staged {
        staged: PathBuf,
        /// Where the one chunk of answers goes.
        out: PathBuf,
    },
    /// Predict rows whose inputs follow as they are staged: f32, row-major, NaN where missing.
    Rows {
        /// At least 1.
        rows: u64,
    },
    /// The next row of so many streams: the inputs follow as of [`ServeQuestion::Rows`], then the states (rows, state) before it, all zero
    /// before the first.
    Stream {
        /// At least 1.
        rows: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServeReply {
    /// The model is loaded.
    Ready,
    /// The model is loaded, and a stream carries so many numbers.
    Streaming {
        /// At least 1.
        state: u64,
    },
    /// Something the user should know.
    Warned { message: String },
    /// The chunk is written.
    Answered { path: PathBuf, blake3: String },
    /// The answers to so many rows follow: f32, row-major, the user's units; then a byte for each row, `RowStatus`.
    #[serde(rename = "told")]
    Predicted {
        /// As many as were asked for.
        rows: u64,
        numbers: u64,
    },
    /// The answers to the rows of streams follow, as of [`ServeReply::Predicted`], and before the bytes the states (rows, state) after them.
    #[serde(rename = "carried")]
    StreamPredicted {
        /// As many as were asked for.
        rows: u64,
        /// Of one row's answer.
        numbers: u64,
        state: u64,
    },
    /// The worker cannot go on and ends.
    Failed { error: String },
}

/// Writes a line and flushes.
pub fn put<T: Serialize>(to: &mut impl Write, line: &T) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    to.write_all(&text)?;
    to.flush()
}

/// Reads a line; `None` at the end of the input.
///
/// # Errors
/// What the system says; a line that is too long, is not what was expected, or, as [`io::ErrorKind::UnexpectedEof`], is cut.
pub fn get<T: for<'de> Deserialize<'de>>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => {
            serde_json::from_slice(&line).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
        }
        Some(_) if (line.len() as u64) < LINE_BYTES_MAX => {
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the input ends within a line"))
        }
        Some(_) => Err(io::Error::other(format!("a line is longer than {LINE_BYTES_MAX} bytes"))),
    }
}

/// Reads bytes that follow a line.
///
/// # Errors
/// What the system says; more than may be, or fewer than were said.
pub fn get_bytes(from: &mut impl Read, count: u64) -> io::Result<Vec<u8>> {
    if count > NUMBERS_BYTES_MAX {
        return Err(io::Error::other(format!(
            "{count} bytes are said to follow, expected at most {NUMBERS_BYTES_MAX}"
        )));
    }
    let mut bytes = Vec::new();
    from.take(count).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == count { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Reads numbers that follow a line.
pub fn get_numbers(from: &mut impl Read, count: u64) -> io::Result<Vec<f32>> {
    let bytes = get_bytes(from, count.saturating_mul(4))?;
    Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// Writes what follows a line and flushes.
pub fn put_numbers(to: &mut impl Write, numbers: &[f32], bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes_of(numbers))?;
    to.write_all(bytes)?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_and_wrong_ones_are_told() {
        let question = ServeQuestion::Staged { staged: "/s".into(), out: "/o".into() };
        let mut bytes = Vec::new();
        put(&mut bytes, &question).unwrap();
        put(&mut bytes, &ServeReply::Ready).unwrap();
        let mut from = bytes.as_slice();
        assert_eq!(get::<ServeQuestion>(&mut from).unwrap(), Some(question));
        assert_eq!(get::<ServeReply>(&mut from).unwrap(), Some(ServeReply::Ready));
        assert_eq!(get::<ServeReply>(&mut from).unwrap(), None);
        let kind = |bytes: &[u8]| get::<ServeReply>(&mut &*bytes).unwrap_err().kind();
        assert_eq!(kind(b"\"ready\""), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(b"{}\n"), io::ErrorKind::InvalidData);
        assert_eq!(kind(b"{\n"), io::ErrorKind::InvalidData);
        assert_eq!(kind(&vec![b' '; LINE_BYTES_MAX as usize + 1]), io::ErrorKind::Other);
    }

    #[test]
    fn numbers_come_back_and_are_bounded() {
        let mut bytes = Vec::new();
        put(&mut bytes, &ServeQuestion::Rows { rows: 2 }).unwrap();
        put_numbers(&mut bytes, &[1.5, f32::NAN], &[7]).unwrap();
        let mut from = bytes.as_slice();
        assert_eq!(get::<ServeQuestion>(&mut from).unwrap(), Some(ServeQuestion::Rows { rows: 2 }));
        let numbers = get_numbers(&mut from, 2).unwrap();
        assert!(numbers[0] == 1.5 && numbers[1].is_nan());
        assert_eq!(get_bytes(&mut from, 1).unwrap(), [7]);
        assert!(get_numbers(&mut &bytes[..], u64::MAX).unwrap_err().to_string().contains("at most"));
        assert_eq!(get_bytes(&mut &bytes[..2], 3).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
