//! Runs that are kept at an address: what is there is the truth, and a copy here is worked in.
//!
//! ```text
//! <cache>/runs/<digest of the address>/.address         the address
//!                                      <run>/.stored    digest of the newest manifest at the address that this copy has seen
//!                                      <run>/…          a run's directory as any other
//! ```
//! **Invariant:** where somebody else has gone on with the run, what this copy did meanwhile is never uploaded, and is set aside before
//! the copy is used again.

use super::{
    RemoteError,
    pull::{self, CHECKPOINTS, JOURNAL, SMALL_BYTES_MAX, pull, pull_records},
    push::{push, push_records},
    store::Store,
};
use crate::run_dir::{self, RUN_JSON};
use enn_common::{
    artifact::run::FILE as MANIFEST,
    checkpoint::{latest, name, prune, retain::Rule},
    config::RunConfig,
    fs::{FileError, RelPath, atomic},
};
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

/// Below the cache.
const RUNS: &str = "runs";
const ADDRESS: &str = ".address";
const STORED: &str = ".stored";
/// Digits of the digest of an address.
const DIGITS: usize = 16;
/// How long another process that fetches the same run is waited for, and how often it is looked at.
const FETCH_MAX: Duration = Duration::from_secs(3600);
const FETCH_PERIOD: Duration = Duration::from_millis(100);
/// Runs listed when the one asked for is not there.
const LISTED_MAX: usize = 5;

/// The runs at an address, and the directory of their copies.
pub struct Shelf {
    store: Store,
    address: String,
    dir: PathBuf,
}

/// What is asked of a shelf and is not there: some runs that are.
pub type Known = Vec<String>;

impl Shelf {
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

    /// The shelf and the name of the run at an address.
    pub fn of_run(address: &str, cache: &Path) -> Result<(Self, String), RemoteError> {
        match address.trim_end_matches('/').rsplit_once('/') {
            Some((runs, name)) if Store::is_address(runs) && is_run_name(name) => {
                Ok((Self::open(runs, cache)?, name.to_owned()))
            }
            _ => Err(RemoteError::NoRun { address: address.to_owned() }),
        }
    }

    /// The address at which the run in the directory `run` is kept; `None` for a run that is kept in its directory.
    pub fn address_of(run: &Path) -> Option<String> {
        let address = fs::read_to_string(run.parent()?.join(ADDRESS)).ok()?;
        Some(format!("{address}/{}", run.file_name()?.to_str()?))
    }

    /// Where new runs are made: a run there is kept at the address.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The address of the runs.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A run's place in the store.
    pub fn place(&self, name: &str) -> Store {
        self.store.below(name)
    }

    /// Names of what is at the address, newest first.
    fn names(&self) -> Result<Vec<String>, RemoteError> {
        let (_, mut names) = self.store.list()?;
        // Whatever else a store may hold, it is no run.
        names.retain(|name| is_run_name(name));
        names.sort_by_cached_key(|name| std::cmp::Reverse((run_dir::time_of(name).map(str::to_owned), name.clone())));
        Ok(names)
    }

    /// Whether there is a run of this name.
    pub fn has(&self, name: &str) -> Result<bool, RemoteError> {
        Ok(self.place(name).length(RUN_JSON)?.is_some())
    }

    /// Where the copy of the run `name` is.
    fn copy_of(&self, name: &str) -> Result<PathBuf, RemoteError> {
        let refused = || RemoteError::FileName { place: self.address.clone(), file: name.to_owned() };
        Ok(RelPath::parse(name).ok().filter(RelPath::is_name).ok_or_else(refused)?.locate(&self.dir)?)
    }

    /// The run that is named so: by its name, the beginning of a name, or "latest". Where several fit, and for "latest", those count that
    /// have a checkpoint, if `needs_model`.
    pub fn find(&self, reference: &str, needs_model: bool) -> Result<Result<String, Known>, RemoteError> {
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
            let serves = !needs_model || pull::newest(&self.place(name))?.is_some();
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
                tracing::warn!("passed over {newest}, which has no whole checkpoint: {name} is used");
                return Ok(Ok((*name).clone()));
            }
            // What it lacks is told by who needs it.
            ([], [name]) if !is_latest => return Ok(Ok((*name).clone())),
            _ => {}
        }
        names.truncate(LISTED_MAX);
        Ok(Err(names))
    }

    /// The newest run of this name in its configuration that has a checkpoint.
    pub fn newest(&self, run: &str) -> Result<Option<String>, RemoteError> {
        for name in self.names()? {
            let place = self.place(&name);
            let config = place.small(RUN_JSON, SMALL_BYTES_MAX)?;
            let config = config.and_then(|text| serde_json::from_slice::<RunConfig>(&text).ok());
            if config.is_some_and(|config| config.name == run) && pull::newest(&place)?.is_some() {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Brings the copy of the run `name` up to what is at the address, with its newest whole checkpoint where that is `wanted`, and
    /// returns its directory. A run that this machine works in is as new as can be.
    pub fn fetch(&self, name: &str, wanted: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<PathBuf, RemoteError> {
        let copy = self.copy_of(name)?;
        let place = self.place(name);
        if run_dir::is_living(&copy) {
            return Ok(copy);
        }
        let _alone = self.alone(name)?;
        let is_run = self.has(name)?;
        let newest = pull::newest(&place)?;
        let is_news = newest.as_ref().is_some_and(|(step, sealed)| !has_seen(&copy, *step, sealed));
        let own = || latest(&run_dir::checkpoints(&copy)).found.and_then(|found| Some(found.manifest()?.step));
        let is_short = || newest.as_ref().is_some_and(|(step, _)| own().is_none_or(|own| own < *step));
        if is_news && !is_short() {
            self.set_aside(name)?;
        }
        if wanted && (is_short() || !is_run) {
            pull(&place, None, &copy, true, progress)?;
            if !run_dir::lock_path(&copy).exists() {
                // Nobody ever worked in it: what it has is at the address.
                prune::prune(&run_dir::checkpoints(&copy), Rule::default())?;
            }
        }
        if is_run {
            atomic::make_dir(&copy)?;
            let there = place.length(JOURNAL)?.unwrap_or(0);
            let longer = fs::metadata(copy.join(JOURNAL)).map_or(0, |own| own.len()) < there;
            pull_records(&place, &copy, &|_| is_news || longer)?;
            newest.map_or(Ok(()), |(_, sealed)| note(&copy, &sealed))?;
        }
        Ok(copy)
    }

    /// The copy of the run `name` where that is as new as what is at the address: this machine works in it, or it has seen the newest
    /// checkpoint there and has one as new.
    pub fn current(&self, name: &str) -> Result<Option<PathBuf>, RemoteError> {
        let copy = self.copy_of(name)?;
        if run_dir::is_living(&copy) {
            return Ok(Some(copy));
        }
        let own = latest(&run_dir::checkpoints(&copy)).found.and_then(|found| Some(found.manifest()?.step));
        let Some((own, (step, sealed))) = own.zip(pull::newest(&self.place(name))?) else { return Ok(None) };
        Ok((own >= step && has_seen(&copy, step, &sealed)).then_some(copy))
    }

    /// Waits until no other process fetches the run.
    fn alone(&self, name: &str) -> Result<Flock<File>, RemoteError> {
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

    /// Moves a copy away that did what somebody else did, too.
    fn set_aside(&self, name: &str) -> Result<(), RemoteError> {
        let copy = self.copy_of(name)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let aside = copy.with_file_name(format!(".{name}.aside-{now}"));
        fs::rename(&copy, &aside).map_err(FileError::of("rename", &copy))?;
        let place = self.store.name_of(name);
        tracing::warn!(
            "somebody else has gone on with {place}; what was done here meanwhile is in {}",
            aside.display()
        );
        Ok(())
    }
}

/// Whether a name at an address can be that of a run: the name of a directory.
fn is_run_name(name: &str) -> bool {
    RelPath::parse(name).is_ok_and(|name| name.is_name())
}

/// Whether the copy `run` has seen the manifest of `step` at its address: it noted it, or wrote it.
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

/// Refuses to write to `store`, where `run` is kept, when somebody else has gone on with it.
pub(super) fn still_ours(store: &Store, run: &Path) -> Result<(), RemoteError> {
    match pull::newest(store)? {
        Some((step, sealed)) if !has_seen(run, step, &sealed) => {
            let place = store.name_of("");
            let step = name::committed(step);
            Err(RemoteError::Outgrown { place, step, dir: run.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Uploads what the run in the directory `run` says of itself to `store`, where it is kept, and its newest `checkpoint` unless that is
/// there.
pub fn keep(run: &Path, store: &Store, checkpoint: bool) -> Result<(), RemoteError> {
    still_ours(store, run)?;
    if let Some(found) = latest(&run_dir::checkpoints(run)).found.filter(|_| checkpoint) {
        push(found.dir(), &store.below(CHECKPOINTS), true, &mut |_, _| {})?;
        written(store, run, found.dir())?;
    }
    if !run.join(MANIFEST).exists() {
        // It would list what is about to change.
        store.remove(MANIFEST)?;
    }
    push_records(run, store)
}

/// Notes that the newest at the address is what `run` uploaded from `dir`, unless somebody else has gone on meanwhile.
pub(super) fn written(store: &Store, run: &Path, dir: &Path) -> Result<(), RemoteError> {
    match pull::newest(store)? {
        Some((_, sealed)) if fs::read(dir.join(name::MANIFEST)).is_ok_and(|own| own == sealed) => note(run, &sealed),
        _ => Ok(()),
    }
}
