//! What `--on-failure` says.

use clap::ValueEnum;

/// What follows the failure of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum FailurePolicy {
    /// All workers are restarted, as by torchrun
    #[default]
    Restart,
    /// The worker is replaced, and the others go on; for scripts that use the Python package enn
    Replace,
}
