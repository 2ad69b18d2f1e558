//! Which runs may go: pure.
//!
//! **Invariant:** a run that is under way stays, and so does one whose model another run that stays began with.

use super::summary::{RunState, RunSummary};
use crate::ui::standing::Standing;
use std::{
    path::Path,
    time::{Duration, SystemTime},
};

/// Which runs are to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Those that were last written to longer ago.
    pub older_than: Option<Duration>,
    /// Those that failed, and those that ended without a word and have no model. With an age: those of them that are older.
    pub failed: bool,
    /// But for so many of the newest; alone: all but those.
    pub keep: Option<usize>,
}

impl Limits {
    /// Whether any run is to be removed.
    pub fn ask_for_runs(&self) -> bool {
        *self != Self::default()
    }

    fn hit(&self, run: &RunSummary, now: SystemTime) -> bool {
        let age = now.duration_since(run.written).unwrap_or_default();
        self.ask_for_runs() && (!self.failed || has_failed(run)) && self.older_than.is_none_or(|limit| age > limit)
    }
}

/// What becomes of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is removed.
    Goes,
    /// No limit hits it.
    Stays,
    /// A limit hits it, and it stays all the same: the reason.
    Protected(String),
}

/// What becomes of each of `runs`, newest first.
pub fn judge(runs: &[RunSummary], limits: Limits, now: SystemTime) -> Vec<Verdict> {
    let newest = limits.keep.unwrap_or(0);
    let first = |(at, run): (usize, &RunSummary)| match &run.state {
        _ if !limits.hit(run, now) || at < newest => Verdict::Stays,
        state if state.is_under_way() => Verdict::Protected(format!("it is {state}")),
        _ => Verdict::Goes,
    };
    let mut verdicts: Vec<Verdict> = runs.iter().enumerate().map(first).collect();
    // Each turn keeps at least one more, or is the last.
    while let Some((parent, child)) = needed(runs, &verdicts) {
        verdicts[parent] = Verdict::Protected(format!("{} began with its model", runs[child].name));
    }
    verdicts
}

/// A run that goes although one that stays began with its model, and that one.
fn needed(runs: &[RunSummary], verdicts: &[Verdict]) -> Option<(usize, usize)> {
    let staying = (0..runs.len()).filter(|at| verdicts[*at] != Verdict::Goes);
    let mut pairs = staying.filter_map(|child| Some((parent_of(runs, &runs[child])?, child)));
    pairs.find(|(parent, _)| verdicts[*parent] == Verdict::Goes)
}

/// The run among `runs` whose model `child` began with.
fn parent_of(runs: &[RunSummary], child: &RunSummary) -> Option<usize> {
    let checkpoint: &Path = child.parent.as_deref()?;
    runs.iter().position(|run| run.path != child.path && checkpoint.starts_with(&run.path))
}

fn has_failed(run: &RunSummary) -> bool {
    match run.state {
        RunState::Told(Standing::Failed(_)) => true,
        RunState::Told(Standing::Gone) | RunState::Empty => run.step.is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::summary::Kind;
    use std::path::PathBuf;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn summary(name: &str, state: RunState, days: u32, step: Option<u64>) -> RunSummary {
        RunSummary {
            name: name.into(),
            path: PathBuf::from("/runs").join(name),
            kind: Kind::Train,
            state,
            error: None,
            started: None,
            written: SystemTime::UNIX_EPOCH + 100 * DAY - days * DAY,
            step,
            parent: None,
        }
    }

    fn told(runs: &[RunSummary], limits: Limits) -> String {
        let word = |verdict: &Verdict| match verdict {
            Verdict::Goes => "goes",
            Verdict::Stays => "stays",
            Verdict::Protected(_) => "protected",
        };
        judge(runs, limits, SystemTime::UNIX_EPOCH + 100 * DAY).iter().map(word).collect::<Vec<_>>().join(" ")
    }

    fn finished(name: &str, days: u32) -> RunSummary {
        summary(name, RunState::Told(Standing::Finished), days, Some(10))
    }

    #[test]
    fn each_limit_alone_and_both_together() {
        let runs = [
            finished("e", 1),
            summary("d", RunState::Told(Standing::Failed(1)), 2, Some(4)),
            summary("c", RunState::Told(Standing::Gone), 20, None),
            summary("b", RunState::Told(Standing::Gone), 30, Some(4)),
            summary("a", RunState::Told(Standing::Stopped("SIGINT".into())), 40, None),
        ];
        let limits = Limits::default();
        assert_eq!(told(&runs, limits), "stays stays stays stays stays");
        let failed = Limits { failed: true, ..limits };
        assert_eq!(told(&runs, failed), "stays goes goes stays stays");
        let old = Limits { older_than: Some(10 * DAY), ..limits };
        assert_eq!(told(&runs, old), "stays stays goes goes goes");
        assert_eq!(told(&runs, Limits { failed: true, ..old }), "stays stays goes stays stays");
        assert_eq!(told(&runs, Limits { keep: Some(2), ..limits }), "stays stays goes goes goes");
        assert_eq!(told(&runs, Limits { keep: Some(4), ..old }), "stays stays stays stays goes");
    }

    #[test]
    fn a_run_under_way_stays_and_so_does_a_parent_of_what_stays() {
        let keep = Limits { keep: Some(1), ..Limits::default() };
        let child_of = |name: &str, days, parent: &str| RunSummary {
            parent: Some(format!("/runs/{parent}/checkpoints/step-00000010").into()),
            ..finished(name, days)
        };
        let runs = [
            child_of("e", 1, "c"),
            summary("d", RunState::Told(Standing::Paused), 90, None),
            child_of("c", 3, "b"),
            finished("b", 4),
            child_of("a", 5, "z"),
        ];
        assert_eq!(told(&runs, keep), "stays protected protected protected goes");
        // A child that goes needs nothing.
        assert_eq!(told(&runs, Limits { keep: Some(0), ..keep }), "goes protected goes goes goes");
    }
}
