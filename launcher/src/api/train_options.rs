//! The options of a training.

use super::pretrained::FinetuneOptions;
use enn_cluster::rendezvous::Settings;
use enn_data::baselines::Effort;
use enn_process::run_dir::RUNS_DIR;
use enn_ui::Mode;
use std::{net::SocketAddr, path::PathBuf};

#[derive(Debug, Clone)]
pub struct TrainOptions {
    /// The directory of runs, which is made when absent; or the address of runs in an object store, in which case training works in a copy
    /// below the user's cache.
    pub runs_dir: PathBuf,
    /// The run directory to resume from its newest checkpoint.
    pub resume: Option<PathBuf>,
    /// The pretrained model to fine-tune; `None`: the run starts from initial weights, or is resumed.
    pub finetune: Option<FinetuneOptions>,
    /// A staged directory to train on; `None`: the configured data are staged.
    pub staged: Option<PathBuf>,
    pub mode: Mode,
    /// Whether SIGINT and SIGTERM stop the run after a checkpoint. Set it to false in a program with its own handlers.
    pub handle_signals: bool,
    /// The address at which OpenMetrics are served while the run lasts; `None`: they are not served.
    pub metrics_addr: Option<SocketAddr>,
    /// The rendezvous of several nodes; `None`: training runs on this node only.
    pub nodes: Option<Settings>,
    pub baselines: Effort,
    /// The text of the configuration, which the run keeps if no file has it.
    pub config_text: Option<String>,
}

impl Default for TrainOptions {
    fn default() -> Self {
        let runs_dir = RUNS_DIR.into();
        let mode = Mode::Quiet;
        Self {
            runs_dir,
            resume: None,
            finetune: None,
            staged: None,
            mode,
            handle_signals: false,
            metrics_addr: None,
            nodes: None,
            baselines: Effort::Full,
            config_text: None,
        }
    }
}
