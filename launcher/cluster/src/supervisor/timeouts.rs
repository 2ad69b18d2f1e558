//! What is due when time has passed.

use super::{
    hang::{self, HangFinding, Pulse},
    input::Time,
    limits::{
        COMMIT_WAIT_MAX, CONNECT_WAIT_MIN, FIND_WAIT_MAX, HALT_WAIT_MAX, KILLED_WAIT_MAX, STACKS_READ_MAX,
        STACKS_WAIT_MAX, TAKE_OVER_WAIT_MAX,
    },
    machine::Supervisor,
    phase::Phase,
    round::HangInquiry,
    seating::NodeIndex,
    worker_table::{Overdue, Worker, WorkerPlace},
};
use enn_common::{
    event::EventKind,
    id::{Round, WorkerId},
    wire::{
        control::Phase as WorkerPhase,
        node_agent::{NodeCommand, WorkerEvidence},
    },
};
use std::{collections::BTreeSet, path::PathBuf};

/// A hang is looked for this often within its limit at most.
const HANG_CHECKS: u32 = 16;

fn checkpoints_not_found() -> String {
    format!("no answer within {} s; does the disk hang?", FIND_WAIT_MAX.as_secs())
}

impl Supervisor {
    pub(super) fn time_up(&mut self) {
        self.lose_silent_nodes();
        if self.stop_by.is_some_and(|at| at <= self.now) && !self.phase.is_last() {
            let grace = self.settings.run.grace.as_secs_f64();
            self.warn(format!("workers did not end within {grace:.1} s and were killed"));
            self.note_unsaved();
            self.kill_all();
        }
        if self.finding.is_some_and(|until| until <= self.now) {
            self.finding = None;
            self.abdicate(&checkpoints_not_found());
        }
        if self.phase.is_under_way() {
            self.look_for_stragglers();
            self.end_overdue();
            self.find_hang();
            self.end_inquiry();
        }
        if self.phase_deadline().is_some_and(|at| at <= self.now) {
            self.phase_over();
        }
    }

    /// Returns when the present phase is over.
    pub(super) fn phase_deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Starting | Phase::Running | Phase::Saving { .. } | Phase::Paused { .. } | Phase::Over => None,
            Phase::TakingOver { until }
            | Phase::Loading { until, .. }
            | Phase::Regrouping { until }
            | Phase::Halting { until, .. }
            | Phase::Stopping { until, .. }
            | Phase::HandingOff { until, .. } => Some(*until),
            Phase::Gathering { check } | Phase::Deciding { check } | Phase::Seating { check, .. } => Some(*check),
            Phase::Closing { workers_until, commits_until } => {
                Some(if self.workers.are_gone() { *commits_until } else { *workers_until })
            }
        }
    }

    /// The time of the present phase is over.
    fn phase_over(&mut self) {
        let check = self.next_check();
        match self.phase.clone() {
            Phase::TakingOver { .. } => {
                let limit = TAKE_OVER_WAIT_MAX.as_secs();
                self.abdicate(&format!("its directory was not to be had within {limit} s"));
            }
            // Others have deadlines there; it is only looked again.
            Phase::Gathering { .. } => self.phase = Phase::Gathering { check },
            Phase::Deciding { .. } => self.phase = Phase::Deciding { check },
            Phase::Seating { kept, .. } => {
                self.give_up_dismissed();
                self.phase = Phase::Seating { check, kept };
            }
            Phase::Loading { .. } => self.checkpoints_unusable(checkpoints_not_found(), false),
            Phase::Regrouping { .. } => self.leave("the workers did not leave it together".into()),
            Phase::Halting { killed: false, .. } => self.kill_those_who_stay(),
            Phase::Halting { killed: true, .. } => {
                self.give_up_workers(self.workers.not_standing().map(|worker| worker.id).collect());
                self.phase = Phase::Halting { until: self.now + KILLED_WAIT_MAX, killed: true };
            }
            Phase::Stopping { killed: false, .. } => {
                self.kill(self.stopping());
                self.phase = Phase::Stopping { until: self.now + KILLED_WAIT_MAX, killed: true };
            }
            Phase::Stopping { killed: true, .. } => {
                self.give_up_workers(self.stopping());
                self.phase = Phase::Stopping { until: self.now + KILLED_WAIT_MAX, killed: true };
            }
            Phase::HandingOff { .. } => {
                self.give_up_workers(self.workers.living());
                self.phase = Phase::HandingOff { until: self.now + KILLED_WAIT_MAX, handed_off: true };
            }
            Phase::Closing { commits_until, .. } if !self.workers.are_gone() => {
                self.give_up_workers(self.workers.living());
                self.phase = Phase::Closing { workers_until: self.now + KILLED_WAIT_MAX, commits_until };
            }
            Phase::Closing { .. } => {
                let wait = self.commit_wait().as_secs_f64();
                let dir = self.settings.run.run_dir.display();
                let lost = || format!("the disk of {dir} did not take it within {wait:.0} s; does it hang?");
                self.record.lost_state.get_or_insert_with(lost);
                self.finish();
            }
            Phase::Starting | Phase::Running | Phase::Saving { .. } | Phase::Paused { .. } | Phase::Over => {}
        }
    }

    /// Ends workers that did not do in time what they had to.
    fn end_overdue(&mut self) {
        for (id, overdue) in self.workers.overdue(self.now) {
            let Some(worker) = self.workers.get(id) else { continue };
            let rank = worker.rank();
            let is_seated = matches!(worker.place, WorkerPlace::Seat(_));
            if overdue == Overdue::DoesNotEnd {
                let name = rank.map_or_else(|| "a spare".to_owned(), |rank| format!("rank {rank}"));
                self.warn(format!("{name} finished but did not end; it was killed"));
                self.workers.edit(id, |worker| worker.forgiven = true);
                self.kill(vec![id]);
                continue;
            }
            self.workers.edit(id, |worker| _ = worker.error.get_or_insert_with(|| overdue.words()));
            if is_seated { self.fail_living(id) } else { self.send_away(id) }
        }
    }

    /// Returns when the pages are looked at for a worker that hangs.
    pub(super) fn hang_check(&self) -> Option<Time> {
        if self.runs_programs() {
            return self.group_hangs_at();
        }
        let limit = self.patience().filter(|_| self.round.inquiry.is_none())?;
        let check = Some(self.round.hang_check).filter(|_| self.phase.is_under_way())?;
        if matches!(self.phase, Phase::Starting | Phase::Saving { .. }) {
            // While the round starts a newcomer may hang though others come further.
            Some(check)
        } else if self.workers.all_ready() {
            Some(check.max(self.round.progress_at + limit))
        } else {
            // Scripts attach, and become ready, while others work.
            self.runs_scripts().then_some(check)
        }
    }

    /// Returns how long workers have until they are killed, when they are told to stop now.
    pub(super) fn grace_left(&self) -> Time {
        self.stop_by.map_or(self.settings.run.grace, |by| by.saturating_sub(self.now))
    }

    /// Returns the time without a sign of life after which a worker is taken for dead.
    pub(super) fn patience(&self) -> Option<Time> {
        let limit = self.settings.run.hang_timeout;
        if let Phase::Saving { patience } = self.phase { Some(limit.unwrap_or(patience).min(patience)) } else { limit }
    }

    /// Finds a worker that hangs when none makes progress, or when one does not become ready.
    fn find_hang(&mut self) {
        if self.runs_programs() {
            return self.find_group_hang();
        }
        if self.hang_check().is_none_or(|at| at > self.now) {
            return;
        }
        let pulses: Vec<Pulse> = self.workers.not_standing().filter_map(|worker| self.pulse(worker)).collect();
        // A saver that writes is as slow as its disk.
        let writes = matches!(self.phase, Phase::Saving { .. }) && pulses.iter().any(Pulse::writes);
        let limit = if writes { self.settings.run.hang_timeout } else { self.patience() };
        let Some(limit) = limit else {
            self.round.hang_check = self.now + self.settings.run.grace;
            return;
        };
        // A report may be here before the page that shows the same progress.
        let moving = (self.round.progress_at + limit).saturating_sub(self.now).max(self.import_time_left(limit));
        match hang::find(&pulses, moving, limit) {
            HangFinding::Hung(pulse) => {
                self.round.hang_check = self.now + limit;
                self.inquire(pulse);
            }
            HangFinding::WaitFor(wait) => self.round.hang_check = self.now + wait.max(limit / HANG_CHECKS),
        }
    }

    /// Has the nodes write what the workers of the round do, before one of them is killed because it hangs.
    fn inquire(&mut self, hung: Pulse) {
        let awaited: BTreeSet<NodeIndex> = self.workers.not_standing().map(|worker| worker.slot.node).collect();
        let round = self.round.number.0;
        for node in &awaited {
            self.send(*node, NodeCommand::CollectStacks { round, limit: STACKS_READ_MAX });
        }
        self.round.inquiry = Some(HangInquiry { hung, until: self.now + STACKS_WAIT_MAX, awaited, stacks: None });
    }

    /// Answer to `CollectStacks`.
    pub(super) fn stacks_written(&mut self, node: NodeIndex, round: Round, dir: PathBuf, summary: Vec<String>) {
        let Some(inquiry) = self.round.inquiry.as_mut().filter(|_| round == self.round.number) else { return };
        inquiry.awaited.remove(&node);
        inquiry.stacks = Some(dir);
        if self.runs_scripts() {
            summary.into_iter().for_each(|line| self.warn(line));
        }
    }

    /// Takes the worker that hangs for dead, once the stacks are there. A run that is to stop does not wait for them.
    fn end_inquiry(&mut self) {
        let Some(inquiry) = &mut self.round.inquiry else { return };
        inquiry.awaited.retain(|node| self.nodes.get(*node).is_some());
        if !inquiry.awaited.is_empty() && self.now < inquiry.until && self.stop.is_none() && self.giving_up.is_none() {
            return;
        }
        let Some(HangInquiry { hung, stacks, .. }) = self.round.inquiry.take() else { return };
        let hangs = self.workers.not_standing().any(|worker| worker.id == hung.worker && self.pulse(worker).is_some());
        if hangs {
            self.end_hung(hung, stacks);
        }
    }

    /// Returns what the page of a worker says. One that has not connected shows no progress since its start; one that need not says nothing.
    fn pulse(&self, worker: &Worker) -> Option<Pulse> {
        if worker.connected.is_none() && !worker.has_to_connect {
            return None;
        }
        let seat = worker.seat().filter(|_| worker.lives() && !worker.ending)?;
        let node = worker.slot.node;
        let last_event_at = if node == NodeIndex::OWN { self.now } else { self.nodes.get(node)?.last_event_at };
        let mut idle = worker.idle(last_event_at, self.now);
        if worker.connected.is_none() {
            // It loads libraries, perhaps from a slow disk: that takes its time however short the limit for steps is.
            let limit = self.patience().unwrap_or_default();
            idle = idle.saturating_sub(CONNECT_WAIT_MIN.saturating_sub(limit));
        }
        let ready = seat.ready.is_some();
        Some(Pulse { worker: worker.id, phase: worker.page.phase, step: worker.page.step, idle, ready })
    }

    /// Returns how long scripts that have not attached yet may keep those waiting that have: they still import.
    fn import_time_left(&self, limit: Time) -> Time {
        let limit = limit.max(CONNECT_WAIT_MIN);
        let importing = self.workers.seated().filter(|worker| worker.lives() && worker.connected.is_none());
        let left = importing.map(|worker| limit.saturating_sub(worker.idle(self.now, self.now)));
        left.filter(|_| self.runs_scripts()).max().unwrap_or_default()
    }

    fn end_hung(&mut self, pulse: Pulse, stacks: Option<PathBuf>) {
        let Pulse { worker, phase, step, idle, ready } = pulse;
        let seconds = idle.as_secs_f64();
        self.journal(EventKind::HangDetected { round: self.round.number, seconds, stacks });
        let what = phase.words();
        let alone = !ready && !matches!(phase, WorkerPhase::Collective | WorkerPhase::Rendezvous);
        let error = if alone {
            format!("made no progress for {seconds:.0} s while {what}, before it was ready")
        } else {
            format!("made no progress for {seconds:.0} s, nor did the others, while {what} (step {step})")
        };
        self.workers.edit(worker, |worker| _ = worker.error.get_or_insert(error));
        // It would not hear a SIGTERM.
        self.kill(vec![worker]);
        self.workers.edit(worker, |worker| worker.ending = true);
        self.fail_living(worker);
    }

    /// The grace of a run that is to stop is over: notes the rank that has not saved its state.
    fn note_unsaved(&mut self) {
        if let Phase::Saving { .. } = self.phase
            && let Some(rank) = self.workers.not_standing().find_map(Worker::rank)
        {
            let grace = self.settings.run.grace.as_secs_f64();
            self.record.lost_state = Some(format!("rank {rank} kept it and did not save it within {grace:.0} s"));
        }
    }

    /// Kills the workers that did not leave the round in time.
    fn kill_those_who_stay(&mut self) {
        let late: Vec<WorkerId> = self.workers.not_standing().map(|worker| worker.id).collect();
        let limit = HALT_WAIT_MAX.as_secs();
        for id in &late {
            self.workers.edit(*id, |worker| {
                worker.forgiven |= worker.done.is_some();
                worker.error.get_or_insert_with(|| format!("did not leave the round within {limit} s of its end"));
            });
        }
        self.kill(late);
        self.phase = Phase::Halting { until: self.now + KILLED_WAIT_MAX, killed: true };
    }

    /// Nobody waits for workers any more that lost their seat long ago.
    fn give_up_dismissed(&mut self) {
        let dismissed = |worker: &Worker| worker.ending || !worker.lives();
        let mut late = self.workers.living();
        late.retain(|id| self.workers.get(*id).is_some_and(dismissed));
        self.give_up_workers(late);
    }

    /// Goes on without workers whose nodes should have reported their end, or that they cannot be killed.
    fn give_up_workers(&mut self, ids: Vec<WorkerId>) {
        for id in ids {
            match self.workers.get(id) {
                Some(worker) if worker.lives() => self.worker_unkillable(id, worker.pid.unwrap_or(0)),
                Some(_) => self.worker_settled(id, WorkerEvidence::default()),
                None => {}
            }
        }
    }

    /// Returns the longest wait for commits under way, counted from the last progress of one. A run that is to stop waits no longer for a
    /// disk that hangs than for its workers.
    fn commit_wait(&self) -> Time {
        if self.is_stopping() { self.settings.run.grace.min(COMMIT_WAIT_MAX) } else { COMMIT_WAIT_MAX }
    }

    /// Commits under way have come further: they get their time anew.
    pub(super) fn extend_commits(&mut self) {
        let until = self.now + self.commit_wait();
        if let Phase::Closing { commits_until, .. } = &mut self.phase {
            *commits_until = until;
        }
    }

    /// Returns the phase in which all workers end, and commits under way.
    pub(super) fn closing(&self) -> Phase {
        let workers_until = self.now + KILLED_WAIT_MAX;
        Phase::Closing { workers_until, commits_until: self.now + self.commit_wait() }
    }
}
