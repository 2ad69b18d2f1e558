//! The status of a run and of its workers, in one word each, as status, top and the metrics show it.
//!
//! **Invariant:** pure. The caller passes whether the launcher lives, since a killed launcher records no end.

use super::model::{ANY_PROGRAM, NodeState, NodeView, RunView, SessionView, WorkerView};
use enn_process::signal;
use nix::sys::signal::Signal;
use std::{fmt, time::Duration};

/// Longest time within which another node takes over a run whose leader is gone: it notices the silence, finds the
/// other nodes, and waits for the directory.
pub const TAKE_OVER_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunStatus {
    /// The launcher prepares the first round.
    Starting,
    Staging,
    /// The rendezvous is not complete.
    Waiting,
    /// A round is under way.
    Running,
    /// The workers wait for the run to be continued.
    Paused,
    /// A round failed and the next has not begun.
    Restarting,
    Stopping,
    Finished,
    /// The run ended after a request to stop, by this signal.
    Stopped(String),
    Failed(u8),
    /// The launcher is gone and recorded no end.
    Gone,
}

impl RunStatus {
    /// Returns the status of the run of `view`; `living` is whether its launcher lives.
    pub fn of(view: &RunView, living: bool) -> Self {
        let Some(session) = view.sessions.last() else { return if living { Self::Starting } else { Self::Gone } };
        let stop = view.stops.iter().find(|(time, _)| *time >= session.started);
        match (session.ended, stop) {
            (Some(end), _) if end.code == 0 => Self::Finished,
            (Some(_), Some((_, signal))) => Self::Stopped(signal.clone()),
            (Some(end), None) => Self::Failed(end.code),
            (None, _) if !living => Self::Gone,
            (None, Some(_)) => Self::Stopping,
            (None, None) => Self::under_way(view, session),
        }
    }

    fn under_way(view: &RunView, session: &SessionView) -> Self {
        let round = view.rounds.last().filter(|round| round.started >= session.started);
        match round {
            _ if view.waiting.is_some() => Self::Waiting,
            Some(_) if view.paused.is_some() => Self::Paused,
            Some(round) if matches!(round.failure, Some((_, true))) => Self::Restarting,
            Some(_) => Self::Running,
            None if view.staging.is_some() => Self::Staging,
            None => Self::Starting,
        }
    }

    /// Returns whether the last launch recorded no end and had several nodes, so that one may lead it or take it over.
    /// Under `enn run` every node has a directory of its own.
    pub fn has_successors(view: &RunView, living: bool) -> bool {
        let there = |node: &NodeView| matches!(node.state, NodeState::InRound | NodeState::Joined);
        let under_way = view.sessions.last().is_some_and(|session| session.ended.is_none());
        under_way && !any_program(view) && view.nodes.len() > 1 && (living || view.nodes.iter().any(there))
    }

    pub fn word(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Staging => "staging",
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Restarting => "restarting",
            Self::Stopping => "stopping",
            Self::Finished => "finished",
            Self::Stopped(_) => "stopped",
            Self::Failed(_) => "failed",
            Self::Gone => "gone",
        }
    }

    /// All values of [`Self::word`], for the metrics.
    pub const WORDS: [&'static str; 11] = [
        "starting",
        "staging",
        "waiting",
        "running",
        "paused",
        "restarting",
        "stopping",
        "finished",
        "stopped",
        "failed",
        "gone",
    ];

    pub fn over(&self) -> bool {
        matches!(self, Self::Finished | Self::Stopped(_) | Self::Failed(_) | Self::Gone)
    }
}

impl fmt::Display for RunStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped(signal) => write!(f, "stopped by {signal}"),
            Self::Failed(code) => write!(f, "failed with code {code}"),
            Self::Gone => f.write_str("gone: its launcher ended and recorded no end"),
            _ => f.write_str(self.word()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerStatus {
    /// The worker has not reported that it is ready, as only ENN's own workers do.
    Starting,
    Running,
    /// The worker waits for the run to be continued.
    Paused,
    /// The worker's round is over, and its exit is not recorded yet.
    Stopping,
    /// The worker ended with code 0.
    Done,
    /// The worker failed first, and the others were ended because of it.
    Failed(ExitStatus),
    /// The worker ended after another one had failed, or after a request to stop.
    Ended(ExitStatus),
    /// The launcher is gone and recorded no exit of the worker.
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    Code(i32),
    Signal(i32),
}

impl WorkerStatus {
    pub fn of(view: &RunView, worker: &WorkerView, living: bool) -> Self {
        let Some(exit) = worker.exit else {
            let over = view.sessions.last().is_none_or(|session| session.ended.is_some());
            return match worker.ready {
                _ if over || !living => Self::Gone,
                _ if view.round(worker.round).is_none_or(|round| round.ended.is_some()) => {
                    match RunStatus::of(view, living) {
                        RunStatus::Paused => Self::Paused,
                        _ => Self::Stopping,
                    }
                }
                None if !any_program(view) => Self::Starting,
                _ => Self::Running,
            };
        };
        let death = match (exit.signal, exit.code) {
            (Some(number), _) => ExitStatus::Signal(number),
            (None, Some(0)) => return Self::Done,
            (None, code) => ExitStatus::Code(code.unwrap_or(-1)),
        };
        let failure = view.failures.iter().rev().find(|failure| failure.round == worker.round);
        let blamed = match failure {
            Some(failure) => failure.rank == worker.rank,
            None => view.stops.is_empty() && is_first(view, worker, exit.time),
        };
        if blamed { Self::Failed(death) } else { Self::Ended(death) }
    }

    /// Returns whether the worker caused the failure.
    pub fn failed(self) -> bool {
        matches!(self, Self::Failed(_))
    }

    pub fn alive(self) -> bool {
        matches!(self, Self::Starting | Self::Running | Self::Paused | Self::Stopping)
    }
}

impl fmt::Display for WorkerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => f.write_str("starting"),
            Self::Running => f.write_str("running"),
            Self::Paused => f.write_str("paused"),
            Self::Stopping => f.write_str("stopping"),
            Self::Done => f.write_str("done"),
            Self::Failed(death) => write!(f, "failed: {death}"),
            Self::Ended(ExitStatus::Signal(number)) if *number == Signal::SIGTERM as i32 => f.write_str("stopped"),
            Self::Ended(death) => write!(f, "ended: {death}"),
            Self::Gone => f.write_str("gone"),
        }
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "code {code}"),
            Self::Signal(number) => f.write_str(&signal::name(*number)),
        }
    }
}

pub fn any_program(view: &RunView) -> bool {
    view.sessions.last().is_some_and(|session| session.mode == ANY_PROGRAM)
}

/// Returns whether no other worker of the round failed earlier.
fn is_first(view: &RunView, worker: &WorkerView, time: f64) -> bool {
    let others = view.workers.iter().filter(|other| other.round == worker.round && other.rank != worker.rank);
    !others.filter_map(|other| other.exit).any(|exit| exit.code != Some(0) && exit.time < time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{events, gang_events, view_after};
    use enn_common::event::EventKind;

    /// The standings of a run after each event, without repetition.
    fn path(events: &[enn_common::event::Event]) -> Vec<String> {
        let mut all: Vec<String> =
            (1..=events.len()).map(|count| RunStatus::of(&view_after(&events[..count]), true).to_string()).collect();
        all.dedup();
        all
    }

    /// The same as a training on several nodes.
    fn training(mut view: RunView) -> RunView {
        view.sessions.iter_mut().for_each(|session| session.mode = "train".into());
        view
    }

    #[test]
    fn a_run_goes_its_way() {
        assert_eq!(
            path(&events()),
            ["starting", "staging", "starting", "running", "restarting", "running", "finished"]
        );
        let gang = [
            "starting",
            "waiting",
            "running",
            "restarting",
            "running",
            "restarting",
            "waiting",
            "running",
            "failed with code 1",
        ];
        assert_eq!(path(&gang_events()), gang);
        let cut = view_after(&gang_events()[..9]);
        assert!(RunStatus::of(&cut, false).to_string().starts_with("gone"));
        assert!(
            !RunStatus::has_successors(&cut, false) && !RunStatus::has_successors(&view_after(&events()[..9]), true)
        );
        assert!(RunStatus::has_successors(&training(cut), false));
        let over = view_after(&gang_events());
        assert!(RunStatus::of(&over, false).over() && !RunStatus::has_successors(&training(over), true));
    }

    #[test]
    fn workers_are_blamed_once() {
        let words = |events: &[enn_common::event::Event]| -> Vec<String> {
            let view = view_after(events);
            view.workers.iter().map(|worker| WorkerStatus::of(&view, worker, false).to_string()).collect()
        };
        assert_eq!(words(&events()), ["ended: code 1", "failed: SIGKILL", "done", "done"]);
        let gang = words(&gang_events());
        assert_eq!(gang[..4], ["stopped", "stopped", "stopped", "failed: code 1"]);
        assert_eq!(gang[4..8], ["gone", "gone", "gone", "gone"]);
        assert_eq!(gang[8..], ["stopped", "stopped", "failed: SIGKILL", "stopped"]);
    }

    #[test]
    fn workers_of_a_paused_run_are_paused_and_not_about_to_end() {
        let mut view = view_after(&events()[..9]);
        let recorded = |view: &RunView, living| -> Vec<String> {
            view.workers.iter().map(|worker| WorkerStatus::of(view, worker, living).to_string()).collect()
        };
        assert_eq!(recorded(&view, true), ["running", "running"]);
        let round = enn_common::id::Round(0);
        for what in
            [EventKind::RoundLeft { round, reason: "it is to pause".into() }, EventKind::Paused { round, step: 3 }]
        {
            let time = view.now;
            view.apply(&enn_common::event::Event { time, what });
        }
        assert_eq!(RunStatus::of(&view, true), RunStatus::Paused);
        assert_eq!(
            (recorded(&view, true), recorded(&view, false)),
            (vec!["paused".to_owned(); 2], vec!["gone".to_owned(); 2])
        );
    }

    #[test]
    fn every_word_is_listed() {
        let all = [RunStatus::Gone, RunStatus::Failed(1), RunStatus::Stopped("x".into()), RunStatus::Waiting];
        assert!(all.iter().all(|status| RunStatus::WORDS.contains(&status.word())));
    }
}
