//! The worker that is to blame when no worker makes progress.
//!
//! A worker that waits for others in a collective, or to meet them, is not the one that hangs. So the one that does something else
//! is to blame, be it that it computes, loads or saves; when all wait, one that has not become ready in this round, else the one that
//! is furthest behind: it waits in the sums of another step than the others.

use enn_common::{id::WorkerId, wire::control::Phase as WorkerPhase};
use std::time::Duration;

/// A worker as its control page shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pulse {
    pub(super) worker: WorkerId,
    pub(super) phase: WorkerPhase,
    pub(super) step: u64,
    /// Time since its last sign of progress.
    pub(super) idle: Duration,
    /// It can do steps.
    pub(super) ready: bool,
}

impl Pulse {
    /// Returns whether the worker writes a checkpoint.
    pub(super) fn writes(&self) -> bool {
        self.phase == WorkerPhase::Save
    }

    fn waits(&self) -> bool {
        matches!(self.phase, WorkerPhase::Collective | WorkerPhase::Rendezvous)
    }
}

/// What the control pages say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HangFinding {
    /// This worker is taken for dead.
    Hung(Pulse),
    /// Nobody is before this time has passed.
    WaitFor(Duration),
}

/// Looks at the workers of a round: `pulses` of those that have not left it. For the time `moving` the last sign of progress that came
/// otherwise counts, and only a worker that does not become ready is taken for dead.
pub(super) fn find(pulses: &[Pulse], moving: Duration, limit: Duration) -> HangFinding {
    // A worker that ends is watched by the time that it has for that.
    let watched = || pulses.iter().filter(|pulse| pulse.phase != WorkerPhase::Done);
    let newcomers = || watched().filter(|pulse| !pulse.ready && !pulse.waits());
    if let Some(hung) = newcomers().filter(|pulse| pulse.idle >= limit).min_by_key(|pulse| pulse.worker) {
        return HangFinding::Hung(*hung);
    }
    let until = |pulse: &Pulse| limit.saturating_sub(pulse.idle);
    let silent = watched().map(until).max().map_or(limit, |silent| silent.max(moving));
    if silent.is_zero() {
        let order = |pulse: &&Pulse| (pulse.waits(), pulse.ready, pulse.step, pulse.worker);
        if let Some(hung) = watched().min_by_key(order) {
            return HangFinding::Hung(*hung);
        }
    }
    HangFinding::WaitFor(newcomers().map(until).min().map_or(silent, |first| first.min(silent)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn pulse(worker: u32, phase: WorkerPhase, step: u64, idle: u64) -> Pulse {
        Pulse { worker: WorkerId(worker), phase, step, idle: Duration::from_secs(idle), ready: true }
    }

    fn newcomer(worker: u32, phase: WorkerPhase, idle: u64) -> Pulse {
        Pulse { ready: false, ..pulse(worker, phase, 0, idle) }
    }

    fn hung(pulses: &[Pulse]) -> Option<u32> {
        match find(pulses, Duration::ZERO, LIMIT) {
            HangFinding::Hung(pulse) => Some(pulse.worker.0),
            HangFinding::WaitFor(_) => None,
        }
    }

    #[test]
    fn one_that_moves_is_enough() {
        let pulses = [pulse(0, WorkerPhase::Collective, 3, 90), pulse(1, WorkerPhase::Compute, 3, 4)];
        assert_eq!(find(&pulses, Duration::ZERO, LIMIT), HangFinding::WaitFor(Duration::from_secs(6)));
        assert_eq!(hung(&pulses[..1]), Some(0));
        assert_eq!(find(&[pulse(0, WorkerPhase::Done, 3, 90)], Duration::ZERO, LIMIT), HangFinding::WaitFor(LIMIT));
        assert_eq!(find(&[], Duration::ZERO, LIMIT), HangFinding::WaitFor(LIMIT));
    }

    #[test]
    fn who_does_not_wait_is_to_blame_else_who_is_behind() {
        let waiting = [pulse(0, WorkerPhase::Collective, 2, 20), pulse(1, WorkerPhase::Compute, 3, 20)];
        assert_eq!(hung(&waiting), Some(1));
        let saving = [pulse(0, WorkerPhase::Save, 4, 20), pulse(1, WorkerPhase::Collective, 3, 20)];
        assert_eq!(hung(&saving), Some(0));
        let behind = [pulse(0, WorkerPhase::Collective, 3, 20), pulse(1, WorkerPhase::Collective, 2, 20)];
        assert_eq!(hung(&behind), Some(1));
        let equal = [pulse(1, WorkerPhase::Collective, 3, 20), pulse(0, WorkerPhase::Collective, 3, 20)];
        assert_eq!(hung(&equal), Some(0));
    }

    #[test]
    fn a_newcomer_that_hangs_is_to_blame_though_others_move() {
        let others = [newcomer(0, WorkerPhase::Rendezvous, 1), newcomer(1, WorkerPhase::Load, 12)];
        assert_eq!(hung(&others), Some(1));
        let loading = [newcomer(0, WorkerPhase::Rendezvous, 50), newcomer(1, WorkerPhase::Load, 7)];
        assert_eq!(find(&loading, Duration::ZERO, LIMIT), HangFinding::WaitFor(Duration::from_secs(3)));
        let meeting = [pulse(0, WorkerPhase::Collective, 3, 20), newcomer(1, WorkerPhase::Rendezvous, 20)];
        assert_eq!(hung(&meeting), Some(1));
        let moving = Duration::from_secs(2);
        assert_eq!(find(&meeting, moving, LIMIT), HangFinding::WaitFor(moving), "somebody said something");
    }
}
