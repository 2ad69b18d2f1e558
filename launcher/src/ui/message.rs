//! Sentences of a command on standard error, and what its log says there.

use enn_common::shown;
use std::io::{self, Write};

/// Prints text and a line's end. A standard error that is gone, or on a full disk, ends nothing: the exit code tells.
pub(crate) fn print(text: &str) {
    let _gone = io::stderr().write_all(format!("{}\n", shown::lines(text)).as_bytes());
}

/// Where the log is written: each write is a whole entry.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Log;

impl Write for Log {
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(shown::lines(&String::from_utf8_lossy(entry)).as_bytes())?;
        Ok(entry.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
