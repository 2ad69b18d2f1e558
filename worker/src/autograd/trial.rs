//! Whether the graphs of a step take less of the device's time than its record.
//!
//! The last runs of the record before its capture are timed by the device, and so are the first launches of the graphs. Nothing is waited
//! for but the last of these, once.

use crate::backend::event::Event;
use crate::backend::torch::ShimError;

/// Runs of each that are timed; the quickest counts.
const TIMED: usize = 2;
/// Launches before the times are read: until then the device has come to the end of them.
const READ_AFTER: usize = 8;
/// A record must be so much quicker. What differs less is noise, and a graph leaves the host's time to others.
const QUICKER_MIN: f64 = 1.1;

type Timed = (Event, Event);

/// Times of both, as far as they are there.
#[derive(Debug, Default)]
pub(super) struct Trial {
    record: Vec<Timed>,
    graphs: Vec<Timed>,
    launches: usize,
}

impl Trial {
    /// Times a run of the record.
    pub(super) fn record<T>(&mut self, run: impl FnOnce() -> T) -> T {
        // The last ones: libraries find their workspaces in those before.
        if self.record.len() == TIMED {
            self.record.remove(0);
        }
        timed(&mut self.record, run)
    }

    /// Times a launch of the graphs, as long as that says something.
    pub(super) fn graphs<T>(&mut self, run: impl FnOnce() -> T) -> T {
        self.launches += 1;
        // The first one brings the graphs to the device.
        if (2..2 + TIMED).contains(&self.launches) { timed(&mut self.graphs, run) } else { run() }
    }

    /// Milliseconds of the record and of the graphs, once, if the record wins.
    pub(super) fn lost_by_graphs(&mut self) -> Option<[f64; 2]> {
        if self.launches != READ_AFTER {
            return None;
        }
        let quickest = |runs: &[Timed]| -> Option<f64> {
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

/// A time that the device does not tell is left out.
fn timed<T>(times: &mut Vec<Timed>, run: impl FnOnce() -> T) -> T {
    let from = Event::record();
    let made = run();
    if let (Ok(from), Ok(to)) = (from, Event::record()) {
        times.push((from, to));
    }
    made
}
