//! Nodes that come and go, and what a successor learns from them.

use super::{
    batch_parts::BatchParts,
    budget::spare_backoff,
    effect::Effect,
    group_budget::GroupBudget,
    input::{MembershipEnd, Time},
    limits::{CHECK_PERIOD, END_GRACE, FIND_WAIT_MAX, HALT_WAIT_MAX, NAME_BITS, TAKE_OVER_WAIT_MAX},
    machine::Supervisor,
    micro_batches::MicroBatchPlan,
    node_table::Welcome,
    phase::Phase,
    round::RoundState,
    seating::NodeIndex,
    settings::RunJob,
    worker_table::{Seat, Worker, WorkerPlace, slot},
};
use crate::rendezvous::NodeId;
use enn_common::{
    event::EventKind,
    id::{LocalRank, Rank, Round, WorkerId},
    wire::node_agent::{
        Epoch, Inventory, LivingWorker, NodeCommand, NodeEvent, RunFacts, RunSnapshot, StopSignal, WorkerEvidence,
        WorkerExit, WorkerProgress,
    },
};
use std::{path::PathBuf, time::Duration};

/// Names of workers are told apart by the number of a membership at most up to this one: the other half is for later leaders.
const TERM_OF_EPOCH_MAX: u32 = 1 << (u32::BITS - NAME_BITS - 1);

fn leader_was_drained(host: &str) -> String {
    format!("node {host}, which led the run, was drained")
}

impl Supervisor {
    /// This node leads a run that another one led.
    pub(super) fn begin_take_over(&mut self, snapshot: RunSnapshot) {
        self.successor = true;
        if self.runs_programs() {
            self.learn(snapshot.clone());
            // All nodes begin anew.
            self.successor = false;
            self.programs.budget = GroupBudget::of_leader_before(snapshot.restarts, snapshot.early_failures, self.now);
            self.phase = Phase::Gathering { check: self.next_check() };
            return;
        }
        self.phase = Phase::TakingOver { until: TAKE_OVER_WAIT_MAX };
        self.out.push(Effect::AcquireRunDir);
        match &snapshot.drained {
            Some(host) => self.round.regroup_reason = Some(leader_was_drained(host)),
            None => {
                self.round.cause = Some("the node that led the run was lost".into());
                self.round.failed_at = Some(self.now);
            }
        }
        self.learn(snapshot);
    }

    /// Takes over what the leader before said, to this node or to another one: it may have died before all had heard of it.
    fn learn(&mut self, snapshot: RunSnapshot) {
        self.requests_handled = self.requests_handled.max(snapshot.requests);
        self.resized = snapshot.resized;
        self.paused = snapshot.paused.then_some(self.paused.unwrap_or(self.now));
        self.to_leave.clone_from(&snapshot.leaving);
        self.record.restarts = snapshot.restarts;
        self.budget.failures = snapshot.failures;
        self.budget.early_failures = snapshot.early_failures;
        self.budget.proven = snapshot.proven;
        self.spares.deaths = snapshot.spare_deaths;
        self.spares.not_before = spare_backoff(snapshot.spare_deaths).map(|wait| self.now + wait);
        self.micro_batches = MicroBatchPlan::of_leader_before(snapshot.micro_batches);
        self.batch_parts = BatchParts(snapshot.parts.or(self.batch_parts.0));
        self.term = self.term.max(snapshot.term.saturating_add(1));
        self.next_round = self.next_round.max(snapshot.round.saturating_add(1));
        let before = std::mem::replace(
            &mut self.round,
            RoundState::new(Round(snapshot.round), snapshot.attempt.clone(), self.now),
        );
        self.round.split = self.micro_batches.split();
        self.round.survivors = true;
        // The leader before may have asked for it.
        self.round.regroup_flag = true;
        self.round.cause = before.cause;
        self.round.failed_at = before.failed_at;
        self.round.first_failure = before.first_failure;
        self.round.regroup_reason = before.regroup_reason;
        self.round.reached = before.reached;
        // Another node may bring the same snapshot after the end of that round was written.
        self.round.ended = before.ended && before.number == self.round.number;
        if let (Some(cause), None) = (&snapshot.giving_up, &self.giving_up) {
            self.giving_up = Some(cause.clone());
            self.ask_to_stop();
        }
        let stop = snapshot.stop;
        self.learned = snapshot;
        if let Some(stop) = stop {
            self.stop_as_was_asked(stop);
        }
    }

    /// Answer to `AcquireRunDir`.
    pub(super) fn run_dir_acquired(&mut self, result: Result<(), String>) {
        let Phase::TakingOver { .. } = self.phase else { return };
        match result {
            Ok(()) => {
                self.out.push(Effect::FindCheckpoint);
                self.finding = Some(self.now + FIND_WAIT_MAX);
                self.phase = self.halting();
            }
            Err(error) => self.abdicate(&error),
        }
    }

    pub(super) fn membership_formed(&mut self, epoch: Epoch, members: &[NodeId]) {
        self.programs.members = members.to_vec();
        if self.successor {
            // Another successor may have led before, unheard of by all who are here: it had a membership with a smaller number.
            let number = u32::try_from(epoch.number).unwrap_or(u32::MAX);
            self.term = self.term.max(number.min(TERM_OF_EPOCH_MAX));
        }
        let gone = self.nodes.formed(epoch, members, self.now);
        for node in gone {
            let host = self.nodes.index(node).map_or_else(String::new, |index| self.host(index));
            self.lose_node(node, &host, "it takes no part in the run any more");
        }
        self.count_world();
    }

    /// Counts the workers wanted: as many as the nodes were asked for, or as `enn resize` says.
    pub(super) fn count_world(&mut self) {
        let asked = self.resized.unwrap_or_else(|| self.nodes.asked());
        self.world = asked.min(self.nodes.seats());
    }

    /// A node agent reports.
    pub(super) fn node_event(&mut self, node: NodeId, event: NodeEvent) {
        if let NodeEvent::Inventory(inventory) = event {
            return self.inventory(node, &inventory);
        }
        let Some(index) = self.nodes.note_event(node, self.now) else {
            // The nodes have not agreed yet, and this one is to stop.
            if let NodeEvent::Signal { signal, second } = event
                && node == self.settings.own
            {
                self.signalled(signal, signal.name(), second);
            }
            return;
        };
        if let NodeEvent::SnapshotWritten { worker, ticket, result } = event {
            self.ledger.written(worker, ticket, result.map(|table| *table), self.now);
            return self.extend_commits();
        }
        // A node speaks for its own workers only.
        let is_own = |worker: WorkerId| self.workers.get(worker).is_some_and(|worker| worker.slot.node == index);
        if event.worker().is_some_and(|worker| !is_own(worker)) {
            return;
        }
        match event {
            // Handled above.
            NodeEvent::Inventory(_) | NodeEvent::SnapshotWritten { .. } => {}
            NodeEvent::Unfit { reason } => {
                let host = self.host(index);
                self.warn(format!("node {host} cannot take part: {reason}"));
            }
            NodeEvent::Started { worker, pid, forked } => self.worker_started(worker, pid, forked),
            NodeEvent::StartFailed { worker, error } => self.start_failed(worker, error),
            NodeEvent::Connected { worker } => {
                let now = self.now;
                self.workers.edit(worker, |worker| worker.connected = Some(now));
            }
            NodeEvent::WorkerMessage { worker, round, message } => {
                self.worker_message(worker, round.map(Round), *message);
            }
            NodeEvent::Disconnected { worker, error } => self.worker_disconnected(worker, error),
            NodeEvent::Refused { reason } => self.connection_refused(&reason),
            NodeEvent::Exited { worker, exit } => self.worker_exited(worker, exit),
            NodeEvent::Settled { worker, evidence } => self.worker_settled(worker, *evidence),
            NodeEvent::Unkillable { worker, pid } => self.worker_unkillable(worker, pid),
            NodeEvent::Progress(pages) => self.progress(index, &pages),
            NodeEvent::Stacks { round, dir, summary } => self.stacks_written(index, Round(round), dir, summary),
            NodeEvent::Signal { signal, second } => self.signalled(signal, signal.name(), second),
            NodeEvent::SnapshotAcked { requests } => {
                self.nodes.acknowledged(node, requests);
                self.requests.acknowledged(node, requests);
            }
            NodeEvent::Fault { reason } => self.node_fault(node, index, &reason),
            NodeEvent::GroupFailed { round, failure } => self.group_failed(Round(round), failure),
            NodeEvent::DeviceFailed(failure) => self.device_failed(index, *failure),
        }
    }

    fn progress(&mut self, node: NodeIndex, pages: &[WorkerProgress]) {
        for page in pages {
            if self.workers.get(page.worker).is_some_and(|worker| worker.slot.node == node)
                && let Some(at) = self.workers.note_page(page, self.now)
            {
                self.round.progress_at = self.round.progress_at.max(at);
                if self.runs_scripts() && page.step > self.round.base {
                    self.recovered();
                }
            }
        }
    }

    /// A node is here, for the first time or in a new membership.
    fn inventory(&mut self, node: NodeId, inventory: &Inventory) {
        let (index, is_new) = match self.nodes.welcome(node, inventory, self.now) {
            Welcome::Stray => return,
            Welcome::Known(index) => (index, false),
            Welcome::New(index) => (index, true),
        };
        if is_new {
            self.count_world();
            let facts = self.run_facts();
            self.send(index, NodeCommand::JoinRun(Box::new(facts)));
        }
        if is_new && self.successor && !self.nodes.was_lost(node) {
            self.adopt(index, inventory);
        } else if is_new {
            self.take_back(index, inventory);
        }
        if self.runs_programs() {
            self.settle_group(index, inventory);
        }
        let before = inventory.snapshot.as_ref().and_then(|snapshot| snapshot.stop);
        if let Some(stop) = inventory.stop.or(before) {
            // The signal came to that node, or to the leader before, when nobody led.
            self.stop_as_was_asked(stop);
        }
        if is_new && self.has_begun() {
            let snapshot = Box::new(self.snapshot());
            self.send(index, NodeCommand::ReplicateSnapshot(snapshot));
        }
        self.end_given_up(index, inventory);
        self.leave_out_devices();
    }

    /// Ends the workers of a node that were given up when it was taken for lost. Their devices are free when they have settled.
    fn end_given_up(&mut self, node: NodeIndex, inventory: &Inventory) {
        let given_up = inventory.living.iter().filter(|living| self.workers.get(living.worker).is_none());
        let given_up: Vec<LivingWorker> = given_up.cloned().collect();
        let workers: Vec<WorkerId> = given_up.iter().map(|living| living.worker).collect();
        if workers.is_empty() {
            return;
        }
        self.send(node, NodeCommand::Stop { workers, kill_after: Duration::ZERO });
        if self.runs_programs() {
            return;
        }
        for living in given_up {
            let seat = living.seat.map_or((self.round.number, Rank(0)), |seat| (Round(seat.round), Rank(seat.rank)));
            let place = WorkerPlace::Dismissed { round: seat.0, rank: seat.1 };
            // The journal has its end, so that it gets no process number.
            let mut worker = Worker::new(living.worker, slot(node, living.local_rank), place, self.now);
            worker.ending = true;
            self.workers.add(worker);
        }
    }

    fn run_facts(&self) -> RunFacts {
        let (config, staged) = match &self.settings.run.job {
            RunJob::Train { staged, config, .. } => (config.clone(), staged.clone()),
            RunJob::Predict { staged, .. } => (String::new(), staged.clone()),
            RunJob::Init { .. } | RunJob::Program => (String::new(), PathBuf::new()),
        };
        RunFacts { run_dir: self.settings.run.run_dir.clone(), config, staged }
    }

    /// Takes the workers of a node back that was out of reach, if nothing has followed from its loss yet. Where all are back, nothing failed.
    fn take_back(&mut self, node: NodeIndex, inventory: &Inventory) {
        let is_open = matches!(self.phase, Phase::Halting { .. } | Phase::Deciding { .. }) && self.reforms();
        let left =
            |living: &LivingWorker| living.seat.filter(|seat| seat.halted.is_some()).map(|seat| Round(seat.round));
        let stood =
            |living: &&LivingWorker| living.stateful && !living.ending && left(living) == Some(self.round.number);
        let is_new = |living: &&LivingWorker| is_open && self.workers.get(living.worker).is_none();
        let back: Vec<LivingWorker> = inventory.living.iter().filter(stood).filter(is_new).cloned().collect();
        for living in &back {
            self.adopt_worker(node, living);
            // Its end is in the journal.
            let seat = living.seat.map(|seat| (Round(seat.round), Rank(seat.rank)));
            if let Some((round, rank)) = seat {
                let local_rank = LocalRank(living.local_rank);
                let pid = living.pid;
                let host = self.host(node);
                self.journal(EventKind::SeatTaken { round, rank, local_rank, pid, spare: false, host });
            }
        }
        let was_first = back.iter().any(|living| self.round.first_failure == Some(living.worker));
        if was_first && self.workers.count_seated() == self.round.world {
            self.round.forget_failure();
            let host = &inventory.host;
            self.round.regroup_reason = Some(format!("node {host} was out of reach, and is back with its workers"));
        }
    }

    /// Takes over the workers of a node, as a successor.
    fn adopt(&mut self, node: NodeIndex, inventory: &Inventory) {
        if let Some(snapshot) = inventory.snapshot.as_ref().filter(|snapshot| snapshot.is_newer_than(&self.learned)) {
            if let (Some(host), None) = (&snapshot.drained, &self.learned.drained) {
                self.round.forget_failure();
                self.round.regroup_reason = Some(leader_was_drained(host));
            }
            self.learn((**snapshot).clone());
        }
        for living in &inventory.living {
            self.term = self.term.max((living.worker.0 >> NAME_BITS) + 1);
            if self.workers.get(living.worker).is_none() {
                self.adopt_worker(node, living);
            }
        }
        if let Phase::Halting { .. } = self.phase {
            // A worker that has not left the round yet has as long to do so as those that were here first.
            self.phase = self.halting();
        }
        if self.is_stopping() {
            // The workers that came last have not been asked.
            self.flag_stop();
        }
    }

    fn adopt_worker(&mut self, node: NodeIndex, living: &LivingWorker) {
        let now = self.now;
        // A worker without state need not leave the round; it loads what it can.
        let place = match living.seat {
            Some(seat) if living.ending => WorkerPlace::Dismissed { round: Round(seat.round), rank: Rank(seat.rank) },
            // A script that has not attached may have one.
            Some(seat) if living.stateful || self.runs_scripts() => {
                let halted = seat.halted;
                let share = seat.share;
                let new = Seat::new(Round(seat.round), Rank(seat.rank), living.stateful, now);
                WorkerPlace::Seat(Seat { halted, share, ready: Some(now), ..new })
            }
            Some(_) | None => WorkerPlace::Spare,
        };
        let mut worker = Worker::new(living.worker, slot(node, living.local_rank), place, now);
        worker.pid = Some(living.pid);
        worker.connected = living.connected.then_some(now);
        worker.warm = living.warm;
        worker.parked = self.runs_scripts() && living.stateful && living.seat.is_none();
        worker.has_to_connect = !self.runs_scripts() || living.seat.is_none();
        worker.entered = living.stateful || self.runs_scripts();
        worker.ending = living.ending;
        self.workers.add(worker);
        if living.ending {
            let workers = vec![living.worker];
            self.send(node, NodeCommand::Stop { workers, kill_after: END_GRACE });
        }
    }

    /// Stops the run as it was asked when this supervisor did not lead it, or did not hear of it.
    fn stop_as_was_asked(&mut self, signal: StopSignal) {
        if self.stop.is_none() && !self.is_ending() {
            self.signalled(signal, signal.name(), false);
        }
    }

    /// All workers of a node are dead in the same instant.
    pub(super) fn lose_node(&mut self, node: NodeId, host: &str, reason: &str) {
        if self.runs_programs() && node == self.settings.own {
            // It leaves the run, and ends its workers first.
            return;
        }
        self.requests.lose_node(node);
        let Some(lost) = self.nodes.lose(node) else { return };
        self.ledger.lose_node(lost.index);
        if lost.was_leaving {
            // Should it come again, it may stay.
            self.request_handled();
        }
        if self.nodes.are_all_leaving() {
            // The nodes that were to go on are gone.
            self.stay_undrained();
        }
        self.count_world();
        let ids = self.workers.on(lost.index);
        if self.runs_programs() {
            // The membership ends the round, unless their work was done.
            return ids.into_iter().for_each(|id| self.forget_program(id));
        }
        for id in &ids {
            let is_known_end = self.workers.get(*id).is_none_or(|worker| !worker.lives());
            if is_known_end {
                continue;
            }
            let page = WorkerProgress { worker: *id, phase: 0, step: 0, waited: Duration::ZERO, idle: Duration::ZERO };
            let error = format!("its node {host} was lost: {reason}");
            self.workers.edit(*id, |worker| _ = worker.error.get_or_insert(error));
            // How a process ended on a node that is gone is not known.
            let exit = WorkerExit { code: None, signal: None, late: Duration::ZERO, page };
            self.worker_ended(*id, exit);
        }
        for id in ids {
            self.worker_settled(id, WorkerEvidence::default());
        }
    }

    /// Gives up the nodes whose agents do nothing: nobody would notice the death of their workers.
    pub(super) fn lose_silent_nodes(&mut self) {
        let workers = &self.workers;
        let silent = self.nodes.silent(self.settings.agent_silence_max, self.now, |node| workers.is_any_on(node));
        for node in silent {
            self.expel(node, "its agent does nothing, though its connection stands".to_owned());
        }
    }

    fn expel(&mut self, node: NodeId, reason: String) {
        let host = self.nodes.index(node).map_or_else(String::new, |index| self.host(index));
        self.out.push(Effect::ExpelNode { node, reason: reason.clone() });
        self.lose_node(node, &host, &reason);
    }

    /// Something of a node broke: its workers cannot go on there.
    fn node_fault(&mut self, node: NodeId, index: NodeIndex, reason: &str) {
        if index != NodeIndex::OWN {
            return self.expel(node, reason.to_owned());
        }
        if !self.is_ending() {
            self.give_up_for(reason.to_owned());
        }
    }

    /// No node comes any more.
    pub(super) fn membership_over(&mut self, end: MembershipEnd) {
        self.nodes.is_over = true;
        if self.runs_programs() {
            self.part_from_all();
            return self.group_over(end);
        }
        match end {
            MembershipEnd::Finished => {}
            MembershipEnd::Stopped { by } => {
                self.part_from_all();
                if !self.is_stopping() && !self.is_ending() {
                    self.journal(EventKind::GaveUp { reason: format!("the run was stopped: {by}") });
                    self.signalled(StopSignal::Terminate, StopSignal::Terminate.name(), false);
                }
            }
            MembershipEnd::Failed { reason, fenced } => {
                if fenced {
                    // The other side may go on in the same directory.
                    self.fence();
                }
                self.part_from_all();
                if self.is_ending() {
                    return;
                }
                if fenced {
                    self.giving_up.get_or_insert(reason);
                    self.kill_all();
                } else {
                    self.give_up_for(reason);
                }
            }
        }
    }

    /// The run cannot go on, for a reason that is no worker's: the survivors save, and it ends.
    fn give_up_for(&mut self, reason: String) {
        self.journal(EventKind::GaveUp { reason: reason.clone() });
        self.giving_up.get_or_insert(reason);
        self.request_handled();
        self.ask_to_stop();
    }

    /// The others learn, too, that the membership is over, and kill their workers; no command reaches them any more.
    fn part_from_all(&mut self) {
        let others: Vec<(NodeId, String)> = self.nodes.others().map(|node| (node.id, node.host.clone())).collect();
        for (node, host) in others {
            self.lose_node(node, &host, "the nodes meet no more");
        }
    }

    /// Sends away the nodes on which no worker is any more and none is to be.
    pub(super) fn dismiss_left_nodes(&mut self) {
        let left = self.nodes.leaving().iter().copied();
        let left: Vec<NodeIndex> =
            left.filter(|node| *node != NodeIndex::OWN && !self.workers.is_any_on(*node)).collect();
        for node in left {
            if let Some(node) = self.nodes.dismiss(node) {
                let command = NodeCommand::LeaveRun { why: "it was drained (enn drain)".into() };
                self.out.push(Effect::Send { node, command });
            }
        }
    }

    /// Drains the nodes that were to be left when the leader before was lost, now that it is known which nodes are here.
    pub(super) fn drain_as_was_asked(&mut self) {
        if !self.successor || !self.nodes.is_settled() || self.to_leave.is_empty() {
            return;
        }
        for host in std::mem::take(&mut self.to_leave) {
            // The leader before was to leave, or a node that has left.
            if self.nodes.on_host(&host).is_empty() {
                continue;
            }
            if let Err(reason) = self.drain(&host) {
                self.warn(format!("node {host} is not drained, as was asked before the head was lost: {reason}"));
            }
        }
        // Those who have left need not be remembered: should they come again, they may stay.
        self.request_handled();
    }

    /// Returns the phase in which the workers have the usual time to leave the round.
    /// Where the run is to stop, half of the time is for saving.
    pub(super) fn halting(&self) -> Phase {
        let left = self.stop_by.map_or(HALT_WAIT_MAX, |by| by.saturating_sub(self.now) / 2);
        Phase::Halting { until: self.now + left.min(HALT_WAIT_MAX), killed: false }
    }

    /// Returns the time of a check in a phase that waits for others.
    pub(super) fn next_check(&self) -> Time {
        self.now + CHECK_PERIOD
    }
}
