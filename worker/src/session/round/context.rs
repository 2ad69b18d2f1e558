//! What no step of a training changes: its configuration, its data, and where its parts are.

use super::{ledger::Ledger, nonfinite_step::NonfiniteSteps, pace::Pace, state::TrainState, step::StepContext};
use crate::data::Sampler;
use crate::data::prefetch::{Arrays, Plan};
use crate::session::checkpointing::saver::{self, Saver};
use crate::session::dataset::{Dataset, Mapped};
use crate::session::precision::{Demand, Precision};
use crate::session::progress::{EpochSums, Progress};
use crate::session::{
    SessionError, eval::evaluate::EVALUATION_ROWS, excluded_rows::ExcludedRows, kernels::Kernels, learner::Learner,
    memory::portion::Portion, recovery::shard_recovery::KeptState, report::Reporter,
};
use enn_comm::ProcessGroup;
use enn_common::{config::RunConfig, staged::Split};
use enn_core::profile::Profile;
use enn_model::{block::SubModels, model::ModelSpec};
use std::{path::PathBuf, sync::Arc};
use tch::Device;

/// Everything about a training that no step changes.
pub(crate) struct TrainContext<'a> {
    pub(crate) config: RunConfig,
    pub(crate) checkpoints: PathBuf,
    pub(crate) device: Device,
    pub(crate) reporter: &'a dyn Reporter,
    pub(crate) kernels: Kernels<'a>,
    pub(crate) profile: Option<Profile>,
    pub(crate) ledger: Option<Ledger>,
    pub(crate) data: Dataset,
    pub(crate) spec: ModelSpec,
    pub(crate) models: SubModels,
    /// The order of samples; ranks take their shares of it.
    pub(crate) order: Sampler,
}

impl TrainContext<'_> {
    /// Seeded weights, the same in every process, and nothing beside them yet.
    pub(crate) fn learner(&self) -> Result<Learner, SessionError> {
        let steps_total = self.config.train.epochs * self.order.steps_per_epoch();
        Learner::bare(&self.config, &self.spec, &self.models, steps_total, self.device)
    }

    /// The state that every process begins with.
    pub(crate) fn state(&self, saver: Saver) -> Result<TrainState, SessionError> {
        let every = self.config.train.validate_every(self.order.steps_per_epoch());
        Ok(TrainState {
            learner: self.learner()?,
            progress: Progress { every, ..Progress::default() },
            sums: EpochSums::new(self.device)?,
            nonfinite: NonfiniteSteps::default(),
            excluded: ExcludedRows::default(),
            saved_step: None,
            saver,
            pace: Pace::new(),
            plan: None,
            portion: Portion::of(EVALUATION_ROWS),
            accumulation: self.order.accumulation,
            begun: false,
            broken: false,
            kept: KeptState::Nothing,
            reported_strategy: None,
        })
    }

    /// Decides what micro-batches of this size are computed with; one collective.
    pub(crate) fn precision(&self, sampler: &Sampler, group: &dyn ProcessGroup) -> Result<Precision, SessionError> {
        let demand = Demand::of(&self.spec, sampler.micro_slots());
        Precision::decide(self.config.train.precision, demand, self.device, group)
    }

    pub(crate) fn step_context<'a>(&'a self, group: &'a dyn ProcessGroup, sampler: &Sampler) -> StepContext<'a> {
        StepContext {
            group,
            reporter: self.reporter,
            kernels: &self.kernels,
            device: self.device,
            seed: self.config.seed,
            accumulation: sampler.accumulation,
            first_row: sampler.rank * sampler.batch.div_ceil(sampler.world),
            save: false,
            holds: saver::holds(&self.config.train, self.device),
            copying: None,
            profile: self.profile.as_ref(),
        }
    }

    /// The plan of batches that are read ahead in a round.
    pub(crate) fn plan(&self, sampler: Sampler) -> Plan {
        Plan {
            arrays: Arc::<Mapped>::clone(&self.data.staged) as Arc<dyn Arrays>,
            rows: Arc::clone(self.data.rows(Split::Train)),
            sampler,
            epochs: self.config.train.epochs,
            device: self.device,
        }
    }
}
