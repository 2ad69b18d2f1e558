//! `train.checkpoint_mirror`: every checkpoint goes to an object store while the run goes on.

use super::announce::Announcer;
use crate::{Error, agent::Then, remote::Mirror, run_dir::RunDir};
use enn_common::{config::RunConfig, event::What, fs::FileError};

/// What takes checkpoints of a run to its mirror; `None` where there is none. Dropping it waits for the newest one.
pub(super) fn of_run(config: &RunConfig, run: &RunDir, announcer: &Announcer) -> Result<Option<Then>, Error> {
    let Some(place) = &config.train.checkpoint_mirror else { return Ok(None) };
    let address = format!("{}/{}", place.trim_end_matches('/'), run.id());
    // A wrong address is told before hours of training, not after.
    crate::remote::Store::open(&address)?;
    let teller = announcer.teller();
    let warn = move |message| {
        if let Some(teller) = &teller {
            teller.tell(What::Warned { message });
        }
    };
    let mirror = Mirror::start(run.path(), address, warn).map_err(FileError::of("start a thread for", run.path()))?;
    Ok(Some(Box::new(move |checkpoint| mirror.offer(checkpoint))))
}
