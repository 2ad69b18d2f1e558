//! Where a run's checkpoints go while it goes on, and what it says of itself with them: `train.checkpoint_mirror`, and the address
//! where the run is kept.

use super::announce::Announcer;
use crate::{
    Error,
    agent::{self, Then},
    remote::{self, Goal, Mirror, RemoteError, Shelf, Store, push_records},
    run_dir::RunDir,
};
use enn_common::{config::RunConfig, event::What, fs::FileError};
use std::path::Path;

/// Before the run does anything: a wrong address is told before hours of training, and where the run is kept it is seen from now on.
pub(super) fn begin(config: &RunConfig, run: &RunDir) -> Result<(), Error> {
    for goal in goals(config, run) {
        let store = Store::open(&goal.address)?;
        if goal.home.is_some() {
            remote::keep(run.path(), &store, false)?;
        }
    }
    Ok(())
}

/// What takes checkpoints of a run where they go; `None` where that is nowhere. Dropping it waits for the newest one.
pub(super) fn of_run(config: &RunConfig, run: &RunDir, announcer: &Announcer) -> Result<Option<Then>, Error> {
    let goals = goals(config, run);
    if goals.is_empty() {
        return Ok(None);
    }
    let teller = announcer.teller();
    let warn = move |message| {
        if let Some(teller) = &teller {
            teller.tell(What::Warned { message });
        }
    };
    let mirror = Mirror::start(run.path(), goals, warn).map_err(FileError::of("start a thread for", run.path()))?;
    Ok(Some(Box::new(move |checkpoint| mirror.offer(checkpoint))))
}

/// A run whose workers are done has its newest checkpoint where it is kept, or the error says why not.
pub(super) fn settle(run: &RunDir) -> Result<(), Error> {
    let Some(address) = Shelf::address_of(run.path()) else { return Ok(()) };
    let kept = Store::open(&address).and_then(|store| remote::keep(run.path(), &store, true));
    kept.map_err(|source| not_kept(run, address, source))
}

/// Whether a run is kept, or mirrored, at an address.
pub(super) fn is_kept(config: &RunConfig, run: &Path) -> bool {
    config.train.checkpoint_mirror.is_some() || Shelf::address_of(run).is_some()
}

/// A run that is over has its journal, report and manifest there too.
pub(super) fn end(config: &RunConfig, run: &RunDir) -> Result<(), Error> {
    for goal in goals(config, run) {
        let store = Store::open(&goal.address);
        if goal.home.is_some() {
            let kept = store.and_then(|store| remote::keep(run.path(), &store, false));
            kept.map_err(|source| not_kept(run, goal.address, source))?;
        } else if let Err(error) = store.and_then(|store| push_records(run.path(), &store)) {
            tracing::warn!("journal and report are not mirrored: {error}");
        }
    }
    Ok(())
}

fn not_kept(run: &RunDir, address: String, source: RemoteError) -> Error {
    Error::NotKept { address, dir: run.path().to_owned(), source: Box::new(source) }
}

fn goals(config: &RunConfig, run: &RunDir) -> Vec<Goal> {
    let mirror = config.train.checkpoint_mirror.as_ref();
    let mirror = mirror.map(|place| format!("{}/{}", place.trim_end_matches('/'), run.id()));
    let home = Shelf::address_of(run.path());
    let mirror = mirror.filter(|mirror| home.as_ref() != Some(mirror));
    let mirror = mirror.map(|address| Goal { address, home: None });
    home.map(|address| Goal { address, home: Some(agent::rule(&config.train)) }).into_iter().chain(mirror).collect()
}
