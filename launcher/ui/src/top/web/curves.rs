//! The curves of a page beside the training loss, which the view has. Pure.

use crate::trace::Trace;
use enn_common::event::{Event, EventKind};

#[derive(Debug, Default)]
pub(super) struct Curves {
    /// The error on the validation split by which models are compared.
    pub(super) validation: Trace,
    /// Mean training loss of each epoch.
    pub(super) epoch_loss: Trace,
    pub(super) learning_rate: Trace,
    /// Samples per second over all workers.
    pub(super) samples_per_s: Trace,
}

impl Curves {
    pub(super) fn apply(&mut self, event: &Event) {
        match &event.what {
            EventKind::Stepped { step, lr, samples_per_s, .. } => {
                // Validations after this step are undone, as in the view.
                self.validation.undo_from(step.saturating_add(1));
                self.epoch_loss.undo_from(step.saturating_add(1));
                self.learning_rate.push(*step, event.time, *lr);
                self.samples_per_s.push(*step, event.time, *samples_per_s);
            }
            EventKind::EpochEnded(report) => {
                self.epoch_loss.push(report.step, event.time, report.train_loss);
                if report.val.n > 0 {
                    self.validation.push(report.step, event.time, report.val.judged());
                }
            }
            _ => {}
        }
    }
}
