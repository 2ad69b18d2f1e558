//! A run by its name, its directory, or its address in an object store: the one place that knows which.

use super::stream::WorkDir;
use crate::{
    Error,
    convert::{self, Verified},
    facts::Facts,
    remote::{self, Outline, Shelf, Store},
    run_dir::{self, RunDirError},
    runs::{self, Need, Selected},
};
use std::path::{Path, PathBuf};

/// Name of what is fetched for a moment.
const FETCHED: &str = "fetched";

/// What hears of bytes fetched and all bytes.
pub(super) type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Finds a run that meets `need`, as [`runs::select`] does; or by an address. One that is kept at an address is fetched: with its newest
/// whole checkpoint where a model is needed, else what it says of itself.
///
/// # Errors
/// There is no such run, or the store does not give it.
pub fn find_run(
    runs: &[PathBuf],
    reference: &str,
    need: Need,
    facts: &Facts,
    progress: Progress<'_>,
) -> Result<Selected, Error> {
    let Some((shelf, name)) = at_address(runs, reference, need, facts)? else {
        return Ok(runs::select(runs, reference, need)?);
    };
    let has_model = matches!(need, Need::Model | Need::Training);
    let copy = shelf.fetch(&name, has_model, progress)?;
    if run_dir::is_run(&copy) { Ok(Selected::plain(copy)) } else { Err(unknown(&shelf, &name, Vec::new())) }
}

/// Where the run is kept that is named so, if that is at an address.
///
/// # Errors
/// There is no such run, or the store does not answer.
pub fn at_address(
    runs: &[PathBuf],
    reference: &str,
    need: Need,
    facts: &Facts,
) -> Result<Option<(Shelf, String)>, Error> {
    if Store::is_address(reference) {
        return Ok(Some(Shelf::of_run(reference, &facts.cache_dir)?));
    }
    let Some(address) = runs.iter().find_map(|runs| run_dir::address(runs)) else { return Ok(None) };
    if run_dir::is_run(&facts.cwd.join(reference)) {
        return Ok(None);
    }
    let shelf = Shelf::open(&address, &facts.cache_dir)?;
    match shelf.find(reference, need == Need::Model)? {
        Ok(name) => Ok(Some((shelf, name))),
        Err(known) => Err(unknown(&shelf, reference, known)),
    }
}

/// The newest run in `runs` of this name in its configuration that has a checkpoint; one at an address is fetched.
///
/// # Errors
/// The store does not give it.
pub fn newest_run(runs: &Path, name: &str, facts: &Facts, progress: Progress<'_>) -> Result<Option<PathBuf>, Error> {
    let Some(address) = run_dir::address(runs) else { return Ok(run_dir::newest(runs, name)) };
    let shelf = Shelf::open(&address, &facts.cache_dir)?;
    let found = shelf.newest(name)?;
    Ok(found.map(|found| shelf.fetch(&found, true, progress)).transpose()?)
}

/// What is here of a checkpoint at an address: no more than is read of it.
pub struct Outlined {
    outline: Outline,
    _work: WorkDir,
}

impl Outlined {
    /// The checkpoint, in a directory that goes with this.
    pub fn outline(&self) -> &Outline {
        &self.outline
    }
}

/// The outline of the newest complete checkpoint at an address, or of the checkpoint there; or the run's copy here, where that is as new.
///
/// # Errors
/// There is none, or the store does not give it.
pub fn outline_at((shelf, name): (&Shelf, &str)) -> Result<Result<PathBuf, Box<Outlined>>, Error> {
    if let Some(copy) = shelf.current(name)? {
        return Ok(Ok(copy));
    }
    let work = WorkDir::create(shelf.dir())?;
    let outline = Outline::open(&shelf.place(name), &work.path.join(FETCHED))?;
    Ok(Err(Box::new(Outlined { outline, _work: work })))
}

/// Checks the newest complete checkpoint at an address, or the checkpoint there: it is fetched anew, for what a copy here is like says
/// nothing of it.
///
/// # Errors
/// It is not as its manifest says, or the store does not give it.
pub fn verify_at((shelf, name): (&Shelf, &str), deep: bool, progress: Progress<'_>) -> Result<Verified, Error> {
    let place = shelf.place(name);
    let work = WorkDir::create(shelf.dir())?;
    let step = remote::list(&place)?.into_iter().rfind(|one| one.complete).map(|one| one.step);
    let pulled = remote::pull(&place, step, &work.path.join(FETCHED), false, progress)?;
    Ok(Verified { path: pulled.place.into(), ..convert::verify(&pulled.path, deep, progress)? })
}

/// The directory in which runs of `runs` are made.
pub(super) fn local(runs: &Path, facts: &Facts) -> Result<PathBuf, Error> {
    match run_dir::address(runs) {
        None => Ok(runs.to_owned()),
        Some(address) => Ok(Shelf::open(&address, &facts.cache_dir)?.dir().to_owned()),
    }
}

fn unknown(shelf: &Shelf, reference: &str, known: Vec<String>) -> Error {
    RunDirError::Unknown { reference: reference.to_owned(), runs: vec![shelf.address().into()], known }.into()
}
