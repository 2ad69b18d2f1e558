//! The staged data of a directory of runs, and the runs that use them.
//!
//! **Invariant:** a use is a link `staged` below a run, or an entry in the record of a cross-validation. Unused data are
//! removed only while no run that has no such link yet is under way.

use super::{
    remove::{RemoveError, directories, remove_aside},
    summary::size,
};
use enn_common::{
    artifact::cv::{self, CvRecord},
    staged::META,
};
use enn_process::run_dir;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Directory of the staged data in a directory of runs.
pub const STAGED_DIR: &str = ".staged";
/// A run's link to its staged data.
const LINK: &str = "staged";
/// Maximum depth below a run at which links are searched.
const DEPTH_MAX: usize = 6;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedData {
    pub path: PathBuf,
    pub bytes: u64,
    pub users: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct StagedUses {
    users: BTreeMap<PathBuf, BTreeSet<String>>,
    /// A run under way that has no data yet, and may be about to use any.
    undecided: Option<PathBuf>,
}

pub fn staged_data(runs: &Path) -> Vec<StagedData> {
    let uses = uses(runs);
    let data = |path: PathBuf| {
        let users = uses.users.get(&path).cloned().unwrap_or_default();
        StagedData { bytes: size(&path), path, users }
    };
    staged(runs).into_iter().map(data).collect()
}

/// Removes the staged data that no run uses, limited to `candidates` where they are given. Returns what was removed,
/// and the run because of which the rest was kept.
///
/// # Errors
/// A file operation failed.
pub fn remove_unused(
    runs: &Path,
    candidates: Option<&BTreeSet<PathBuf>>,
) -> Result<(Vec<StagedData>, Option<PathBuf>), RemoveError> {
    let mut gone = Vec::new();
    for path in staged(runs).into_iter().filter(|path| candidates.is_none_or(|wanted| wanted.contains(path))) {
        // Read again for each directory: runs may begin while one is being removed.
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

pub fn used_by(run: &Path) -> BTreeSet<PathBuf> {
    let mut uses = StagedUses::default();
    note(run, "", &mut uses, DEPTH_MAX);
    uses.users.into_keys().collect()
}

/// Lists the complete staged directories. Incomplete ones have hidden names.
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

fn uses(runs: &Path) -> StagedUses {
    let mut uses = StagedUses::default();
    for run in directories(runs).filter(|dir| dir.file_name().is_none_or(|name| name != STAGED_DIR)) {
        let name = run.file_name().unwrap_or_default().to_string_lossy().into_owned();
        note(&run, &name, &mut uses, DEPTH_MAX);
    }
    uses
}

/// Records the staged directories that are used in `dir` and below it, by the run `name`.
fn note(dir: &Path, name: &str, uses: &mut StagedUses, depth: usize) {
    let mut used = |data: &Path| {
        // A directory that is gone has no use.
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
    // The uses of a cross-validation whose record cannot be read are unknown.
    if record.is_none() && (dir.join(cv::FILE).is_file() || is_working()) {
        uses.undecided = Some(dir.to_owned());
    }
    if let Some(depth) = depth.checked_sub(1) {
        directories(dir).for_each(|below| note(&below, name, uses, depth));
    }
}
