//! What happened, in the sentences of the log; the last of them.

use crate::ui::{
    RunView,
    lines::{Weight, lines},
};
use enn_common::event::Event;
use std::collections::VecDeque;

/// Sentences kept.
const LINES_MAX: usize = 1_000;

/// The run and its story.
#[derive(Debug, Default)]
pub(super) struct Story {
    pub(super) view: RunView,
    /// Time, weight, text.
    pub(super) lines: VecDeque<(f64, Weight, String)>,
}

impl Story {
    /// Takes an event in.
    pub(super) fn apply(&mut self, event: &Event) {
        self.view.apply(event);
        for line in lines(event, &self.view) {
            if self.lines.len() == LINES_MAX {
                self.lines.pop_front();
            }
            self.lines.push_back((event.time, line.weight, line.text));
        }
    }
}
