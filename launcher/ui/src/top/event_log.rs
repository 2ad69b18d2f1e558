//! What happened, in the sentences of the log; the last of them.

use crate::{
    RunView,
    lines::{LineLevel, lines},
};
use enn_common::event::Event;
use std::collections::VecDeque;

const LINES_MAX: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct EventLog {
    pub(super) view: RunView,
    /// Time (seconds since the Unix epoch), level and text of each line.
    pub(super) lines: VecDeque<(f64, LineLevel, String)>,
    /// Lines that are no longer kept.
    pub(super) forgotten: u64,
}

impl EventLog {
    pub(super) fn apply(&mut self, event: &Event) {
        self.view.apply(event);
        for line in lines(event, &self.view) {
            if self.lines.len() == LINES_MAX {
                self.lines.pop_front();
                self.forgotten += 1;
            }
            self.lines.push_back((event.time, line.level, line.text));
        }
    }
}
