//! Where the checkpoint or file is that a command names.

use super::super::{bar::Bar, flags::Runs};
use crate::{Error, api, facts::Facts};
use enn_checkpoint::remote::RemoteRuns;
use enn_common::checkpoint::{listing::FindError, name};
use enn_ui::runs::Need;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub(super) struct CheckpointArgs {
    /// Run (directory, name, its beginning, address, "latest"), checkpoint (directory, address), .safetensors (or index) or .pt file
    #[arg(value_name = "WHAT", help_heading = "Job")]
    pub(super) what: String,
    #[command(flatten)]
    pub(super) runs: Runs,
    /// Print JSON
    #[arg(long, help_heading = "Output")]
    pub(super) json: bool,
}

impl CheckpointArgs {
    pub(super) fn path(&self, facts: &Facts) -> Result<PathBuf, Error> {
        path(&self.what, &self.runs, facts)
    }

    /// Returns the path of a directory of checkpoints; a file is an error.
    pub(super) fn dir(&self, facts: &Facts) -> Result<PathBuf, Error> {
        let path = self.path(facts)?;
        if path.is_dir() { Ok(path) } else { Err(FindError::None { path }.into()) }
    }
}

/// The location of a checkpoint or file that is shown.
pub(super) enum Located {
    Local(PathBuf),
    Remote(Box<api::Outlined>),
}

impl Located {
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Local(path) => path,
            Self::Remote(outlined) => outlined.outline.dir(),
        }
    }

    /// Returns the path or the address that is shown for `path`.
    pub(super) fn named(&self, path: &Path) -> PathBuf {
        match self {
            Self::Local(_) => path.to_owned(),
            Self::Remote(outlined) => outlined.outline.address().into(),
        }
    }
}

/// Returns the path of a file or checkpoint directory as given, else of a run's directory, else of a directory of checkpoints; a checkpoint
/// at an address is fetched.
pub(super) fn path(what: &str, runs: &Runs, facts: &Facts) -> Result<PathBuf, Error> {
    match resolve(what, runs, facts)? {
        Ok(path) => Ok(path),
        Err(kept) => {
            let (remote_runs, name) = *kept;
            // The address may be that of a checkpoint without a run.
            let bar = Bar::new("fetching", false);
            Ok(remote_runs.fetch(&name, true, &mut |done, total| bar.set(done, total))?)
        }
    }
}

/// Returns the path, or the outline of a checkpoint at an address.
pub(super) fn locate(what: &str, runs: &Runs, facts: &Facts) -> Result<Located, Error> {
    match resolve(what, runs, facts)? {
        Ok(path) => Ok(Located::Local(path)),
        Err(kept) => Ok(api::outline_at(&kept.0, &kept.1)?.map_or_else(Located::Remote, Located::Local)),
    }
}

/// Returns a local path, or the address of a checkpoint in a store.
fn resolve(what: &str, runs: &Runs, facts: &Facts) -> Result<Result<PathBuf, Box<(RemoteRuns, String)>>, Error> {
    let given = facts.cwd.join(what);
    if given.is_file() || name::is_dcp(&given) || given.join(name::MANIFEST).exists() {
        return Ok(Ok(given));
    }
    if let Some(kept) = api::at_address(&[runs.dir(facts)], what, Need::Model, facts)? {
        return Ok(Err(Box::new(kept)));
    }
    match runs.find(what, Need::Model, facts) {
        Err(_) if given.is_dir() => Ok(Ok(given)),
        found => found.map(Ok),
    }
}
