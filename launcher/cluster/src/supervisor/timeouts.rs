//! What is due when time has passed.

use super::{
    hang::{self, HangFinding, Pulse},
    input::Time,
    limits::{COMMIT_WAIT_MAX, FIND_WAIT_MAX, HALT_WAIT_MAX, KILLED_WAIT_MAX},
    machine::Supervisor,
    phase::Phase,
    seating::NodeIndex,
    words,
    worker_table::{Overdue, Worker, WorkerPlace},
};
use enn_common::{
    event::EventKind,
    id::WorkerId,
    wire::{control::Phase as WorkerPhase, node_agent::WorkerEvidence},
};

/// A hang is looked for this often within its limit at most.
const HANG_CHECKS: u32 = 16;

impl Supervisor {
    /// Does what is due.
    pub(super) fn time_up(&mut self) {
        self.lose_silent_nodes();
        if self.stop_by.is_some_and(|at| at <= self.now) && !self.phase.is_last() {
            self.warn(words::not_ended_in_time(self.settings.grace));
            self.kill_all();
        }
        if self.finding.is_some_and(|until| until <= self.now) {
            self.finding = None;
            self.abdicate(&words::checkpoints_not_found(FIND_WAIT_MAX));
        }
        if self.phase.is_under_way() {
            self.look_for_stragglers();
            self.end_overdue();
            self.find_hang();
        }
        if self.phase_deadline().is_some_and(|at| at <= self.now) {
            self.phase_over();
        }
    }

    /// Returns when the present phase is over.
    pub(super) fn phase_deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Starting | Phase::Running | Phase::Saving | Phase::Paused { .. } | Phase::Over => None,
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
            Phase::TakingOver { .. } => self.lock_not_taken(),
            // Others have deadlines there; it is only looked again.
            Phase::Gathering { .. } => self.phase = Phase::Gathering { check },
            Phase::Deciding { .. } => self.phase = Phase::Deciding { check },
            Phase::Seating { kept, .. } => {
                self.give_up_dismissed();
                self.phase = Phase::Seating { check, kept };
            }
            Phase::Loading { .. } => self.checkpoints_unusable(words::checkpoints_not_found(FIND_WAIT_MAX), false),
            Phase::Regrouping { .. } => self.leave(words::not_left_together()),
            Phase::Halting { killed: false, .. } => self.kill_those_who_stay(),
            Phase::Halting { killed: true, .. } => {
                let late: Vec<WorkerId> = self.workers.not_standing().map(|worker| worker.id).collect();
                self.give_up_workers(&late);
                self.phase = Phase::Halting { until: self.now + KILLED_WAIT_MAX, killed: true };
            }
            Phase::Stopping { killed: false, .. } => {
                self.kill_living();
                self.phase = Phase::Stopping { until: self.now + KILLED_WAIT_MAX, killed: true };
            }
            Phase::Stopping { killed: true, .. } => {
                self.give_up_living();
                self.phase = Phase::Stopping { until: self.now + KILLED_WAIT_MAX, killed: true };
            }
            Phase::HandingOff { .. } => {
                self.give_up_living();
                self.phase = Phase::HandingOff { until: self.now + KILLED_WAIT_MAX, handed_off: true };
            }
            Phase::Closing { commits_until, .. } if !self.workers.are_gone() => {
                self.give_up_living();
                self.phase = Phase::Closing { workers_until: self.now + KILLED_WAIT_MAX, commits_until };
            }
            Phase::Closing { .. } => {
                self.record.lost_state.get_or_insert_with(|| words::commit_not_answered(COMMIT_WAIT_MAX));
                self.finish();
            }
            Phase::Starting | Phase::Running | Phase::Saving | Phase::Paused { .. } | Phase::Over => {}
        }
    }

    /// Ends workers that did not do in time what they had to.
    fn end_overdue(&mut self) {
        for (id, overdue) in self.workers.overdue(self.now) {
            let Some(worker) = self.workers.get(id) else { continue };
            let rank = worker.rank();
            let is_seated = matches!(worker.place, WorkerPlace::Seat(_));
            if overdue == Overdue::DoesNotEnd {
                self.warn(words::finished_but_alive(rank));
                self.workers.edit(id, |worker| worker.forgiven = true);
                self.kill(&[id]);
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
        let limit = self.settings.hang_timeout?;
        let watched = match self.phase {
            Phase::Starting => true,
            Phase::Running | Phase::Regrouping { .. } => self.workers.all_ready(),
            Phase::TakingOver { .. }
            | Phase::Gathering { .. }
            | Phase::Loading { .. }
            | Phase::Saving
            | Phase::Halting { .. }
            | Phase::Deciding { .. }
            | Phase::Seating { .. }
            | Phase::Paused { .. }
            | Phase::Stopping { .. }
            | Phase::HandingOff { .. }
            | Phase::Closing { .. }
            | Phase::Over => false,
        };
        let after_progress = self.round.progress_at + limit;
        let check = self.round.hang_check;
        // While the round starts a newcomer may hang though others come further.
        watched.then_some(if self.phase == Phase::Starting { check } else { check.max(after_progress) })
    }

    /// Takes one worker for dead when none makes progress, or when it does not become ready.
    fn find_hang(&mut self) {
        if self.runs_programs() {
            return self.find_group_hang();
        }
        let Some(limit) = self.settings.hang_timeout else { return };
        if self.hang_check().is_none_or(|at| at > self.now) {
            return;
        }
        let pulses: Vec<Pulse> = self.workers.not_standing().filter_map(|worker| self.pulse(worker)).collect();
        let connecting = |worker: &Worker| worker.lives() && worker.connected.is_none() && worker.has_to_connect;
        // A report may be here before the page that shows the same progress.
        let moved = self.round.progress_at + limit > self.now;
        let all = !moved && !self.workers.not_standing().any(connecting);
        match hang::find(&pulses, all, limit) {
            HangFinding::Hung(pulse) => {
                self.round.hang_check = self.now + limit;
                self.end_hung(pulse);
            }
            HangFinding::WaitFor(wait) => self.round.hang_check = self.now + wait.max(limit / HANG_CHECKS),
        }
    }

    /// Returns what the page of a worker says; `None` for one whose connection is waited for, which has a time limit of its own.
    fn pulse(&self, worker: &Worker) -> Option<Pulse> {
        let seat = worker.seat()?;
        worker.connected.filter(|_| worker.lives() && !worker.ending)?;
        let node = worker.slot.node;
        let last_event_at = if node == NodeIndex::OWN { self.now } else { self.nodes.get(node)?.last_event_at };
        let idle = worker.idle(last_event_at, self.now);
        let ready = seat.ready.is_some();
        Some(Pulse { worker: worker.id, phase: worker.page.phase, step: worker.page.step, idle, ready })
    }

    fn end_hung(&mut self, pulse: Pulse) {
        let Pulse { worker, phase, step, idle, ready } = pulse;
        let seconds = idle.as_secs_f64();
        self.journal(EventKind::HangDetected { round: self.round.number, seconds, stacks: None });
        let what = phase.words();
        let alone = !ready && !matches!(phase, WorkerPhase::Collective | WorkerPhase::Rendezvous);
        let error = if alone { words::newcomer_hangs(idle, what) } else { words::no_progress(idle, what, step) };
        self.workers.edit(worker, |worker| _ = worker.error.get_or_insert(error));
        // It would not hear a SIGTERM.
        self.kill(&[worker]);
        self.workers.edit(worker, |worker| worker.ending = true);
        self.fail_living(worker);
    }

    /// Kills the workers that did not leave the round in time.
    fn kill_those_who_stay(&mut self) {
        let late: Vec<WorkerId> = self.workers.not_standing().map(|worker| worker.id).collect();
        for id in &late {
            self.workers.edit(*id, |worker| {
                worker.forgiven |= worker.done.is_some();
                worker.error.get_or_insert_with(|| words::not_left_in_time(HALT_WAIT_MAX));
            });
        }
        self.kill(&late);
        self.phase = Phase::Halting { until: self.now + KILLED_WAIT_MAX, killed: true };
    }

    /// Kills all workers.
    pub(super) fn kill_living(&mut self) {
        let living: Vec<WorkerId> = self.workers.living().map(|worker| worker.id).collect();
        self.kill(&living);
    }

    fn give_up_living(&mut self) {
        let living: Vec<WorkerId> = self.workers.living().map(|worker| worker.id).collect();
        self.give_up_workers(&living);
    }

    /// Nobody waits for workers any more that lost their seat long ago.
    fn give_up_dismissed(&mut self) {
        let dismissed = |worker: &&Worker| worker.ending || !worker.lives();
        let late: Vec<WorkerId> = self.workers.living().filter(dismissed).map(|worker| worker.id).collect();
        self.give_up_workers(&late);
    }

    /// Goes on without workers whose nodes should have reported their end, or that they cannot be killed.
    fn give_up_workers(&mut self, ids: &[WorkerId]) {
        for id in ids {
            let Some(worker) = self.workers.get(*id) else { continue };
            if worker.lives() {
                let pid = worker.pid.unwrap_or(0);
                self.worker_unkillable(*id, pid);
            } else {
                self.worker_settled(*id, WorkerEvidence::default());
            }
        }
    }

    /// Commits under way have come further: they get their time anew.
    pub(super) fn extend_commits(&mut self) {
        let now = self.now;
        if let Phase::Closing { commits_until, .. } = &mut self.phase {
            *commits_until = now + COMMIT_WAIT_MAX;
        }
    }

    /// Returns the phase in which all workers end, and commits under way.
    pub(super) fn closing(&self) -> Phase {
        let workers_until = self.now + KILLED_WAIT_MAX;
        Phase::Closing { workers_until, commits_until: self.now + COMMIT_WAIT_MAX }
    }
}
