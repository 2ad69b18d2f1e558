//! Whom to blame when no worker makes progress. Pure.
//!
//! A worker that waits in a collective waits for somebody else. So the one that does something else is to blame, be it that it
//! computes, loads or saves; when all wait, the one that is furthest behind: it waits in the sums of another step than the others.

use enn_common::{id::WorkerId, wire::control::Phase};
use std::time::Duration;

/// A worker as its control page shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pulse {
    pub(super) worker: WorkerId,
    pub(super) phase: Phase,
    pub(super) step: u64,
    /// Time since its last sign of progress.
    pub(super) silent: Duration,
}

/// Time until all will have been silent for too long, if nobody makes progress until then. Zero: they have been.
pub(super) fn patience(pulses: &[Pulse], limit: Duration) -> Duration {
    // A worker that ends is watched by the grace it has for that.
    let watched = pulses.iter().filter(|pulse| pulse.phase != Phase::Done);
    watched.map(|pulse| limit.saturating_sub(pulse.silent)).max().unwrap_or(limit)
}

/// Who is taken for dead when all have been silent for too long.
pub(super) fn accused(pulses: &[Pulse]) -> Option<Pulse> {
    let watched = pulses.iter().filter(|pulse| pulse.phase != Phase::Done);
    let order = |pulse: &&Pulse| (pulse.phase == Phase::Collective, pulse.step, pulse.worker);
    watched.min_by_key(order).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn pulse(worker: u32, phase: Phase, step: u64, silent: u64) -> Pulse {
        Pulse { worker: WorkerId(worker), phase, step, silent: Duration::from_secs(silent) }
    }

    #[test]
    fn one_that_moves_is_enough() {
        let pulses = [pulse(0, Phase::Collective, 3, 90), pulse(1, Phase::Compute, 3, 4)];
        assert_eq!(patience(&pulses, LIMIT), Duration::from_secs(6));
        assert_eq!(patience(&pulses[..1], LIMIT), Duration::ZERO);
        assert_eq!(patience(&[pulse(0, Phase::Done, 3, 90)], LIMIT), LIMIT);
    }

    #[test]
    fn who_does_not_wait_is_to_blame_else_who_is_behind() {
        let waiting = [pulse(0, Phase::Collective, 2, 20), pulse(1, Phase::Compute, 3, 20)];
        assert_eq!(accused(&waiting).unwrap().worker, WorkerId(1));
        let saving = [pulse(0, Phase::Save, 4, 20), pulse(1, Phase::Collective, 3, 20)];
        assert_eq!(accused(&saving).unwrap().worker, WorkerId(0));
        let behind = [pulse(0, Phase::Collective, 3, 20), pulse(1, Phase::Collective, 2, 20)];
        assert_eq!(accused(&behind).unwrap().worker, WorkerId(1));
        let equal = [pulse(1, Phase::Collective, 3, 20), pulse(0, Phase::Collective, 3, 20)];
        assert_eq!(accused(&equal).unwrap().worker, WorkerId(0));
        assert_eq!(accused(&[]), None);
    }
}
