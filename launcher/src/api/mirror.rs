//! `train.checkpoint_mirror`: every checkpoint goes to an object store while the run goes on, and what the run says of itself with it.

use super::announce::Announcer;
use crate::{
    Error,
    agent::Then,
    remote::{Mirror, Store, push_records},
    run_dir::RunDir,
};
use enn_common::{config::RunConfig, event::What, fs::FileError};

/// What takes checkpoints of a run to its mirror; `None` where there is none. Dropping it waits for the newest one.
pub(super) fn of_run(config: &RunConfig, run: &RunDir, announcer: &Announcer) -> Result<Option<Then>, Error> {
    let Some(address) = address(config, run) else { return Ok(None) };
    // A wrong address is told before hours of training, not after.
    Store::open(&address)?;
    let teller = announcer.teller();
    let warn = move |message| {
        if let Some(teller) = &teller {
            teller.tell(What::Warned { message });
        }
    };
    let mirror = Mirror::start(run.path(), address, warn).map_err(FileError::of("start a thread for", run.path()))?;
    Ok(Some(Box::new(move |checkpoint| mirror.offer(checkpoint))))
}

/// A run that is over has its journal, report and manifest in its mirror too.
pub(super) fn end(config: &RunConfig, run: &RunDir) {
    let Some(address) = address(config, run) else { return };
    if let Err(error) = Store::open(&address).and_then(|store| push_records(run.path(), &store)) {
        tracing::warn!("journal and report are not mirrored: {error}");
    }
}

fn address(config: &RunConfig, run: &RunDir) -> Option<String> {
    let place = config.train.checkpoint_mirror.as_ref()?;
    Some(format!("{}/{}", place.trim_end_matches('/'), run.id()))
}
