//! What makes workers leave a round without a failure, and the spares that stand by.

use super::{
    budget,
    input::Time,
    limits::{CHECK_PERIOD, REFILL_WAIT_MAX},
    machine::Supervisor,
    phase::Phase,
    seating::{self, NodeIndex, SeatLimits},
    straggler_watch::PageLook,
    worker_table::{Worker, WorkerPlace},
};
use enn_common::{event::EventKind, id::Rank, wire::node_agent::WorkerFlag};

impl Supervisor {
    /// Asks the workers to leave the round when there is a reason to.
    pub(super) fn regroup(&mut self) -> bool {
        let busy = self.workers.is_any_done() || self.is_stopping() || self.round.finished > 0;
        if busy || !self.survivors_go_on() || !self.workers.all_ready() {
            return false;
        }
        let Some(reason) = self.regroup_reason() else { return false };
        self.round.regroup_reason = Some(reason.clone());
        if self.runs_scripts() {
            // They can leave a round wherever they are.
            self.leave(reason);
            return true;
        }
        self.round.regroup_flag = true;
        self.flag_seated(WorkerFlag::Regroup, true);
        self.phase = Phase::Regrouping { until: self.now + self.settings.run.regroup_wait };
        true
    }

    fn regroup_reason(&mut self) -> Option<String> {
        if self.paused.is_some() {
            return Some("the run is paused".into());
        }
        // The leader's own node hands off the lead, also when no worker is on it.
        let has_to_leave = |node: &NodeIndex| *node == NodeIndex::OWN || self.workers.is_any_seated_on(*node);
        if let Some(node) = self.nodes.leaving().iter().copied().find(has_to_leave) {
            return Some(format!("node {} is drained", self.host(node)));
        }
        let seated = self.workers.count_seated();
        if seated > self.world as usize {
            return Some(format!("the run goes on with {} workers instead of {seated}", self.world));
        }
        if let Some(worker) = self.round.evicted.and_then(|id| self.workers.get(id)) {
            let rank = worker.rank().unwrap_or(Rank(0));
            let pid = worker.pid.unwrap_or(0);
            return Some(format!("a spare takes the seat of rank {rank} (pid {pid}), which the others wait for"));
        }
        let missing = (self.full_world() as usize).saturating_sub(seated);
        let joining = if missing > 0 && self.workers.count_warm() > 0 { self.joining(seated) } else { 0 };
        if joining > 0 && (joining >= missing || self.workers.count_warming() == 0) {
            return Some(format!("{joining} of {missing} missing workers can join"));
        }
        if self.micro_batches.split() > 1 { self.fewer_parts() } else { None }
    }

    /// Returns how many missing workers the warm spares would replace in a round that began now.
    fn joining(&self, seated: usize) -> usize {
        let mut candidates = self.workers.candidates(|_| true);
        self.drop_leaving(&mut candidates);
        // For those that are warm nobody waits.
        let limits = SeatLimits { fewest: 1, ..self.seat_limits() };
        seating::give(&candidates, &limits).len().saturating_sub(seated)
    }

    fn fewer_parts(&mut self) -> Option<String> {
        let step = self.workers.pages_reached();
        if !self.micro_batches.may_grow(step) {
            return None;
        }
        self.micro_batches.grow(step);
        let split = self.micro_batches.split();
        self.journal(EventKind::MicroBatchesGrown { round: self.round.number, split });
        Some(format!("no rank was short of memory for long; micro-batches are cut into {split} only"))
    }

    /// Returns when the pages are looked at next for a worker for which the others wait.
    pub(super) fn next_look(&self) -> Option<Time> {
        let quiet = self.phase == Phase::Running && self.reforms() && !self.is_stopping();
        let watched = quiet && self.workers.count_seated() > 1 && self.workers.all_ready();
        watched.then(|| self.stragglers.next(self.settings.run.straggler_window, self.now))
    }

    /// Looks at the pages, when it is time.
    pub(super) fn look_for_stragglers(&mut self) {
        if self.next_look().is_none_or(|at| at > self.now) {
            return;
        }
        let look = |worker: &Worker| (worker.id, PageLook { step: worker.page.step, waited: worker.page.waited });
        let looks = self.workers.seated().map(look).collect();
        let Some(found) = self.stragglers.look(looks, self.now) else { return };
        let Some(worker) = self.workers.get(found.worker) else { return };
        let rank = worker.rank().unwrap_or(Rank(0));
        let pid = worker.pid.unwrap_or(0);
        let evicted = self.settings.run.evict_stragglers && self.workers.count_warm() > 0;
        if found.is_new || evicted {
            let round = self.round.number;
            let slower_by = found.slower_by;
            self.journal(EventKind::Straggler { round, rank, pid, slower_by, evicted });
        }
        if evicted {
            self.round.evicted = Some(found.worker);
        }
    }

    /// Returns when the next spare is started; `None`: none is wanted, or the round's workers do not do steps.
    pub(super) fn next_spare(&self) -> Option<Time> {
        let quiet = self.takes_spares() && self.phase == Phase::Running && !self.is_stopping();
        if !quiet || self.round.finished > 0 || !self.workers.all_ready() || self.spares_missing() == 0 {
            return None;
        }
        budget::spare_backoff(self.spares.deaths)?;
        let at = self.spares.not_before.unwrap_or(self.now);
        // After a failure the first step comes first: a process that starts takes the cores that it needs.
        let after_step = self.recovering.map(|recovering| recovering.since + REFILL_WAIT_MAX);
        Some(after_step.map_or(at, |after_step| at.max(after_step)))
    }

    fn spares_missing(&self) -> usize {
        let missing = (self.full_world() as usize).saturating_sub(self.workers.count_seated());
        let nodes = self.nodes.len() - self.nodes.leaving().len();
        let standing = self.workers.count_warm() + self.workers.count_warming();
        (self.settings.run.spares as usize * nodes + missing).saturating_sub(standing)
    }

    /// Starts the spares that are due.
    pub(super) fn start_spares(&mut self) {
        if self.next_spare().is_none_or(|at| at > self.now) {
            return;
        }
        let taken = self.workers.seated().map(|worker| worker.slot);
        let standing = self.workers.spares().map(|worker| worker.slot);
        let slots = seating::spare_slots(taken, standing, &self.seat_limits(), self.spares_missing());
        if slots.is_empty() {
            self.spares.not_before = Some(self.now + CHECK_PERIOD);
        }
        for slot in slots {
            let id = self.new_name();
            let logs = self.logs().join("spares").join(format!("worker-{id}"));
            self.spawn(Worker::new(id, slot, WorkerPlace::Spare, self.now), None, logs);
        }
    }

    /// A spare could not be started, or died before it was warm.
    pub(super) fn spare_lost(&mut self, error: &str) {
        self.spares.deaths += 1;
        let wait = budget::spare_backoff(self.spares.deaths);
        self.spares.not_before = wait.map(|wait| self.now + wait);
        if self.spares.deaths == budget::SPARE_DEATHS_MAX {
            let error = error.trim();
            self.warn(format!("spares die before they are warm; no more are started: {error}"));
        }
    }
}
