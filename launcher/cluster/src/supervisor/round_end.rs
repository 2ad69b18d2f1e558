//! The end of a round: what it was, and what follows.

use super::{
    budget::{FailedRound, FailureDecision, GiveUpReason},
    effect::Effect,
    input::Time,
    limits::{COMMIT_WAIT_MAX, FIND_WAIT_MAX},
    machine::Supervisor,
    phase::{LoadingStep, Phase},
    seating::NodeIndex,
    worker_table::Worker,
};
use enn_common::event::EventKind;

impl Supervisor {
    /// A round is under way.
    pub(super) fn work(&mut self) -> bool {
        if self.runs_programs() {
            // The membership says when their work is done.
            return false;
        }
        if self.workers.count_seated() == 0 {
            self.close();
            return true;
        }
        if self.workers.all_stand() {
            self.phase = Phase::Deciding { check: self.next_check() };
            return true;
        }
        if self.phase == Phase::Starting && self.workers.all_ready() {
            self.phase = Phase::Running;
            return true;
        }
        if self.phase == Phase::Running {
            self.start_spares();
            return self.regroup();
        }
        false
    }

    /// The workers leave a round that is over.
    pub(super) fn halt(&mut self) -> bool {
        let have_left = self.workers.all_stand();
        if have_left {
            self.phase = Phase::Deciding { check: self.next_check() };
        }
        have_left
    }

    /// Returns whether what was decided may be done: all nodes are here, or the run ends and none is missing that could have state.
    pub(super) fn may_begin(&self) -> bool {
        let all_known = !self.successor || !self.nodes.is_awaiting();
        self.nodes.is_settled() || (self.is_stopping() && all_known)
    }

    /// The round is over and all who live stand.
    pub(super) fn decide(&mut self) -> bool {
        if !self.workers.all_stand() {
            // One failed meanwhile, or a successor has heard of it only now.
            self.phase = self.halting();
            return true;
        }
        if !self.may_begin() || self.finding.is_some() {
            return false;
        }
        self.round.reached = self.round.reached.max(self.workers.pages_reached());
        self.workers.settle_shares();
        match self.round.cause.clone() {
            None => self.decide_without_failure(),
            Some(cause) => {
                self.decide_after_failure(cause);
                true
            }
        }
    }

    fn decide_without_failure(&mut self) -> bool {
        if self.workers.count_seated() == 0 {
            if self.round.finished > 0 || self.is_stopping() {
                self.close();
            } else {
                // A successor found nobody that the leader before had left in the round.
                self.decide_after_failure("no worker is left in the round".into());
            }
            return true;
        }
        if self.leads_from_left_node() {
            if !self.ledger.is_idle() {
                // The next leader must find it.
                return false;
            }
            if self.hand_off() {
                return true;
            }
        }
        let reason = self.round.regroup_reason.clone();
        self.round_left(reason.unwrap_or_else(|| "the workers were asked to leave it".into()));
        if self.is_stopping() {
            self.save_and_end();
        } else {
            self.go_on();
        }
        true
    }

    fn decide_after_failure(&mut self, cause: String) {
        let nobody_keeps = self.workers.furthest().is_none();
        let found = self.round.damaged.take();
        let from = self.record.checkpoint.as_ref().map(|(_, path)| path.clone());
        match found.filter(|found| nobody_keeps && from.as_ref() == Some(&found.path) && !self.is_stopping()) {
            Some(found) => {
                let asked = LoadingStep::SetAside { cause };
                self.phase = Phase::Loading { until: self.now + FIND_WAIT_MAX, asked };
                self.write(Effect::SetAsideCheckpoint { path: found.path, file: found.file });
            }
            None => self.decide_after_lasting_failure(cause),
        }
    }

    /// Answer to `SetAsideCheckpoint`. A damaged checkpoint uses up no restart: of checkpoints there is an end.
    pub(super) fn checkpoint_set_aside(&mut self, result: Result<Option<String>, String>) {
        let Phase::Loading { asked: LoadingStep::SetAside { cause }, .. } = &self.phase else { return };
        let cause = cause.clone();
        match result {
            Ok(None) => self.decide_after_lasting_failure(cause),
            Ok(Some(error)) => {
                if let Some((step, path)) = self.record.checkpoint.clone() {
                    self.journal(EventKind::CheckpointDamaged { step, path, error });
                }
                self.round_failed(cause, true);
                self.go_on();
            }
            Err(error) => self.checkpoints_unusable(error, false),
        }
    }

    /// The round failed, and not because of the checkpoint from which it began.
    fn decide_after_lasting_failure(&mut self, cause: String) {
        let stopping = self.is_stopping();
        let keeps = self.workers.furthest().is_some();
        let decision = self.charge_failure();
        match decision {
            FailureDecision::Restart if keeps => {
                self.budget.failures += 1;
                self.round_left(cause);
                self.go_on();
            }
            FailureDecision::Restart => {
                self.budget.failures += 1;
                self.round_failed(cause, true);
                self.record.restarts += 1;
                self.go_on();
            }
            FailureDecision::GiveUp(_) if stopping && keeps => {
                self.round_left(cause);
                self.save_and_end();
            }
            FailureDecision::GiveUp(_) if stopping => {
                self.round_failed(cause, false);
                self.note_lost_state();
                self.close();
            }
            FailureDecision::GiveUp(reason) => self.give_up(&cause, reason),
        }
    }

    /// Charges the failure of this round to the budget; the recovery from it is not counted yet.
    pub(super) fn charge_failure(&mut self) -> FailureDecision {
        let furthest = self.workers.furthest().map_or(0, |(step, _)| step).max(self.round.reached);
        let failed = FailedRound {
            ready: self.round.ready,
            progress: furthest > self.round.base,
            survivors: self.round.survivors,
        };
        let policy = self.settings.run.on_failure;
        self.budget = self.budget.with(failed, policy);
        self.budget.decide(policy, self.settings.run.max_restarts, self.is_stopping())
    }

    fn round_left(&mut self, reason: String) {
        self.round.ended = true;
        self.journal(EventKind::RoundLeft { round: self.round.number, reason });
    }

    pub(super) fn round_failed(&mut self, cause: String, restarting: bool) {
        if std::mem::replace(&mut self.round.ended, true) {
            // A paused round was left before.
            return self.warn(cause);
        }
        let restarts_left = self.settings.run.max_restarts.saturating_sub(self.budget.failures);
        self.journal(EventKind::RoundFailed { round: self.round.number, cause, restarting, restarts_left });
    }

    /// The run ends as failed; workers that keep the state of training save it first.
    pub(super) fn give_up(&mut self, cause: &str, reason: GiveUpReason) {
        self.round_failed(cause.to_owned(), false);
        self.giving_up = Some(format!("{cause}\n({reason})"));
        self.save_before_failing();
    }

    /// The survivors of a run that fails save.
    pub(super) fn save_before_failing(&mut self) {
        // A successor has to go on with it.
        self.request_handled();
        let count = self.workers.savers().len();
        if count > 0 {
            self.warn(format!("{count} surviving workers save the state of training before the run ends"));
            self.ask_to_stop();
        }
        self.save_and_end();
    }

    /// The next round, unless the run is to pause: with the state that workers keep, or from the newest checkpoint.
    pub(super) fn go_on(&mut self) {
        if self.paused.is_some() {
            self.pause();
        } else if self.workers.furthest().is_some() {
            self.phase = Phase::Seating { check: self.next_check(), kept: true };
        } else {
            self.begin_loading();
        }
    }

    /// Looks for the newest checkpoint, behind those that are being written.
    pub(super) fn begin_loading(&mut self) {
        self.ledger.end_round();
        let asked = LoadingStep::Writes;
        self.phase = Phase::Loading { until: self.now + FIND_WAIT_MAX + COMMIT_WAIT_MAX, asked };
    }

    /// All workers wait until the run is continued.
    fn pause(&mut self) {
        let step = self.workers.furthest().map_or(self.round.reached, |(step, _)| step);
        self.journal(EventKind::Paused { round: self.round.number, step });
        self.round.forget_failure();
        self.recovering = None;
        self.phase = Phase::Paused { since: self.now };
    }

    /// All workers wait.
    pub(super) fn stay_paused(&mut self, since: Time) -> bool {
        if !self.may_begin() || !self.workers.all_stand() {
            return false;
        }
        if self.leads_from_left_node() && self.ledger.is_idle() && self.hand_off() {
            return true;
        }
        if self.paused.is_some() && !self.is_stopping() {
            self.leave_drained_nodes();
            return false;
        }
        self.workers.settle_shares();
        if self.is_stopping() {
            self.save_and_end();
            return true;
        }
        self.journal(EventKind::Continued { seconds: self.now.saturating_sub(since).as_secs_f64() });
        if let Some(cause) = self.round.cause.take() {
            // A death meanwhile is a failure as any other: a run that dies whenever it is paused must end, too.
            if let FailureDecision::GiveUp(reason) = self.charge_failure() {
                self.give_up(&cause, reason);
                return true;
            }
            self.budget.failures += 1;
            if self.workers.furthest().is_none() {
                self.round_failed(cause, true);
                self.record.restarts += 1;
            }
        }
        self.go_on();
        true
    }

    /// Nodes that were drained need not wait for the run to be continued, when others keep the state.
    fn leave_drained_nodes(&mut self) {
        if self.nodes.leaving().is_empty() {
            return;
        }
        let leaving = self.nodes.leaving().clone();
        let stays = |worker: &Worker| !leaving.contains(&worker.slot.node);
        if self.workers.whole_step(stays) == self.workers.whole_step(|_| true) {
            let to_leave = self.workers.seated().filter(|worker| worker.stands() && !stays(worker));
            self.unseat(to_leave.map(|worker| worker.id).collect());
        }
    }

    /// Returns whether this node, which leads, was drained.
    pub(super) fn leads_from_left_node(&self) -> bool {
        !self.is_stopping() && self.nodes.leaving().contains(&NodeIndex::OWN)
    }
}
