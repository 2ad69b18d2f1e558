//! Stops, the hand-off to another node, and the end of a run.

use super::{
    checkpoint_ledger::CheckpointLedger,
    effect::{Effect, RunEnd, RunOutcome},
    limits::{HAND_OFF_WAIT_MAX, KILLED_WAIT_MAX},
    machine::Supervisor,
    phase::Phase,
    seating::NodeIndex,
};
use enn_common::{
    event::EventKind,
    id::WorkerId,
    wire::node_agent::{NodeCommand, RunEnding, RunSnapshot, StopSignal, WorkerFlag},
};

impl Supervisor {
    /// The run is to stop; `second` when it is the second signal to a node. All nodes of a job get one at the same time.
    pub(super) fn signalled(&mut self, signal: StopSignal, asked_by: &str, second: bool) {
        self.journal(EventKind::StopRequested { signal: asked_by.to_owned(), second });
        if self.stop.is_none() {
            self.stop = Some(signal);
            self.request_handled();
        }
        if let Phase::Closing { commits_until, .. } = &mut self.phase {
            // A user does not wait for a disk that hangs.
            let until = if second { self.now } else { self.now + self.settings.run.grace };
            *commits_until = until.min(*commits_until);
        }
        if second {
            self.kill_all();
        } else if !self.phase.is_last() && self.stop_by.is_none() {
            self.ask_to_stop();
        }
    }

    /// The workers of the round are to save and end, and spares to end.
    pub(super) fn ask_to_stop(&mut self) {
        self.stop_by.get_or_insert(self.now + self.settings.run.grace);
        if let Phase::Regrouping { .. } = self.phase {
            // Workers that left already are given seats again when the others have left, too.
            self.flag_seated(WorkerFlag::Regroup, false);
            self.round.regroup_flag = false;
            self.phase = Phase::Running;
        }
        self.flag_stop();
        self.dismiss_spares(None);
        if let Phase::Halting { until, killed: false } = self.phase
            && let Phase::Halting { until: sooner, killed } = self.halting()
        {
            self.phase = Phase::Halting { until: until.min(sooner), killed };
        }
        if self.phase == Phase::Starting && self.round.survivors {
            // A step with newcomers, or with fewer workers, is none that was asked for.
            let reason = "the run is to stop: its workers save the state that they keep".to_owned();
            self.round.regroup_reason = Some(reason.clone());
            self.leave(reason);
        } else if (self.phase == Phase::Starting || self.is_no_script_started())
            && self.workers.seated().any(|worker| worker.lives() && worker.connected.is_none())
        {
            // No step was done in this round, and none is waited for: one that hangs may never connect.
            self.note_lost_state();
            self.close();
        }
    }

    /// Asks all workers with a seat to save and end.
    pub(super) fn flag_stop(&mut self) {
        if self.detached_script().is_some() {
            return self.terminate_scripts();
        }
        self.flag_seated(WorkerFlag::Stop, true);
    }

    /// Kills all workers: the run ends.
    pub(super) fn kill_all(&mut self) {
        self.kill(self.workers.living());
        if !self.phase.is_ending() {
            self.killed = true;
            self.phase = Phase::Stopping { until: self.now + KILLED_WAIT_MAX, killed: true };
        }
    }

    /// Another leader has the run directory, or the nodes on the other side of a broken network may go on in it.
    pub(super) fn fence(&mut self) {
        self.fenced = true;
        self.ledger = CheckpointLedger::default();
    }

    /// A commit was refused because another node leads.
    pub(super) fn fenced_by(&mut self, error: &str) {
        self.fence();
        self.led_elsewhere = true;
        if !self.is_ending() {
            self.giving_up.get_or_insert(format!("another node leads the run: {error}"));
            self.kill_all();
        }
    }

    /// Returns the workers whose end `Stopping` waits for. Spares live on, and take seats when the others start again.
    pub(super) fn stopping(&self) -> Vec<WorkerId> {
        if self.killed { self.workers.living() } else { self.workers.living_but_spares() }
    }

    /// All workers have ended because one failed, or were killed.
    pub(super) fn end_stopping(&mut self) -> bool {
        if !self.stopping().is_empty() {
            return false;
        }
        if self.killed {
            let cause = self.round.cause.clone();
            if let Some(cause) = &cause {
                self.round_failed(cause.clone(), false);
            }
            let end = self.ended_early(cause.unwrap_or_else(|| "the workers were killed".to_owned()));
            self.verdict.get_or_insert(end);
            self.close();
        } else {
            self.phase = Phase::Deciding { check: self.next_check() };
        }
        true
    }

    fn ended_early(&self, cause: String) -> RunEnd {
        match (&self.giving_up, self.stop) {
            (Some(cause), _) => RunEnd::Failed { cause: cause.clone() },
            (None, Some(signal)) => RunEnd::Stopped(signal),
            (None, None) => RunEnd::Failed { cause },
        }
    }

    /// No worker has a seat any more and none is given one: the run ends.
    pub(super) fn close(&mut self) {
        let early = self.round.stopped || self.round.finished == 0;
        let failed = self.giving_up.is_some() || self.round.cause.is_some();
        let end = if failed || (early && self.stop.is_some()) {
            self.ended_early(self.round.cause.clone().unwrap_or_default())
        } else {
            RunEnd::Finished
        };
        self.verdict.get_or_insert(end);
        // Also those who stand without a state that is worth saving.
        self.dismiss(self.workers.living());
        self.phase = self.closing();
    }

    /// The checkpoints of the run cannot be looked at.
    pub(super) fn checkpoints_unusable(&mut self, error: String, none_whole: bool) {
        self.verdict.get_or_insert(RunEnd::CheckpointsUnusable { error, none_whole });
        self.close();
    }

    /// This node cannot lead the run. It leaves the workers of the others, which find another leader.
    pub(super) fn abdicate(&mut self, error: &str) {
        let cause = format!("this node cannot lead the run: {error}");
        self.verdict.get_or_insert(RunEnd::Failed { cause });
        self.fence();
        self.forget_others();
        self.close();
    }

    /// Another node leads the others and their workers.
    fn forget_others(&mut self) {
        let others: Vec<NodeIndex> = self.nodes.indices().filter(|node| *node != NodeIndex::OWN).collect();
        for node in others {
            for id in self.workers.on(node) {
                self.workers.remove(id);
            }
        }
        self.nodes.forget_others();
        self.led_elsewhere = true;
    }

    /// This node was drained, all stand, and another one leads from there; unless the others have no state to go on from. Returns
    /// whether it is so.
    pub(super) fn hand_off(&mut self) -> bool {
        let host = self.settings.host.clone();
        let others = self.workers.whole_step(|worker| worker.slot.node != NodeIndex::OWN);
        if others.is_some() && others < self.workers.whole_step(|_| true) {
            // Its workers have a part of the state that the others lack: it leaves after one more round.
            return false;
        }
        if others.is_none() {
            self.stay_undrained();
            return false;
        }
        let reason = "it was drained (enn drain), and another node leads".to_owned();
        self.journal(EventKind::NodeLost { host: host.clone(), reason });
        let snapshot = RunSnapshot { drained: Some(host), ..self.snapshot() };
        let others: Vec<_> = self.nodes.others().map(|node| node.id).collect();
        for node in others {
            let command = NodeCommand::ReplicateSnapshot(Box::new(snapshot.clone()));
            self.out.push(Effect::Send { node, command });
        }
        // The next leader opens its own control server.
        self.close_control();
        self.forget_others();
        self.out.push(Effect::HandOff(Box::new(snapshot)));
        self.verdict.get_or_insert(RunEnd::HandedOff);
        self.dismiss(self.workers.living());
        self.phase = Phase::HandingOff { until: self.now + HAND_OFF_WAIT_MAX, handed_off: false };
        true
    }

    /// This node, which was drained, has to go on: no other one can.
    pub(super) fn stay_undrained(&mut self) {
        self.nodes.stay(NodeIndex::OWN);
        self.request_handled();
        self.count_world();
        let host = &self.settings.host;
        self.warn(format!("node {host} is not drained: no worker of another node has the state of training"));
    }

    /// Answer to `HandOff`.
    pub(super) fn handed_off(&mut self) {
        if let Phase::HandingOff { handed_off, .. } = &mut self.phase {
            *handed_off = true;
        }
    }

    pub(super) fn end_hand_off(&mut self, handed_off: bool) -> bool {
        let is_over = handed_off && self.workers.are_gone();
        if is_over {
            self.finish();
        }
        is_over
    }

    pub(super) fn end_closing(&mut self) -> bool {
        let is_over = self.workers.are_gone() && self.ledger.is_idle();
        if is_over {
            self.finish();
        }
        is_over
    }

    fn close_control(&mut self) {
        if !self.control_closed {
            self.control_closed = true;
            self.out.extend(self.requests.close());
            self.out.push(Effect::CloseControl);
        }
    }

    /// The run is over.
    pub(super) fn finish(&mut self) {
        self.phase = Phase::Over;
        self.record_kernels(true);
        let end = self.verdict.take().unwrap_or(RunEnd::Finished);
        let unsaved = self.unsaved(&end);
        if let (RunEnd::Stopped(_), Some(unsaved), false) = (&end, &unsaved, self.killed) {
            self.warn(unsaved.clone());
        }
        self.close_control();
        // Of a leader that another one follows only the own node is left in the table.
        if !self.runs_programs() {
            self.send_all(&NodeCommand::EndRun(ending(&end)));
        }
        if let Some(epoch) = self.nodes.epoch().filter(|_| !self.nodes.is_over && !self.led_elsewhere) {
            self.out.push(Effect::FinishMembership { epoch });
        }
        let unkillable = self.workers.all().filter(|worker| worker.unkillable);
        let unkillable = unkillable.map(|worker| {
            let host = self.nodes.get(worker.slot.node).map(|node| node.host.clone()).unwrap_or_default();
            (host, worker.pid.unwrap_or(0))
        });
        let outcome = RunOutcome {
            end,
            restarts: self.record.restarts,
            rounds: self.record.rounds,
            metrics: self.record.metrics.take(),
            checkpoint: self.record.checkpoint.clone(),
            unsaved,
            unkillable: unkillable.collect(),
            chunks: std::mem::take(&mut self.record.chunks).into_values().collect(),
        };
        self.out.push(Effect::Finish(Box::new(outcome)));
    }

    /// Returns why the last state of training is in no checkpoint, if it is in none.
    fn unsaved(&mut self, end: &RunEnd) -> Option<String> {
        if self.runs_scripts() {
            // They save as they like.
            return None;
        }
        let saved = self.record.saved();
        let failed_save = |step: u64, failed: &Option<(u64, String)>| {
            failed.as_ref().filter(|(failed, _)| *failed == step).map(|(_, error)| error.clone())
        };
        match end {
            RunEnd::Finished => {
                let trained = self.record.trained.filter(|trained| saved < Some(*trained))?;
                let why = failed_save(trained, &self.record.failed_save).or(self.record.lost_state.take());
                let why = why.unwrap_or_else(|| "its shares did not come together".into());
                let stands = standing_checkpoint(saved);
                Some(format!(
                    "training ended, but the checkpoint of its last step {trained} could not be written ({stands}): {why}"
                ))
            }
            RunEnd::Stopped(_) | RunEnd::Failed { .. } | RunEnd::CheckpointsUnusable { .. } => {
                let reached = Some(self.record.reached).filter(|reached| Some(*reached) > saved && *reached > 0)?;
                let failed = self.record.failed_save.as_ref().map(|(_, error)| error.clone());
                let why = self.record.lost_state.take().or(failed);
                let why = why.unwrap_or_else(|| "its workers were killed before they had saved it".into());
                Some(format!(
                    "the state after step {reached} is in no checkpoint ({}): {why}",
                    standing_checkpoint(saved)
                ))
            }
            RunEnd::HandedOff => None,
        }
    }
}

/// Returns in words what there is instead of the last state.
fn standing_checkpoint(saved: Option<u64>) -> String {
    saved.map_or_else(|| "there is no checkpoint".to_owned(), |saved| format!("that of step {saved} stands"))
}

fn ending(end: &RunEnd) -> RunEnding {
    match end {
        RunEnd::Finished | RunEnd::HandedOff => RunEnding::Finished,
        RunEnd::Stopped(signal) => RunEnding::Stopped { signal: *signal },
        RunEnd::Failed { cause } => RunEnding::Failed { cause: cause.clone() },
        RunEnd::CheckpointsUnusable { error, .. } => RunEnding::Failed { cause: error.clone() },
    }
}
