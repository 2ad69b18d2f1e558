//! The supervisor itself: its state, and the order in which it handles and decides.

use super::{
    batch_parts::BatchParts,
    budget::RestartBudget,
    checkpoint_ledger::CheckpointLedger,
    effect::{Effect, EffectKind, RunEnd},
    input::{Input, Time},
    kernel_records::KernelRecords,
    micro_batches::MicroBatchPlan,
    node_table::NodeTable,
    phase::Phase,
    program_run::ProgramRun,
    record::RunRecord,
    requests::PendingRequests,
    round::{RecoveryClock, RoundState},
    seating::NodeIndex,
    settings::SupervisorSettings,
    straggler_watch::StragglerWatch,
    worker_table::WorkerTable,
};
use enn_common::{
    config::train::Recovery,
    event::EventKind,
    id::{Round, WorkerId},
    kernels::KernelBook,
    wire::{
        message::ToWorker,
        node_agent::{NodeCommand, RunSnapshot, StopSignal},
    },
};
use std::collections::BTreeMap;

/// Decides everything about the workers of a run.
#[derive(Debug)]
pub struct Supervisor {
    pub(super) settings: SupervisorSettings,
    pub(super) now: Time,
    pub(super) out: Vec<Effect>,
    pub(super) phase: Phase,
    pub(super) nodes: NodeTable,
    pub(super) workers: WorkerTable,
    pub(super) round: RoundState,
    pub(super) ledger: CheckpointLedger,
    pub(super) kernels: KernelRecords,
    pub(super) stragglers: StragglerWatch,
    pub(super) micro_batches: MicroBatchPlan,
    pub(super) batch_parts: BatchParts,
    pub(super) budget: RestartBudget,
    pub(super) programs: ProgramRun,
    pub(super) record: RunRecord,
    pub(super) requests: PendingRequests,
    /// Number of requests that were handled, by this leader and those before.
    pub(super) requests_handled: u64,
    /// Workers wanted.
    pub(super) world: u32,
    /// Workers wanted by `enn resize`.
    pub(super) resized: Option<u32>,
    /// The run is to be paused, since then.
    pub(super) paused: Option<Time>,
    /// Hosts that were to be left when the leader before was lost.
    pub(super) to_leave: Vec<String>,
    /// The first signal that asked to stop.
    pub(super) stop: Option<StopSignal>,
    /// Workers that were asked to save and end are killed then.
    pub(super) stop_by: Option<Time>,
    /// Why the run ends as failed once the survivors have saved their state.
    pub(super) giving_up: Option<String>,
    pub(super) recovering: Option<RecoveryClock>,
    pub(super) spares: SpareStarts,
    pub(super) next_round: u64,
    /// The newest directory for logs that was asked for.
    pub(super) log_dir: Option<LogDir>,
    pub(super) term: u32,
    pub(super) next_name: u32,
    /// Another node led before, and no round has begun since.
    pub(super) successor: bool,
    /// Newest snapshot of the leader before.
    pub(super) learned: RunSnapshot,
    /// Newest snapshot that the other nodes were sent.
    pub(super) replicated: RunSnapshot,
    /// A successor looks for the newest checkpoint, at most until then.
    pub(super) finding: Option<Time>,
    pub(super) verdict: Option<RunEnd>,
    /// All workers were killed: by a second signal, or because their time was over.
    pub(super) killed: bool,
    /// The run may go on elsewhere: nothing more is written.
    pub(super) fenced: bool,
    /// Kinds of effects that failed and were reported.
    pub(super) failed_effects: Vec<EffectKind>,
    pub(super) control_closed: bool,
    /// Another node leads the others.
    pub(super) led_elsewhere: bool,
}

/// A directory for the logs of a round.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogDir {
    pub(super) round: u64,
    /// The effect was answered.
    pub(super) made: bool,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SpareStarts {
    /// Spares that died in a row without one becoming warm.
    pub(super) deaths: u32,
    /// No spare is started before.
    pub(super) not_before: Option<Time>,
}

impl Supervisor {
    /// Makes the supervisor of a run that begins. `kernels` are those that earlier launches of the run quarantined, as far as they
    /// are of the present worker program.
    pub fn new(settings: SupervisorSettings, kernels: KernelBook) -> Self {
        let round = RoundState::new(Round(settings.run.first_round), String::new(), Time::ZERO);
        Self {
            now: Time::ZERO,
            out: Vec::new(),
            phase: Phase::Gathering { check: Time::ZERO },
            nodes: NodeTable::new(settings.own),
            workers: WorkerTable::new(settings.run.grace),
            round,
            ledger: CheckpointLedger::default(),
            kernels: KernelRecords::new(kernels),
            stragglers: StragglerWatch::default(),
            micro_batches: MicroBatchPlan::default(),
            batch_parts: BatchParts::default(),
            budget: RestartBudget::default(),
            programs: ProgramRun::default(),
            record: RunRecord::default(),
            requests: PendingRequests::default(),
            requests_handled: 0,
            world: 0,
            resized: None,
            paused: None,
            to_leave: Vec::new(),
            stop: None,
            stop_by: None,
            giving_up: None,
            recovering: None,
            spares: SpareStarts::default(),
            next_round: settings.run.first_round,
            log_dir: None,
            term: 0,
            next_name: 0,
            successor: false,
            learned: RunSnapshot::default(),
            replicated: RunSnapshot::default(),
            finding: None,
            verdict: None,
            killed: false,
            fenced: false,
            failed_effects: Vec::new(),
            control_closed: false,
            led_elsewhere: false,
            settings,
        }
    }

    /// Makes the supervisor of a run whose leader is gone, from the newest snapshot that this node has.
    pub fn take_over(settings: SupervisorSettings, kernels: KernelBook, snapshot: RunSnapshot) -> Self {
        let mut supervisor = Self::new(settings, kernels);
        supervisor.begin_take_over(snapshot);
        supervisor
    }

    /// Handles one input.
    pub fn on(&mut self, now: Time, input: Input, effects: &mut Vec<Effect>) {
        self.now = now;
        match input {
            Input::Request { id, request } => self.hold_request(id, request),
            _ if self.phase == Phase::Over => {}
            Input::Tick => {}
            Input::Node { node, event } => self.node_event(node, event),
            Input::NodeJoined { host, workers, .. } => self.journal(EventKind::NodeJoined { host, workers }),
            Input::NodeLost { node, host, reason } => {
                self.journal(EventKind::NodeLost { host: host.clone(), reason: reason.clone() });
                self.lose_node(node, &host, &reason);
            }
            Input::MembershipFormed { epoch, members } => self.membership_formed(epoch, &members),
            Input::MembershipReopened => {
                self.nodes.reopened();
                if self.runs_programs() { self.group_left() } else { self.out.push(Effect::RejoinMembership) }
            }
            Input::MembershipOver(end) => self.membership_over(end),
            // Workers go on while nodes come and go.
            Input::Waiting { .. } if self.phase.is_under_way() => {}
            Input::Waiting { reason } => self.journal(EventKind::Waiting { reason }),
            Input::RunDirAcquired(result) => self.run_dir_acquired(result),
            Input::CheckpointFound(result) => self.checkpoint_found(result),
            Input::CheckpointSetAside(result) => self.checkpoint_set_aside(result),
            Input::CommitEnded { step, result } => {
                self.ledger.commit_ended(step, result, now);
                self.extend_commits();
            }
            Input::RoomMade { removed } => self.ledger.room_made(removed, now),
            Input::LogDirMade { round, error } => self.log_dir_made(round, error),
            Input::ProgramDigest { digest } => self.program_digest(digest),
            Input::StoreClients { seen } => self.store_clients(seen),
            Input::HandedOff => self.handed_off(),
            Input::EffectFailed { effect, error } => self.effect_failed(effect, &error),
        }
        self.act_on_ledger();
        effects.append(&mut self.out);
    }

    /// Decides what follows from the inputs that were handled and from the time. Call it once after each batch of inputs, and once
    /// before the first.
    pub fn settle(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.now = now;
        loop {
            self.time_up();
            self.serve_requests();
            self.act_on_ledger();
            if !self.advance() {
                break;
            }
        }
        self.act_on_ledger();
        self.replicate();
        effects.append(&mut self.out);
    }

    /// Returns the time of the next `Tick`, which is after the last `settle`.
    pub fn deadline(&self) -> Option<Time> {
        if self.phase == Phase::Over {
            return None;
        }
        let worker = if self.phase.is_under_way() { self.workers.deadline() } else { None };
        let stop = self.stop_by.filter(|_| !self.phase.is_last());
        let silence = self.nodes.silence_check(self.settings.agent_silence_max);
        let requests = self.requests.deadline();
        [
            self.phase_deadline(),
            worker,
            stop,
            self.hang_check(),
            self.round.inquiry.as_ref().filter(|_| self.phase.is_under_way()).map(|inquiry| inquiry.until),
            self.next_spare(),
            self.next_look(),
            silence,
            requests,
            self.finding,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Does what is due in the present phase; returns whether more may be.
    fn advance(&mut self) -> bool {
        self.dismiss_left_nodes();
        self.drain_as_was_asked();
        match self.phase.clone() {
            Phase::TakingOver { .. } | Phase::Over => false,
            Phase::Gathering { .. } => self.gather(),
            Phase::Loading { asked, .. } => self.load(&asked),
            Phase::Starting | Phase::Running | Phase::Regrouping { .. } | Phase::Saving { .. } => self.work(),
            Phase::Halting { .. } => self.halt(),
            Phase::Deciding { .. } => self.decide(),
            Phase::Seating { kept, .. } => self.seat(kept),
            Phase::Paused { since } => self.stay_paused(since),
            Phase::Stopping { .. } => self.end_stopping(),
            Phase::HandingOff { handed_off, .. } => self.end_hand_off(handed_off),
            Phase::Closing { .. } => self.end_closing(),
        }
    }

    /// Returns whether survivors keep their state.
    pub(super) fn reforms(&self) -> bool {
        self.settings.run.on_failure == Recovery::Reform
    }

    /// Returns whether the workers are to save and end.
    pub(super) fn is_stopping(&self) -> bool {
        self.stop.is_some() || self.giving_up.is_some()
    }

    /// Returns whether nothing but the end of the run follows.
    pub(super) fn is_ending(&self) -> bool {
        self.verdict.is_some() || self.killed || self.phase.is_ending()
    }

    /// Returns whether there is a run that another node could take over.
    pub(super) fn has_begun(&self) -> bool {
        self.successor || self.record.rounds > 0
    }

    /// Writes an event, unless another leader may write there.
    pub(super) fn journal(&mut self, what: EventKind) {
        self.write(Effect::Journal(what));
    }

    pub(super) fn warn(&mut self, message: String) {
        self.journal(EventKind::Warned { message });
    }

    /// Asks for an effect on disk, unless another leader may write there.
    pub(super) fn write(&mut self, effect: Effect) {
        if !self.fenced {
            self.out.push(effect);
        }
    }

    pub(super) fn send(&mut self, node: NodeIndex, command: NodeCommand) {
        if let Some(entry) = self.nodes.get(node) {
            self.out.push(Effect::Send { node: entry.id, command });
        }
    }

    pub(super) fn send_all(&mut self, command: &NodeCommand) {
        let send = |node| Effect::Send { node, command: command.clone() };
        self.out.extend(self.nodes.ids().map(send));
    }

    /// Sends a message to every worker with a seat.
    pub(super) fn broadcast(&mut self, message: ToWorker) {
        self.send_all(&NodeCommand::Broadcast(Box::new(message)));
    }

    /// Sends a command about these workers to each of their nodes.
    pub(super) fn send_workers(
        &mut self,
        workers: impl IntoIterator<Item = WorkerId>,
        command: impl Fn(Vec<WorkerId>) -> NodeCommand,
    ) {
        let mut by_node: BTreeMap<NodeIndex, Vec<WorkerId>> = BTreeMap::new();
        for id in workers {
            if let Some(worker) = self.workers.get(id) {
                by_node.entry(worker.slot.node).or_default().push(id);
            }
        }
        for (node, workers) in by_node {
            self.send(node, command(workers));
        }
    }

    /// Returns a node's host; empty in a run that can have no other.
    pub(super) fn host(&self, node: NodeIndex) -> String {
        let entry = self.nodes.get(node).filter(|_| self.settings.several_nodes);
        entry.map(|entry| entry.host.clone()).unwrap_or_default()
    }

    /// Sends the other nodes what the next leader has to know, if it is new.
    pub(super) fn replicate(&mut self) {
        let newest = RunSnapshot { epoch: self.replicated.epoch, ..self.snapshot() };
        if !self.has_begun() || newest == self.replicated {
            return;
        }
        // Of two snapshots the one with more requests is newer.
        self.requests_handled = self.requests_handled.max(self.replicated.requests + 1);
        self.replicated = self.snapshot();
        let snapshot = self.replicated.clone();
        let send = |node| {
            let command = NodeCommand::ReplicateSnapshot(Box::new(snapshot.clone()));
            Effect::Send { node, command }
        };
        self.out.extend(self.nodes.others().map(|node| node.id).map(send));
    }

    /// Returns what the next leader has to know.
    pub(crate) fn snapshot(&self) -> RunSnapshot {
        let leaving = self.nodes.leaving().iter().filter_map(|node| self.nodes.get(*node));
        let leaving = leaving.map(|node| node.host.clone()).chain(self.to_leave.iter().cloned()).collect();
        RunSnapshot {
            epoch: self.nodes.last_epoch,
            term: self.term,
            round: self.round.number.0,
            attempt: self.round.attempt.clone(),
            restarts: self.record.restarts,
            // A death while the run is paused is charged when it goes on.
            failures: self.budget.failures
                + u32::from(matches!(self.phase, Phase::Paused { .. }) && self.round.cause.is_some()),
            early_failures: self.budget.early_failures,
            proven: self.budget.proven,
            spare_deaths: self.spares.deaths,
            micro_batches: self.micro_batches.0,
            parts: self.batch_parts.0,
            requests: self.requests_handled,
            resized: self.resized,
            paused: self.paused.is_some(),
            leaving,
            stop: self.stop,
            giving_up: self.giving_up.clone(),
            drained: None,
        }
    }

    pub(super) fn effect_failed(&mut self, effect: EffectKind, error: &str) {
        // What the journal does not take cannot be journaled.
        if effect == EffectKind::Journal || self.failed_effects.contains(&effect) {
            return;
        }
        self.failed_effects.push(effect);
        self.warn(error.to_owned());
    }
}

#[cfg(test)]
impl Supervisor {
    /// Returns whether `Finish` was asked for: nothing more happens.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Returns the name of the phase, for traces.
    pub fn phase_name(&self) -> &'static str {
        self.phase.name()
    }

    /// Counts again what the tables count; one sentence when they differ.
    pub(crate) fn recount(&self) -> Result<(), String> {
        self.workers.recount()
    }
}
