//! The last lines of a worker's standard error, and the time of its last output.

use super::{pump::PumpHandle, stream::PipeContents};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

const TAIL_LINES: usize = 20;
const TAIL_BYTES_MAX: usize = 16 << 10;
/// Longest time that a report waits for output in the pipes.
const CATCH_UP_MAX: Duration = Duration::from_millis(100);

/// The time of the last output, shared between threads without a lock.
#[derive(Debug)]
pub(super) struct AtomicInstant {
    origin: Instant,
    /// Microseconds after `origin`, plus one; 0: never.
    after: AtomicU64,
}

impl AtomicInstant {
    pub(super) fn never(origin: Instant) -> Self {
        Self { origin, after: AtomicU64::new(0) }
    }

    pub(super) fn set(&self, now: Instant) {
        let micros = now.saturating_duration_since(self.origin).as_micros();
        self.after.store(u64::try_from(micros).unwrap_or(u64::MAX - 1) + 1, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Option<Instant> {
        let micros = self.after.load(Ordering::Relaxed).checked_sub(1)?;
        self.origin.checked_add(Duration::from_micros(micros))
    }
}

/// The last output of a worker. Cheap to clone, and readable after the worker and the pump have ended.
#[derive(Debug, Clone)]
pub struct Tail {
    tail_writer: TailWriter,
    handle: Arc<PumpHandle>,
}

impl Tail {
    pub(super) fn new(tail_writer: TailWriter, handle: Arc<PumpHandle>) -> Self {
        Self { tail_writer, handle }
    }

    /// Returns the last 20 lines of standard error, at most 16 KiB, without the end of the last line. A line that was
    /// redrawn with carriage returns is given as it stood last.
    ///
    /// What the worker wrote before this call is read first, so this may take a moment, a tenth of a second at most.
    pub fn stderr(&self) -> String {
        self.handle.catch_up(CATCH_UP_MAX);
        self.tail_writer.ring.lock().unwrap_or_else(PoisonError::into_inner).last_lines()
    }

    /// Returns whether the worker wrote to standard output, as far as that passed through the pump.
    pub fn printed(&self) -> bool {
        self.tail_writer.printed.load(Ordering::Relaxed)
    }
}

/// The side of a [`Tail`] that the pump's thread writes.
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

    #[test]
    fn the_moment_of_the_last_output() {
        let origin = Instant::now();
        let last = AtomicInstant::never(origin);
        assert_eq!(last.get(), None);
        last.set(origin + Duration::from_micros(5));
        assert_eq!(last.get(), Some(origin + Duration::from_micros(5)));
    }
}
