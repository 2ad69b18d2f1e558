//! The part of the fold for nodes, rounds and their worker processes.

use super::{
    RunView,
    nodes::{NodeState, NodeView},
    processes::{ExitView, RoundView, WorkerView},
};
use enn_common::event::NodeBrief;
use std::collections::HashMap;

/// Maximum number of nodes, of which the first are kept.
const NODES_MAX: usize = 16_384;

impl RunView {
    /// Adds a node that joined. A lost or waiting node of the same host is that node.
    pub(super) fn node_joined(&mut self, host: &str, workers: u32) {
        let absent =
            |node: &&mut NodeView| node.host == host && matches!(node.state, NodeState::Lost(_) | NodeState::Out);
        match self.nodes.iter_mut().find(absent) {
            Some(node) => {
                node.workers = workers;
                node.state = NodeState::Joined;
            }
            None => self.add_node(NodeView { host: host.to_owned(), workers, rank: None, state: NodeState::Joined }),
        }
    }

    pub(super) fn add_node(&mut self, node: NodeView) {
        if self.nodes.len() < NODES_MAX {
            self.nodes.push(node);
        }
    }

    /// Orders the nodes: those of the round first, in its order, then those that wait, are out or are lost.
    pub(super) fn place_nodes(&mut self, briefs: &[NodeBrief]) {
        let mut known: HashMap<&str, usize> = HashMap::new();
        let mut placed = Vec::with_capacity(briefs.len());
        for (rank, brief) in briefs.iter().take(NODES_MAX).enumerate() {
            *known.entry(&brief.host).or_default() += 1;
            let host = brief.host.clone();
            let workers = brief.workers;
            let rank = u32::try_from(rank).ok();
            placed.push(NodeView { host, workers, rank, state: NodeState::InRound });
        }
        for mut node in self.nodes.drain(..) {
            match known.get_mut(node.host.as_str()) {
                Some(count) if *count > 0 => *count -= 1,
                _ => {
                    if node.state == NodeState::InRound {
                        node.state = NodeState::Out;
                    }
                    placed.push(node);
                }
            }
        }
        placed.truncate(NODES_MAX);
        self.nodes = placed;
    }

    /// Marks the nodes of a round that is over as out, until they join again.
    pub(super) fn dismiss_nodes(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| node.state == NodeState::InRound) {
            node.state = NodeState::Out;
        }
    }

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
        let at = self.rounds.iter().rposition(|view| view.round == round);
        let before = at.and_then(|at| at.checked_sub(1));
        before.is_some_and(|before| self.is_continued(before))
    }

    /// Returns whether the workers kept their state when they left the round at an index of the list.
    fn is_continued(&self, at: usize) -> bool {
        // Programs that keep a state say so when the next round begins.
        let is_resumed = || self.rounds.get(at + 1).is_some_and(|next| next.resume_step.is_some());
        let round = &self.rounds[at];
        round.left.is_some() && (round.nodes.is_empty() || self.trains() || is_resumed())
    }

    /// Returns the number of rounds that were followed by another one without a restart, because the workers kept their
    /// state.
    pub fn regroupings(&self) -> u64 {
        (0..self.rounds.len()).filter(|at| self.is_continued(*at)).count() as u64
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
