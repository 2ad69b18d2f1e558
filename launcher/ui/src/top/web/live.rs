//! A run as its events are read: the view, its sentences, curves and marks; and the one that the page shows. Pure.

use super::{curves::Curves, marks::AxisMarks};
use crate::top::{event_log::EventLog, sample::Samples};
use enn_common::event::Event;
use std::path::PathBuf;

#[derive(Debug, Default)]
pub(super) struct LiveRun {
    pub(super) event_log: EventLog,
    pub(super) curves: Curves,
    pub(super) marks: AxisMarks,
}

impl LiveRun {
    pub(super) fn apply(&mut self, event: &Event) {
        self.event_log.apply(event);
        self.curves.apply(event);
        self.marks.apply(event, &self.event_log.view);
    }
}

/// The run that the page shows.
#[derive(Debug, Default)]
pub(super) struct ShownRun {
    /// Number among the runs that this process has shown; 0: none yet.
    pub(super) number: u64,
    pub(super) live: LiveRun,
    pub(super) living: bool,
    /// Folders below which the workers' logs are.
    pub(super) logs: Vec<PathBuf>,
    pub(super) samples: Samples,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::events;

    #[test]
    fn curves_and_marks_follow_what_counts() {
        let mut live = LiveRun::default();
        let all = events();
        all.iter().for_each(|event| live.apply(event));
        let steps = |trace: &crate::trace::Trace| trace.points().iter().map(|point| point.step).collect::<Vec<u64>>();
        let curves = &live.curves;
        assert_eq!(steps(&curves.validation), [8, 16, 24]);
        assert_eq!(steps(&curves.epoch_loss), [8, 16, 24]);
        assert_eq!(steps(&curves.learning_rate), (1..=24).collect::<Vec<u64>>());
        assert_eq!(curves.validation.points()[1].mean, 4.4);
        assert_eq!(curves.learning_rate.edits(), 1, "steps 9 to 14 were done again");
        let marks: Vec<_> = live.marks.kept.iter().map(|mark| (mark.step, mark.class, mark.text.as_str())).collect();
        let cause = "round 0 failed: worker 1 was killed by SIGKILL; starting again, 2 restarts left";
        assert_eq!(marks, [(14, "failure", cause)]);
        // A resumed run: the validation after the step from which it goes on no longer counts.
        let mut resumed = all[0].clone();
        resumed.time += 100.0;
        live.apply(&resumed);
        let stepped = all.iter().find(|event| matches!(event.what, enn_common::event::EventKind::Stepped { .. }));
        live.apply(stepped.unwrap());
        assert_eq!(steps(&live.curves.validation), Vec::<u64>::new());
        assert_eq!(live.marks.kept.back().map(|mark| mark.class), Some("launch"));
    }
}
