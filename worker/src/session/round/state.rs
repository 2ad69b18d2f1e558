//! What a training changes from step to step, and how it is saved, transferred and restored.

use super::{micro_batch::MicroBatchPlan, nonfinite_step::NonfiniteSteps, pace::Pace, task::Outcome};
use crate::checkpoint::{Named, Placed};
use crate::data::Sampler;
use crate::session::learner::{Counts, Learner};
use crate::session::progress::{EpochSums, Progress};
use crate::session::recovery::state_transfer::{LocalState, StepPosition};
use crate::session::{
    SessionError, checkpointing::saver::Saver, excluded_rows::ExcludedRows, memory::portion::Portion,
    recovery::shard_recovery::KeptState,
};
use enn_common::metrics::Metrics;
use std::{collections::BTreeMap, path::Path};

/// Everything about a training that steps change.
pub(crate) struct TrainState {
    pub(crate) learner: Learner,
    pub(crate) progress: Progress,
    pub(crate) sums: EpochSums,
    pub(crate) nonfinite: NonfiniteSteps,
    pub(crate) excluded: ExcludedRows,
    pub(crate) saved_step: Option<u64>,
    pub(crate) saver: Saver,
    pub(crate) pace: Pace,
    /// The plan that fitted into this rank's memory when it was measured last.
    pub(crate) plan: Option<MicroBatchPlan>,
    /// Rows computed at once where weights are validated.
    pub(crate) portion: Portion,
    /// Micro-batches a step, as all ranks agreed, before any was split because memory was short.
    pub(crate) accumulation: u64,
    /// Weights and progress are those of this training, and not those every process begins with.
    pub(crate) begun: bool,
    /// A round broke that left nothing whole: the next one begins with another state.
    pub(crate) broken: bool,
    pub(crate) kept: KeptState,
    /// The last message on how the ranks share the state.
    pub(crate) reported_strategy: Option<String>,
}

impl TrainState {
    pub(crate) fn outcome(&self, stopped: bool, split: BTreeMap<String, Metrics>) -> Outcome {
        Outcome { stopped, epoch: self.progress.position.epoch, step: self.progress.step, split }
    }

    /// The state with which this rank enters a round.
    pub(crate) fn local_state(&self) -> LocalState {
        match &self.kept {
            _ if self.begun => LocalState::Whole(StepPosition::of(&self.progress)),
            KeptState::Nothing => LocalState::Nothing,
            KeptState::Unusable(share) => LocalState::Unusable(*share),
            KeptState::Shard(shard) => LocalState::Shard(shard.position, shard.share),
        }
    }

    /// After a round in which the ranks shared the state: this rank's share of the last whole step, if it is of use.
    pub(crate) fn kept_shard(&mut self, order: &Sampler) -> KeptState {
        let share = self.learner.arrays.weights.share();
        if !self.learner.sharding.recover(&mut self.learner.arrays) {
            return KeptState::Unusable(share);
        }
        KeptState::of(share, StepPosition::of(&self.progress), self.checkpoint_parts(order))
    }

    /// All there is, by name, of a learner that keeps everything.
    pub(crate) fn named(&self, order: &Sampler) -> Result<Vec<Named>, SessionError> {
        Ok(self.checkpoint_parts(order)?.0)
    }

    /// Returns the tensors that every rank has, by name, and the boxes that only this one has.
    pub(crate) fn checkpoint_parts(&self, order: &Sampler) -> Result<(Vec<Named>, Vec<Placed>), SessionError> {
        let (mut items, own) = self.learner.checkpoint_parts()?;
        items.extend(self.progress.named(&self.sums, order));
        items.extend(self.excluded.named());
        Ok((items, own))
    }

    /// Keeps as best weights the average that was just validated, if it is the best, or the mean over the last steps, if that won.
    pub(crate) fn keep_validated_as_best(&mut self) -> Result<(), SessionError> {
        let progress = &self.progress;
        if progress.mean_won {
            return self.learner.keep_tail_as_best();
        }
        if progress.best_step == progress.validated {
            return self.learner.keep_average_as_best();
        }
        Ok(())
    }

    /// Takes up a saved or received state.
    pub(crate) fn take(
        &mut self,
        saved: &BTreeMap<String, tch::Tensor>,
        order: &Sampler,
        from: &Path,
    ) -> Result<(), SessionError> {
        let every = self.progress.every;
        self.progress = Progress { every, ..Progress::restore(saved, &mut self.sums, order, from)? };
        self.nonfinite = NonfiniteSteps::after(self.progress.replays);
        self.excluded = ExcludedRows::restore(saved)?;
        // The progress counts completed epochs, the sums the one that is under way.
        let skipped = self.progress.skipped + self.sums.read()?.skipped as u64;
        self.learner.restore(saved, Counts { steps: self.progress.step, skipped })
    }
}
