//! What a training changes from step to step, and how it is saved, transferred and restored.

use super::{micro_batch::Cut, nonfinite_step::Refusals, pace::Pace, task::Outcome};
use crate::{
    checkpoint::{Named, Placed},
    data::Sampler,
    session::{
        SessionError,
        checkpointing::saver::Saver,
        excluded_rows::Poisoned,
        learner::{Counts, Learner},
        memory::portion::Portion,
        progress::{EpochSums, Progress},
        recovery::{
            shard_recovery::Left,
            state_transfer::{Held, Standing},
        },
    },
};
use enn_common::metrics::Metrics;
use std::{collections::BTreeMap, path::Path};

/// What training is about.
pub(crate) struct State {
    pub(crate) learner: Learner,
    pub(crate) progress: Progress,
    pub(crate) sums: EpochSums,
    pub(crate) refusals: Refusals,
    pub(crate) poisoned: Poisoned,
    pub(crate) saved_step: Option<u64>,
    pub(crate) saver: Saver,
    pub(crate) pace: Pace,
    /// What fitted into this rank's memory when it was measured last.
    pub(crate) cut: Option<Cut>,
    /// Rows computed at once where weights are judged.
    pub(crate) portion: Portion,
    /// Micro-batches a step, as all ranks agreed, before any was split because memory was short.
    pub(crate) accumulation: u64,
    /// Weights and progress are those of this training, and not those every process begins with.
    pub(crate) begun: bool,
    /// A round broke that left nothing whole: the next one begins with another state.
    pub(crate) broken: bool,
    pub(crate) left: Left,
    /// What was said last of how the ranks share the state.
    pub(crate) told: Option<String>,
}

impl State {
    pub(crate) fn outcome(&self, stopped: bool, split: BTreeMap<String, Metrics>) -> Outcome {
        Outcome { stopped, epoch: self.progress.position.epoch, step: self.progress.step, split }
    }

    /// What this rank comes with into a round.
    pub(crate) fn held(&self) -> Held {
        match &self.left {
            _ if self.begun => Held::Whole(Standing::of(&self.progress)),
            Left::Nothing => Held::Nothing,
            Left::Spoilt(share) => Held::Spoilt(*share),
            Left::Share(remains) => Held::Share(remains.standing, remains.share),
        }
    }

    /// After a round in which the ranks shared the state: this rank's share of the last whole step, if it is of use.
    pub(crate) fn left_share(&mut self, order: &Sampler) -> Left {
        let share = self.learner.weights.share();
        if !self.learner.claim_share() {
            return Left::Spoilt(share);
        }
        Left::of(share, Standing::of(&self.progress), self.shares(order))
    }

    /// All there is, by name, of a learner that keeps everything.
    pub(crate) fn named(&self, order: &Sampler) -> Result<Vec<Named>, SessionError> {
        Ok(self.shares(order)?.0)
    }

    /// What every rank has, by name, and what only this one has.
    pub(crate) fn shares(&self, order: &Sampler) -> Result<(Vec<Named>, Vec<Placed>), SessionError> {
        let (mut items, own) = self.learner.shares()?;
        items.extend(self.progress.named(&self.sums, order));
        items.extend(self.poisoned.named());
        Ok((items, own))
    }

    /// As best weights the average that was just judged, if it is the best, or the mean over the last steps, if that won.
    pub(crate) fn keep_what_was_judged(&mut self) -> Result<(), SessionError> {
        let progress = &self.progress;
        if progress.mean_won {
            return self.learner.keep_tail_as_best();
        }
        if progress.best_step == progress.judged {
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
        self.refusals = Refusals::after(self.progress.replays);
        self.poisoned = Poisoned::restore(saved)?;
        // The progress counts completed epochs, the sums the one that is under way.
        let skipped = self.progress.skipped + self.sums.read()?.skipped as u64;
        self.learner.restore(saved, Counts { steps: self.progress.step, skipped })
    }
}
