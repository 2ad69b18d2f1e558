//! Workers that start, end and fail.

use super::{
    effect::Effect,
    exit_classification::{self, FailureEvidence},
    limits::{END_GRACE, KILLED_WAIT_MAX},
    machine::Supervisor,
    phase::Phase,
    seating::NodeIndex,
    worker_table::{WorkDone, Worker, WorkerPlace},
};
use enn_common::{
    event::EventKind,
    id::{Rank, WorkerId},
    kernels::KernelFault,
    wire::{
        message::ToWorker,
        node_agent::{NodeCommand, WorkerEvidence, WorkerExit, WorkerFlag},
    },
};
use std::time::Duration;

impl Supervisor {
    /// A node started a process.
    pub(super) fn worker_started(&mut self, id: WorkerId, pid: u32, forked: bool) {
        self.workers.edit(id, |worker| worker.pid = Some(pid));
        if self.runs_programs() {
            self.programs.unstarted.remove(&id);
            self.round.progress_at = self.now;
            return;
        }
        let Some(worker) = self.workers.get(id) else { return };
        let local_rank = worker.slot.index;
        let host = self.host(worker.slot.node);
        let what = match worker.seat() {
            Some(seat) => {
                let round = seat.round;
                let rank = seat.rank;
                EventKind::WorkerStarted { round, local_rank, rank, pid, host, forked }
            }
            None => EventKind::SpareStarted { pid, local_rank, host, forked },
        };
        self.journal(what);
    }

    /// A node could not start a process; nothing more comes of it.
    pub(super) fn start_failed(&mut self, id: WorkerId, error: String) {
        if self.runs_programs() {
            return self.forget_program(id);
        }
        let Some(worker) = self.workers.get(id) else { return };
        let not_wanted = worker.ending || worker.forgiven;
        let rank = worker.rank();
        self.workers.edit(id, |worker| _ = worker.error.get_or_insert(error.clone()));
        let Some(worker) = self.workers.remove(id) else { return };
        if not_wanted || self.phase.is_last() {
            return;
        }
        match rank {
            Some(rank) => self.failed(id, &worker.evidence(rank, WorkerEvidence::default())),
            None => {
                self.spare_lost(&error);
                self.warn(format!("no spare: {error}"));
            }
        }
    }

    pub(super) fn worker_disconnected(&mut self, id: WorkerId, error: Option<String>) {
        if self.runs_scripts() {
            return self.script_detached(id, error);
        }
        let Some(error) = error else { return };
        self.workers.edit(id, |worker| _ = worker.error.get_or_insert(error));
        self.fail_living(id);
    }

    pub(super) fn connection_refused(&mut self, reason: &str) {
        // Late connections of a round that is being ended say nothing.
        if matches!(self.phase, Phase::Starting | Phase::Running) && !self.is_stopping() {
            self.warn(format!("refused: {reason}"));
        }
    }

    /// A node reports the end of a process.
    pub(super) fn worker_exited(&mut self, id: WorkerId, exit: WorkerExit) {
        if self.workers.get(id).is_none_or(|worker| !worker.lives()) {
            return;
        }
        if self.runs_programs() {
            // Its node says whether it failed.
            self.workers.edit(id, |worker| worker.exit = Some(exit));
            return;
        }
        self.workers.note_page(&exit.page, self.now);
        self.worker_ended(id, exit);
    }

    /// A process ended. What it sent last may still come: it is classified when that has been read.
    pub(super) fn worker_ended(&mut self, id: WorkerId, exit: WorkerExit) {
        let WorkerExit { code, signal, late, .. } = exit;
        self.workers.edit(id, |worker| worker.exit = Some(exit));
        if self.runs_scripts() && code == Some(0) {
            let done = WorkDone { at: self.now, stopped: self.is_stopping() };
            self.workers.edit(id, |worker| _ = worker.done.get_or_insert(done));
        }
        let Some(worker) = self.workers.get(id) else { return };
        let forgiven = worker.forgiven || code == Some(0);
        let pid = worker.pid;
        // The last seat of a process that could not be killed, too.
        let seat = if let WorkerPlace::Seat(seat) = &worker.place { Some((seat.round, seat.rank)) } else { None };
        let rank = worker.rank();
        let leaves = !forgiven && self.phase.is_under_way() && !self.scripts_save() && self.survivors_go_on();
        if let Some(rank) = rank.filter(|_| leaves) {
            // Before anything else: the others may wait for it in a collective.
            self.round.note_failure(id, self.now);
            self.leave(format!("rank {rank} ended"));
        }
        // The end of a process whose start is not in the journal is not, either.
        if let (Some((round, rank)), Some(pid)) = (seat, pid) {
            let seconds_to_notice = late.as_secs_f64();
            self.journal(EventKind::WorkerExited { round, rank, pid, code, signal, seconds_to_notice });
        }
    }

    /// All that an ended worker sent has been handled, and its device is free.
    pub(super) fn worker_settled(&mut self, id: WorkerId, evidence: WorkerEvidence) {
        if self.runs_programs() {
            return self.forget_program(id);
        }
        let Some(rank) = self.workers.get(id).map(Worker::rank) else { return };
        let Some(worker) = self.workers.remove(id) else { return };
        let Some(rank) = rank else { return self.process_without_seat_settled(&worker, evidence) };
        let evidence = worker.evidence(rank, evidence);
        self.quarantine_blamed(&evidence);
        self.round.reached = self.round.reached.max(evidence.step);
        self.record.reached = self.record.reached.max(evidence.step);
        if self.phase.is_last() {
            return;
        }
        if worker.forgiven || exit_classification::succeeded(&evidence) {
            self.work_done(&worker);
        } else {
            self.failed(id, &evidence);
        }
    }

    fn work_done(&mut self, worker: &Worker) {
        self.round.finished += 1;
        self.round.stopped |= worker.done.is_none_or(|done| done.stopped);
    }

    fn process_without_seat_settled(&mut self, worker: &Worker, evidence: WorkerEvidence) {
        match worker.place {
            WorkerPlace::Dismissed { round, rank } => {
                let ended = worker.pid.map(|pid| EventKind::WorkerDismissed { round, rank, pid });
                ended.into_iter().for_each(|what| self.journal(what));
            }
            // It could not be killed, and all that follows from that is done.
            WorkerPlace::Seat(_) => {}
            WorkerPlace::Spare => {
                let was_stopped = (worker.ending && worker.error.is_none()) || self.phase.is_last();
                let (code, signal) = worker.exit.as_ref().map_or((None, None), |exit| (exit.code, exit.signal));
                let ended = worker.pid.map(|pid| EventKind::SpareEnded { pid, code, signal });
                ended.into_iter().for_each(|what| self.journal(what));
                // A spare has the index for which it is prepared.
                let evidence = worker.evidence(Rank(worker.slot.index.0), evidence);
                self.quarantine_blamed(&evidence);
                if !was_stopped && !worker.unkillable {
                    let error = worker.error.clone().unwrap_or(evidence.last.stderr);
                    self.spare_lost(&error);
                }
            }
        }
    }

    /// A process does not end though it was killed: the run goes on without it and its device.
    pub(super) fn worker_unkillable(&mut self, id: WorkerId, pid: u32) {
        let Some(worker) = self.workers.get(id).filter(|worker| worker.lives() && !worker.unkillable).cloned() else {
            return;
        };
        let host = self.host(worker.slot.node);
        let place = if host.is_empty() { String::new() } else { format!(" on {host}") };
        self.warn(format!(
            "process {pid}{place} does not end after SIGKILL (is it frozen, or does its disk hang?); the run goes on without it \
             and its device"
        ));
        self.workers.edit(id, |worker| worker.unkillable = true);
        let Some(rank) = worker.rank().filter(|_| !self.runs_programs()) else { return };
        self.round.reached = self.round.reached.max(worker.page.step);
        if self.phase.is_last() {
            return;
        }
        if worker.forgiven {
            self.work_done(&worker);
        } else {
            self.failed(id, &worker.evidence(rank, WorkerEvidence::default()));
        }
    }

    /// A worker with a seat failed: it is the cause if it is the first, and the round ends.
    fn failed(&mut self, id: WorkerId, evidence: &FailureEvidence) {
        if self.phase.is_last() {
            return;
        }
        self.quarantine_blamed(evidence);
        self.round.note_failure(id, self.now);
        if self.round.first_failure == Some(id) && self.round.cause.is_none() {
            self.round.cause = Some(exit_classification::sentence(evidence));
        }
        if self.reforms() {
            self.send_away(id);
        }
        if self.scripts_save() {
            return;
        }
        if self.survivors_go_on() {
            let reason = self.round.cause.clone().unwrap_or_default();
            return self.leave(reason.lines().next().unwrap_or_default().to_owned());
        }
        if let Some(obstacle) = self.obstacle().filter(|_| self.reforms()) {
            self.warn(format!("all workers restart: {obstacle}"));
        }
        self.phase = Phase::Stopping { until: self.now + KILLED_WAIT_MAX, killed: false };
        self.send_workers(self.stopping(), |workers| NodeCommand::Stop { workers, kill_after: END_GRACE });
        // A worker ends itself at once when its connection closes, however deep it waits in a collective. The broker keeps spares.
        self.send_all(&NodeCommand::DisconnectAll);
    }

    /// A worker that lives failed.
    pub(super) fn fail_living(&mut self, id: WorkerId) {
        let worker = self.workers.get(id);
        let evidence = worker.and_then(|worker| Some(worker.evidence(worker.rank()?, WorkerEvidence::default())));
        if let Some(evidence) = evidence {
            self.failed(id, &evidence);
        }
    }

    /// Ends the round for all who live in it.
    pub(super) fn leave(&mut self, reason: String) {
        if self.phase.is_under_way() {
            let round = self.round.number.0;
            self.send_all(&NodeCommand::EndRound { round, reason });
            self.workers.unseat_strangers();
            self.phase = self.halting();
        }
    }

    /// Quarantines the kernel in which a worker died, if it did.
    fn quarantine_blamed(&mut self, evidence: &FailureEvidence) {
        if let Some(fault) = exit_classification::blamed_kernel(evidence) {
            self.kernel_faulted(evidence.rank, fault);
        }
    }

    /// A kernel is out of use: on disk, in the journal, and for all workers.
    pub(super) fn kernel_faulted(&mut self, rank: Rank, fault: KernelFault) {
        if !self.kernels.enter(rank, fault) {
            return;
        }
        if self.kernels.needs_digest() {
            self.out.push(Effect::DigestProgram);
        }
        self.record_kernels(false);
        let quarantined = self.kernels.book.quarantined();
        self.broadcast(ToWorker::Kernels(Box::new(quarantined)));
    }

    /// Answer to `DigestProgram`.
    pub(super) fn program_digest(&mut self, digest: String) {
        self.kernels.digested(digest);
        self.record_kernels(false);
    }

    /// Writes and journals the entries whose digest is known; with `all` the others, too.
    pub(super) fn record_kernels(&mut self, all: bool) {
        let events = self.kernels.events(all);
        if events.is_empty() {
            return;
        }
        self.write_kernels();
        events.into_iter().for_each(|what| self.journal(what));
    }

    pub(super) fn write_kernels(&mut self) {
        let bytes = self.kernels.file();
        self.write(Effect::WriteRunFile { name: enn_common::kernels::FILE, bytes });
    }

    /// Makes a worker end that has something to say, or may have.
    pub(super) fn send_away(&mut self, id: WorkerId) {
        self.end_worker(id, |workers| NodeCommand::Stop { workers, kill_after: END_GRACE });
    }

    /// Makes workers end of which nothing is needed any more.
    pub(super) fn dismiss(&mut self, ids: Vec<WorkerId>) {
        for worker in ids {
            self.end_worker(worker, |_| NodeCommand::Dismiss { worker, kill_after: END_GRACE });
        }
    }

    pub(super) fn kill(&mut self, mut ids: Vec<WorkerId>) {
        ids.retain(|id| self.workers.get(*id).is_some_and(Worker::lives));
        self.send_workers(ids, |workers| NodeCommand::Stop { workers, kill_after: Duration::ZERO });
    }

    fn end_worker(&mut self, id: WorkerId, command: impl Fn(Vec<WorkerId>) -> NodeCommand) {
        if self.workers.get(id).is_some_and(|worker| worker.lives() && !worker.ending) {
            self.workers.edit(id, |worker| worker.ending = true);
            self.send_workers([id], command);
        }
    }

    /// Sets or clears a flag on the pages of all workers with a seat.
    pub(super) fn flag_seated(&mut self, flag: WorkerFlag, on: bool) {
        self.send_workers(self.workers.seated_ids(), |workers| NodeCommand::SetFlag { workers, flag, on });
    }

    /// Ends processes without a seat on these nodes; `None`: on all.
    pub(super) fn dismiss_spares(&mut self, node: Option<NodeIndex>) {
        let here = |worker: &&Worker| node.is_none_or(|node| worker.slot.node == node);
        self.dismiss(self.workers.spares().filter(here).map(|worker| worker.id).collect());
    }
}
