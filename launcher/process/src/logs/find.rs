//! Finds the log files of a run: those of `enn run` (and of torchrun), `<launch>/attempt_<n>/<local rank>/`, and those of
//! `enn train`, `<round>/<rank>/`, below `logs` of a run directory or in a directory of logs itself.

use super::{
    layout::{STDERR, STDOUT},
    selection::LogSelection,
    stream_name::StreamName,
};
use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Directory of logs in a run directory.
const LOGS: &str = "logs";
const ATTEMPT: &str = "attempt_";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFile {
    pub attempt: u32,
    /// The rank in the name of the directory: the local rank under `enn run`.
    pub rank: u32,
    pub(super) name: StreamName,
    pub path: PathBuf,
}

impl LogFile {
    pub fn stream(&self) -> &'static str {
        match self.name {
            StreamName::Out => "stdout",
            StreamName::Err => "stderr",
        }
    }
}

/// The log files that [`find`] found.
#[derive(Debug, Default)]
pub(super) struct LogListing {
    /// Directories in which new logs may appear.
    pub(super) dirs: Vec<PathBuf>,
    /// Returns the selected files, by attempt, rank and stream.
    pub(super) files: Vec<LogFile>,
    pub(super) attempts: Vec<u32>,
    /// Ranks that have logs in the selected attempts.
    pub(super) ranks: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLocation {
    /// A run directory, or a directory of logs.
    pub root: PathBuf,
    /// The directory of the logs of one launch, when it is known; it may be outside the run directory.
    pub launch: Option<PathBuf>,
}

/// Returns whether `dir` is a directory of logs as torchrun and `enn run` make them.
pub fn are_in(dir: &Path) -> bool {
    let has_attempts = |dir: &Path| subdirectories(dir).iter().any(|(name, _)| name.starts_with(ATTEMPT));
    has_attempts(dir) || subdirectories(dir).iter().any(|(_, inner)| has_attempts(inner))
}

/// Finds the selected logs. Attempts before `from` are left out.
pub(super) fn find(place: &LogLocation, wanted: &LogSelection, from: Option<u32>) -> LogListing {
    let root = &place.root;
    let mut found = LogListing { dirs: vec![root.clone()], ..LogListing::default() };
    let inside = [place.launch.clone(), Some(root.join(LOGS))];
    let base = inside.into_iter().flatten().find(|logs| logs.is_dir()).unwrap_or_else(|| root.clone());
    let launches = subdirectories(&base);
    // A launch that was never seen to start an attempt has none: it does not hide the one before it.
    let inner = launches.iter().filter(|(name, _)| attempt_number(name).is_none());
    let inner = inner.filter(|(_, dir)| !attempts(dir).is_empty());
    let launch = match attempts(&base).is_empty() {
        false => base.clone(),
        true => {
            inner.max_by_key(|(name, dir)| (changed(dir), name.clone())).map_or(base.clone(), |(_, dir)| dir.clone())
        }
    };
    found.dirs.push(base);
    found.dirs.extend(launches.into_iter().filter(|(name, _)| attempt_number(name).is_none()).map(|(_, dir)| dir));
    let all = attempts(&launch);
    found.attempts = all.iter().map(|(number, _)| *number).collect();
    let last = found.attempts.last().copied();
    for (attempt, dir) in all {
        let is_wanted = match wanted.attempt {
            Some(one) => attempt == one,
            None => Some(attempt) >= from.or(last),
        };
        if is_wanted {
            found.dirs.push(dir.clone());
            found.look_into(attempt, &dir, wanted);
        }
    }
    found
}

impl LogListing {
    fn look_into(&mut self, attempt: u32, dir: &Path, wanted: &LogSelection) {
        let mut ranks: Vec<(u32, PathBuf)> =
            subdirectories(dir).into_iter().filter_map(|(name, dir)| Some((name.parse().ok()?, dir))).collect();
        ranks.sort_unstable();
        for (rank, dir) in ranks {
            self.ranks.push(rank);
            if !wanted.ranks.is_empty() && !wanted.ranks.contains(&rank) {
                continue;
            }
            for (name, file, is_wanted) in
                [(StreamName::Out, STDOUT, wanted.out), (StreamName::Err, STDERR, wanted.err)]
            {
                let path = dir.join(file);
                if is_wanted && path.is_file() {
                    self.files.push(LogFile { attempt, rank, name, path });
                }
            }
            self.dirs.push(dir);
        }
    }
}

/// Lists the attempts in the directory of one launch, by number.
fn attempts(launch: &Path) -> Vec<(u32, PathBuf)> {
    let named = subdirectories(launch).into_iter();
    let mut all: Vec<_> = named.filter_map(|(name, dir)| Some((attempt_number(&name)?, dir))).collect();
    all.sort_unstable();
    all
}

fn attempt_number(name: &str) -> Option<u32> {
    name.strip_prefix(ATTEMPT).unwrap_or(name).parse().ok()
}

fn subdirectories(dir: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path()))).collect()
}

fn changed(dir: &Path) -> Option<SystemTime> {
    dir.metadata().and_then(|meta| meta.modified()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> LogSelection {
        LogSelection { ranks: Vec::new(), attempt: None, out: true, err: true }
    }

    fn at(root: &Path) -> LogLocation {
        LogLocation { root: root.to_owned(), launch: None }
    }

    fn make(root: &Path, paths: &[&str]) {
        for path in paths {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x\n").unwrap();
        }
    }

    fn names(root: &Path, wanted: &LogSelection) -> Vec<String> {
        let files = find(&at(root), wanted, None).files;
        files.iter().map(|file| file.path.strip_prefix(root).unwrap().to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn rounds_of_a_training_run() {
        let dir = tempfile::tempdir().unwrap();
        make(
            dir.path(),
            &["logs/0/0/stdout.log", "logs/9/0/stderr.log", "logs/10/0/stderr.log", "logs/10/2/stdout.log"],
        );
        assert_eq!(names(dir.path(), &all()), ["logs/10/0/stderr.log", "logs/10/2/stdout.log"]);
        let one = LogSelection { attempt: Some(0), ..all() };
        assert_eq!(names(dir.path(), &one), ["logs/0/0/stdout.log"]);
        let rank = LogSelection { ranks: vec![2], ..all() };
        assert_eq!(names(dir.path(), &rank), ["logs/10/2/stdout.log"]);
        assert_eq!(find(&at(dir.path()), &all(), Some(9)).files.len(), 3);
    }

    #[test]
    fn the_newest_launch_of_a_run_and_a_directory_of_torchrun() {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path(), &["logs/old_1/attempt_3/0/stdout.log", "logs/new_2/attempt_0/1/stderr.log"]);
        make(dir.path(), &["logs/new_2/attempt_0/filtered_stdout.log", "logs/new_2/attempt_0/1/error.json"]);
        fs::create_dir(dir.path().join("logs/begun_3")).unwrap();
        let time = SystemTime::now() + std::time::Duration::from_secs(9);
        fs::File::open(dir.path().join("logs/new_2")).unwrap().set_modified(time).unwrap();
        assert_eq!(names(dir.path(), &all()), ["logs/new_2/attempt_0/1/stderr.log"]);
        assert_eq!(names(&dir.path().join("logs/old_1"), &all()), ["attempt_3/0/stdout.log"]);
        assert_eq!(names(&dir.path().join("logs"), &all()), ["new_2/attempt_0/1/stderr.log"]);
        let known = LogLocation { launch: Some(dir.path().join("logs/old_1")), ..at(dir.path()) };
        assert_eq!(find(&known, &all(), None).attempts, [3]);
        assert!(are_in(&dir.path().join("logs")) && are_in(&dir.path().join("logs/old_1")) && !are_in(dir.path()));
    }
}
