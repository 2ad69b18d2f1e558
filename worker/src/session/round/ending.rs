//! What a round does with its weights beside taking steps: measures them, and at the end of training settles which are kept and how they
//! answer.
//!
//! **Invariant:** weights that were exchanged to be measured are back before an error leaves.

use super::{Round, context::TrainContext, task::Ended};
use crate::session::eval::evaluate::{EvalModel, evaluate, measured};
use crate::session::{SessionError, decide, eval::calibrate, eval::measure::Measured, learner::Learner};
use enn_comm::ProcessGroup;
use enn_common::{
    config::train::Averaging, metrics::Metrics, staged::Split, wire::control::Phase, wire::message::FromWorker,
};
use enn_model::loss::Head;
use std::collections::BTreeMap;

impl Round<'_> {
    /// The error by which weights are compared; `None` without validation rows.
    pub(super) fn validation_error(&self, measured: &Measured) -> Option<f64> {
        let metrics = &measured.metrics;
        let error = if self.compares_by_loss() { measured.doubted.unwrap_or(metrics.loss) } else { metrics.mae };
        (metrics.n > 0).then_some(error)
    }

    /// Whether the best weights are those with the smallest loss, and not those with the smallest mean absolute error.
    fn compares_by_loss(&self) -> bool {
        self.state.learner.objective.compares_by_loss() || self.training.data.staged.0.meta().scales().is_some()
    }

    /// Validation error of the mean over the last steps, where there is one. The outer `None`: there is no mean.
    pub(super) fn measure_tail(&mut self) -> Result<Option<Option<f64>>, SessionError> {
        if !self.state.learner.has_tail() {
            return Ok(None);
        }
        let measured = self.with_weights(Learner::swap_tail, |round| round.measure_validation())?;
        Ok(Some(self.validation_error(&measured)))
    }

    /// Which weights are kept: the best that were validated, or their mean over the last steps, whose error is `tail`.
    pub(super) fn choose_kept_weights(&mut self, tail: Option<Option<f64>>) -> Result<(), SessionError> {
        let what = match self.compares_by_loss() {
            _ if *self.state.learner.objective.head() == Head::Classes => "log-loss (a row of doubt added)",
            true => "loss",
            false => "mean absolute error",
        };
        let state = &mut *self.state;
        let train = &self.training.config.train;
        let kept = if state.learner.arrays.ema.is_some() { "moving average" } else { "weights" };
        let step = state.progress.best_step;
        let epoch = self.sampler.steps_per_epoch();
        let of = if step.is_multiple_of(epoch) { format!("epoch {}", step / epoch) } else { format!("step {step}") };
        let best = (format!("the {kept} of {of}"), state.progress.early_stopping.best);
        let (wins, decision) = match (tail, train.averaging) {
            (Some(Some(error)), _) => {
                let wins = error < best.1;
                let mean = ("the mean of the last quarter's weights".to_owned(), error);
                let [one, other] = if wins { [mean, best] } else { [best, mean] };
                (wins, format!("kept {}: validation {what} {:.5}, of {} {:.5}", one.0, one.1, other.0, other.1))
            }
            (Some(None), _) => (true, "kept the mean of the last quarter's weights: nothing validates".to_owned()),
            (None, Averaging::SwaTail) => (
                false,
                format!("kept {}: training ended before its last quarter, so that there is no mean of it", best.0),
            ),
            (None, _) if best.1.is_finite() => (false, format!("kept {}: validation {what} {:.5}", best.0, best.1)),
            (None, _) => (false, format!("kept {}: nothing validates", best.0)),
        };
        if wins {
            state.progress.mean_won = true;
            state.keep_validated_as_best()?;
            if let Some(error) = tail.flatten() {
                state.progress.early_stopping.best = error;
            }
            self.calibrated = None;
        }
        self.tell_from_first(FromWorker::Decided { decision })
    }

    /// Does something with other weights, which `swap` exchanges, and exchanges back before anything else: what a round that
    /// breaks here leaves, and the checkpoint that it may owe, are the weights that learn.
    pub(super) fn with_weights<R>(
        &mut self,
        swap: impl Fn(&mut Learner, &dyn ProcessGroup) -> Result<(), SessionError>,
        work: impl FnOnce(&Self) -> Result<R, SessionError>,
    ) -> Result<R, SessionError> {
        let group = self.ctx.group;
        self.settle()?;
        swap(&mut self.state.learner, group)?;
        let unpacked = self.state.learner.unshard(group);
        // Validation rows are not cut like the batch of a step.
        let done =
            unpacked.and_then(|()| work(self)).map_err(|error| error.without_room("the weights that are judged"));
        // Memory may be short, but a device may still be given what was gathered where the group ended.
        let ended = matches!(&done, Err(error) if error.is_of_the_group());
        if !ended {
            self.state.learner.reshard()?;
        }
        swap(&mut self.state.learner, group)?;
        if ended {
            self.state.learner.reshard()?;
        }
        done
    }

    fn eval_model(&self) -> EvalModel<'_> {
        let learner = &self.state.learner;
        EvalModel {
            model: &learner.model,
            params: &learner.arrays.params,
            kernels: &self.ctx.kernels.manager,
            objective: &learner.objective,
            portion: &self.state.portion,
            reporter: self.ctx.reporter,
        }
    }

    /// Errors over the validation rows by which weights are compared.
    pub(super) fn measure_validation(&self) -> Result<Measured, SessionError> {
        let every = self.state.progress.every;
        let parts = if every == 0 { 1 } else { self.sampler.steps_per_epoch().div_ceil(every) };
        self.measure(Split::Val, decide::thinning(parts, self.training.data.rows(Split::Val).len()))
    }

    /// Errors over one in `thinning` rows of a split.
    fn measure(&self, split: Split, thinning: u64) -> Result<Measured, SessionError> {
        let data = &self.training.data;
        let excluded = &self.state.excluded;
        evaluate(&self.eval_model(), data, excluded, split, thinning, self.ctx.group, self.training.device)
    }

    /// Fits how the best weights answer, once a round: every rank begins a round without knowing.
    pub(super) fn calibrate(&mut self) -> Result<(), SessionError> {
        let best = self.state.progress.best_step;
        if best == 0 || self.calibrated == Some(best) {
            return Ok(());
        }
        let fitted = self.with_weights(Learner::swap_best, |round| {
            let TrainContext { data, config, device, .. } = round.training;
            calibrate::fit(&round.eval_model(), data, &round.state.excluded, &config.train, round.ctx.group, *device)
        });
        let calibrate::Fitted { mut calibration, decisions } = fitted?;
        calibration.to_device(self.training.device);
        self.state.learner.calibration = calibration;
        self.calibrated = Some(best);
        if self.state.progress.finished {
            decisions.into_iter().try_for_each(|decision| self.tell_from_first(FromWorker::Decided { decision }))?;
        }
        Ok(())
    }

    fn measure_all(&self) -> Result<BTreeMap<String, Metrics>, SessionError> {
        let mut split = BTreeMap::new();
        for which in Split::ALL {
            let metrics = self.measure(which, 1)?.metrics;
            if metrics.n > 0 {
                split.insert(which.name().to_owned(), metrics);
            }
        }
        Ok(split)
    }

    /// Final metrics of the best weights.
    pub(super) fn end(&mut self) -> Result<Ended, SessionError> {
        self.ctx.reporter.mark(Phase::Validate, self.state.progress.step);
        self.state.learner.swap_calibration();
        let split = self.with_weights(Learner::swap_best, Self::measure_all);
        self.state.learner.swap_calibration();
        let split = split?;
        let rows = self.training.data.rows(Split::Train).len();
        let kept = measured(Split::Train, rows);
        if kept < rows {
            let decision = format!("the errors on train are those of {kept} of its {rows} rows, evenly spread");
            self.tell_from_first(FromWorker::Decided { decision })?;
        }
        self.tell_from_first(FromWorker::Trained {
            epoch: self.state.progress.position.epoch,
            step: self.state.progress.step,
            stopped_early: self.state.progress.stopped_early,
            split: split.clone(),
            samples_per_s: self.state.pace.rate(),
        })?;
        Ok(Ended::Finished(self.state.outcome(false, split)))
    }
}
