//! What a screen shows: the run, its processes and the user's choices at one moment.

use super::{
    event_log::EventLog,
    rows::{self, RowContext, WorkerRow},
    sample::Samples,
    state::TopState,
    tail::LogTail,
};
use crate::status::StatusContext;

#[derive(Debug)]
pub(super) struct Scene<'a> {
    pub(super) event_log: &'a EventLog,
    pub(super) context: StatusContext,
    pub(super) host: &'a str,
    pub(super) samples: &'a Samples,
    pub(super) state: &'a TopState,
    pub(super) tail: &'a LogTail,
}

impl Scene<'_> {
    pub(super) fn rows(&self) -> Vec<WorkerRow> {
        let place = RowContext { living: self.context.living, host: self.host };
        rows::rows(&self.event_log.view, self.samples, place, self.state.filter)
    }
}
