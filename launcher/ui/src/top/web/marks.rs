//! Moments that are marked on the axis of the curves: failures, new rounds, launches, pauses. Pure.

use crate::{RunView, lines::lines};
use enn_common::event::{Event, EventKind};
use std::collections::VecDeque;

/// Marks that are kept, the last ones.
const MARKS_MAX: usize = 256;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct AxisMark {
    /// Seconds since the Unix epoch.
    pub(super) time: f64,
    /// The last step before the moment; 0 before the first.
    pub(super) step: u64,
    /// A class of the page: "failure", "change" or "launch".
    pub(super) class: &'static str,
    pub(super) text: String,
}

#[derive(Debug, Default)]
pub(super) struct AxisMarks {
    pub(super) kept: VecDeque<AxisMark>,
    /// Number of all marks so far.
    pub(super) count: u64,
}

impl AxisMarks {
    /// Adds the mark of an event, which `view` contains already, if it has one.
    pub(super) fn apply(&mut self, event: &Event, view: &RunView) {
        let Some(class) = class(&event.what, view) else { return };
        let Some(step) = view.latest.map(|latest| latest.step) else { return };
        let sentence = lines(event, view).into_iter().next().map(|line| line.text).unwrap_or_default();
        let text = sentence.lines().next().unwrap_or_default().to_owned();
        if self.kept.len() == MARKS_MAX {
            self.kept.pop_front();
        }
        self.count += 1;
        self.kept.push_back(AxisMark { time: event.time, step, class, text });
    }
}

/// Returns whether a worker of the round ended otherwise than by itself and well.
pub(super) fn lost_worker(view: &RunView, round: u64) -> bool {
    let mut exits = view.workers.iter().rev().filter(|worker| worker.round == round).filter_map(|worker| worker.exit);
    exits.any(|exit| exit.code != Some(0))
}

fn class(what: &EventKind, view: &RunView) -> Option<&'static str> {
    match what {
        EventKind::RoundFailed { .. } | EventKind::HangDetected { .. } | EventKind::CheckpointDamaged { .. } => {
            Some("failure")
        }
        EventKind::RoundLeft { round, .. } if lost_worker(view, round.0) => Some("failure"),
        EventKind::RoundLeft { .. } | EventKind::Paused { .. } | EventKind::Continued { .. } => Some("change"),
        EventKind::RunStarted { .. } if view.sessions.len() > 1 => Some("launch"),
        _ => None,
    }
}
