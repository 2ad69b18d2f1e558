//! Sentences of a command on standard error, and what its log says there.

use enn_common::shown;
use std::io::{self, Write};

/// Prints a line to standard error. A failure to write is ignored, since the exit code reports the outcome.
pub fn print(text: &str) {
    let _gone = io::stderr().write_all(format!("{}\n", shown::lines(text)).as_bytes());
}

/// The writer of the log to standard error: each write is a whole entry.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(shown::lines(&String::from_utf8_lossy(entry)).as_bytes())?;
        Ok(entry.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
