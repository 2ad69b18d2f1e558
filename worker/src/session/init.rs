//! Seeded initial weights as a checkpoint: a model before it has seen data.

use super::progress::{EpochSums, Progress};
use super::report::{self, Reporter};
use super::{SessionError, learner::Learner};
use crate::{checkpoint, data::Sampler};
use enn_common::{
    config::RunConfig,
    staged::StagedMeta,
    wire::{control::Phase, message::FromWorker},
};
use enn_model::{block::SubModels, model::ModelSpec};
use std::path::Path;
use tch::Device;

/// Writes the state of a training of no steps, as one rank, into the temporary directory `dir`. Messages: `Ready`,
/// `ShardWritten`.
pub fn init(
    config: &RunConfig,
    meta: &StagedMeta,
    models: &SubModels,
    dir: &Path,
    reporter: &dyn Reporter,
) -> Result<(), SessionError> {
    let device = Device::Cpu;
    let rows = meta.split_rows[0];
    let batch = config.train.global_batch(rows as usize) as u64;
    let order = Sampler { rows, batch, seed: config.seed, rank: 0, world: 1, accumulation: 1, mix: None };
    let learner = Learner::build(config, &ModelSpec::new(meta, &config.train), models, 0, device)?;
    report::ready(reporter, device, "solo")?;
    reporter.mark(Phase::Save, 0);
    let mut items = learner.state();
    items.extend(Progress::default().named(&EpochSums::new(device)?, &order));
    let table = checkpoint::write_share(dir, 0, 1, &items)?;
    reporter.send(FromWorker::ShardWritten {
        step: 0,
        epoch: 0,
        dir: dir.to_owned(),
        metric: None,
        table,
        blocked: 0.0,
    })?;
    Ok(())
}
