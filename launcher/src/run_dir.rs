//! The directory of a run: its name, its layout, who may work in it.
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
    fs::{self, File, Metadata},
    hash::{BuildHasher, Hasher, RandomState},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, symlink},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use time::{OffsetDateTime, format_description::BorrowedFormatItem, macros::format_description};

/// Where runs are kept unless `--runs-dir` says so.
pub const RUNS_DIR: &str = "runs";

pub(crate) const RUN_JSON: &str = "run.json";
/// What `enn run` leaves instead of run.json.
const LAUNCH_JSON: &str = "launch.json";
/// Version of launch.json.
const LAUNCH_VERSION: u32 = 1;
const LOCK: &str = ".lock";
const TIME: &[BorrowedFormatItem<'_>] = format_description!("[year][month][day]T[hour][minute][second]Z");
/// Bytes of a run's name that go into its directory's name.
const NAME_BYTES_MAX: usize = 100;
/// How often the directory of a launcher that is about to end is tried.
const INHERIT_PERIOD: Duration = Duration::from_millis(100);
/// Runs listed when the one asked for is not there.
pub(crate) const LISTED_MAX: usize = 5;
/// Runs that a name may mean, or that were passed over, that are named with their states.
const NAMED_MAX: usize = 10;

/// What is wrong with a run directory.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// A file operation failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// File or directory.
        path: PathBuf,
        source: io::Error,
    },
    /// A file could not be written whole.
    #[error(transparent)]
    File(#[from] FileError),
    /// Another launcher works in it.
    #[error("{} is in use by another enn (wait for it, or stop it with Ctrl-C)", path.display())]
    Busy { path: PathBuf },
    /// An object store where a directory is needed.
    #[error(
        "found the address {address} where a directory of a file system is needed\n  hint: `enn train` keeps runs at an address \
         with --runs-dir; `enn ckpt push` and `enn ckpt pull` copy runs to and from one"
    )]
    Address {
        /// What was given.
        address: String,
    },
    /// No such run.
    #[error("no run \"{reference}\" in {}{}", places(runs), listed(known))]
    Unknown {
        /// What was asked for.
        reference: String,
        /// Where runs are.
        runs: Vec<PathBuf>,
        /// Some that are there, newest first.
        known: Vec<String>,
    },
    /// Several runs that a name may mean.
    #[error(
        "more than one run begins with \"{reference}\" in {}:{}\n  hint: give more of the name",
        places(runs),
        in_lines(candidates)
    )]
    Ambiguous {
        /// What was asked for.
        reference: String,
        /// Where runs are.
        runs: Vec<PathBuf>,
        /// Those that it may be, newest first, each with its state.
        candidates: Vec<String>,
    },
    /// No run that a command can work with.
    #[error("no run in {} {lack}:{}", places(runs), in_lines(known))]
    Unserved {
        /// Where runs are.
        runs: Vec<PathBuf>,
        /// What is missing: "has a model".
        lack: &'static str,
        /// Some that are there, newest first, each with its state.
        known: Vec<String>,
    },
    /// Not a run directory, or not one of this version.
    #[error("{} is no run of this enn: {message}", path.display())]
    Foreign {
        /// run.json.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
}

impl RunDirError {
    /// Whether the command line names the run wrongly; the run itself may be sound.
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

/// The first ones, a line each.
fn in_lines(names: &[String]) -> String {
    let more = names.len().saturating_sub(NAMED_MAX);
    let rest = (more > 0).then(|| format!("\n  and {more} more: `enn ls` lists them"));
    names.iter().take(NAMED_MAX).map(|name| format!("\n  {name}")).chain(rest).collect()
}

/// The address in an object store that a path, also one below a directory, was meant to be.
pub(crate) fn address(path: &Path) -> Option<String> {
    let text = path.to_str()?;
    let (before, _) = text.split_once("://")?;
    Some(text[before.rfind('/').map_or(0, |slash| slash + 1)..].to_owned())
}

/// Refuses an address where a directory is needed.
pub(crate) fn local(runs: &Path) -> Result<(), RunDirError> {
    address(runs).map_or(Ok(()), |address| Err(RunDirError::Address { address }))
}

/// A run directory that this process works in.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    lock: Flock<File>,
}

impl RunDir {
    /// Makes a new run directory under `runs` (made when absent).
    pub fn create(runs: &Path, name: &str, now: OffsetDateTime) -> Result<Self, RunDirError> {
        local(runs)?;
        // A name that is new is made durable; who may not read the directory around it goes on all the same.
        let _unreadable = atomic::make_dir(runs);
        fs::create_dir_all(runs).map_err(io_error("make", runs))?;
        let runs = fs::canonicalize(runs).map_err(io_error("find", runs))?;
        let time = now.to_offset(time::UtcOffset::UTC).format(TIME).unwrap_or_default();
        // Keyed by the operating system's randomness.
        let random = RandomState::new().build_hasher().finish() & 0xffff;
        Self::create_at(&runs.join(format!("{}-{time}-{random:04x}", plain(name))))
    }

    /// Makes the directory `path` of a run that is part of something larger.
    pub fn create_at(path: &Path) -> Result<Self, RunDirError> {
        fs::DirBuilder::new().mode(0o700).create(path).map_err(io_error("make", path))?;
        let _unreadable = atomic::make_dir(path);
        Self::open(path)
    }

    /// Takes an existing directory.
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

    /// Takes the directory of a launcher that may not go on: it has `wait` to let go. The lock of one whose machine is gone stays
    /// with the file server; then a new one is made.
    pub fn inherit(path: &Path, wait: Duration) -> Result<Self, RunDirError> {
        let deadline = Instant::now() + wait;
        loop {
            match Self::open(path) {
                Err(RunDirError::Busy { .. }) if Instant::now() < deadline => std::thread::park_timeout(INHERIT_PERIOD),
                Err(RunDirError::Busy { path }) => {
                    let lock = path.join(LOCK);
                    fs::remove_file(&lock).map_err(io_error("replace", &lock))?;
                    return Self::open(&path);
                }
                other => return other,
            }
        }
    }

    /// Whether it is still this process that works in it: an heir may have replaced the lock of one that was cut off for long.
    pub fn is_held(&self) -> bool {
        let same = |found: Metadata, own: Metadata| (found.dev(), found.ino()) == (own.dev(), own.ino());
        fs::metadata(self.path.join(LOCK)).is_ok_and(|found| self.lock.metadata().is_ok_and(|own| same(found, own)))
    }

    /// Digest of the configuration as it is written, hex.
    pub fn config_digest(&self) -> Result<String, RunDirError> {
        let path = self.path.join(RUN_JSON);
        let text = fs::read(&path).map_err(io_error("read", &path))?;
        Ok(blake3::hash(&text).to_hex().to_string())
    }

    /// The directory, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its name: the run's identifier.
    pub fn id(&self) -> String {
        self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Where checkpoints are.
    pub fn checkpoints(&self) -> PathBuf {
        checkpoints(&self.path)
    }

    /// Writes run.json, whole or not at all.
    pub fn write_config(&self, config: &RunConfig) -> Result<(), RunDirError> {
        let path = self.path.join(RUN_JSON);
        let text = serde_json::to_vec_pretty(config);
        let text = text.map_err(|error| RunDirError::Foreign { path: path.clone(), message: error.to_string() })?;
        Ok(atomic::write(&path, &text)?)
    }

    /// run.json as it is; `None` before it is written.
    pub fn config_text(&self) -> Option<Vec<u8>> {
        fs::read(self.path.join(RUN_JSON)).ok()
    }

    /// Puts back what [`Self::config_text`] gave.
    pub fn restore_config(&self, text: &[u8]) -> Result<(), RunDirError> {
        Ok(atomic::write(&self.path.join(RUN_JSON), text)?)
    }

    /// Writes launch.json, what `enn run` was asked for. Whole or not at all; not synced, for a launch does not wait for a disk.
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

    /// Takes back MANIFEST.json: what it lists is about to change.
    pub fn withdraw_manifest(&self) -> Result<(), RunDirError> {
        let path = self.path.join(enn_common::artifact::run::FILE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("remove", &path)(error)),
            _ => Ok(()),
        }
    }

    /// Makes `staged` a link to the staged directory.
    pub fn link_staged(&self, staged: &Path) -> Result<(), RunDirError> {
        let link = self.path.join("staged");
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error("replace", &link)(error)),
            _ => {}
        }
        symlink(staged, &link).map_err(io_error("link", &link))
    }

    /// The number of the next round: one more than the rounds that have logs.
    pub fn next_round(&self) -> Round {
        let entries = fs::read_dir(self.path.join("logs")).into_iter().flatten().flatten();
        let rounds = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok());
        Round(rounds.max().map_or(0, |last| last + 1))
    }
}

/// Where a run keeps its checkpoints.
pub fn checkpoints(run: &Path) -> PathBuf {
    run.join("checkpoints")
}

/// Reads a run's configuration.
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

/// What is named by its path, or by its whole name in one of `runs`.
///
/// # Errors
/// One of `runs` is an address, or the reference is neither a directory nor a regular file.
pub(crate) fn exact(
    runs: &[PathBuf],
    reference: &str,
    fits: impl Fn(&Path) -> bool,
) -> Result<Option<PathBuf>, RunDirError> {
    runs.iter().try_for_each(|runs| local(runs))?;
    let place = Path::new(reference);
    if place.exists() && !place.is_dir() {
        regular::check(place).map_err(|error| io_error("read", place)(error.source))?;
    }
    let named = runs.iter().map(|runs| runs.join(reference));
    Ok(std::iter::once(PathBuf::from(reference)).chain(named).find(|path| fits(path)))
}

/// The file a launcher holds locked, and open for writing, while it works in `run`.
pub fn lock_path(run: &Path) -> PathBuf {
    run.join(LOCK)
}

/// Folders below which the logs of a run's workers are: its own, and the one launch.json names.
pub fn logs(run: &Path) -> Vec<PathBuf> {
    let launch = fs::read(run.join(LAUNCH_JSON)).ok();
    let launch = launch.and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
    let named = launch.and_then(|launch| Some(PathBuf::from(launch.get("logs")?.as_str()?)));
    named.into_iter().chain([run.join("logs")]).collect()
}

/// Whether a launcher works in `run` now.
pub fn is_living(run: &Path) -> bool {
    let Ok(file) = File::open(lock_path(run)) else { return false };
    // Shared, so that two who ask do not see each other.
    matches!(Flock::lock(file, FlockArg::LockSharedNonblock), Err((_, nix::errno::Errno::EWOULDBLOCK)))
}

/// Whether it is the directory of a run.
pub(crate) fn is_run(path: &Path) -> bool {
    path.join(RUN_JSON).is_file() || path.join(LAUNCH_JSON).is_file()
}

/// Whether it is the directory of a run of `enn run`.
pub(crate) fn is_launch(path: &Path) -> bool {
    path.join(LAUNCH_JSON).is_file() && !path.join(RUN_JSON).exists()
}

/// The newest run of this name that has a committed checkpoint.
pub fn newest(runs: &Path, name: &str) -> Option<PathBuf> {
    let resumable = |path: &PathBuf| {
        read_config(path).is_ok_and(|config| config.name == name)
            && !enn_common::checkpoint::name::list(&checkpoints(path)).is_empty()
    };
    list(runs).into_iter().map(|(_, path)| path).find(resumable)
}

/// Runs in `runs`, newest first by the time in their names.
fn list(runs: &Path) -> Vec<(String, PathBuf)> {
    list_where(&[runs.to_owned()], is_run)
}

/// Runs in several directories, newest first. What is hidden is none: it is about to be removed.
pub(crate) fn list_where(runs: &[PathBuf], fits: impl Fn(&Path) -> bool) -> Vec<(String, PathBuf)> {
    let entries = runs.iter().flat_map(|runs| fs::read_dir(runs).into_iter().flatten().flatten());
    let mut all: Vec<_> = entries
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b".") && fits(&entry.path()))
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
        .collect();
    // Of those of one second the one that was made last.
    let made = |path: &Path| path.metadata().and_then(|found| found.created()).ok();
    all.sort_by_cached_key(|(name, path)| {
        std::cmp::Reverse((time_of(name).map(str::to_owned), made(path), name.clone()))
    });
    all
}

/// The time in a run's name.
pub(crate) fn time_of(name: &str) -> Option<&str> {
    name.rsplit('-').nth(1)
}

/// A name that is safe as part of a file name.
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
    use crate::runs::{Need, select};
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

    fn find_in(runs: &[PathBuf], reference: &str) -> Result<PathBuf, RunDirError> {
        select(runs, reference, Need::Any).map(|selected| selected.path)
    }

    fn find(runs: &Path, reference: &str) -> Result<PathBuf, RunDirError> {
        find_in(&[runs.to_owned()], reference)
    }

    #[test]
    fn an_address_is_no_directory_of_runs() {
        let dir = tempfile::tempdir().unwrap();
        for given in [PathBuf::from("s3://bucket/runs"), dir.path().join("gs://bucket/runs")] {
            let made = RunDir::create(&given, "a", datetime!(2026-01-01 00:00 UTC)).unwrap_err().to_string();
            assert!(made.contains("://bucket/runs") && made.contains("enn ckpt push"), "{made}");
            assert_eq!(find(&given, "latest").unwrap_err().to_string(), made);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is made");
    }

    #[test]
    fn an_heir_waits_for_the_launcher_before_it_and_takes_the_directory_of_one_that_is_gone() {
        let runs = tempfile::tempdir().unwrap();
        let first = RunDir::create(runs.path(), "a", datetime!(2026-01-01 00:00 UTC)).unwrap();
        let path = first.path().to_owned();
        assert!(first.is_held() && matches!(RunDir::open(&path), Err(RunDirError::Busy { .. })));
        let heir = RunDir::inherit(&path, Duration::from_millis(150)).unwrap();
        assert!(heir.is_held() && !first.is_held());
        assert!(is_living(&path) && matches!(RunDir::open(&path), Err(RunDirError::Busy { .. })));
        drop(first);
        assert!(is_living(&path), "the heir's lock is its own");
        drop(heir);
        assert!(!is_living(&path));
    }

    #[test]
    fn names_sort_by_time_and_are_found_by_their_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let runs = dir.path().join("runs");
        let old = RunDir::create(&runs, "weather", datetime!(2026-01-02 03:04:05 UTC)).unwrap();
        old.write_config(&config("weather")).unwrap();
        let new = RunDir::create(&runs, "a b/ü", datetime!(2026-02-02 03:04:05 +1)).unwrap();
        new.write_config(&config("a b/ü")).unwrap();
        assert!(old.id().starts_with("weather-20260102T030405Z-"), "{}", old.id());
        assert!(new.id().starts_with("a-b---20260202T020405Z-"), "{}", new.id());
        let canonical = fs::canonicalize(&runs).unwrap();
        assert_eq!(find(&canonical, "latest").unwrap(), new.path());
        assert_eq!(find(&canonical, "weather-2026").unwrap(), old.path());
        assert_eq!(find(&canonical, &old.path().to_string_lossy()).unwrap(), old.path());
        let error = find(&canonical, "wether").unwrap_err().to_string();
        assert!(error.contains("no run \"wether\"") && error.contains(&new.id()), "{error}");
        let earlier: Vec<PathBuf> = (0..9)
            .map(|_| {
                let run = RunDir::create(&runs, "hail", datetime!(2026-03-02 03:04:05 UTC)).unwrap();
                run.write_config(&config("hail")).unwrap();
                assert_eq!(
                    find(&canonical, "latest").unwrap(),
                    run.path(),
                    "of one second, the one that was made last"
                );
                run.path().to_owned()
            })
            .collect();
        let several = find(&canonical, "hail").unwrap_err().to_string();
        assert!(
            several.contains("more than one run begins with \"hail\"") && !several.contains(&new.id()),
            "{several}"
        );
        earlier.iter().for_each(|run| fs::remove_dir_all(run).unwrap());
        assert_eq!(newest(&canonical, "weather"), None);
        fs::create_dir_all(old.checkpoints().join("step-00000003")).unwrap();
        assert_eq!(newest(&canonical, "weather").as_deref(), Some(old.path()));
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
    fn runs_of_both_kinds_are_found_and_seen_alive() {
        let dir = tempfile::tempdir().unwrap();
        let places = [dir.path().join("runs"), dir.path().join("launches")];
        let old = RunDir::create(&places[0], "weather", datetime!(2026-01-02 03:04:05 UTC)).unwrap();
        old.write_config(&config("weather")).unwrap();
        let new = RunDir::create(&places[1], "train", datetime!(2026-01-02 03:04:06 UTC)).unwrap();
        fs::write(new.path().join(LAUNCH_JSON), "{}").unwrap();
        assert_eq!(find_in(&places, "latest").unwrap(), new.path());
        assert_eq!(find_in(&places, "wea").unwrap(), old.path());
        let error = find_in(&places, "x").unwrap_err().to_string();
        assert!(error.contains("/runs and ") && error.contains(&new.id()), "{error}");
        let path = new.path().to_owned();
        assert!(is_living(&path) && is_living(&path));
        drop(new);
        assert!(!is_living(&path) && !is_living(dir.path()));
        assert!(RunDir::open(&path).is_ok());
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
