//! `train`: stages data, starts workers, keeps them running, and writes a run directory.

use super::{finished, lead::lead, nodes, train_options::TrainOptions, trained_run::TrainedRun};
use crate::{Error, facts::Facts};
use enn_common::config::RunConfig;

/// Stages the data, trains with the configured workers and returns when they have finished or were stopped.
///
/// Call it from a thread that lives until it returns. A resumed run continues in its own directory with `config`; a finished run is not
/// changed.
///
/// # Errors
/// Wrong data, a machine that lacks something, or [`Error::Worker`] when a worker failed and no restart was left. The newest checkpoint is
/// kept in every case.
pub fn train(config: &RunConfig, facts: &Facts, options: &TrainOptions) -> Result<TrainedRun, Error> {
    if let Some(run) = options.resume.as_deref().map(|run| finished::finished(config, run)).transpose()?.flatten() {
        return run.leave(config);
    }
    match &options.nodes {
        None => lead(config, facts, options, None),
        Some(settings) => nodes::meet(config, facts, options, settings),
    }
}
