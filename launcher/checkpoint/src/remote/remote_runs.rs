//! Runs that are kept at an address: the address is authoritative, and the work happens in a local copy.
//!
//! ```text
//! <cache>/runs/<digest of the address>/.address         the address
//!                                      <run>/.stored    digest of the newest manifest at the address that this copy has seen
//!                                      <run>/…          a run's directory as any other
//! ```
//! **Invariant:** if another process has continued the run, the work of this copy since then is never uploaded, and is moved aside
//! before the copy is used again.

use super::{
    RemoteError,
    pull::{self, CHECKPOINTS, JOURNAL, SMALL_BYTES_MAX, pull, pull_records},
    push::{push, push_records},
    store::Store,
};
use enn_common::{
    artifact::run::FILE as MANIFEST,
    checkpoint::{latest, name, prune, retain::Rule},
    config::RunConfig,
    fs::{FileError, RelPath, atomic},
};
use enn_process::run_dir::{self, RUN_JSON};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use std::{
    fs::{self, DirBuilder, File},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

const RUNS: &str = "runs";
const ADDRESS: &str = ".address";
const STORED: &str = ".stored";
const DIGITS: usize = 16;
/// Maximum wait for another process that fetches the same run, and the interval of checks.
const FETCH_MAX: Duration = Duration::from_secs(3600);
const FETCH_PERIOD: Duration = Duration::from_millis(100);
/// Maximum number of runs that are listed when the requested one does not exist.
const LISTED_MAX: usize = 5;

pub struct RemoteRuns {
    store: Store,
    address: String,
    dir: PathBuf,
}

/// Names of some runs that exist, for the error about one that does not.
pub type KnownRuns = Vec<String>;

impl RemoteRuns {
    /// Opens the runs at `address`, and makes the directory of their copies below `cache`.
    pub fn open(address: &str, cache: &Path) -> Result<Self, RemoteError> {
        let address = address.trim_end_matches('/');
        let store = Store::open(address)?;
        let digest = blake3::hash(address.as_bytes()).to_hex();
        let dir = cache.join(RUNS).join(&digest[..DIGITS]);
        let note = dir.join(ADDRESS);
        if !note.exists() {
            DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(FileError::of("make", &dir))?;
            atomic::write(&note, address.as_bytes())?;
        }
        Ok(Self { store, address: address.to_owned(), dir })
    }

    /// Opens the runs of the address of a run; returns them with the run's name.
    pub fn of_run(address: &str, cache: &Path) -> Result<(Self, String), RemoteError> {
        match address.trim_end_matches('/').rsplit_once('/') {
            Some((runs, name)) if Store::is_address(runs) && is_run_name(name) => {
                Ok((Self::open(runs, cache)?, name.to_owned()))
            }
            _ => Err(RemoteError::NoRun { address: address.to_owned() }),
        }
    }

    /// Returns the address at which the run in the directory `run` is kept; `None` for a local run.
    pub fn address_of(run: &Path) -> Option<String> {
        let address = fs::read_to_string(run.parent()?.join(ADDRESS)).ok()?;
        Some(format!("{address}/{}", run.file_name()?.to_str()?))
    }

    /// Returns the directory in which new runs are made, so that they are kept at the address.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn run_store(&self, name: &str) -> Store {
        self.store.below(name)
    }

    fn names(&self) -> Result<Vec<String>, RemoteError> {
        let (_, mut names) = self.store.list()?;
        // Other objects in the store are not runs.
        names.retain(|name| is_run_name(name));
        names.sort_by_cached_key(|name| std::cmp::Reverse((run_dir::time_of(name).map(str::to_owned), name.clone())));
        Ok(names)
    }

    pub fn has(&self, name: &str) -> Result<bool, RemoteError> {
        Ok(self.run_store(name).length(RUN_JSON)?.is_some())
    }

    fn copy_of(&self, name: &str) -> Result<PathBuf, RemoteError> {
        let refused = || RemoteError::FileName { place: self.address.clone(), file: name.to_owned() };
        Ok(RelPath::parse(name).ok().filter(RelPath::is_name).ok_or_else(refused)?.locate(&self.dir)?)
    }

    /// Finds a run by its name, a prefix of its name, or "latest". With `needs_model` only runs with a checkpoint count where several
    /// match, and for "latest".
    pub fn find(&self, reference: &str, needs_model: bool) -> Result<Result<String, KnownRuns>, RemoteError> {
        let mut names = self.names()?;
        if names.iter().any(|name| name == reference) && self.has(reference)? {
            return Ok(Ok(reference.to_owned()));
        }
        let is_latest = reference == "latest";
        let mut fitting = Vec::new();
        let mut lacking = Vec::new();
        for name in names.iter().filter(|name| is_latest || name.starts_with(reference)) {
            if !self.has(name)? {
                continue;
            }
            let serves = !needs_model || pull::newest(&self.run_store(name))?.is_some();
            if serves {
                fitting.push(name)
            } else {
                lacking.push(name)
            }
            if fitting.len() == 1 && is_latest || fitting.len() > 1 {
                break;
            }
        }
        match (&fitting[..], &lacking[..]) {
            ([name], []) => return Ok(Ok((*name).clone())),
            ([name], [newest, ..]) => {
                tracing::warn!("skipped {newest}, which has no complete checkpoint: {name} is used");
                return Ok(Ok((*name).clone()));
            }
            // The caller reports what is missing.
            ([], [name]) if !is_latest => return Ok(Ok((*name).clone())),
            _ => {}
        }
        names.truncate(LISTED_MAX);
        Ok(Err(names))
    }

    /// Returns the newest run with this name in its configuration and a checkpoint.
    pub fn newest(&self, run: &str) -> Result<Option<String>, RemoteError> {
        for name in self.names()? {
            let place = self.run_store(&name);
            let config = place.small(RUN_JSON, SMALL_BYTES_MAX)?;
            let config = config.and_then(|text| serde_json::from_slice::<RunConfig>(&text).ok());
            if config.is_some_and(|config| config.name == run) && pull::newest(&place)?.is_some() {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Updates the copy of the run `name` from the address, with its newest complete checkpoint if `wanted`, and returns its directory. The
    /// copy of a run that trains on this machine is up to date.
    pub fn fetch(&self, name: &str, wanted: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<PathBuf, RemoteError> {
        let copy = self.copy_of(name)?;
        let place = self.run_store(name);
        if run_dir::is_living(&copy) {
            return Ok(copy);
        }
        let _lock = self.lock(name)?;
        let is_run = self.has(name)?;
        let newest = pull::newest(&place)?;
        let is_changed = newest.as_ref().is_some_and(|(step, sealed)| !has_seen(&copy, *step, sealed));
        let own = || latest(&run_dir::checkpoints(&copy)).found.and_then(|found| Some(found.manifest()?.step));
        let is_short = || newest.as_ref().is_some_and(|(step, _)| own().is_none_or(|own| own < *step));
        if is_changed && !is_short() {
            self.set_aside(name)?;
        }
        if wanted && (is_short() || !is_run) {
            pull(&place, None, &copy, true, progress)?;
            if !run_dir::lock_path(&copy).exists() {
                // The copy was never trained in: its content is at the address.
                prune::prune(&run_dir::checkpoints(&copy), Rule::default())?;
            }
        }
        if is_run {
            atomic::make_dir(&copy)?;
            let there = place.length(JOURNAL)?.unwrap_or(0);
            let longer = fs::metadata(copy.join(JOURNAL)).map_or(0, |own| own.len()) < there;
            pull_records(&place, &copy, &|_| is_changed || longer)?;
            newest.map_or(Ok(()), |(_, sealed)| note(&copy, &sealed))?;
        }
        Ok(copy)
    }

    /// Returns the copy of the run `name` if it is as new as the address: the run trains on this machine, or the copy has seen the newest
    /// checkpoint there and has one as new.
    pub fn current(&self, name: &str) -> Result<Option<PathBuf>, RemoteError> {
        let copy = self.copy_of(name)?;
        if run_dir::is_living(&copy) {
            return Ok(Some(copy));
        }
        let own = latest(&run_dir::checkpoints(&copy)).found.and_then(|found| Some(found.manifest()?.step));
        let Some((own, (step, sealed))) = own.zip(pull::newest(&self.run_store(name))?) else { return Ok(None) };
        Ok((own >= step && has_seen(&copy, step, &sealed)).then_some(copy))
    }

    /// Waits until no other process fetches the run; returns the lock.
    fn lock(&self, name: &str) -> Result<Flock<File>, RemoteError> {
        let path = self.copy_of(name)?.with_file_name(format!(".{name}.lock"));
        let deadline = Instant::now() + FETCH_MAX;
        loop {
            let file = File::create(&path).map_err(FileError::of("make", &path))?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(lock),
                Err((_, Errno::EWOULDBLOCK)) if Instant::now() < deadline => std::thread::park_timeout(FETCH_PERIOD),
                Err((_, Errno::EWOULDBLOCK)) => {
                    return Err(RemoteError::Busy { dir: self.copy_of(name)?, waited: FETCH_MAX.as_secs() });
                }
                Err((_, error)) => return Err(FileError::of("lock", &path)(error.into()).into()),
            }
        }
    }

    fn set_aside(&self, name: &str) -> Result<(), RemoteError> {
        let copy = self.copy_of(name)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let aside = copy.with_file_name(format!(".{name}.aside-{now}"));
        fs::rename(&copy, &aside).map_err(FileError::of("rename", &copy))?;
        let place = self.store.name_of(name);
        tracing::warn!("another process has continued {place}; the work done here meanwhile is in {}", aside.display());
        Ok(())
    }
}

/// Returns whether a name at an address can be that of a run, which is a directory name.
fn is_run_name(name: &str) -> bool {
    RelPath::parse(name).is_ok_and(|name| name.is_name())
}

/// Returns whether the copy `run` has recorded or written the manifest of `step` at its address.
fn has_seen(run: &Path, step: u64, sealed: &[u8]) -> bool {
    let noted = || fs::read_to_string(run.join(STORED)).is_ok_and(|noted| noted == digest(sealed));
    let own = run_dir::checkpoints(run).join(name::committed(step)).join(name::MANIFEST);
    noted() || fs::read(own).is_ok_and(|own| own == sealed)
}

fn note(run: &Path, sealed: &[u8]) -> Result<(), RemoteError> {
    Ok(atomic::write(&run.join(STORED), digest(sealed).as_bytes())?)
}

fn digest(sealed: &[u8]) -> String {
    blake3::hash(sealed).to_hex().to_string()
}

/// Returns an error when another process has continued the run that is kept at `store`.
pub(super) fn check_not_superseded(store: &Store, run: &Path) -> Result<(), RemoteError> {
    match pull::newest(store)? {
        Some((step, sealed)) if !has_seen(run, step, &sealed) => {
            let place = store.name_of("");
            let step = name::committed(step);
            Err(RemoteError::Superseded { place, step, dir: run.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Uploads the records of the run in the directory `run` to `store`, and its newest `checkpoint` if requested.
pub fn upload_run(run: &Path, store: &Store, checkpoint: bool) -> Result<(), RemoteError> {
    check_not_superseded(store, run)?;
    if let Some(found) = latest(&run_dir::checkpoints(run)).found.filter(|_| checkpoint) {
        push(found.dir(), &store.below(CHECKPOINTS), true, &mut |_, _| {})?;
        record_upload(store, run, found.dir())?;
    }
    if !run.join(MANIFEST).exists() {
        // The manifest would list files that are about to change.
        store.remove(MANIFEST)?;
    }
    push_records(run, store)
}

/// Records that the newest checkpoint at the address was uploaded from `dir`, unless another process has continued the run meanwhile.
pub(super) fn record_upload(store: &Store, run: &Path, dir: &Path) -> Result<(), RemoteError> {
    match pull::newest(store)? {
        Some((_, sealed)) if fs::read(dir.join(name::MANIFEST)).is_ok_and(|own| own == sealed) => note(run, &sealed),
        _ => Ok(()),
    }
}
