//! Runs of programs (`enn run`): what the supervisor decides where workers are heard of by their output, their files and their end only.
//!
//! A round of workers lasts as long as a round of the membership: whoever joins or is lost ends it, and so does the supervisor when a
//! worker failed or none makes progress. Each node ends its workers and joins again when none is left; then the next round begins. The
//! membership is told when the workers of a node are done, and the run is finished when all are.

use super::{
    effect::{Effect, RunEnd},
    group_budget::GroupDecision,
    input::{MembershipEnd, Time},
    limits::NAME_BITS,
    machine::Supervisor,
    phase::Phase,
    program_run::ProgramRun,
    round::RoundState,
    seating::NodeIndex,
    settings::Contract,
    worker_table::{Seat, Worker, WorkerPlace, slot},
};
use crate::transport;
use enn_common::{
    failure::Failure,
    id::{Rank, Round, WorkerId},
    wire::{
        node::{RoundEnd, RunEnd as GroupRunEnd},
        node_agent::{Epoch, Inventory, NodeCommand, StopSignal},
    },
};
use std::collections::BTreeSet;

/// Bits of a worker's name that are not its number among those of its round.
const TERM_BITS: u32 = u32::BITS - NAME_BITS;

impl Supervisor {
    /// Returns whether the workers are any programs.
    pub(super) fn runs_programs(&self) -> bool {
        matches!(self.settings.run.contract, Contract::Env(_))
    }

    /// The nodes have to agree again: each ends its workers first.
    pub(super) fn group_left(&mut self) {
        self.programs.failure = None;
        if !self.is_ending() {
            self.phase = Phase::Gathering { check: self.next_check() };
        }
    }

    /// A node is here for the next round: of the round before it has the workers that it lists, and no others.
    pub(super) fn settle_group(&mut self, node: NodeIndex, inventory: &Inventory) {
        let living: BTreeSet<WorkerId> = inventory.living.iter().map(|living| living.worker).collect();
        let gone = self.workers.on(node).into_iter().filter(|worker| !living.contains(worker));
        for worker in gone.collect::<Vec<_>>() {
            self.forget_program(worker);
        }
    }

    /// Nothing more is heard of a worker.
    pub(super) fn forget_program(&mut self, worker: WorkerId) {
        self.programs.unstarted.remove(&worker);
        self.workers.remove(worker);
    }

    /// Begins a round when all members are here and no worker of the round before is left.
    pub(super) fn gather_group(&mut self) -> bool {
        let epoch = self.nodes.epoch().filter(|_| self.nodes.is_settled() && !self.nodes.is_over);
        let Some(epoch) = epoch.filter(|_| self.workers.are_gone()) else { return false };
        self.begin_group(epoch);
        true
    }

    fn begin_group(&mut self, epoch: Epoch) {
        let round = Round(transport::round_of(epoch));
        // Names of workers that another leader started need not be known: they are those of other rounds.
        self.term = u32::try_from(epoch.number % (1 << TERM_BITS)).unwrap_or_default();
        self.next_name = 0;
        self.record.rounds += 1;
        self.round = RoundState::new(round, String::new(), self.now);
        self.programs.failure = None;
        self.programs.is_closed = false;
        let mut starts: Vec<(NodeIndex, Vec<WorkerId>)> = Vec::with_capacity(self.programs.members.len());
        let mut ranks = (0..).map(Rank);
        for member in self.programs.members.clone() {
            let Some(room) = self.nodes.index(member).and_then(|node| self.nodes.room(node)) else { continue };
            let workers = (0..room.workers).zip(&mut ranks).map(|seat| self.seat_program(room.node, seat.0, seat.1));
            starts.push((room.node, workers.collect()));
        }
        let snapshot = Box::new(self.snapshot());
        let restarts = self.programs.budget.restarts;
        for (node, workers) in starts {
            self.nodes.expect_reports(node, self.now);
            let snapshot = snapshot.clone();
            self.send(node, NodeCommand::BeginGroup { round: round.0, restarts, workers, snapshot });
        }
        self.phase = Phase::Running;
    }

    /// Gives a seat to a worker that is about to be started.
    fn seat_program(&mut self, node: NodeIndex, local_rank: u32, rank: Rank) -> WorkerId {
        let id = self.new_name();
        let now = self.now;
        let seat = Seat { ready: Some(now), ..Seat::new(self.round.number, rank, false, now) };
        let mut worker = Worker::new(id, slot(node, local_rank), WorkerPlace::Seat(seat), now);
        // Programs do not connect.
        worker.connected = Some(now);
        self.workers.add(worker);
        self.programs.unstarted.insert(id);
        id
    }

    /// A worker failed: it is looked at whether it had met the others.
    pub(super) fn group_failed(&mut self, round: Round, failure: Box<Failure>) {
        let is_first = self.programs.failure.is_none() && !self.programs.is_closed;
        if is_first && self.runs_programs() && self.phase == Phase::Running && round == self.round.number {
            self.programs.failure = Some(failure);
            self.out.push(Effect::CountStoreClients);
        }
    }

    /// Answer to `CountStoreClients`.
    pub(super) fn store_clients(&mut self, seen: u64) {
        let Some(mut failure) = self.programs.failure.take() else { return };
        failure.early &= seen == 0;
        self.programs.budget.note_failure(&failure);
        self.end_group(RoundEnd::Failed(failure));
    }

    /// Returns when the round is over because no worker makes progress.
    pub(super) fn group_hangs_at(&self) -> Option<Time> {
        let limit = self.settings.run.hang_timeout?;
        let ProgramRun { unstarted, failure, is_closed, .. } = &self.programs;
        let watched = self.phase == Phase::Running && unstarted.is_empty() && failure.is_none() && !is_closed;
        watched.then(|| self.round.progress_at + limit)
    }

    /// Ends a round in which no worker makes progress.
    pub(super) fn find_group_hang(&mut self) {
        if self.group_hangs_at().is_some_and(|at| at <= self.now) {
            let idle = self.now.saturating_sub(self.round.progress_at);
            self.end_group(RoundEnd::Hung { idle });
        }
    }

    /// Ends a round that failed: another one follows, or the run ends.
    fn end_group(&mut self, end: RoundEnd) {
        // A round that the membership has ended already costs nothing.
        let Some(epoch) = self.nodes.epoch().filter(|_| self.phase == Phase::Running) else { return };
        let Contract::Env(limits) = self.settings.run.contract else { return };
        self.programs.is_closed = true;
        match self.programs.budget.decide(self.now, self.settings.run.max_restarts, limits) {
            GroupDecision::Restart { wait } => {
                self.programs.budget.charge(self.now);
                let number = self.programs.budget.restarts;
                self.record.restarts = number;
                self.out.push(Effect::EndMembershipRound { epoch, end, number, wait });
            }
            GroupDecision::GiveUp(reason) => {
                let reason = reason.to_string();
                self.out.push(Effect::EndMembership(GroupRunEnd::Failed { end, reason }));
            }
        }
        self.budget.early_failures = self.programs.budget.early_failures;
    }

    /// The run is over for the membership: each node ends its workers and leaves.
    pub(super) fn group_over(&mut self, end: MembershipEnd) {
        let end = match end {
            MembershipEnd::Finished => RunEnd::Finished,
            MembershipEnd::Stopped { .. } => RunEnd::Stopped(StopSignal::Terminate),
            MembershipEnd::Failed { reason, .. } => RunEnd::Failed { cause: reason },
        };
        self.verdict.get_or_insert(end);
        self.phase = self.closing();
    }
}

#[cfg(test)]
mod tests;
