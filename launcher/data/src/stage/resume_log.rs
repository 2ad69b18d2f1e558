//! Resume points of a pass over the sources: an interrupted pass continues after the last point.
//!
//! **Invariant:** a point is written when the rows that it counts are durable. Points take at most about a tenth of the time of a pass,
//! unless the disk is so slow that there would be none for a minute.

use super::{error::StageError, ordered_pool::SavePoint};
use enn_common::staged::{
    StagedWriter,
    unfinished::{Kept, ResumePoint},
};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

#[derive(Clone, Copy)]
pub(crate) struct ResumePolicy<'a> {
    /// Minimum time between two points.
    pub(crate) every: Duration,
    /// Called after each point is saved; no other point is saved until it returns.
    pub(crate) on_saved: &'a (dyn Fn() + std::marker::Sync),
}

impl Default for ResumePolicy<'_> {
    fn default() -> Self {
        Self { every: Duration::from_secs(1), on_saved: &|| {} }
    }
}

/// Minimum time between points, in multiples of the time that the last point took.
const INTERVAL_FACTOR: u32 = 10;
/// Maximum of the interval that results, in multiples of `ResumePolicy::every`.
const INTERVAL_MAX: u32 = 60;

/// Function that makes durable what a pass has written.
pub(crate) type Sync<'a> = &'a (dyn Fn() -> Result<(), StageError> + std::marker::Sync);

pub(crate) struct ResumeLog<'a> {
    writer: &'a StagedWriter,
    sync: Sync<'a>,
    pass: u32,
    policy: ResumePolicy<'a>,
    /// Duration of the last save, microseconds.
    took_us: AtomicU64,
    points: Vec<ResumePoint>,
}

impl<'a> ResumeLog<'a> {
    /// Creates the log of pass `pass`, which resumes after the last of `points` that belongs to it.
    pub(crate) fn new(
        writer: &'a StagedWriter,
        sync: Sync<'a>,
        pass: u32,
        policy: ResumePolicy<'a>,
        points: &[ResumePoint],
    ) -> Self {
        let points = points.iter().filter(|point| point.pass == pass).cloned().collect();
        Self { writer, sync, pass, policy, took_us: AtomicU64::new(0), points }
    }

    pub(crate) fn resume_from(&self) -> Option<&ResumePoint> {
        self.points.last()
    }

    pub(crate) fn points(&self) -> &[ResumePoint] {
        &self.points
    }

    /// Whether a point is due when the last point, or the start of the pass, was at `last`.
    pub(crate) fn is_due(&self, last: Instant) -> bool {
        let took = Duration::from_micros(self.took_us.load(Ordering::Relaxed));
        let every = self.policy.every;
        self.writer.is_kept()
            && last.elapsed() >= every.max((took * INTERVAL_FACTOR).min(every.saturating_mul(INTERVAL_MAX)))
    }

    /// Returns the save point that writes `point` durably.
    pub(crate) fn save<'k>(&'k self, point: ResumePoint, kept: Kept) -> SavePoint<'k> {
        let point = ResumePoint { pass: self.pass, kept, ..point };
        Box::new(move || {
            let began = Instant::now();
            (self.sync)()?;
            self.writer.keep(&point)?;
            self.took_us.store(began.elapsed().as_micros() as u64, Ordering::Relaxed);
            (self.policy.on_saved)();
            Ok(())
        })
    }
}
