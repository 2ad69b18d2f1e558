//! Finds the run that a name means. A command that needs something of a run passes over those without it, and says so.

use super::summary::{RunKind, RunState, RunSummary, newest_step};
use crate::RunView;
use enn_common::profile;
use enn_process::run_dir::{self, LISTED_MAX, RunDirError};
use std::path::{Path, PathBuf};

/// The reference to the newest run that meets the need.
const LATEST: &str = "latest";

/// A condition that a command requires of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    Any,
    /// The run can be removed. Cross-validations count too.
    Removal,
    /// The run is a training, in any state.
    Training,
    /// The run has a complete checkpoint.
    Model,
    /// The run has finished an epoch, so that it has metrics.
    Errors,
    Profile,
    /// A launcher works on the run.
    UnderWay,
}

impl Need {
    fn is_met(self, path: &Path) -> bool {
        match self {
            Self::Any | Self::Removal => true,
            Self::Training => RunKind::of(path) == Some(RunKind::Train),
            Self::Model => newest_step(path).is_some(),
            Self::Errors => RunView::read(path).is_ok_and(|view| !view.epochs.is_empty() || view.trained.is_some()),
            Self::Profile => path.join(profile::FOLDER).is_dir(),
            Self::UnderWay => run_dir::is_living(path),
        }
    }

    /// Returns the predicates of a run that does not meet the need, and of one that does.
    fn predicates(self) -> [&'static str; 2] {
        match self {
            Self::Any | Self::Removal => ["is no run", "is there"],
            Self::Training => ["is no training", "is a training"],
            Self::Model => ["has no model", "has a model"],
            Self::Errors => ["has done no epoch", "has done an epoch"],
            Self::Profile => ["was not profiled", "was profiled"],
            Self::UnderWay => ["is not under way", "is under way"],
        }
    }

    fn fits(self, path: &Path) -> bool {
        match self {
            Self::Removal => RunKind::of(path).is_some(),
            _ => run_dir::is_run(path),
        }
    }
}

/// The run that [`select`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectedRun {
    pub path: PathBuf,
    /// A sentence about newer runs that were passed over.
    pub passed_over: Option<String>,
}

impl SelectedRun {
    /// Makes a selection for which no other run was passed over.
    pub fn plain(path: PathBuf) -> Self {
        Self { path, passed_over: None }
    }
}

/// Finds a run by a path, a whole name in one of `runs`, the beginning of a name, or "latest". Where several runs match
/// a beginning, and for "latest", only runs that meet the need count.
///
/// # Errors
/// No run matches, or several runs that meet the need match a beginning.
pub fn select(runs: &[PathBuf], reference: &str, need: Need) -> Result<SelectedRun, RunDirError> {
    if let Some(path) = run_dir::exact(runs, reference, |path| need.fits(path))? {
        return Ok(SelectedRun::plain(path));
    }
    let all: Vec<PathBuf> =
        run_dir::list_where(runs, |path| need.fits(path)).into_iter().map(|(_, path)| path).collect();
    if reference == LATEST {
        return latest(runs, &all, need);
    }
    let fitting: Vec<PathBuf> = all.iter().filter(|path| name(path).starts_with(reference)).cloned().collect();
    match &fitting[..] {
        [] => {
            let known = all.iter().take(LISTED_MAX).map(|path| name(path)).collect();
            Err(RunDirError::Unknown { reference: reference.to_owned(), runs: runs.to_vec(), known })
        }
        // The command itself reports what the run lacks.
        [path] => Ok(SelectedRun::plain(path.clone())),
        several => {
            let met: Vec<usize> = (0..several.len()).filter(|at| need.is_met(&several[*at])).take(2).collect();
            match met[..] {
                [at] if need != Need::Any => Ok(passing(&several[..at], &several[at], need)),
                _ => {
                    let candidates = brief(several);
                    Err(RunDirError::Ambiguous { reference: reference.to_owned(), runs: runs.to_vec(), candidates })
                }
            }
        }
    }
}

fn latest(runs: &[PathBuf], all: &[PathBuf], need: Need) -> Result<SelectedRun, RunDirError> {
    let found = all.iter().position(|path| need.is_met(path));
    let [_, has] = need.predicates();
    match (found, all.first()) {
        (Some(at), _) => Ok(passing(&all[..at], &all[at], need)),
        (None, None) => {
            Err(RunDirError::Unknown { reference: LATEST.to_owned(), runs: runs.to_vec(), known: Vec::new() })
        }
        // A request to a run waits for a node that may take the run over.
        (None, Some(newest)) if need == Need::UnderWay => Ok(SelectedRun::plain(newest.clone())),
        (None, Some(_)) => Err(RunDirError::Unserved { runs: runs.to_vec(), lack: has, known: brief(all) }),
    }
}

/// Selects `path` and describes the newer runs that do not meet the need.
fn passing(newer: &[PathBuf], path: &Path, need: Need) -> SelectedRun {
    let [lack, _] = need.predicates();
    let used = name(path);
    let passed_over = match newer {
        [] => None,
        [one] => Some(format!("passed over the newer run {}, which {lack}: {used} is used", described(one))),
        [first, ..] => {
            let count = newer.len();
            Some(format!(
                "passed over {count} newer runs, of which each {lack}, the newest {}: {used} is used",
                described(first)
            ))
        }
    };
    SelectedRun { path: path.to_owned(), passed_over }
}

fn described(path: &Path) -> String {
    RunSummary::read(path).map_or_else(|| name(path), |run| run.brief())
}

/// Returns name, state and newest step of each run.
fn brief(runs: &[PathBuf]) -> Vec<String> {
    let state = |path: &PathBuf| RunSummary::read(path).map_or(RunState::Empty, |run| run.state);
    let model = |path: &Path| newest_step(path).map_or_else(String::new, |step| format!(", model of step {step}"));
    runs.iter().map(|path| format!("{} ({}{})", name(path), state(path), model(path))).collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::summary::tests::{ended, run, started};

    fn find(runs: &Path, reference: &str, need: Need) -> Result<(String, Option<String>), String> {
        let found = select(&[runs.to_owned()], reference, need).map_err(|error| error.to_string())?;
        Ok((name(&found.path), found.passed_over))
    }

    #[test]
    fn runs_that_cannot_serve_are_passed_over_and_it_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let done = run(dir.path(), "weather", 1, &[started(), ended(0, None)], &[10]);
        let failed = run(dir.path(), "weather", 2, &[started(), ended(3, Some("a.csv: no such file"))], &[]);
        let done = done.id();
        let failed = failed.id();
        let (found, note) = find(dir.path(), "latest", Need::Model).unwrap();
        assert_eq!(found, done);
        let note = note.unwrap();
        assert!(note.contains(&failed) && note.contains("failed (3): a.csv: no such file"), "{note}");
        assert!(note.contains("has no model") && note.ends_with(&format!("{done} is used")), "{note}");
        assert_eq!(find(dir.path(), "weather", Need::Model).unwrap().0, done);
        assert_eq!(find(dir.path(), "latest", Need::Any).unwrap(), (failed.clone(), None));
        assert_eq!(find(dir.path(), "latest", Need::Training).unwrap().0, failed);
        // Whoever names a run whole means it.
        assert_eq!(find(dir.path(), &failed, Need::Model).unwrap(), (failed.clone(), None));
        assert_eq!(find(dir.path(), &failed[..failed.len() - 1], Need::Model).unwrap(), (failed.clone(), None));
        let error = find(dir.path(), "weather", Need::Any).unwrap_err();
        assert!(error.contains(&format!("{failed} (failed (3))")), "{error}");
        assert!(error.contains(&format!("{done} (finished, model of step 10)")) && error.contains("hint:"), "{error}");
    }

    #[test]
    fn two_that_can_serve_are_told_apart_by_the_user() {
        let dir = tempfile::tempdir().unwrap();
        for day in 1..=13 {
            drop(run(dir.path(), "weather", day, &[started(), ended(0, None)], &[10]));
        }
        let error = find(dir.path(), "weath", Need::Model).unwrap_err();
        assert!(error.contains("more than one run begins with \"weath\"") && error.contains("and 3 more"), "{error}");
    }

    #[test]
    fn what_no_run_has_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert!(find(dir.path(), "latest", Need::Model).unwrap_err().contains("there are none"));
        let failed = run(dir.path(), "a", 2, &[started(), ended(1, None)], &[]).id();
        let error = find(dir.path(), "latest", Need::Model).unwrap_err();
        assert!(error.contains("has a model") && error.contains(&failed), "{error}");
        assert!(find(dir.path(), "latest", Need::Profile).unwrap_err().contains("was profiled"));
    }

    #[test]
    fn who_asks_a_run_for_something_means_one_that_is_under_way() {
        let dir = tempfile::tempdir().unwrap();
        let working = run(dir.path(), "a", 1, &[started()], &[]);
        let over = run(dir.path(), "b", 2, &[started(), ended(0, None)], &[10]).id();
        let (found, note) = find(dir.path(), "latest", Need::UnderWay).unwrap();
        assert_eq!(found, working.id());
        assert!(note.unwrap().contains(&format!("{over} (finished), which is not under way")));
        drop(working);
        assert_eq!(find(dir.path(), "latest", Need::UnderWay).unwrap(), (over, None));
    }
}
