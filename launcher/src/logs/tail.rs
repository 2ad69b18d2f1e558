//! The last lines of a worker's standard error, and when it last said something.

use super::{pump::Door, stream::Carries};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Lines kept for a report.
const TAIL_LINES: usize = 20;
/// Bytes kept for a report.
const TAIL_BYTES_MAX: usize = 16 << 10;
/// How long a report waits for words that are on their way.
const CATCH_UP_MAX: Duration = Duration::from_millis(100);

/// The moment of the last output, shared between threads without a lock.
#[derive(Debug)]
pub(super) struct Moment {
    origin: Instant,
    /// Microseconds after `origin`, plus one; 0: never.
    after: AtomicU64,
}

impl Moment {
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

/// What a worker said last. Cheap to clone; stays readable after the worker ended, and after the pump.
#[derive(Debug, Clone)]
pub struct Tail {
    said: Said,
    door: Arc<Door>,
}

impl Tail {
    pub(super) fn new(said: Said, door: Arc<Door>) -> Self {
        Self { said, door }
    }

    /// The last 20 lines of standard error, 16 KiB at most, without the end of the last line. Of a line that was redrawn
    /// with carriage returns, what stood there last.
    ///
    /// What the worker wrote before this call is read first, so this may take a moment, a tenth of a second at most.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.door.catch_up(CATCH_UP_MAX);
        self.said.ring.lock().unwrap_or_else(PoisonError::into_inner).last_lines()
    }

    /// Whether the worker wrote to standard output, as far as that passed through the pump.
    #[must_use]
    pub fn printed(&self) -> bool {
        self.said.printed.load(Ordering::Relaxed)
    }

    /// When the worker last wrote anything that passed through the pump.
    #[must_use]
    pub fn last_output(&self) -> Option<Instant> {
        self.said.last.get()
    }
}

/// The part of a tail that the pump's thread writes.
#[derive(Debug, Clone)]
pub(super) struct Said {
    ring: Arc<Mutex<Ring>>,
    last: Arc<Moment>,
    printed: Arc<AtomicBool>,
}

impl Said {
    pub(super) fn nothing(origin: Instant) -> Self {
        Self { ring: Arc::default(), last: Arc::new(Moment::never(origin)), printed: Arc::default() }
    }

    /// Notes output; `bytes` of standard error are kept.
    pub(super) fn note(&self, now: Instant, carries: Carries, bytes: &[u8]) {
        self.last.set(now);
        if carries != Carries::Out {
            self.ring.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        }
        if carries != Carries::Err {
            self.printed.store(true, Ordering::Relaxed);
        }
    }
}

/// The last bytes of a stream.
#[derive(Debug, Default)]
struct Ring {
    bytes: VecDeque<u8>,
    /// Whether older bytes were dropped, so that the first line may be the end of a longer one.
    dropped: bool,
}

impl Ring {
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
        let mut ring = Ring::default();
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
        let mut ring = Ring::default();
        ring.push(&vec![b'x'; 3 * TAIL_BYTES_MAX]);
        assert_eq!(ring.last_lines().len(), TAIL_BYTES_MAX);
        ring.push(b"\nTraceback\n");
        assert_eq!(ring.last_lines(), "Traceback");
        assert!(ring.bytes.capacity() <= 2 * TAIL_BYTES_MAX);
    }

    #[test]
    fn the_moment_of_the_last_output() {
        let origin = Instant::now();
        let said = Said::nothing(origin);
        assert_eq!(said.last.get(), None);
        said.note(origin + Duration::from_micros(5), Carries::Out, b"x");
        assert_eq!(said.last.get(), Some(origin + Duration::from_micros(5)));
    }
}
