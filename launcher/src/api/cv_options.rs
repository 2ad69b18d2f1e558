//! The options of a cross-validation.

use enn_ui::Mode;
use std::path::PathBuf;

/// The options of [`cross_validate`](super::cross_validate).
#[derive(Debug, Clone)]
pub struct CvOptions {
    /// The directory of runs, which is made when absent.
    pub runs_dir: PathBuf,
    /// The directory of a cross-validation to resume: folds that are not done are trained.
    pub resume: Option<PathBuf>,
    pub folds: usize,
    /// Seed of the rule that makes the folds; `None`: the configuration's seed.
    pub seed: Option<u64>,
    /// Number of folds trained in parallel; `None`: one per core, or one on GPUs.
    pub jobs: Option<usize>,
    /// How the progress of staging is shown.
    pub mode: Mode,
    /// Whether SIGINT and SIGTERM stop it after the running folds have written checkpoints.
    pub handle_signals: bool,
    /// The column that groups rows, or "month" for windows.
    pub group: Option<String>,
    /// Number of shuffles of every input by each fold's model; `None`: importance is not computed.
    pub importance: Option<usize>,
}
