//! Workers that are any program. One that has attached to the broker of its node can leave a round and join another one; that it has is a
//! fact of the worker, which is known when it does. While one has not, a failure restarts all.

use super::{machine::Supervisor, phase::Phase, settings::Contract, worker_table::Worker};
use enn_common::{id::WorkerId, wire::node_agent::NodeCommand};

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
}
