//! Why `enn chaos` cannot do its work.

use enn_process::run_dir::RunDirError;
use enn_ui::JournalError;
use std::{io, path::PathBuf};

/// Failures of `enn chaos`. A worker that ended before it was hit is none.
#[derive(Debug, thiserror::Error)]
pub enum ChaosError {
    #[error("{} is not under way: it has no workers to disturb\nhint: --dry-run prints the schedule without a run", path.display())]
    NotUnderWay { path: PathBuf },
    #[error(
        "the launcher of {} is not among the processes of this host\nhint: run enn chaos where enn runs, on the same host and in the same container",
        path.display()
    )]
    Elsewhere { path: PathBuf },
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A fault cannot be recorded in chaos.jsonl. No further fault is injected.
    #[error("cannot write {}: {source}", path.display())]
    FaultLog { path: PathBuf, source: io::Error },
    #[error("cannot {what}: {source}")]
    System { what: &'static str, source: io::Error },
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
}
