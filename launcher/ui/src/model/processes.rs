//! The part of the fold for rounds and their worker processes.

use super::RunView;
use enn_common::event::{EventKind, NodeBrief};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct RoundView {
    /// Number of the round.
    pub round: u64,
    pub world_size: u32,
    /// Attempt, counted from 0.
    pub attempt: u32,
    /// Step of the checkpoint from which the round resumed.
    pub resume_step: Option<u64>,
    /// Start, seconds since the Unix epoch.
    pub started: f64,
    /// End, seconds since the Unix epoch.
    pub ended: Option<f64>,
    /// Cause of the round's failure, and whether another round followed.
    pub failure: Option<(String, bool)>,
    /// Reason for which workers that kept their state, or nodes, left the round.
    pub left: Option<String>,
    /// Restarts that remained after the round's failure.
    pub restarts_left: Option<u32>,
    /// Nodes in order of their rank; empty when the launcher is the only one.
    pub nodes: Vec<NodeBrief>,
    /// Address of the workers' store, host:port; empty when it was not recorded.
    pub master: String,
}

/// A worker process of a round.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerView {
    pub round: u64,
    pub rank: u32,
    /// Index among the workers of its node.
    pub local_rank: u32,
    /// Host on which the worker runs; empty: the launcher's.
    pub host: String,
    pub pid: u32,
    /// Fork, seconds since the Unix epoch.
    pub started: f64,
    /// The worker's readiness, once reported.
    pub ready: Option<ReadyView>,
    pub exit: Option<ExitView>,
    /// The message of the worker's failure.
    pub error: Option<String>,
}

/// The report of a worker that became ready.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadyView {
    /// Seconds since the Unix epoch.
    pub time: f64,
    /// Device, such as "cpu" or "cuda:0".
    pub device: String,
    /// Process-group backend, e.g. "gloo".
    pub backend: String,
    pub libtorch: String,
    /// Seconds from fork to ready.
    pub seconds: f64,
}

/// The exit of a worker process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExitView {
    /// Seconds since the Unix epoch.
    pub time: f64,
    /// Exit code, when it exited.
    pub code: Option<i32>,
    /// Signal, when it was killed.
    pub signal: Option<i32>,
    /// Seconds from death to notice.
    pub seconds_to_notice: f64,
}

impl RunView {
    pub(super) fn apply_round(&mut self, time: f64, what: &EventKind) {
        match what {
            EventKind::RoundStarted { round, world_size, attempt, resume_step } => {
                let view = self.begin_round(time, round.0);
                view.world_size = *world_size;
                view.attempt = *attempt;
                view.resume_step = *resume_step;
            }
            EventKind::RoundFormed { round, restart, master, nodes } => {
                let view = self.begin_round(time, round.0);
                view.world_size = nodes.iter().fold(0, |sum, node| node.workers.saturating_add(sum));
                view.attempt = *restart;
                view.nodes.clone_from(nodes);
                view.master.clone_from(master);
                self.place_nodes(nodes);
            }
            EventKind::RoundLeft { round, reason } => {
                if let Some(view) = self.rounds.iter_mut().rev().find(|view| view.round == round.0) {
                    view.left = Some(reason.clone());
                    view.ended = Some(time);
                    self.dismiss_nodes();
                }
            }
            EventKind::RoundFailed { round, cause, restarting, restarts_left } => {
                if let Some(view) = self.rounds.iter_mut().rev().find(|view| view.round == round.0) {
                    view.failure = Some((cause.clone(), *restarting));
                    view.restarts_left = Some(*restarts_left);
                    view.ended = Some(time);
                    self.dismiss_nodes();
                }
            }
            _ => {}
        }
    }

    /// Returns the round of this number, which begins now unless it is under way: a round is first formed, then
    /// started.
    fn begin_round(&mut self, time: f64, round: u64) -> &mut RoundView {
        self.waiting = None;
        let under_way = self.rounds.last().is_some_and(|view| view.round == round && view.ended.is_none());
        if !under_way {
            self.end_round(time);
            self.pace = None;
            self.rounds.push(RoundView { round, started: time, ..RoundView::default() });
        }
        let last = self.rounds.len() - 1;
        &mut self.rounds[last]
    }

    pub(super) fn end_round(&mut self, time: f64) {
        if let Some(round) = self.rounds.last_mut() {
            round.ended.get_or_insert(time);
        }
        self.dismiss_nodes();
    }

    pub(super) fn apply_worker(&mut self, time: f64, what: &EventKind) {
        match what {
            EventKind::WorkerStarted { round, local_rank, rank, pid, host, .. } => self.workers.push(WorkerView {
                round: round.0,
                rank: rank.0,
                local_rank: local_rank.0,
                host: host.clone(),
                pid: *pid,
                started: time,
                ready: None,
                exit: None,
                error: None,
            }),
            EventKind::SeatTaken { round, rank, local_rank, pid, host, .. } => {
                self.seat_taken(time, round.0, rank.0, local_rank.0, *pid, host)
            }
            EventKind::WorkerReady { round, rank, device, backend, libtorch, seconds } => {
                if let Some(worker) = self.worker(round.0, rank.0) {
                    worker.ready = Some(ReadyView {
                        time,
                        device: device.clone(),
                        backend: backend.clone(),
                        libtorch: libtorch.clone(),
                        seconds: *seconds,
                    });
                }
            }
            EventKind::WorkerExited { round, rank, code, signal, seconds_to_notice, .. } => {
                if let Some(worker) = self.worker(round.0, rank.0) {
                    let exit = ExitView { time, code: *code, signal: *signal, seconds_to_notice: *seconds_to_notice };
                    worker.exit = Some(exit);
                }
            }
            EventKind::WorkerDismissed { round, rank, .. } => {
                if let Some(worker) = self.worker(round.0, rank.0) {
                    worker.exit = Some(ExitView { time, code: Some(0), signal: None, seconds_to_notice: 0.0 });
                }
            }
            EventKind::WorkerFailed { round, rank, error } => {
                if let Some(worker) = self.worker(round.0, rank.0) {
                    worker.error = Some(error.clone());
                }
            }
            _ => {}
        }
    }

    /// Makes a process of an earlier round, or a spare, a worker of `round`.
    fn seat_taken(&mut self, time: f64, round: u64, rank: u32, local_rank: u32, pid: u32, host: &str) {
        let mine = |worker: &&mut WorkerView| worker.pid == pid && worker.exit.is_none() && worker.host == host;
        match self.workers.iter_mut().rev().find(mine) {
            Some(worker) => {
                worker.round = round;
                worker.rank = rank;
                worker.local_rank = local_rank;
                worker.ready = None;
            }
            None => self.workers.push(WorkerView {
                round,
                rank,
                local_rank,
                host: host.to_owned(),
                pid,
                started: time,
                ready: None,
                exit: None,
                error: None,
            }),
        }
    }

    /// Returns whether the workers of a round kept their state from the round before.
    pub fn goes_on(&self, round: u64) -> bool {
        let before = self.rounds.iter().rev().skip_while(|view| view.round != round).nth(1);
        before.is_some_and(|before| before.left.is_some() && (before.nodes.is_empty() || self.trains()))
    }

    /// Returns the number of rounds that were followed by another one without a restart, because the workers kept their
    /// state.
    pub fn regroupings(&self) -> u64 {
        self.rounds.iter().filter(|round| round.left.is_some() && (round.nodes.is_empty() || self.trains())).count()
            as u64
    }

    /// Returns whether the workers are ENN's own, which keep their state when the nodes change.
    fn trains(&self) -> bool {
        self.sessions.last().is_some_and(|session| session.mode == "train")
    }

    fn worker(&mut self, round: u64, rank: u32) -> Option<&mut WorkerView> {
        self.workers.iter_mut().rev().find(|worker| worker.round == round && worker.rank == rank)
    }

    /// Returns the number of live workers of the current round, and the size of its world.
    pub fn alive(&self) -> (u32, u32) {
        let Some(round) = self.rounds.last() else { return (0, 0) };
        let alive = self.workers.iter().filter(|worker| worker.round == round.round && worker.exit.is_none());
        (u32::try_from(alive.count()).unwrap_or(u32::MAX), round.world_size)
    }

    /// Returns the workers of the current round, in order of their start.
    pub fn current_workers(&self) -> impl Iterator<Item = &WorkerView> {
        let round = self.rounds.last().map(|round| round.round);
        self.workers.iter().filter(move |worker| Some(worker.round) == round)
    }

    /// Returns the restarts of all launches: failed rounds that were tried again. With several nodes the rendezvous
    /// counts them, since a change of membership is no restart.
    pub fn restarts(&self) -> u64 {
        match self.rounds.iter().rev().find(|round| !round.nodes.is_empty() && !self.trains()) {
            Some(round) => u64::from(round.attempt),
            None => self.rounds.iter().filter(|round| matches!(round.failure, Some((_, true)))).count() as u64,
        }
    }
}
