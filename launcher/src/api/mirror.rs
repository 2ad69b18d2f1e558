//! Copies of a run's checkpoints and records in object stores: `train.checkpoint_mirror`, and the address where the run is kept.

use super::announce::Announcer;
use crate::Error;
use enn_checkpoint::remote::{self, Mirror, RemoteError, RemoteRuns, Store, UploadTarget, push_records};
use enn_cluster::supervise::{Then, retention_rule};
use enn_common::{config::RunConfig, fs::FileError};
use enn_process::run_dir::RunDir;
use std::path::Path;

/// Checks the addresses before the run starts, so that a wrong address is reported at once, and makes the run visible where it is kept.
pub(super) fn begin(config: &RunConfig, run: &RunDir) -> Result<(), Error> {
    for target in targets(config, run) {
        let store = Store::open(&target.address)?;
        if target.retention.is_some() {
            remote::upload_run(run.path(), &store, false)?;
        }
    }
    Ok(())
}

/// Returns a function that uploads checkpoints of a run; `None` where there is nowhere to upload to. Dropping it waits for the newest
/// checkpoint.
pub(super) fn of_run(config: &RunConfig, run: &RunDir, announcer: &Announcer) -> Result<Option<Then>, Error> {
    let targets = targets(config, run);
    if targets.is_empty() {
        return Ok(None);
    }
    let mirror = Mirror::start(run.path(), targets, announcer.warner())
        .map_err(FileError::of("start a thread for", run.path()))?;
    Ok(Some(Box::new(move |checkpoint| mirror.offer(checkpoint))))
}

/// Uploads the newest checkpoint of a run whose workers have ended.
pub(super) fn settle(run: &RunDir) -> Result<(), Error> {
    let Some(address) = RemoteRuns::address_of(run.path()) else { return Ok(()) };
    let kept = Store::open(&address).and_then(|store| remote::upload_run(run.path(), &store, true));
    kept.map_err(|source| not_kept(run, address, source))
}

/// Returns whether a run is kept or mirrored at an address.
pub(super) fn is_kept(config: &RunConfig, run: &Path) -> bool {
    config.train.checkpoint_mirror.is_some() || RemoteRuns::address_of(run).is_some()
}

/// Uploads the journal, report and manifest of a run that has ended.
pub(super) fn end(config: &RunConfig, run: &RunDir) -> Result<(), Error> {
    for target in targets(config, run) {
        let store = Store::open(&target.address);
        if target.retention.is_some() {
            let kept = store.and_then(|store| remote::upload_run(run.path(), &store, false));
            kept.map_err(|source| not_kept(run, target.address, source))?;
        } else if let Err(error) = store.and_then(|store| push_records(run.path(), &store)) {
            tracing::warn!("journal and report are not mirrored: {error}");
        }
    }
    Ok(())
}

fn not_kept(run: &RunDir, address: String, source: RemoteError) -> Error {
    Error::NotKept { address, dir: run.path().to_owned(), source: Box::new(source) }
}

fn targets(config: &RunConfig, run: &RunDir) -> Vec<UploadTarget> {
    let mirror = config.train.checkpoint_mirror.as_ref();
    let mirror = mirror.map(|place| format!("{}/{}", place.trim_end_matches('/'), run.id()));
    let kept_at = RemoteRuns::address_of(run.path());
    let mirror = mirror.filter(|mirror| kept_at.as_ref() != Some(mirror));
    let mirror = mirror.map(|address| UploadTarget { address, retention: None });
    kept_at
        .map(|address| UploadTarget { address, retention: Some(retention_rule(&config.train)) })
        .into_iter()
        .chain(mirror)
        .collect()
}
