//! The staged data of a directory of runs: which there are, and who uses them.
//!
//! **Invariant:** a use is a link `staged` below a run, or a line in the record of a cross-validation. Data that no run uses go only while
//! nobody works there who has no such link yet.

use super::{
    remove::{RemoveError, directories, remove_aside},
    summary::size,
};
use crate::run_dir;
use enn_common::{
    artifact::cv::{self, CvRecord},
    staged::META,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Where staged data are, below the directory of runs.
pub const STAGED_DIR: &str = ".staged";
/// A run's link to its staged data.
const LINK: &str = "staged";
/// How deep below a run links are looked for.
const DEPTH_MAX: usize = 6;

/// One staged directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedData {
    pub path: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    /// Names of the runs that use it.
    pub users: BTreeSet<String>,
}

/// What uses there are.
#[derive(Debug, Default)]
struct Uses {
    /// Staged directory → names of runs.
    users: BTreeMap<PathBuf, BTreeSet<String>>,
    /// Somebody who works and has no data yet: they may be about to use any.
    undecided: Option<PathBuf>,
}

/// All staged data of a directory of runs.
pub fn staged_data(runs: &Path) -> Vec<StagedData> {
    let uses = uses(runs);
    let data = |path: PathBuf| {
        let users = uses.users.get(&path).cloned().unwrap_or_default();
        StagedData { bytes: size(&path), path, users }
    };
    staged(runs).into_iter().map(data).collect()
}

/// Removes the staged data that no run uses, those among `candidates` where these are given. Returns what went, and who kept the others
/// from going.
///
/// # Errors
/// The system says no.
pub fn remove_unused(
    runs: &Path,
    candidates: Option<&BTreeSet<PathBuf>>,
) -> Result<(Vec<StagedData>, Option<PathBuf>), RemoveError> {
    let mut gone = Vec::new();
    for path in staged(runs).into_iter().filter(|path| candidates.is_none_or(|wanted| wanted.contains(path))) {
        // Looked at anew for each: a removal takes time, in which runs begin.
        let uses = uses(runs);
        if uses.users.contains_key(&path) {
            continue;
        }
        if let Some(undecided) = uses.undecided {
            return Ok((gone, Some(undecided)));
        }
        let bytes = size(&path);
        remove_aside(&path)?;
        gone.push(StagedData { path, bytes, users: BTreeSet::new() });
    }
    Ok((gone, None))
}

/// The staged data that a run uses.
pub fn used_by(run: &Path) -> BTreeSet<PathBuf> {
    let mut uses = Uses::default();
    note(run, "", &mut uses, DEPTH_MAX);
    uses.users.into_keys().collect()
}

/// Staged directories that are whole. Those in the making are hidden.
fn staged(runs: &Path) -> Vec<PathBuf> {
    let Ok(all) = fs::canonicalize(runs.join(STAGED_DIR)) else { return Vec::new() };
    let is_whole = |dir: &PathBuf| {
        let hidden = dir.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        !hidden && dir.join(META).is_file()
    };
    let mut found: Vec<_> = directories(&all).filter(is_whole).collect();
    found.sort();
    found
}

fn uses(runs: &Path) -> Uses {
    let mut uses = Uses::default();
    for run in directories(runs).filter(|dir| dir.file_name().is_none_or(|name| name != STAGED_DIR)) {
        let name = run.file_name().unwrap_or_default().to_string_lossy().into_owned();
        note(&run, &name, &mut uses, DEPTH_MAX);
    }
    uses
}

/// Notes what is used in `dir` and below it, by the run `name`.
fn note(dir: &Path, name: &str, uses: &mut Uses, depth: usize) {
    let mut used = |data: &Path| {
        // What is gone is used by nobody.
        if let Ok(data) = fs::canonicalize(data) {
            uses.users.entry(data).or_default().insert(name.to_owned());
        }
    };
    let link = dir.join(LINK);
    let is_linked = fs::symlink_metadata(&link).is_ok_and(|found| found.is_symlink());
    let record = CvRecord::read(dir).ok();
    if is_linked {
        used(&link);
    }
    if let Some(record) = &record {
        used(&record.staged);
        record.folds.iter().for_each(|fold| used(&fold.staged));
    }
    let is_working = || !is_linked && !run_dir::is_launch(dir) && run_dir::is_living(dir);
    // What a cross-validation uses whose record cannot be read is not known.
    if record.is_none() && (dir.join(cv::FILE).is_file() || is_working()) {
        uses.undecided = Some(dir.to_owned());
    }
    if let Some(depth) = depth.checked_sub(1) {
        directories(dir).for_each(|below| note(&below, name, uses, depth));
    }
}
