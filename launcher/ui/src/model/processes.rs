//! The part of the fold for rounds and their worker processes.

use super::RunView;
use enn_common::{event::NodeBrief, id::Rank};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct RoundView {
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
    pub ready: Option<ReadyView>,
    pub exit: Option<ExitView>,
    pub error: Option<String>,
}

impl WorkerView {
    pub(super) fn started(time: f64, round: u64, rank: u32, local_rank: u32, pid: u32, host: &str) -> Self {
        let host = host.to_owned();
        Self { round, rank, local_rank, host, pid, started: time, ready: None, exit: None, error: None }
    }
}

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

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExitView {
    /// Seconds since the Unix epoch.
    pub time: f64,
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// Seconds from death to notice.
    pub seconds_to_notice: f64,
}

impl RunView {
    /// Returns the round of this number, which begins now unless it is under way: a round is first formed, then
    /// started.
    pub(super) fn begin_round(&mut self, time: f64, round: u64) -> &mut RoundView {
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

    /// Makes a process of an earlier round, or a spare, the worker `seated`.
    pub(super) fn seat_taken(&mut self, seated: WorkerView) {
        let mine =
            |worker: &&mut WorkerView| worker.pid == seated.pid && worker.exit.is_none() && worker.host == seated.host;
        match self.workers.iter_mut().rev().find(mine) {
            Some(worker) => {
                *worker = WorkerView { started: worker.started, error: worker.error.take(), ..seated };
            }
            None => self.workers.push(seated),
        }
    }

    pub(crate) fn round(&self, number: u64) -> Option<&RoundView> {
        self.rounds.iter().rev().find(|view| view.round == number)
    }

    /// Ends a round that workers or nodes left.
    pub(super) fn leave_round(&mut self, time: f64, number: u64) -> Option<&mut RoundView> {
        let at = self.rounds.iter().rposition(|view| view.round == number)?;
        self.dismiss_nodes();
        self.rounds[at].ended = Some(time);
        Some(&mut self.rounds[at])
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

    pub(super) fn on_exit(&mut self, round: u64, rank: u32, exit: ExitView) {
        if let Some(worker) = self.worker(round, rank) {
            worker.exit = Some(exit);
        }
    }

    pub(super) fn worker(&mut self, round: u64, rank: u32) -> Option<&mut WorkerView> {
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

/// Describes the reaction to a worker that ran out of memory.
pub(crate) fn out_of_memory(rank: Rank, split: u32) -> String {
    format!("worker {rank} ran out of memory; micro-batches are cut into {split} on all workers")
}

/// Describes the worker that the others wait for.
pub(crate) fn straggler(rank: Rank, pid: u32, slower_by: f64, evicted: bool) -> String {
    let then = if evicted { "; a spare takes its seat" } else { "" };
    format!("the others wait for worker {rank} (pid {pid}): its steps take {slower_by:.1} times as long{then}")
}
