//! Marks of how far a pass over the sources is, so that one that was cut off goes on behind the last.
//!
//! **Invariant:** a mark is written when the rows it counts are durable. Marks take about a tenth of a pass at most, unless a disk is so
//! slow that there would be none for a minute.

use super::{crew::Keep, error::StageError};
use enn_common::staged::{
    StagedWriter,
    unfinished::{Kept, Mark},
};
use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// When marks are made, and who is told.
#[derive(Clone, Copy)]
pub(crate) struct Marking<'a> {
    /// Time between two, at least.
    pub(crate) every: Duration,
    /// Called when one was made; no other is until it returns.
    pub(crate) made: &'a (dyn Fn() + std::marker::Sync),
}

impl Default for Marking<'_> {
    fn default() -> Self {
        Self { every: Duration::from_secs(1), made: &|| {} }
    }
}

impl fmt::Debug for Marking<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Marking").field("every", &self.every).finish_non_exhaustive()
    }
}

/// How many times as long as the last mark took no other is made.
const SPARE: u32 = 10;
/// But no longer than so many times the least time between two.
const LATEST: u32 = 60;

/// Makes durable what a pass has written.
pub(crate) type Sync<'a> = &'a (dyn Fn() -> Result<(), StageError> + std::marker::Sync);

/// Keeps the marks of one pass.
pub(crate) struct Keeper<'a> {
    writer: &'a StagedWriter,
    sync: Sync<'a>,
    pass: u32,
    marking: Marking<'a>,
    /// What the last mark took.
    took_us: AtomicU64,
    /// Those of the pass.
    marks: Vec<Mark>,
}

impl fmt::Debug for Keeper<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").field("pass", &self.pass).field("from", &self.from()).finish_non_exhaustive()
    }
}

impl<'a> Keeper<'a> {
    /// Of pass `pass`, which goes on behind the last of `marks` that is its own.
    pub(crate) fn new(
        writer: &'a StagedWriter,
        sync: Sync<'a>,
        (pass, marking): (u32, Marking<'a>),
        marks: &[Mark],
    ) -> Self {
        let marks = marks.iter().filter(|mark| mark.pass == pass).cloned().collect();
        Self { writer, sync, pass, marking, took_us: AtomicU64::new(0), marks }
    }

    /// Where the pass goes on.
    pub(crate) fn from(&self) -> Option<&Mark> {
        self.marks.last()
    }

    /// The marks that an attempt before has made in the pass.
    pub(crate) fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// Whether it is time for a mark, after one (or the beginning) at `last`.
    pub(crate) fn is_due(&self, last: Instant) -> bool {
        let took = Duration::from_micros(self.took_us.load(Ordering::Relaxed));
        let every = self.marking.every;
        self.writer.is_kept() && last.elapsed() >= every.max((took * SPARE).min(every.saturating_mul(LATEST)))
    }

    /// What makes a mark durable.
    pub(crate) fn keep<'k>(&'k self, mark: Mark, kept: Kept) -> Keep<'k> {
        let mark = Mark { pass: self.pass, kept, ..mark };
        Box::new(move || {
            let began = Instant::now();
            (self.sync)()?;
            self.writer.keep(&mark)?;
            self.took_us.store(began.elapsed().as_micros() as u64, Ordering::Relaxed);
            (self.marking.made)();
            Ok(())
        })
    }
}
