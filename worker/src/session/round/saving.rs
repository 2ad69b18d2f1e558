//! A round's checkpoints: when one is due, and what of it is this rank's.

use super::Round;
use crate::collective;
use crate::session::{SessionError, agree, checkpointing::saver::Due};
use enn_common::{checkpoint::name, wire::control::Phase};

impl Round<'_> {
    /// The checkpoint that was due after this very step, unless any rank sees that it is there: a commit may be under way.
    pub(super) fn save_if_owed(&mut self) -> Result<(), SessionError> {
        let step = self.state.progress.step;
        if self.fresh || step == 0 || self.state.progress.due != step {
            return Ok(());
        }
        let path = self.host.checkpoints.join(name::committed(step));
        let seen = if path.exists() { 1.0 } else { 0.0 };
        if collective::sum(self.place.group, self.host.device, &[seen])?[0] > 0.0 {
            return Ok(());
        }
        self.state.saved_step = None;
        self.save(true)
    }

    /// Room for this rank's share, before it is needed.
    pub(super) fn prepare_saving(&mut self) -> Result<(), SessionError> {
        let (items, own) = self.state.shares(&self.host.order)?;
        let place = (self.place.group.rank(), self.place.group.size());
        self.state.saver.prepare((&items, &own), place, self.place.reporter)
    }

    /// Saves this rank's share of the state. A failure is told, not fatal. One that `must` not be left out is waited for.
    pub(super) fn save(&mut self, must: bool) -> Result<(), SessionError> {
        let step = self.state.progress.step;
        if self.state.saved_step == Some(step) {
            return Ok(());
        }
        self.state.progress.due = step;
        self.place.reporter.mark(Phase::Save, step);
        self.settle()?;
        // What follows from them belongs to the state, and weights that are lost must not be saved.
        self.explain()?;
        self.calibrate()?;
        let state = &mut *self.state;
        if state.progress.best_step == 0 {
            // Nothing validated yet: the average of now is the best guess for whoever predicts with this checkpoint.
            state.learner.keep_average_as_best()?;
        }
        state.progress.replays = state.refusals.replays();
        let (items, own) = state.shares(&self.host.order)?;
        let rank = self.place.group.rank();
        let world = self.place.group.size();
        let dir = self.host.checkpoints.join(name::temporary(step, &self.task.attempt));
        let best = state.progress.standing.best;
        let epoch = state.progress.position.epoch;
        let metric = best.is_finite().then_some(best);
        let due = Due { step, epoch, metric, dir, rank, world, must };
        if state.saver.save((&items, &own), due, self.place.reporter)? {
            state.saved_step = Some(step);
        }
        Ok(())
    }

    /// The device copies no checkpoint any more: what follows may change the state.
    pub(super) fn settle(&mut self) -> Result<(), SessionError> {
        self.state.saver.settle(true, self.place.reporter)
    }
}
