//! The beginning of a round: from which state, and who has a seat.

use super::{
    effect::{Effect, EffectKind},
    input::{FindFailure, FoundCheckpoint},
    limits::{FIND_WAIT_MAX, NAME_BITS},
    machine::{LogDir, Supervisor},
    phase::{LoadingStep, Phase},
    round::{RecoveryClock, RoundState},
    seating::{self, NodeIndex, PlannedSeat, SeatCandidates, SeatLimits, Slot, Taker},
    settings::RunJob,
    worker_table::{Seat, Worker, WorkerPlace},
};
use enn_common::{
    event::EventKind,
    id::{Rank, Round, WorkerId},
    wire::{
        message::{Assignment, Standby, StateSource, WorkerTask},
        node_agent::{NodeCommand, SeatFacts, WorkerFlag},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

/// A seat of the round that begins.
#[derive(Debug, Clone, Copy)]
struct GivenSeat {
    rank: Rank,
    slot: Slot,
    worker: WorkerId,
    taker: Taker,
}

/// The round that begins, as its workers are told of it.
struct RoundPlan {
    round: Round,
    attempt: String,
    seats: Vec<GivenSeat>,
    world: u32,
    local_worlds: BTreeMap<NodeIndex, u32>,
    saving: bool,
}

impl RoundPlan {
    fn local_world(&self, node: NodeIndex) -> u32 {
        self.local_worlds.get(&node).copied().unwrap_or(0)
    }
}

/// Returns the workers that keep a seat.
fn kept_by(seats: &[PlannedSeat]) -> BTreeSet<WorkerId> {
    seats.iter().filter_map(PlannedSeat::kept).collect()
}

impl Supervisor {
    /// Nobody has state, and the nodes have to agree first.
    pub(super) fn gather(&mut self) -> bool {
        if self.runs_programs() {
            return self.gather_group();
        }
        if self.is_stopping() {
            self.close();
            return true;
        }
        let may_begin = self.nodes.is_settled() && self.nodes.len() > 0;
        if may_begin {
            self.begin_loading();
        }
        may_begin
    }

    /// Nobody has state; the newest checkpoint is looked for.
    pub(super) fn load(&mut self, asked: &LoadingStep) -> bool {
        if self.is_stopping() && !matches!(asked, LoadingStep::SetAside { .. }) {
            self.note_lost_state();
            self.close();
            return true;
        }
        if *asked == LoadingStep::Writes && self.ledger.is_idle() {
            // Behind the commits, and what of dead attempts is to be removed.
            self.act_on_ledger();
            self.write(Effect::FindCheckpoint);
            let asked = LoadingStep::Find;
            self.phase = Phase::Loading { until: self.now + FIND_WAIT_MAX, asked };
        }
        false
    }

    /// Answer to `FindCheckpoint`.
    pub(super) fn checkpoint_found(&mut self, result: Result<Option<FoundCheckpoint>, FindFailure>) {
        let found = |found: FoundCheckpoint| (found.step, found.path);
        if let Phase::Loading { asked: LoadingStep::Find, .. } = self.phase {
            return match result {
                Ok(newest) => {
                    self.record.checkpoint = newest.map(found);
                    let step = self.record.saved().unwrap_or(0);
                    if self.round.failed_at.is_some() {
                        self.note_recovery(step, None);
                    }
                    self.phase = Phase::Seating { check: self.next_check(), kept: false };
                }
                Err(FindFailure { error, none_whole }) => self.checkpoints_unusable(error, none_whole),
            };
        }
        if self.finding.take().is_none() {
            return;
        }
        match result {
            Ok(newest) => self.record.checkpoint = newest.map(found),
            // The workers may have the state.
            Err(FindFailure { none_whole: true, .. }) => {}
            Err(FindFailure { error, .. }) => self.abdicate(&error),
        }
    }

    /// The next round begins as soon as all are here and the devices of its seats are free.
    pub(super) fn seat(&mut self, kept: bool) -> bool {
        if self.paused.is_some() && !self.is_stopping() && self.workers.all_stand() {
            self.go_on();
            return true;
        }
        if !self.has_log_dir() || !self.may_begin() || !self.workers.all_stand() {
            return false;
        }
        self.workers.settle_shares();
        if self.is_stopping() {
            self.begin_saving();
            return true;
        }
        if kept && self.workers.furthest().is_none() {
            // The last of them died meanwhile.
            self.record.restarts += 1;
            self.begin_loading();
            return true;
        }
        if let Some(reason) = self.no_size() {
            self.cannot_go_on(reason);
            return true;
        }
        if !kept {
            self.dismiss_parked();
        }
        let limits = self.seat_limits();
        let (seats, with_leavers) = self.plan_seats(&limits);
        let needed = limits.fewest.min(self.full_world());
        if seats.is_empty() || (seats.len() as u64) < u64::from(needed) {
            self.cannot_seat(seats.len(), needed);
            return true;
        }
        let is_device_held =
            |seat: &PlannedSeat| !matches!(seat.taker, Taker::Kept(_)) && self.workers.is_being_left(seat.slot);
        if seats.iter().any(is_device_held) {
            return false;
        }
        if kept {
            self.note_recovery_from(&seats);
        }
        self.begin(seats, false);
        self.round.with_leavers = with_leavers;
        true
    }

    /// Returns whether the directory for the logs of the next round is there. It comes before anybody is told of the round: a successor, and
    /// a launch that comes after this one, count these directories.
    fn has_log_dir(&mut self) -> bool {
        let round = self.next_round;
        match self.log_dir.filter(|dir| dir.round == round) {
            Some(dir) => dir.made,
            None => {
                self.log_dir = Some(LogDir { round, made: false });
                self.write(Effect::MakeLogDir { round });
                false
            }
        }
    }

    /// Answer to `MakeLogDir`. Without the directory the round begins all the same.
    pub(super) fn log_dir_made(&mut self, round: u64, error: Option<String>) {
        self.log_dir.iter_mut().filter(|dir| dir.round == round).for_each(|dir| dir.made = true);
        error.iter().for_each(|error| self.effect_failed(EffectKind::MakeLogDir, error));
    }

    fn cannot_seat(&mut self, seats: usize, needed: u32) {
        self.cannot_go_on(format!(
            "{needed} workers are needed, and there are devices for {seats}: processes that cannot be killed hold others"
        ));
    }

    fn cannot_go_on(&mut self, reason: String) {
        self.journal(EventKind::GaveUp { reason: reason.clone() });
        self.giving_up.get_or_insert(reason);
        self.save_before_failing();
    }

    /// Returns how many seats there are, and where.
    pub(super) fn seat_limits(&self) -> SeatLimits {
        // A run that was not to go on with fewer is not to when it was resized, or has lost a node, either.
        let fixed = self.settings.run.workers_min >= self.settings.workers;
        let fewest = if fixed { self.world } else { self.settings.run.workers_min.min(self.world) };
        let rooms = seating::spread(&self.nodes.rooms(), self.world);
        SeatLimits {
            fewest,
            most: self.world,
            rooms,
            blocked: self.workers.blocked(),
            left_out: self.nodes.left_out(),
            spares_are_bound: self.settings.run.spares_are_bound,
            parts: self.parts_to_share(),
        }
    }

    /// Returns the seats of the next round, and whether workers that leave are among them. Workers that stand and get none are dismissed.
    fn plan_seats(&mut self, limits: &SeatLimits) -> (Vec<PlannedSeat>, bool) {
        let all = self.workers.candidates(Worker::stands);
        let mut candidates = all.clone();
        if !candidates.warm.is_empty() && candidates.kept.len() > 1 {
            let evicted = self.round.evicted;
            candidates.kept.retain(|kept| Some(kept.worker) != evicted);
        }
        self.drop_leaving(&mut candidates);
        candidates.kept.retain(|kept| !limits.left_out.contains(&kept.slot));
        let standing = candidates.kept.clone();
        let mut seats = seating::give(&candidates, limits);
        let kept = kept_by(&seats);
        let is_shared = self.workers.seated().any(|worker| worker.seat().is_some_and(|seat| seat.share.is_some()));
        let kept_step = self.workers.whole_step(|worker| kept.contains(&worker.id));
        // Once: workers that are ahead of the others after that, too, would never leave.
        let may_wait = is_shared || (self.round.evicted.is_none() && !self.round.with_leavers);
        let with_leavers = may_wait && kept_step < self.workers.whole_step(|_| true);
        if with_leavers {
            // Who leaves has what the others lack: all that keep a part of the state sit once more, and leave when it is put together. A
            // straggler leaves all the same: the step that it is ahead is done again.
            candidates.kept = all.kept;
            candidates.kept.retain(|kept| self.workers.get(kept.worker).is_some_and(|one| one.kept_step().is_some()));
            let most = u32::try_from(candidates.kept.len()).unwrap_or(u32::MAX);
            seats = seating::give(&candidates, &SeatLimits { most: limits.most.max(most), ..limits.clone() });
        }
        self.park_all_but(&seats, &standing);
        self.unseat_all_but(&seats);
        (seats, with_leavers)
    }

    /// Takes out those on nodes whose workers are to leave.
    pub(super) fn drop_leaving(&self, candidates: &mut SeatCandidates) {
        let leaving = self.nodes.leaving();
        for list in [&mut candidates.kept, &mut candidates.warm, &mut candidates.warming] {
            list.retain(|candidate| !leaving.contains(&candidate.slot.node));
        }
    }

    /// Dismisses the workers that stand and have none of these seats.
    fn unseat_all_but(&mut self, seats: &[PlannedSeat]) {
        let kept = kept_by(seats);
        let standing = self.workers.seated().filter(|worker| worker.stands() && !kept.contains(&worker.id));
        self.unseat(standing.map(|worker| worker.id).collect());
    }

    /// Dismisses workers that stand and lose their seats.
    pub(super) fn unseat(&mut self, ids: Vec<WorkerId>) {
        let round = self.round.number;
        for id in ids {
            self.dismiss(vec![id]);
            self.workers.edit(id, |worker| {
                if let Some(rank) = worker.rank() {
                    worker.place = WorkerPlace::Dismissed { round, rank };
                }
            });
        }
    }

    /// Workers that keep the whole state are to save it, without a further step, and the run ends.
    pub(super) fn save_and_end(&mut self) {
        self.phase = Phase::Seating { check: self.next_check(), kept: true };
    }

    fn begin_saving(&mut self) {
        if self.runs_scripts() {
            return self.scripts_save_and_end();
        }
        let savers = self.workers.savers();
        if savers.is_empty() {
            self.note_lost_state();
            return self.close();
        }
        let seats = seating::for_savers(&savers);
        self.unseat_all_but(&seats);
        self.note_recovery_from(&seats);
        self.begin(seats, true);
    }

    /// The time from the failure to the next step runs; the state is that of the furthest of these.
    fn note_recovery_from(&mut self, seats: &[PlannedSeat]) {
        let Some((step, furthest)) = self.workers.furthest().filter(|_| self.round.failed_at.is_some()) else { return };
        let from = seats.iter().position(|seat| seat.kept() == Some(furthest));
        self.note_recovery(step, from.and_then(|rank| u32::try_from(rank).ok()).map(Rank));
    }

    /// The time from the failure to the next step runs. A failure before that step prolongs it.
    fn note_recovery(&mut self, step: u64, from_rank: Option<Rank>) {
        let before = self.recovering;
        let since = before.map(|before| before.since).or(self.round.failed_at).unwrap_or(self.now);
        let lost_steps = self.round.reached.saturating_sub(step).max(before.map_or(0, |before| before.lost_steps));
        self.recovering = Some(RecoveryClock { since, lost_steps, from_rank });
    }

    /// Begins a round with these seats.
    fn begin(&mut self, seats: Vec<PlannedSeat>, saving: bool) {
        let furthest = self.workers.furthest().map(|(step, _)| step);
        let step = furthest.or(self.record.saved()).unwrap_or(0);
        let plan = self.round_plan(seats, saving);
        self.record.rounds += 1;
        self.successor = false;
        self.ledger.begin_round(plan.attempt.clone(), plan.seats.len());
        self.act_on_ledger();
        if self.round.regroup_flag {
            // Before they are told of the round: a flag that is still there would make them leave it.
            self.flag_seated(WorkerFlag::Regroup, false);
        }
        // What the pages show before it begins is no progress of this round.
        let base = step.max(self.workers.pages_reached());
        // All savers hold the state, so that others can save it without one that hangs: they need time for that.
        let left = self.grace_left();
        let patience = if plan.seats.len() > 1 { left / 2 } else { left };
        self.phase = if saving { Phase::Saving { patience } } else { Phase::Starting };
        self.round = RoundState {
            world: plan.seats.len(),
            base,
            survivors: furthest.is_some(),
            split: self.micro_batches.split(),
            hang_check: self.now + self.patience().unwrap_or_default(),
            ..RoundState::new(plan.round, plan.attempt.clone(), self.now)
        };
        self.stragglers.round_began();
        self.assign_seats(&plan);
        self.journal_begin(&plan, furthest.or(self.record.saved()));
        for seat in &plan.seats {
            match seat.taker {
                Taker::New => self.start(seat, &plan),
                Taker::Kept(_) | Taker::Spare(_) => self.take_seat(seat),
            }
        }
    }

    fn round_plan(&mut self, seats: Vec<PlannedSeat>, saving: bool) -> RoundPlan {
        let round = Round(self.next_round);
        self.next_round += 1;
        // Unique among all starts in this run directory, so that a dead attempt's files are never taken for a living one's.
        let attempt = format!("{round}-{}", self.settings.launch);
        let mut local_worlds = BTreeMap::new();
        let mut given = Vec::with_capacity(seats.len());
        for (rank, PlannedSeat { slot, taker }) in (0..).zip(seats) {
            let worker = match taker {
                Taker::Kept(worker) | Taker::Spare(worker) => worker,
                Taker::New => self.new_name(),
            };
            *local_worlds.entry(slot.node).or_default() += 1;
            given.push(GivenSeat { rank: Rank(rank), slot, worker, taker });
        }
        let world = u32::try_from(given.len()).unwrap_or(u32::MAX);
        RoundPlan { round, attempt, seats: given, world, local_worlds, saving }
    }

    /// Returns a name that no worker ever had.
    pub(super) fn new_name(&mut self) -> WorkerId {
        let name = WorkerId((self.term << NAME_BITS) | self.next_name);
        self.next_name += 1;
        name
    }

    /// Tells every node of the round.
    fn assign_seats(&mut self, plan: &RoundPlan) {
        let snapshot = self.snapshot();
        self.replicated = snapshot.clone();
        let mut by_node: BTreeMap<NodeIndex, BTreeMap<WorkerId, Assignment>> =
            self.nodes.indices().map(|node| (node, BTreeMap::new())).collect();
        let common = self.assignment(plan);
        for seat in &plan.seats {
            let assignment = Assignment {
                rank: seat.rank.0,
                local_rank: seat.slot.index.0,
                local_world_size: plan.local_world(seat.slot.node),
                ..common.clone()
            };
            by_node.entry(seat.slot.node).or_default().insert(seat.worker, assignment);
        }
        for (node, seats) in by_node {
            let round = plan.round.0;
            self.send(node, NodeCommand::BeginRound { round, seats, snapshot: Box::new(snapshot.clone()) });
        }
    }

    /// Returns what all assignments have in common. Each node fills in the address of the store and its number of threads.
    fn assignment(&self, plan: &RoundPlan) -> Assignment {
        let attempt = plan.attempt.clone();
        let task = match &self.settings.run.job {
            _ if self.runs_scripts() => WorkerTask::Script { attempt, source: self.state_source(plan) },
            RunJob::Train { .. } if plan.saving => WorkerTask::Save { attempt },
            RunJob::Train { staged, init, .. } => {
                let newest = self.record.checkpoint.as_ref().map(|(_, path)| path.clone());
                WorkerTask::Train { staged: staged.clone(), resume: newest.or_else(|| init.clone()), attempt }
            }
            RunJob::Predict { staged, checkpoint, out, chunk_rows, done, precision, .. } => {
                let mut done: Vec<_> = done.iter().copied().chain(self.record.predicted()).collect();
                done.sort_unstable();
                let staged = staged.clone();
                let checkpoint = checkpoint.clone();
                let out = out.clone();
                WorkerTask::Predict { staged, checkpoint, out, chunk_rows: *chunk_rows, done, precision: *precision }
            }
            RunJob::Init { meta } => WorkerTask::Init { meta: meta.clone(), attempt },
            // Programs are given no assignments.
            RunJob::Program => WorkerTask::Save { attempt },
        };
        Assignment {
            round: plan.round.0,
            rank: 0,
            world_size: plan.world,
            local_rank: 0,
            local_world_size: 0,
            store_host: String::new(),
            store_port: 0,
            device: self.settings.device.into(),
            threads: self.settings.threads,
            run_dir: self.settings.run.run_dir.clone(),
            kernels: self.kernels.book.quarantined(),
            split: self.micro_batches.split(),
            task,
        }
    }

    /// Returns who has the state with which the round begins.
    fn state_source(&self, plan: &RoundPlan) -> Option<StateSource> {
        let (step, furthest) = self.workers.furthest()?;
        let seat = plan.seats.iter().find(|seat| seat.worker == furthest)?;
        Some(StateSource { rank: seat.rank.0, step })
    }

    fn journal_begin(&mut self, plan: &RoundPlan, resume_step: Option<u64>) {
        let round = plan.round;
        let restart = self.record.restarts;
        if self.settings.several_nodes {
            let nodes = self.nodes.briefs();
            let master = self.settings.store.clone();
            self.journal(EventKind::RoundFormed { round, restart, master, nodes });
        }
        self.journal(EventKind::RoundStarted { round, world_size: plan.world, attempt: restart, resume_step });
    }

    /// A living process takes its seat.
    fn take_seat(&mut self, seat: &GivenSeat) {
        let GivenSeat { rank, slot, worker, taker } = *seat;
        let round = self.round.number;
        let now = self.now;
        let pid = self.workers.edit(worker, |worker| {
            let stateful = worker.seat().is_some_and(|seat| seat.stateful);
            worker.slot = slot;
            worker.parked = false;
            worker.place = WorkerPlace::Seat(Seat::new(round, rank, stateful, now));
            worker.pid
        });
        let logs = self.logs().join(round.to_string()).join(rank.to_string());
        self.send(slot.node, NodeCommand::LinkLogs { worker, logs });
        // The start of a process that is not known yet is journaled when it is.
        if let Some(pid) = pid.flatten() {
            let spare = matches!(taker, Taker::Spare(_));
            let local_rank = slot.index;
            let host = self.host(slot.node);
            self.journal(EventKind::SeatTaken { round, rank, local_rank, pid, spare, host });
        }
    }

    /// Starts a process for a seat.
    fn start(&mut self, seat: &GivenSeat, plan: &RoundPlan) {
        let GivenSeat { rank, slot, worker, .. } = *seat;
        let round = plan.round;
        let place = WorkerPlace::Seat(Seat::new(round, rank, false, self.now));
        let local_rank = slot.index.0;
        let world = plan.world;
        let local_world = plan.local_world(slot.node);
        let node_rank = plan.local_worlds.keys().position(|node| *node == slot.node);
        let facts = SeatFacts {
            round: round.0,
            rank: rank.0,
            local_rank,
            world,
            local_world,
            node_rank: node_rank.and_then(|rank| u32::try_from(rank).ok()).unwrap_or(0),
            nodes: u32::try_from(plan.local_worlds.len()).unwrap_or(u32::MAX),
            restarts: self.record.restarts,
        };
        let logs = self.logs().join(round.to_string()).join(rank.to_string());
        // Survivors meet nobody but who attaches.
        let has_to_connect = !self.runs_scripts() || self.round.survivors;
        self.spawn(Worker { has_to_connect, ..Worker::new(worker, slot, place, self.now) }, Some(facts), logs);
    }

    /// Has a node start a process.
    pub(super) fn spawn(&mut self, worker: Worker, seat: Option<SeatFacts>, logs: PathBuf) {
        let Slot { node, .. } = worker.slot;
        let standby = self.standby(worker.slot).map(Box::new);
        let id = worker.id;
        self.nodes.expect_reports(node, self.now);
        self.workers.add(worker);
        self.send(node, NodeCommand::Start { worker: id, seat, standby, logs });
    }

    pub(super) fn logs(&self) -> PathBuf {
        self.settings.run.run_dir.join("logs")
    }

    /// Returns what a process without a seat prepares for. When its round is over before it connects, a worker with one stands by, too.
    fn standby(&self, slot: Slot) -> Option<Standby> {
        let staged = match &self.settings.run.job {
            RunJob::Train { staged, .. } => staged.clone(),
            RunJob::Program => PathBuf::new(),
            RunJob::Predict { .. } | RunJob::Init { .. } => return None,
        };
        self.reforms().then(|| Standby {
            device: self.settings.device.into(),
            local_rank: slot.index.0,
            world_size: self.world,
            store_host: String::new(),
            store_port: 0,
            threads: self.settings.threads,
            run_dir: self.settings.run.run_dir.clone(),
            staged,
        })
    }

    /// Notes that the state is lost that a run that ends had reached.
    pub(super) fn note_lost_state(&mut self) {
        if Some(self.record.reached) > self.record.saved() && self.record.reached > 0 {
            let shared = self.workers.seated().any(|worker| worker.seat().is_some_and(|seat| seat.share.is_some()));
            let why = if shared {
                "the workers that are left do not keep all shares of it"
            } else {
                "no worker is left that keeps it"
            };
            let cause = self.round.cause.as_deref().and_then(|cause| cause.lines().next());
            self.record.lost_state = Some(cause.map_or_else(|| why.to_owned(), |cause| format!("{why} ({cause})")));
        }
    }
}
