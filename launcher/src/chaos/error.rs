//! Why `enn chaos` cannot do its work.

use crate::{run_dir::RunDirError, ui::JournalError};
use std::{io, path::PathBuf};

/// Failures of `enn chaos`. A worker that ended before it was hit is none.
#[derive(Debug, thiserror::Error)]
pub enum ChaosError {
    /// The run is over.
    #[error("{} is not under way: there is nobody to disturb\nhint: --dry-run prints the schedule without a run", path.display())]
    NotUnderWay { path: PathBuf },
    /// Its launcher cannot be found among the processes here.
    #[error(
        "the launcher of {} is not among the processes of this host\nhint: run enn chaos where enn runs, on the same host and in the same container",
        path.display()
    )]
    Elsewhere { path: PathBuf },
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The run's journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// What was done cannot be written down, so nothing more is done.
    #[error("cannot write {}: {source}", path.display())]
    Record { path: PathBuf, source: io::Error },
    /// The system refused something.
    #[error("cannot {what}: {source}")]
    System { what: &'static str, source: io::Error },
    /// Standard output is gone.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
}
