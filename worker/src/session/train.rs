//! A training over several rounds: what one process keeps from the first to the last of them.
//!
//! ```text
//! prepare ─► round 0 ─┬─► finished
//!                     └─► left, or broken ─► round 1 (other ranks, another world) ─► …
//! ```
//! A round is one process group; `super::round` is what happens in it. Weights change only after all sums of a step have come,
//! so that a round that breaks leaves whole steps behind: of the ranks that are left none is more than one step ahead.

use super::kernels::{KernelTask, Kernels};
use super::round::task::{Ended, Outcome, RoundTask};
use super::round::{Round, rehearse};
use super::{
    SessionError, checkpointing::saver::Saver, dataset::Dataset, recovery::shard_recovery::KeptState, report::Reporter,
    round::context::TrainContext, round::ledger::Ledger, round::state::TrainState,
};
use crate::data::Sampler;
use enn_comm::ProcessGroup;
use enn_common::config::train::{Collectives, Execution, Loss};
use enn_common::{config::RunConfig, kernels::Quarantined, profile::FOLDER, staged::Split, wire::control::Phase};
use enn_core::{params::Share, profile::Profile};
use enn_model::{block::SubModels, model::ModelSpec};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};
use tch::Device;

/// A training to do, and where things are.
#[derive(Debug, Clone)]
pub struct TrainTask {
    pub staged: PathBuf,
    pub checkpoints: PathBuf,
    pub device: Device,
    pub kernels: KernelTask,
    pub models: SubModels,
    /// The only round, for [`train`].
    pub round: RoundTask,
}

/// Trains to the end, or until the listener asks for a stop, in one round. Every rank calls it with the same configuration; the
/// process group may be [`enn_comm::Solo`].
///
/// Messages to `reporter`: `Ready`, `PrecisionChosen`, `BatchChosen`, `ModelBuilt`, `Stepped`, `EpochEnded`, `ShardStaged`, `ShardWritten` or
/// `ShardFailed`, `Trained`.
pub fn train(
    config: &RunConfig,
    task: &TrainTask,
    reporter: &dyn Reporter,
    group: &dyn ProcessGroup,
) -> Result<Outcome, SessionError> {
    let mut training = Training::prepare(config, task, reporter, group.rank())?;
    match training.round(group, &task.round)? {
        Ended::Finished(outcome) => Ok(outcome),
        Ended::Left => Ok(training.outcome()),
    }
}

pub struct Training<'a> {
    context: TrainContext<'a>,
    state: TrainState,
}

impl<'a> Training<'a> {
    /// Everything that needs no other rank: data are mapped, the model is built.
    pub fn prepare(
        config: &RunConfig,
        task: &TrainTask,
        reporter: &'a dyn Reporter,
        rank: u32,
    ) -> Result<Self, SessionError> {
        reporter.mark(Phase::Load, 0);
        let data = Dataset::for_training(&task.staged)?;
        let folder = task.checkpoints.with_file_name(FOLDER);
        let profile = config.train.profile.then(|| Profile::new(folder, rank, task.device));
        let run = task.checkpoints.parent().unwrap_or(&task.checkpoints);
        let ledger = config.train.ledger.then(|| Ledger::open(run)).transpose()?;
        let rows = data.rows(Split::Train).len();
        let order = Sampler {
            rows,
            batch: config.train.global_batch(rows as usize) as u64,
            seed: config.seed,
            rank: 0,
            world: 1,
            accumulation: config.train.accumulation.max(1) as u64,
            mix: data.mix(config)?,
        };
        if data.staged.0.meta().has_classes != (config.train.loss == Loss::CrossEntropy) {
            return Err(SessionError::Classes { path: task.staged.clone(), loss: config.train.loss.name() });
        }
        let mut config = config.clone();
        config.train.epochs = config.train.passes(rows);
        let spec = ModelSpec::new(data.staged.0.meta(), &config.train);
        let kernels = Kernels::new(&config, &task.kernels, reporter)?;
        let checkpoints = task.checkpoints.clone();
        let device = task.device;
        let models = task.models.clone();
        let context =
            TrainContext { config, checkpoints, device, reporter, kernels, profile, ledger, data, spec, models, order };
        let state = context.state(Saver::new(&context.config.train, context.reporter, context.device))?;
        Ok(Self { context, state })
    }

    /// A step with a rank's first share, on weights that are thrown away: what is slow only the first time (device libraries,
    /// compiled kernels, the checks of kernels beside their references) is over before there is a seat.
    pub fn rehearse(&mut self, world: u32) -> Result<(), SessionError> {
        rehearse(&self.context, &mut self.state, world)
    }

    /// Trains among the ranks of `group` until training is over, all are asked to leave, or something breaks.
    ///
    /// # Errors
    /// Those of [`train`]. After a collective's error the training may go on in another round, once [`Training::mend`] was called.
    pub fn round(&mut self, group: &dyn ProcessGroup, task: &RoundTask) -> Result<Ended, SessionError> {
        let ended = Round::enter(&self.context, &mut self.state, group, task)?.run()?;
        if let (Ended::Finished(_), Some(profile)) = (&ended, &self.context.profile) {
            profile.finish();
        }
        Ok(ended)
    }

    /// After a round that `broke`, or ended with the state still shared: only whole steps are left, or a share of them, or nothing.
    pub fn mend(&mut self, broke: bool) {
        let config = &self.context.config.train;
        // Steps whose sums are part of a captured graph change weights whether the sums came or not.
        let captured =
            broke && config.capture_collectives && config.execution == Execution::Auto && self.context.device.is_cuda();
        if self.state.learner.arrays.is_sharded() {
            self.state.kept = self.state.kept_shard(&self.context.order);
        }
        // What is divided is not whole, and of what was being received some may have come.
        if captured || self.state.learner.arrays.is_sharded() || !self.state.begun {
            self.state.begun = false;
            self.state.broken = true;
        }
        self.state.learner.executor.reset();
        self.state.nonfinite.forget();
    }

    /// Lets go of the graphs that a round's collectives are captured in.
    pub fn forget_captured_sums(&mut self) {
        if self.state.learner.executor.captures_collectives() {
            self.state.learner.executor.reset();
        }
    }

    /// Puts kernels in quarantine before the first step of a round.
    pub fn quarantine(&self, quarantined: &Quarantined) {
        self.context.kernels.manager.begin(quarantined);
    }

    /// Whether micro-batches that are cut into `split` by `world` ranks can be cut once more.
    pub fn can_split(&self, world: u32, split: u32) -> bool {
        let accumulation = self.state.accumulation * u64::from(split.max(1));
        Sampler { world: u64::from(world), accumulation, ..self.context.order.clone() }.micro_slots() > 1
    }

    /// Collectives that its ranks are to sum through.
    pub fn collectives(&self) -> Collectives {
        let config = &self.context.config;
        // A graph takes in NCCL's only.
        if config.train.capture_collectives { Collectives::Nccl } else { config.cluster.collectives }
    }

    /// Time that it has to end when it was asked to stop.
    pub fn grace(&self) -> Duration {
        Duration::try_from_secs_f64(self.context.config.cluster.grace_s).unwrap_or_default()
    }

    pub fn device(&self) -> Device {
        self.context.device
    }

    /// Whether another round can go on with what this process has.
    pub fn keeps_state(&self) -> bool {
        self.state.begun || self.share().is_some()
    }

    /// The share of the state that this process keeps, where it keeps no more.
    pub fn share(&self) -> Option<Share> {
        match &self.state.kept {
            KeptState::Shard(shard) if !self.state.begun => Some(shard.share),
            _ => None,
        }
    }

    pub fn step(&self) -> u64 {
        match &self.state.kept {
            KeptState::Shard(shard) if !self.state.begun => shard.position.step(),
            _ => self.state.progress.step,
        }
    }

    fn outcome(&self) -> Outcome {
        self.state.outcome(true, BTreeMap::new())
    }
}
