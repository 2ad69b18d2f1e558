//! Decides which runs are removed. Pure.
//!
//! **Invariant:** a run under way is kept, and so is one with whose model a kept run began.

use super::summary::{RunState, RunSummary};
use crate::run_status::RunStatus;
use std::{
    path::Path,
    time::{Duration, SystemTime},
};

/// Selects runs for removal. A run is removed when it matches every condition that is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemovalFilter {
    /// Minimum time since the run was last written to.
    pub older_than: Option<Duration>,
    /// Only runs that failed, and runs whose launcher vanished before they had a model.
    pub failed: bool,
    /// Number of newest runs that are kept. Given alone, all other runs are removed.
    pub keep: Option<usize>,
}

impl RemovalFilter {
    pub fn ask_for_runs(&self) -> bool {
        *self != Self::default()
    }

    fn matches(&self, run: &RunSummary, now: SystemTime) -> bool {
        let age = now.duration_since(run.written).unwrap_or_default();
        self.ask_for_runs() && (!self.failed || has_failed(run)) && self.older_than.is_none_or(|limit| age > limit)
    }
}

/// Whether a run is removed, and if not, why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemovalDecision {
    Remove,
    /// The filter does not match the run.
    Keep,
    /// The filter matches the run, which is kept all the same, for this reason.
    Protected(String),
}

/// Decides about each of `runs`, which are given newest first.
pub fn decide(runs: &[RunSummary], filter: RemovalFilter, now: SystemTime) -> Vec<RemovalDecision> {
    let newest = filter.keep.unwrap_or(0);
    let first = |(at, run): (usize, &RunSummary)| match &run.state {
        _ if !filter.matches(run, now) || at < newest => RemovalDecision::Keep,
        state if state.is_under_way() => RemovalDecision::Protected(format!("it is {state}")),
        _ => RemovalDecision::Remove,
    };
    let mut decisions: Vec<RemovalDecision> = runs.iter().enumerate().map(first).collect();
    // Each iteration keeps at least one more run, or is the last.
    while let Some((parent, child)) = needed(runs, &decisions) {
        decisions[parent] = RemovalDecision::Protected(format!("{} began with its model", runs[child].name));
    }
    decisions
}

/// Returns a run to be removed with whose model a run that is kept began, and the latter.
fn needed(runs: &[RunSummary], decisions: &[RemovalDecision]) -> Option<(usize, usize)> {
    let staying = (0..runs.len()).filter(|at| decisions[*at] != RemovalDecision::Remove);
    let mut pairs = staying.filter_map(|child| Some((parent_of(runs, &runs[child])?, child)));
    pairs.find(|(parent, _)| decisions[*parent] == RemovalDecision::Remove)
}

/// Returns the run among `runs` with whose model `child` began.
fn parent_of(runs: &[RunSummary], child: &RunSummary) -> Option<usize> {
    let checkpoint: &Path = child.parent.as_deref()?;
    runs.iter().position(|run| run.path != child.path && checkpoint.starts_with(&run.path))
}

fn has_failed(run: &RunSummary) -> bool {
    match run.state {
        RunState::Recorded(RunStatus::Failed(_)) => true,
        RunState::Recorded(RunStatus::Gone) | RunState::Empty => run.step.is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::summary::RunKind;
    use std::path::PathBuf;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn summary(name: &str, state: RunState, days: u32, step: Option<u64>) -> RunSummary {
        RunSummary {
            name: name.into(),
            path: PathBuf::from("/runs").join(name),
            kind: RunKind::Train,
            state,
            error: None,
            started: None,
            written: SystemTime::UNIX_EPOCH + 100 * DAY - days * DAY,
            step,
            parent: None,
        }
    }

    fn decided(runs: &[RunSummary], filter: RemovalFilter) -> String {
        let word = |decision: &RemovalDecision| match decision {
            RemovalDecision::Remove => "goes",
            RemovalDecision::Keep => "stays",
            RemovalDecision::Protected(_) => "protected",
        };
        decide(runs, filter, SystemTime::UNIX_EPOCH + 100 * DAY).iter().map(word).collect::<Vec<_>>().join(" ")
    }

    fn finished(name: &str, days: u32) -> RunSummary {
        summary(name, RunState::Recorded(RunStatus::Finished), days, Some(10))
    }

    #[test]
    fn each_limit_alone_and_both_together() {
        let runs = [
            finished("e", 1),
            summary("d", RunState::Recorded(RunStatus::Failed(1)), 2, Some(4)),
            summary("c", RunState::Recorded(RunStatus::Gone), 20, None),
            summary("b", RunState::Recorded(RunStatus::Gone), 30, Some(4)),
            summary("a", RunState::Recorded(RunStatus::Stopped("SIGINT".into())), 40, None),
        ];
        let filter = RemovalFilter::default();
        assert_eq!(decided(&runs, filter), "stays stays stays stays stays");
        let failed = RemovalFilter { failed: true, ..filter };
        assert_eq!(decided(&runs, failed), "stays goes goes stays stays");
        let old = RemovalFilter { older_than: Some(10 * DAY), ..filter };
        assert_eq!(decided(&runs, old), "stays stays goes goes goes");
        assert_eq!(decided(&runs, RemovalFilter { failed: true, ..old }), "stays stays goes stays stays");
        assert_eq!(decided(&runs, RemovalFilter { keep: Some(2), ..filter }), "stays stays goes goes goes");
        assert_eq!(decided(&runs, RemovalFilter { keep: Some(4), ..old }), "stays stays stays stays goes");
    }

    #[test]
    fn a_run_under_way_stays_and_so_does_a_parent_of_what_stays() {
        let keep = RemovalFilter { keep: Some(1), ..RemovalFilter::default() };
        let child_of = |name: &str, days, parent: &str| RunSummary {
            parent: Some(format!("/runs/{parent}/checkpoints/step-00000010").into()),
            ..finished(name, days)
        };
        let runs = [
            child_of("e", 1, "c"),
            summary("d", RunState::Recorded(RunStatus::Paused), 90, None),
            child_of("c", 3, "b"),
            finished("b", 4),
            child_of("a", 5, "z"),
        ];
        assert_eq!(decided(&runs, keep), "stays protected protected protected goes");
        // A child that goes needs nothing.
        assert_eq!(decided(&runs, RemovalFilter { keep: Some(0), ..keep }), "goes protected goes goes goes");
    }
}
