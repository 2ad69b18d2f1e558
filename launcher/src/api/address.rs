//! Finds a run by its name, its directory, or its address in an object store.

use super::work_dir::WorkDir;
use crate::{Error, facts::Facts};
use enn_checkpoint::{
    convert::{self, Verified},
    remote::{self, Outline, RemoteRuns, Store},
};
use enn_process::run_dir::{self, RunDirError};
use enn_ui::runs::{self, Need, SelectedRun};
use std::path::{Path, PathBuf};

/// Name of a temporary download.
const FETCHED: &str = "fetched";

/// A callback that receives the bytes fetched so far and the total.
pub(super) type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Finds a run that meets `need` like [`runs::select`], or by an address. A run at an address is fetched, including its newest complete
/// checkpoint when a model is needed.
///
/// # Errors
/// The run does not exist, or the store fails.
pub fn find_run(
    runs: &[PathBuf],
    reference: &str,
    need: Need,
    facts: &Facts,
    progress: Progress<'_>,
) -> Result<SelectedRun, Error> {
    let Some((remote_runs, name)) = at_address(runs, reference, need, facts)? else {
        return Ok(runs::select(runs, reference, need)?);
    };
    let has_model = matches!(need, Need::Model | Need::Training);
    let copy = remote_runs.fetch(&name, has_model, progress)?;
    if run_dir::is_run(&copy) { Ok(SelectedRun::plain(copy)) } else { Err(unknown(&remote_runs, &name, Vec::new())) }
}

/// Returns the store and the name of the run when it is kept at an address; `None` for a local run.
///
/// # Errors
/// The run does not exist, or the store does not answer.
pub fn at_address(
    runs: &[PathBuf],
    reference: &str,
    need: Need,
    facts: &Facts,
) -> Result<Option<(RemoteRuns, String)>, Error> {
    if Store::is_address(reference) {
        return Ok(Some(RemoteRuns::of_run(reference, &facts.cache_dir)?));
    }
    let Some(address) = runs.iter().find_map(|runs| run_dir::address(runs)) else { return Ok(None) };
    if run_dir::is_run(&facts.cwd.join(reference)) {
        return Ok(None);
    }
    let remote_runs = RemoteRuns::open(&address, &facts.cache_dir)?;
    match remote_runs.find(reference, need == Need::Model)? {
        Ok(name) => Ok(Some((remote_runs, name))),
        Err(known) => Err(unknown(&remote_runs, reference, known)),
    }
}

/// Returns the newest run in `runs` with this name in its configuration and a checkpoint; a run at an address is fetched.
///
/// # Errors
/// The store fails.
pub fn newest_run(runs: &Path, name: &str, facts: &Facts, progress: Progress<'_>) -> Result<Option<PathBuf>, Error> {
    let Some(address) = run_dir::address(runs) else { return Ok(run_dir::newest(runs, name)) };
    let remote_runs = RemoteRuns::open(&address, &facts.cache_dir)?;
    let found = remote_runs.newest(name)?;
    Ok(found.map(|found| remote_runs.fetch(&found, true, progress)).transpose()?)
}

/// A checkpoint at an address of which only the parts that are read have been fetched.
pub struct Outlined {
    /// The checkpoint; its directory is removed with this value.
    pub outline: Outline,
    _work: WorkDir,
}

/// Opens the outline of the newest complete checkpoint at an address, or of the checkpoint there; returns the local copy of the run instead
/// when it is as new.
///
/// # Errors
/// There is no checkpoint, or the store fails.
pub fn outline_at(remote_runs: &RemoteRuns, name: &str) -> Result<Result<PathBuf, Box<Outlined>>, Error> {
    if let Some(copy) = remote_runs.current(name)? {
        return Ok(Ok(copy));
    }
    let work = WorkDir::create(remote_runs.dir())?;
    let outline = Outline::open(&remote_runs.run_store(name), &work.path.join(FETCHED))?;
    Ok(Err(Box::new(Outlined { outline, _work: work })))
}

/// Verifies the newest complete checkpoint at an address, or the checkpoint there. It is downloaded again, because a local copy says
/// nothing about the stored files.
///
/// # Errors
/// The checkpoint does not match its manifest, or the store fails.
pub fn verify_at(remote_runs: &RemoteRuns, name: &str, deep: bool, progress: Progress<'_>) -> Result<Verified, Error> {
    let place = remote_runs.run_store(name);
    let work = WorkDir::create(remote_runs.dir())?;
    let step = remote::list(&place)?.into_iter().rfind(|one| one.complete).map(|one| one.step);
    let pulled = remote::pull(&place, step, &work.path.join(FETCHED), false, progress)?;
    Ok(Verified { path: pulled.place.into(), ..convert::verify(&pulled.path, deep, progress)? })
}

/// Returns the local directory in which the runs of `runs` are made.
pub(super) fn local(runs: &Path, facts: &Facts) -> Result<PathBuf, Error> {
    match run_dir::address(runs) {
        None => Ok(runs.to_owned()),
        Some(address) => Ok(RemoteRuns::open(&address, &facts.cache_dir)?.dir().to_owned()),
    }
}

fn unknown(remote_runs: &RemoteRuns, reference: &str, known: Vec<String>) -> Error {
    RunDirError::Unknown { reference: reference.to_owned(), runs: vec![remote_runs.address().into()], known }.into()
}
