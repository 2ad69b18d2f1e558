//! Compares the device time of a step's graphs with that of its recorded plan.
//!
//! CUDA events time the last runs of the plan before its capture and the first launches of the graphs. The host waits only once, for the
//! last of these events.

use crate::backend::event::Event;
use crate::backend::torch::ShimError;

/// Timed runs of the plan and of the graphs each; the fastest counts.
const TIMED: usize = 2;
/// Number of launches after which the times are read: the device has completed the timed ones by then.
const READ_AFTER: usize = 8;
/// Factor by which the plan must be faster than the graphs to replace them. Smaller differences are noise, and graphs take less host time.
const QUICKER_MIN: f64 = 1.1;

type EventPair = (Event, Event);

#[derive(Debug, Default)]
pub(super) struct Trial {
    record: Vec<EventPair>,
    graphs: Vec<EventPair>,
    launches: usize,
}

impl Trial {
    /// Times a run of the plan.
    pub(super) fn record<T>(&mut self, run: impl FnOnce() -> T) -> T {
        // Only the last runs count: libraries allocate their workspaces in earlier ones.
        if self.record.len() == TIMED {
            self.record.remove(0);
        }
        timed(&mut self.record, run)
    }

    /// Runs a launch of the graphs, and times it if it is one of the first after the upload.
    pub(super) fn graphs<T>(&mut self, run: impl FnOnce() -> T) -> T {
        self.launches += 1;
        // The first launch uploads the graphs to the device.
        if (2..2 + TIMED).contains(&self.launches) { timed(&mut self.graphs, run) } else { run() }
    }

    /// Returns the milliseconds of the plan and of the graphs, once, if the plan is faster.
    pub(super) fn slower_graphs(&mut self) -> Option<[f64; 2]> {
        if self.launches != READ_AFTER {
            return None;
        }
        let quickest = |runs: &[EventPair]| -> Option<f64> {
            let times = runs.iter().map(|(from, to)| from.nanoseconds_to(to));
            let times = times.collect::<Result<Vec<u64>, ShimError>>().ok()?;
            times.into_iter().min().map(|ns| ns as f64 / 1e6)
        };
        let record = quickest(&self.record)?;
        let graphs = quickest(&self.graphs)?;
        tracing::info!(record, graphs, "milliseconds of a step");
        (graphs > record * QUICKER_MIN).then_some([record, graphs])
    }
}

/// Runs `run` between two events. The time is left out if the device cannot record them.
fn timed<T>(times: &mut Vec<EventPair>, run: impl FnOnce() -> T) -> T {
    let from = Event::record();
    let made = run();
    if let (Ok(from), Ok(to)) = (from, Event::record()) {
        times.push((from, to));
    }
    made
}
