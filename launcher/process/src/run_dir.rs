//! The directory of a run: its name, its layout, and its lock.
//!
//! ```text
//! <runs>/<name>-<UTC time>-<4 hex>/
//!   run.json (of `enn run`: launch.json)  events.jsonl  MANIFEST.json  report.html  staged → <runs>/.staged/<digest>
//!   checkpoints/step-00000100/…   logs/<round>/<rank>/{stdout,stderr}.log   predictions/
//! ```
//! **Invariant:** one launcher at a time works in a run directory: it holds the lock on `.lock`.

use enn_common::{
    config::RunConfig,
    fs::{FileError, atomic, regular},
    id::Round,
};
use nix::fcntl::{Flock, FlockArg};
use std::{
    fs::{self, File},
    hash::{BuildHasher, Hasher, RandomState},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, symlink},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use time::{OffsetDateTime, format_description::BorrowedFormatItem, macros::format_description};

/// Directory of runs unless `--runs-dir` names another one.
pub const RUNS_DIR: &str = "runs";

pub const RUN_JSON: &str = "run.json";
/// The file that `enn run` writes instead of run.json.
pub const LAUNCH_JSON: &str = "launch.json";
const LAUNCH_VERSION: u32 = 1;
const LOCK: &str = ".lock";
const TIME: &[BorrowedFormatItem<'_>] = format_description!("[year][month][day]T[hour][minute][second]Z");
/// Bytes of a run's name that go into its directory's name.
const NAME_BYTES_MAX: usize = 100;
/// How often a successor tries to lock the directory of a launcher that is about to end.
const TAKE_OVER_PERIOD: Duration = Duration::from_millis(100);
/// Number of runs listed when the requested one does not exist.
pub const LISTED_MAX: usize = 5;
/// Number of runs that an error lists with their states.
const NAMED_MAX: usize = 10;

/// Why a run directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    #[error("cannot {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    /// A file could not be written whole.
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} is in use by another enn (wait for it, or stop it with Ctrl-C)", path.display())]
    Busy { path: PathBuf },
    #[error(
        "found the address {address} where a directory of a file system is needed\n  hint: `enn train` keeps runs at an address \
         with --runs-dir; `enn ckpt push` and `enn ckpt pull` copy runs to and from one"
    )]
    Address { address: String },
    #[error("no run \"{reference}\" in {}{}", places(runs), listed(known))]
    Unknown {
        reference: String,
        runs: Vec<PathBuf>,
        /// Names of some runs that exist, newest first.
        known: Vec<String>,
    },
    #[error(
        "more than one run begins with \"{reference}\" in {}:{}\n  hint: give more of the name",
        places(runs),
        in_lines(candidates)
    )]
    Ambiguous {
        reference: String,
        runs: Vec<PathBuf>,
        /// Names and states of the runs that match, newest first.
        candidates: Vec<String>,
    },
    #[error("no run in {} {lack}:{}", places(runs), in_lines(known))]
    Unserved {
        runs: Vec<PathBuf>,
        /// The unmet need as a verb phrase, such as "has a model".
        lack: &'static str,
        /// Names and states of some runs that exist, newest first.
        known: Vec<String>,
    },
    #[error("{} is no run of this enn: {message}", path.display())]
    Foreign { path: PathBuf, message: String },
}

impl RunDirError {
    /// Returns whether the command line is at fault, not the run itself.
    pub fn is_of_usage(&self) -> bool {
        matches!(self, Self::Unknown { .. } | Self::Ambiguous { .. } | Self::Unserved { .. } | Self::Address { .. })
    }
}

fn places(runs: &[PathBuf]) -> String {
    runs.iter().map(|runs| runs.display().to_string()).collect::<Vec<_>>().join(" and ")
}

fn listed(known: &[String]) -> String {
    if known.is_empty() { " (there are none)".into() } else { format!(" (there are: {})", known.join(", ")) }
}

/// Lists the first `NAMED_MAX` names, a line each, and counts the others.
fn in_lines(names: &[String]) -> String {
    let more = names.len().saturating_sub(NAMED_MAX);
    let rest = (more > 0).then(|| format!("\n  and {more} more: `enn ls` lists them"));
    names.iter().take(NAMED_MAX).map(|name| format!("\n  {name}")).chain(rest).collect()
}

/// Returns the object store address that a path contains, also one below a directory.
pub fn address(path: &Path) -> Option<String> {
    let text = path.to_str()?;
    let (before, _) = text.split_once("://")?;
    Some(text[before.rfind('/').map_or(0, |slash| slash + 1)..].to_owned())
}

/// Returns an error when `runs` is the address of an object store.
pub fn local(runs: &Path) -> Result<(), RunDirError> {
    address(runs).map_or(Ok(()), |address| Err(RunDirError::Address { address }))
}

/// Identity of a lock that this process holds.
#[derive(Debug, Clone)]
pub struct LockWitness {
    path: PathBuf,
    /// Device and inode of the lock file.
    identity: (u64, u64),
}

impl LockWitness {
    /// Returns whether no successor has replaced the lock.
    pub fn is_current(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
    }
}

/// A run directory that this process works in.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    lock: Flock<File>,
}

impl RunDir {
    /// Creates a new run directory under `runs`, and `runs` itself where it is absent.
    pub fn create(runs: &Path, name: &str, now: OffsetDateTime) -> Result<Self, RunDirError> {
        local(runs)?;
        // Makes the new name durable. This fails where the directory around it is unreadable, which does not matter.
        let _unreadable = atomic::make_dir(runs);
        fs::create_dir_all(runs).map_err(io_error("make", runs))?;
        let runs = fs::canonicalize(runs).map_err(io_error("find", runs))?;
        let time = now.to_offset(time::UtcOffset::UTC).format(TIME).unwrap_or_default();
        // Keyed by the operating system's randomness.
        let random = RandomState::new().build_hasher().finish() & 0xffff;
        Self::create_at(&runs.join(format!("{}-{time}-{random:04x}", plain(name))))
    }

    /// Creates the directory `path` of a run that belongs to a larger one, such as a fold of a cross-validation.
    pub fn create_at(path: &Path) -> Result<Self, RunDirError> {
        fs::DirBuilder::new().mode(0o700).create(path).map_err(io_error("make", path))?;
        let _unreadable = atomic::make_dir(path);
        Self::open(path)
    }

    /// Locks an existing run directory.
    pub fn open(path: &Path) -> Result<Self, RunDirError> {
        let path = fs::canonicalize(path).map_err(io_error("find", path))?;
        let lock_path = path.join(LOCK);
        let file = File::create(&lock_path).map_err(io_error("make", &lock_path))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Self { path, lock }),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => Err(RunDirError::Busy { path }),
            Err((_, error)) => Err(io_error("lock", &lock_path)(error.into())),
        }
    }

    /// Locks the directory of a launcher that this one succeeds, which has `wait` to release its lock. The lock of a
    /// launcher whose machine is gone stays with the file server; the lock file is then replaced.
    pub fn take_over(path: &Path, wait: Duration) -> Result<Self, RunDirError> {
        let deadline = Instant::now() + wait;
        loop {
            match Self::open(path) {
                Err(RunDirError::Busy { .. }) if Instant::now() < deadline => {
                    std::thread::park_timeout(TAKE_OVER_PERIOD)
                }
                Err(RunDirError::Busy { path }) => {
                    let lock = path.join(LOCK);
                    fs::remove_file(&lock).map_err(io_error("replace", &lock))?;
                    return Self::open(&path);
                }
                other => return other,
            }
        }
    }

    /// Returns whether this process still holds the lock: a successor replaces the lock of a launcher that was cut off
    /// for too long.
    pub fn is_held(&self) -> bool {
        self.witness().is_ok_and(|witness| witness.is_current())
    }

    /// Returns what other threads ask whether the lock is still held.
    ///
    /// # Errors
    /// The lock file cannot be looked at.
    pub fn witness(&self) -> Result<LockWitness, RunDirError> {
        let path = self.path.join(LOCK);
        let own = self.lock.metadata().map_err(io_error("look at", &path))?;
        Ok(LockWitness { identity: (own.dev(), own.ino()), path })
    }

    /// Returns the BLAKE3 digest of run.json, hex.
    pub fn config_digest(&self) -> Result<String, RunDirError> {
        let path = self.path.join(RUN_JSON);
        let text = fs::read(&path).map_err(io_error("read", &path))?;
        Ok(blake3::hash(&text).to_hex().to_string())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory's name, which is the run's identifier.
    pub fn id(&self) -> String {
        self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    pub fn checkpoints(&self) -> PathBuf {
        checkpoints(&self.path)
    }

    pub fn write_config(&self, config: &RunConfig) -> Result<(), RunDirError> {
        let path = self.path.join(RUN_JSON);
        let text = serde_json::to_vec_pretty(config);
        let text = text.map_err(|error| RunDirError::Foreign { path: path.clone(), message: error.to_string() })?;
        Ok(atomic::write(&path, &text)?)
    }

    /// Returns the text of run.json; `None` before it is written.
    pub fn config_text(&self) -> Option<Vec<u8>> {
        fs::read(self.path.join(RUN_JSON)).ok()
    }

    /// Restores run.json to a text that [`Self::config_text`] returned.
    pub fn restore_config(&self, text: &[u8]) -> Result<(), RunDirError> {
        Ok(atomic::write(&self.path.join(RUN_JSON), text)?)
    }

    /// Writes launch.json, the request of `enn run`, atomically. The file is not synced, since a launch does not wait
    /// for a disk.
    pub fn write_launch(&self, run_id: &str, argv: &[String], logs: &Path) -> Result<(), RunDirError> {
        let path = self.path.join(LAUNCH_JSON);
        let started = OffsetDateTime::now_utc().unix_timestamp_nanos() as f64 / 1e9;
        let launch = serde_json::json!({
            "version": LAUNCH_VERSION, "kind": "run", "run_id": run_id, "argv": argv, "logs": logs, "started": started,
        });
        let beside = atomic::temporary(&path);
        fs::write(&beside, format!("{launch:#}\n")).map_err(io_error("write", &beside))?;
        fs::rename(&beside, &path).map_err(io_error("write", &path))
    }

    /// Removes MANIFEST.json, since the files that it lists are about to change.
    pub fn withdraw_manifest(&self) -> Result<(), RunDirError> {
        let path = self.path.join(enn_common::artifact::run::FILE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    /// Makes `staged` a link to the staged directory, which may be given by that link itself.
    pub fn link_staged(&self, staged: &Path) -> Result<(), RunDirError> {
        let link = self.path.join("staged");
        let staged = fs::canonicalize(staged).map_err(io_error("find", staged))?;
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error("replace", &link)(error)),
            _ => {}
        }
        symlink(staged, &link).map_err(io_error("link", &link))
    }

    /// Returns the number of the next round: one more than the last round that has logs.
    pub fn next_round(&self) -> Round {
        let entries = fs::read_dir(self.path.join("logs")).into_iter().flatten().flatten();
        let rounds = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok());
        Round(rounds.max().map_or(0, |last| last + 1))
    }
}

pub fn checkpoints(run: &Path) -> PathBuf {
    run.join("checkpoints")
}

pub fn read_config(run: &Path) -> Result<RunConfig, RunDirError> {
    let path = run.join(RUN_JSON);
    let text = fs::read(&path).map_err(io_error("read", &path))?;
    let config: RunConfig = serde_json::from_slice(&text)
        .map_err(|error| RunDirError::Foreign { path: path.clone(), message: error.to_string() })?;
    let version = enn_common::config::resolve::RUN_VERSION;
    if config.version != version {
        let message = format!("version {} of run.json, expected {version}", config.version);
        return Err(RunDirError::Foreign { path, message });
    }
    Ok(config)
}

/// Finds a cross-validation: a path, a name in `runs`, the beginning of exactly one name, or "latest".
pub fn find_cv(runs: &Path, reference: &str) -> Result<PathBuf, RunDirError> {
    let is_cv = |path: &Path| path.join(enn_common::artifact::cv::FILE).is_file();
    let runs = [runs.to_owned()];
    if let Some(path) = exact(&runs, reference, is_cv)? {
        return Ok(path);
    }
    let all = list_where(&runs, is_cv);
    let fitting: Vec<_> = all.iter().filter(|(name, _)| name.starts_with(reference)).collect();
    let names = |of: &[&(String, PathBuf)]| of.iter().map(|(name, _)| name.clone()).collect();
    match (reference, &fitting[..], all.first()) {
        ("latest", _, Some((_, path))) | (_, [(_, path)], _) => Ok(path.clone()),
        (_, [], _) => {
            let known: Vec<_> = all.iter().take(LISTED_MAX).collect();
            Err(RunDirError::Unknown { reference: reference.to_owned(), runs: runs.to_vec(), known: names(&known) })
        }
        (_, several, _) => {
            let candidates = names(several);
            Err(RunDirError::Ambiguous { reference: reference.to_owned(), runs: runs.to_vec(), candidates })
        }
    }
}

/// Returns the run that `reference` names by its path or by its whole name in one of `runs`.
///
/// # Errors
/// One of `runs` is an address, or the reference is neither a directory nor a regular file.
pub fn exact(runs: &[PathBuf], reference: &str, fits: impl Fn(&Path) -> bool) -> Result<Option<PathBuf>, RunDirError> {
    runs.iter().try_for_each(|runs| local(runs))?;
    let place = Path::new(reference);
    if place.exists() && !place.is_dir() {
        regular::check(place).map_err(|error| io_error("read", place)(error.source))?;
    }
    let named = runs.iter().map(|runs| runs.join(reference));
    Ok(std::iter::once(PathBuf::from(reference)).chain(named).find(|path| fits(path)))
}

/// Returns the file that a launcher holds locked, and open for writing, while it works in `run`.
pub fn lock_path(run: &Path) -> PathBuf {
    run.join(LOCK)
}

/// Returns the folders below which the logs of a run's workers are: the one that launch.json names, and the run's own.
pub fn logs(run: &Path) -> Vec<PathBuf> {
    let launch = fs::read(run.join(LAUNCH_JSON)).ok();
    let launch = launch.and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
    let named = launch.and_then(|launch| Some(PathBuf::from(launch.get("logs")?.as_str()?)));
    named.into_iter().chain([run.join("logs")]).collect()
}

/// Returns whether a launcher works in `run` now.
pub fn is_living(run: &Path) -> bool {
    let Ok(file) = File::open(lock_path(run)) else { return false };
    // Shared, so that two processes that check do not block each other.
    matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, nix::errno::Errno::EWOULDBLOCK)))
}

pub fn is_run(path: &Path) -> bool {
    path.join(RUN_JSON).is_file() || path.join(LAUNCH_JSON).is_file()
}

/// Returns whether `path` is the directory of a run of `enn run`.
pub fn is_launch(path: &Path) -> bool {
    path.join(LAUNCH_JSON).is_file() && !path.join(RUN_JSON).exists()
}

/// Returns the newest run of this name that has a committed checkpoint.
pub fn newest(runs: &Path, name: &str) -> Option<PathBuf> {
    let resumable = |path: &PathBuf| {
        read_config(path).is_ok_and(|config| config.name == name)
            && !enn_common::checkpoint::name::list(&checkpoints(path)).is_empty()
    };
    list(runs).into_iter().map(|(_, path)| path).find(resumable)
}

/// Lists the runs in `runs`, newest first by the time in their names.
fn list(runs: &Path) -> Vec<(String, PathBuf)> {
    list_where(&[runs.to_owned()], is_run)
}

/// Lists the runs in several directories, newest first. Hidden directories are left out, since they are about to be
/// removed.
pub fn list_where(runs: &[PathBuf], fits: impl Fn(&Path) -> bool) -> Vec<(String, PathBuf)> {
    let entries = runs.iter().flat_map(|runs| fs::read_dir(runs).into_iter().flatten().flatten());
    let mut all: Vec<_> = entries
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b".") && fits(&entry.path()))
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .collect();
    // Runs of the same second are ordered by their creation.
    let made = |path: &Path| path.metadata().and_then(|found| found.created()).ok();
    all.sort_by_cached_key(|(name, path)| {
        std::cmp::Reverse((time_of(name).map(str::to_owned), made(path), name.clone()))
    });
    all
}

pub fn time_of(name: &str) -> Option<&str> {
    name.rsplit('-').nth(1)
}

/// Replaces the characters of a name that are unsafe in a file name.
fn plain(name: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' };
    let name: String = name.chars().take(NAME_BYTES_MAX).map(safe).collect();
    if name.is_empty() { "run".into() } else { name }
}

fn io_error<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> RunDirError + use<'a> {
    move |source| RunDirError::Io { what, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::config::{
        model::ModelConfig,
        train::{ClusterConfig, TrainConfig},
    };
    use time::macros::datetime;

    fn config(name: &str) -> RunConfig {
        RunConfig {
            version: 1,
            name: name.into(),
            seed: 0,
            data: None,
            model: ModelConfig::default(),
            train: TrainConfig::default(),
            cluster: ClusterConfig::default(),
            kernels: std::collections::BTreeMap::new(),
            parent: None,
        }
    }

    #[test]
    fn a_successor_waits_for_the_launcher_before_it_and_takes_the_directory_of_one_that_is_gone() {
        let runs = tempfile::tempdir().unwrap();
        let first = RunDir::create(runs.path(), "a", datetime!(2026-01-01 00:00 UTC)).unwrap();
        let path = first.path().to_owned();
        assert!(first.is_held() && matches!(RunDir::open(&path), Err(RunDirError::Busy { .. })));
        let successor = RunDir::take_over(&path, Duration::from_millis(150)).unwrap();
        assert!(successor.is_held() && !first.is_held());
        assert!(is_living(&path) && matches!(RunDir::open(&path), Err(RunDirError::Busy { .. })));
        drop(first);
        assert!(is_living(&path), "the successor's lock is its own");
        drop(successor);
        assert!(!is_living(&path));
    }

    #[test]
    fn a_run_whose_staged_data_is_given_by_its_own_link_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(dir.path(), "x", datetime!(2026-01-02 03:04:05 UTC)).unwrap();
        let staged = dir.path().join("data");
        fs::create_dir(&staged).unwrap();
        let link = run.path().join("staged");
        for given in [staged.join("../data"), link.clone(), link.join(".")] {
            run.link_staged(&given).unwrap();
            assert_eq!(fs::read_link(&link).unwrap(), staged.canonicalize().unwrap(), "{}", given.display());
        }
        let missing = run.link_staged(&dir.path().join("missing")).unwrap_err();
        assert!(missing.to_string().starts_with("cannot find "), "{missing}");
        assert!(link.exists(), "it is left as it was");
    }

    #[test]
    fn a_run_is_used_by_one_launcher_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(dir.path(), "x", datetime!(2026-01-02 03:04:05 UTC)).unwrap();
        assert!(matches!(RunDir::open(run.path()), Err(RunDirError::Busy { .. })));
        let path = run.path().to_owned();
        assert_eq!(run.next_round(), Round(0));
        fs::create_dir_all(path.join("logs/2/0")).unwrap();
        drop(run);
        assert_eq!(RunDir::open(&path).unwrap().next_round(), Round(3));
    }

    #[test]
    fn config_is_read_as_written_and_other_versions_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(dir.path(), "x", datetime!(2026-01-02 03:04:05 UTC)).unwrap();
        run.write_config(&config("x")).unwrap();
        assert_eq!(read_config(run.path()).unwrap(), config("x"));
        run.write_config(&RunConfig { version: 9, ..config("x") }).unwrap();
        assert!(read_config(run.path()).unwrap_err().to_string().contains("version 9"));
    }
}
