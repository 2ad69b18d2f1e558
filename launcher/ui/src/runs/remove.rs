//! Removes runs: only those directly in a directory of runs, never through a link, never while a launcher works on them.

use super::summary::RunKind;
use enn_process::run_dir::{self, RunDir, RunDirError};
use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

const REMOVED: &str = ".removed-";
/// Directories below a run that hold its weights or its output, and never a run of their own.
const WITHOUT_RUNS: [&str; 2] = ["checkpoints", "logs"];
/// Maximum depth of a run below another one: `<run>/evaluations/<evaluation>/shuffles/<one>`.
const DEPTH_MAX: usize = 6;

/// Why a run is not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error("{} is not removed: {what}, expected a run in {}", path.display(), places(runs))]
    Place { path: PathBuf, what: &'static str, runs: Vec<PathBuf> },
    #[error("{} is not removed: {what}\n  hint: `enn stop {}` ends a run that is under way", path.display(), path.display())]
    Busy { path: PathBuf, what: String },
    #[error(transparent)]
    Lock(#[from] RunDirError),
    #[error("cannot {what} {}: {source}", path.display())]
    System { what: &'static str, path: PathBuf, source: io::Error },
}

fn places(runs: &[PathBuf]) -> String {
    runs.iter().map(|runs| runs.display().to_string()).collect::<Vec<_>>().join(" or ")
}

/// Returns the canonical path of the run `path`, which must lie directly in one of the directories `runs`.
///
/// # Errors
/// The path is a link, lies elsewhere, or is no run.
pub fn locate(path: &Path, runs: &[PathBuf]) -> Result<PathBuf, RemoveError> {
    let refused = |what| RemoveError::Place { path: path.to_owned(), what, runs: runs.to_vec() };
    let system = |source| RemoveError::System { what: "look at", path: path.to_owned(), source };
    if fs::symlink_metadata(path).map_err(system)?.is_symlink() {
        return Err(refused("it is a link"));
    }
    let found = fs::canonicalize(path).map_err(system)?;
    let is_there = |runs: &PathBuf| fs::canonicalize(runs).is_ok_and(|runs| found.parent() == Some(runs.as_path()));
    if !runs.iter().any(is_there) {
        return Err(refused("it lies elsewhere"));
    }
    if RunKind::of(&found).is_none() {
        return Err(refused("it is no run"));
    }
    Ok(found)
}

/// Removes the run in `path`, which [`locate`] returned.
///
/// # Errors
/// A launcher works on the run or below it, or a file operation failed. The run then still exists, or has a hidden name and
/// is removed by [`sweep_leftovers`].
pub fn remove(path: &Path) -> Result<(), RemoveError> {
    let busy = |what: String| RemoveError::Busy { path: path.to_owned(), what };
    // Held until the directory is gone, so that no launcher begins to work in it.
    let _held = match RunDir::open(path) {
        Ok(held) => held,
        Err(RunDirError::Busy { .. }) => return Err(busy("it is under way".to_owned())),
        Err(error) => return Err(error.into()),
    };
    if let Some(below) = working_below(path, DEPTH_MAX) {
        return Err(busy(format!("{} is under way", below.display())));
    }
    remove_aside(path)
}

/// Removes a directory after renaming it to a hidden name, so that no incomplete directory has a run's name.
pub(super) fn remove_aside(path: &Path) -> Result<(), RemoveError> {
    let mut name = OsString::from(REMOVED);
    name.push(path.file_name().unwrap_or_default());
    let aside = path.with_file_name(name);
    fs::rename(path, &aside).map_err(|source| RemoveError::System { what: "remove", path: path.to_owned(), source })?;
    fs::remove_dir_all(&aside).map_err(|source| RemoveError::System { what: "remove all of", path: aside, source })
}

/// Removes the remains of runs whose removal was interrupted.
pub fn sweep_leftovers(runs: &Path) {
    for entry in fs::read_dir(runs).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(REMOVED.as_bytes()) {
            // Another process may be removing it. What remains is tried again the next time.
            let _busy = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns a directory below `dir` whose lock is held: a prediction, an evaluation, a fold.
pub(super) fn working_below(dir: &Path, depth: usize) -> Option<PathBuf> {
    let below = directories(dir).find(|below| run_dir::is_living(below));
    below.or_else(|| directories(dir).find_map(|below| working_below(&below, depth.checked_sub(1)?)))
}

/// Lists the directories in `dir`, without links and without those that hold no runs.
pub(super) fn directories(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_looked_at = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        entry.file_type().is_ok_and(|kind| kind.is_dir()) && !WITHOUT_RUNS.iter().any(|known| name == *known)
    };
    entries.filter(is_looked_at).map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::summary::tests::{ended, run, started};
    use std::os::unix::fs::symlink;

    #[test]
    fn a_run_goes_when_nobody_works_on_it_or_below_it() {
        let dir = tempfile::tempdir().unwrap();
        let runs = [dir.path().join("runs")];
        let held = run(&runs[0], "a", 1, &[started(), ended(0, None)], &[10]);
        let path = locate(held.path(), &runs).unwrap();
        assert!(matches!(remove(&path), Err(RemoveError::Busy { .. })));
        drop(held);
        let below = RunDir::create(&path.join("predictions"), "predict", time::OffsetDateTime::UNIX_EPOCH).unwrap();
        let error = remove(&path).unwrap_err().to_string();
        assert!(error.contains("predictions") && error.contains("hint"), "{error}");
        drop(below);
        remove(&path).unwrap();
        assert!(!path.exists() && fs::read_dir(&runs[0]).unwrap().next().is_none());
    }

    #[test]
    fn links_and_what_lies_elsewhere_stay() {
        let dir = tempfile::tempdir().unwrap();
        let runs = [dir.path().join("runs")];
        let own = run(&runs[0], "a", 1, &[started()], &[]).path().to_owned();
        let elsewhere = run(&dir.path().join("elsewhere"), "b", 1, &[started()], &[]).path().to_owned();
        fs::write(elsewhere.join("precious"), "x").unwrap();
        symlink(&elsewhere, runs[0].join("linked")).unwrap();
        symlink(&elsewhere, own.join("linked")).unwrap();
        fs::create_dir(runs[0].join("other")).unwrap();
        let refused = |path: &Path| locate(path, &runs).unwrap_err().to_string();
        assert!(refused(&runs[0].join("linked")).contains("it is a link"));
        assert!(refused(&elsewhere).contains("it lies elsewhere"));
        assert!(
            refused(&own.join("../../elsewhere").join(elsewhere.file_name().unwrap())).contains("it lies elsewhere")
        );
        assert!(refused(&runs[0].join("other")).contains("it is no run"));
        assert!(refused(&runs[0]).contains("it lies elsewhere"));
        remove(&locate(&runs[0].join("other/..").join(own.file_name().unwrap()), &runs).unwrap()).unwrap();
        assert!(!own.exists() && elsewhere.join("precious").exists());
    }
}
