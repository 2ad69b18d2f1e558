//! A failing seed reduced to a short list of faults.

use super::{
    faults::{Fault, PlannedFault},
    run_plan::RunPlan,
    trace::Trace,
    world::{Violation, World},
};
use std::panic::{self, AssertUnwindSafe};

/// Runs of one seed at most, to make it short.
const RUNS_MAX: usize = 200;

/// A run that failed, as short as it became.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) violation: Violation,
    pub(super) faults: Vec<PlannedFault>,
}

/// How a run ended.
pub(super) struct RunResult {
    pub(super) end: Result<(), Violation>,
    pub(super) trace: Option<Trace>,
    pub(super) rounds: u64,
    pub(super) effects: u64,
}

/// Runs a seed with these faults; a panic of a machine is a violation.
pub(super) fn run(plan: &RunPlan, faults: &[PlannedFault], seed: u64, trace: bool) -> RunResult {
    run_with(plan, faults, seed, trace, None)
}

/// Runs it, and has a leader die before an effect.
pub(super) fn run_with(
    plan: &RunPlan,
    faults: &[PlannedFault],
    seed: u64,
    trace: bool,
    crash_after: Option<u64>,
) -> RunResult {
    let mut world = World::new(plan.clone(), faults.to_vec(), seed, trace);
    world.crash_after = crash_after;
    let end = panic::catch_unwind(AssertUnwindSafe(|| world.run())).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let what = text.unwrap_or_else(|| "a machine panicked".to_owned());
        Err(Violation { rule: "panic", what, at: world.now })
    });
    RunResult { end, rounds: world.observer.rounds, effects: world.effects, trace: world.take_trace() }
}

/// Removes faults as long as the run still violates the same rule.
pub(super) fn shrink(plan: &RunPlan, faults: &[PlannedFault], seed: u64, first: Violation) -> Failure {
    let mut failure = Failure { violation: first, faults: faults.to_vec() };
    let mut runs = 0;
    let mut index = 0;
    while index < failure.faults.len() && runs < RUNS_MAX {
        runs += 1;
        if failure.faults[index].fault == Fault::Relief {
            // Without it a run that is paused never ends.
            index += 1;
            continue;
        }
        let mut fewer = failure.faults.clone();
        fewer.remove(index);
        match run(plan, &fewer, seed, false).end {
            Err(violation) if violation.rule == failure.violation.rule => {
                failure = Failure { violation, faults: fewer };
                index = 0;
            }
            Ok(()) | Err(_) => index += 1,
        }
    }
    failure
}
