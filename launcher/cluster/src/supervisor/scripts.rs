//! Workers that are any program. One that has attached to the broker of its node can leave a round and join another one; that it has is a
//! fact of the worker, which is known when it does. While one has not, a failure restarts all.

use super::{
    batch_parts::BatchParts,
    machine::Supervisor,
    phase::Phase,
    seating::{PlannedSeat, SeatCandidate},
    settings::Contract,
    worker_table::{Worker, WorkerPlace},
};
use enn_common::{event::EventKind, id::WorkerId, wire::node_agent::NodeCommand};
use std::{num::NonZeroU32, ops::RangeInclusive};

/// Returns how a sentence names a process.
fn pid_words(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (pid {pid})"))
}

impl Supervisor {
    pub(super) fn runs_scripts(&self) -> bool {
        self.settings.run.contract == Contract::Script
    }

    /// Returns whether the survivors of a failure keep their state and go on in another round.
    pub(super) fn survivors_go_on(&self) -> bool {
        self.reforms() && self.obstacle().is_none()
    }

    /// Returns why no worker can be replaced while the others live; only scripts have such a reason.
    pub(super) fn obstacle(&self) -> Option<String> {
        if !self.runs_scripts() {
            return None;
        }
        if self.round.finished > 0 {
            let finished = self.round.finished;
            return Some(format!(
                "{finished} workers have finished already, so that the others cannot go on without them"
            ));
        }
        let detached = self.detached_script()?;
        let rank = detached.rank()?;
        let pid = pid_words(detached.pid);
        Some(format!("rank {rank}{pid} has not attached, so that no worker can be replaced while the others live"))
    }

    /// Returns a script of the round that has not attached, though it has started and the others do not wait for it.
    pub(super) fn detached_script(&self) -> Option<&Worker> {
        let is_detached = |worker: &&Worker| worker.connected.is_none() && !worker.has_to_connect;
        // One whose start was not heard of stands by for the next round: its node may be cut off.
        let is_counted = |worker: &&Worker| worker.lives() && !worker.ending && worker.pid.is_some();
        self.workers.seated().filter(|_| self.runs_scripts()).filter(is_detached).find(is_counted)
    }

    /// Returns whether the scripts of the round wait for their start.
    pub(super) fn is_no_script_started(&self) -> bool {
        self.runs_scripts() && self.workers.seated().all(|worker| worker.pid.is_none())
    }

    /// Returns whether spares can be of use: the program attaches.
    pub(super) fn takes_spares(&self) -> bool {
        self.reforms() && (!self.runs_scripts() || self.workers.seated().all(|worker| worker.connected.is_some()))
    }

    /// The connection of a script ended. It lives on, and may attach again.
    pub(super) fn script_detached(&mut self, id: WorkerId, error: Option<String>) {
        let Some(worker) = self.workers.get(id).filter(|worker| worker.lives() && !worker.ending) else { return };
        let rank = worker.rank();
        let pid = worker.pid;
        // One that has left the round cannot be told of the next one: it is late.
        let is_awaited = !self.phase.is_under_way() && rank.is_some();
        self.workers.edit(id, |worker| {
            worker.connected = None;
            worker.has_to_connect = is_awaited;
        });
        if let Some(error) = error.filter(|_| !self.phase.is_last()) {
            let who = rank.map_or_else(|| "a spare".to_owned(), |rank| format!("rank {rank}"));
            self.warn(format!("{who}{} is not attached any more: {error}", pid_words(pid)));
        }
    }

    /// Not all scripts can be told to end at the same step: they get a signal, as programs do, and save as they like.
    pub(super) fn terminate_scripts(&mut self) {
        let seated = self.workers.seated_ids();
        for id in &seated {
            self.workers.edit(*id, |worker| worker.forgiven = true);
        }
        let kill_after = self.grace_left();
        self.send_workers(seated, |workers| NodeCommand::Stop { workers, kill_after });
    }

    /// Scripts that keep the state save it where they stand, and all end.
    pub(super) fn scripts_save_and_end(&mut self) {
        let standing = || self.workers.seated().filter(|worker| worker.stands());
        let empty = standing().filter(|worker| worker.kept_step().is_none()).map(|worker| worker.id).collect();
        let savers: Vec<WorkerId> =
            standing().filter(|worker| worker.kept_step().is_some()).map(|worker| worker.id).collect();
        if savers.is_empty() {
            return self.close();
        }
        self.unseat(empty);
        for id in savers {
            self.workers.edit(id, |worker| worker.seat_mut().into_iter().for_each(|seat| seat.halted = None));
        }
        self.phase = Phase::Saving { patience: self.grace_left() };
        self.ask_to_stop();
    }

    /// Returns whether scripts save before they end: each for itself, whatever becomes of the others.
    pub(super) fn scripts_save(&self) -> bool {
        self.runs_scripts() && matches!(self.phase, Phase::Saving { .. })
    }

    /// Returns the sizes that the next round of scripts may have; `None`: only one, or a world of other workers.
    fn sizes(&self) -> Option<RangeInclusive<u32>> {
        let workers = self.settings.workers;
        let fixed = self.settings.run.workers_min >= workers;
        let least = if fixed { workers.saturating_mul(self.settings.nodes_min) } else { self.settings.run.workers_min };
        let may_shrink = self.runs_scripts() && self.reforms() && least < self.world;
        may_shrink.then(|| least.max(1)..=self.world)
    }

    /// Returns the parts by which the next round is sized.
    pub(super) fn parts_to_share(&self) -> BatchParts {
        if self.sizes().is_some() { self.batch_parts } else { BatchParts::default() }
    }

    /// Returns the workers of a round in which nobody is missing.
    pub(super) fn full_world(&self) -> u32 {
        self.sizes().and_then(|sizes| self.batch_parts.largest(sizes)).unwrap_or(self.world)
    }

    /// Returns why no size will do that the next round may have.
    pub(super) fn no_size(&self) -> Option<String> {
        let sizes = self.sizes()?;
        self.batch_parts.largest(sizes.clone()).is_none().then(|| self.batch_parts.mismatch(&sizes))
    }

    /// A script says into how many parts a step can be cut. The first world was chosen without knowing that.
    pub(super) fn parts_told(&mut self, parts: NonZeroU32) {
        if !self.runs_scripts() || self.batch_parts.0 == Some(parts) {
            return;
        }
        self.batch_parts = BatchParts(Some(parts));
        let world = u32::try_from(self.round.world).unwrap_or(u32::MAX);
        let is_wrong = self.phase.is_under_way() && !self.batch_parts.are_shared_by(world);
        if is_wrong && self.sizes().is_some() && !self.is_stopping() {
            let reason = self.batch_parts.mismatch(&(world..=world));
            self.journal(EventKind::GaveUp { reason: reason.clone() });
            self.giving_up = Some(reason);
            self.request_handled();
            // They can do no step.
            self.kill_all();
        }
    }

    /// Lets those of `standing` that get none of these seats, since more ranks would not share the parts, wait for their next one. Their
    /// devices stay theirs.
    pub(super) fn park_all_but(&mut self, seats: &[PlannedSeat], standing: &[SeatCandidate]) {
        let world = seats.len();
        let Some(parts) = self.parts_to_share().0.filter(|_| world < self.world as usize) else { return };
        let has_seat = |id: WorkerId| seats.iter().any(|seat| seat.kept() == Some(id));
        let left = standing.iter().filter(|one| !has_seat(one.worker)).filter_map(|one| self.workers.get(one.worker));
        let left: Vec<(WorkerId, String)> = left
            .filter(|worker| worker.connected.is_some())
            .filter_map(|worker| Some((worker.id, format!("rank {} (pid {})", worker.rank()?, worker.pid?))))
            .collect();
        if left.is_empty() {
            return;
        }
        let names: Vec<&str> = left.iter().map(|one| one.1.as_str()).collect();
        let wait = if names.len() == 1 { "waits" } else { "wait" };
        self.warn(format!(
            "{parts} parts cannot be shared by {} ranks: the run goes on with {world}, and {} {wait} for a seat",
            world + names.len(),
            names.join(", ")
        ));
        for one in left {
            self.workers.edit(one.0, |worker| {
                worker.place = WorkerPlace::Spare;
                worker.parked = true;
                worker.warm = true;
            });
        }
    }

    /// Parked workers have a state, and a round in which nobody brings one cannot begin with them.
    pub(super) fn dismiss_parked(&mut self) {
        self.dismiss(self.workers.spares().filter(|worker| worker.parked).map(|worker| worker.id).collect());
    }
}
