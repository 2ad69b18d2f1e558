//! A round's checkpoints: when one is due, and what of it is this rank's.

use super::Round;
use crate::collective;
use crate::session::{SessionError, checkpointing::saver::DueCheckpoint};
use enn_common::{checkpoint::name, wire::control::Phase};

impl Round<'_> {
    /// The checkpoint that was due after this very step, unless any rank sees that it is there: a commit may be under way.
    pub(super) fn save_if_owed(&mut self) -> Result<(), SessionError> {
        let step = self.state.progress.step;
        if self.fresh || step == 0 || self.state.progress.due != step {
            return Ok(());
        }
        let path = self.training.checkpoints.join(name::committed(step));
        let seen = if path.exists() { 1.0 } else { 0.0 };
        if collective::sum(self.ctx.group, self.training.device, &[seen])?[0] > 0.0 {
            return Ok(());
        }
        self.state.saved_step = None;
        self.save(true)
    }

    /// Room for this rank's share, before it is needed.
    pub(super) fn prepare_saving(&mut self) -> Result<(), SessionError> {
        let (items, own) = self.state.checkpoint_parts(&self.training.order)?;
        let place = (self.ctx.group.rank(), self.ctx.group.size());
        self.state.saver.prepare((&items, &own), place, self.ctx.reporter)
    }

    /// Saves this rank's share of the state. A failure is reported, not fatal. One that `must` not be left out is waited for.
    pub(super) fn save(&mut self, must: bool) -> Result<(), SessionError> {
        let step = self.state.progress.step;
        if self.state.saved_step == Some(step) {
            return Ok(());
        }
        self.state.progress.due = step;
        self.ctx.reporter.mark(Phase::Save, step);
        self.settle()?;
        // What follows from them belongs to the state, and weights that are lost must not be saved.
        self.explain()?;
        self.calibrate()?;
        let state = &mut *self.state;
        if state.progress.best_step == 0 {
            // Nothing validated yet: the average of now is the best guess for predictions with this checkpoint.
            state.learner.keep_average_as_best()?;
        }
        state.progress.replays = state.nonfinite.replays();
        let (items, own) = state.checkpoint_parts(&self.training.order)?;
        let rank = self.ctx.group.rank();
        let world = self.ctx.group.size();
        let dir = self.training.checkpoints.join(name::temporary(step, &self.task.attempt));
        let best = state.progress.early_stopping.best;
        let epoch = state.progress.position.epoch;
        let metric = best.is_finite().then_some(best);
        let due = DueCheckpoint { step, epoch, metric, dir, rank, world, must };
        if state.saver.save((&items, &own), due, self.ctx.reporter)? {
            state.saved_step = Some(step);
        }
        Ok(())
    }

    /// The device copies no checkpoint any more: what follows may change the state.
    pub(super) fn settle(&mut self) -> Result<(), SessionError> {
        self.state.saver.settle(true, self.ctx.reporter)
    }
}
