//! The last bytes of a worker's standard error, kept while they are read.

use super::stream_name::PipeContents;
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

const TAIL_LINES: usize = 20;
const TAIL_BYTES_MAX: usize = 16 << 10;

/// The side of a [`Tail`](super::Tail) that the pump's thread writes.
#[derive(Debug, Clone, Default)]
pub(super) struct TailWriter {
    ring: Arc<Mutex<TailBuffer>>,
    printed: Arc<AtomicBool>,
}

impl TailWriter {
    /// Records output. Bytes of standard error are kept.
    pub(super) fn note(&self, contents: PipeContents, bytes: &[u8]) {
        if contents != PipeContents::Out {
            self.ring.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        }
        if contents != PipeContents::Err {
            self.printed.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn last_lines(&self) -> String {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).last_lines()
    }

    /// Returns whether any output was of standard output.
    pub(super) fn printed(&self) -> bool {
        self.printed.load(Ordering::Relaxed)
    }
}

/// The last bytes of a stream, at most `TAIL_BYTES_MAX`.
#[derive(Debug, Default)]
struct TailBuffer {
    bytes: VecDeque<u8>,
    /// Whether older bytes were dropped, so that the first line may be the end of a longer one.
    dropped: bool,
}

impl TailBuffer {
    fn push(&mut self, bytes: &[u8]) {
        let kept = &bytes[bytes.len().saturating_sub(TAIL_BYTES_MAX)..];
        let over = (self.bytes.len() + kept.len()).saturating_sub(TAIL_BYTES_MAX);
        self.dropped |= over > 0 || kept.len() < bytes.len();
        self.bytes.drain(..over);
        self.bytes.extend(kept);
    }

    fn last_lines(&self) -> String {
        let bytes: Vec<u8> = self.bytes.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end();
        let mut lines: Vec<&str> = text.lines().map(redrawn).collect();
        if self.dropped && lines.len() > 1 {
            lines.remove(0);
        }
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }
}

fn redrawn(line: &str) -> &str {
    line.rsplit('\r').find(|part| !part.is_empty()).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_twenty_lines() {
        let mut ring = TailBuffer::default();
        assert_eq!(ring.last_lines(), "");
        for n in 0..30 {
            ring.push(format!("line {n}\n").as_bytes());
        }
        let lines = ring.last_lines();
        assert_eq!(lines.lines().count(), 20);
        assert!(lines.starts_with("line 10\n") && lines.ends_with("line 29"), "{lines}");
        ring.push(b"\r 1%\r 2%\r\xff");
        assert!(ring.last_lines().ends_with("\n\u{fffd}"));
    }

    #[test]
    fn a_line_that_lost_its_beginning_is_left_out() {
        let mut ring = TailBuffer::default();
        ring.push(&vec![b'x'; 3 * TAIL_BYTES_MAX]);
        assert_eq!(ring.last_lines().len(), TAIL_BYTES_MAX);
        ring.push(b"\nTraceback\n");
        assert_eq!(ring.last_lines(), "Traceback");
        assert!(ring.bytes.capacity() <= 2 * TAIL_BYTES_MAX);
    }
}
