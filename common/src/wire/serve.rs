//! Between `enn predict --data - --out -` and its one worker, over the worker's standard input and output: a line of JSON each way.
//!
//! ```text
//! enn ─► Begin            worker ─► Ready | Failed
//!     ─► Question                ─► Warned*, Answered | Failed        once for every batch
//!     ─► end of input            ─► ends
//! ```

use crate::config::train::Precision;
use serde::{Deserialize, Serialize};
use std::{
    io::{self, BufRead, Read, Write},
    path::PathBuf,
};

/// Longest line either side reads, bytes.
pub const LINE_BYTES_MAX: u64 = 64 << 10;

/// The first line to the worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Begin {
    /// `message::PROTOCOL`.
    pub protocol: u32,
    /// Committed checkpoint.
    pub checkpoint: PathBuf,
    /// "cpu" or "cuda".
    pub device: String,
    /// Intra-op threads.
    pub threads: u32,
    /// What the encoder computes in.
    pub precision: Precision,
    /// Directory of what is exchanged, which the worker removes when its input ends, however whoever asked has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch: Option<PathBuf>,
}

/// What to predict next: every row of a staged directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// Staged directory.
    pub staged: PathBuf,
    /// Where the one chunk of answers goes.
    pub out: PathBuf,
}

/// What the worker says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The model is loaded.
    Ready,
    /// Something the user should know.
    Warned {
        /// The sentence.
        message: String,
    },
    /// The chunk is written.
    Answered {
        /// File of the predictions.
        path: PathBuf,
        /// Digest of the chunk.
        blake3: String,
    },
    /// The worker cannot go on and ends.
    Failed {
        /// The sentence.
        error: String,
    },
}

/// Writes a line and flushes.
///
/// # Errors
/// What the system says.
pub fn put<T: Serialize>(to: &mut impl Write, line: &T) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    to.write_all(&text)?;
    to.flush()
}

/// Reads a line; `None` at the end of the input.
///
/// # Errors
/// What the system says; a line that is too long, is cut, or is not what was expected.
pub fn get<T: for<'de> Deserialize<'de>>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
        Some(_) => Err(io::Error::other(format!("a line is cut or longer than {LINE_BYTES_MAX} bytes"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_and_wrong_ones_are_told() {
        let question = Question { staged: "/s".into(), out: "/o".into() };
        let mut bytes = Vec::new();
        put(&mut bytes, &question).unwrap();
        put(&mut bytes, &Reply::Ready).unwrap();
        let mut from = bytes.as_slice();
        assert_eq!(get::<Question>(&mut from).unwrap(), Some(question));
        assert_eq!(get::<Reply>(&mut from).unwrap(), Some(Reply::Ready));
        assert_eq!(get::<Reply>(&mut from).unwrap(), None);
        assert!(get::<Reply>(&mut &b"\"ready\""[..]).unwrap_err().to_string().contains("cut"));
        assert!(get::<Reply>(&mut &b"{}\n"[..]).is_err());
        let long = vec![b' '; LINE_BYTES_MAX as usize + 1];
        assert!(get::<Reply>(&mut long.as_slice()).is_err());
    }
}
