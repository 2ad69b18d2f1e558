//! The workers of one node in a run of programs: a pure machine that starts them when a round begins, ends them when it is over, and
//! ends the node when the run is.
//!
//! ```text
//! Joining ── a round begins ─► Loading (the fork server imports) ─► Running ── all exited with 0 ─► Idle
//!    ▲                                                                 │ a failure, the end of the round or run, a signal
//!    └── the round is over ◄── Stopping: TERM, then KILL after the grace ◄┘ (after a hang their stacks are read first)
//! ```
//! **Its own rules:** the first worker that fails ends the others of its node, unasked; the node joins the next round only when none of
//! its workers is left; a signal is passed on to the workers and makes the node leave the run; a second one kills them.

use super::{
    effect::{EndSignal, GroupEnd, NodeEffect, NodeEnd, ProgramRound},
    program_ranks::Ranks,
    report::EffectList,
    settings::ProgramSettings,
    worker_records::WorkerRecords,
};
use crate::{
    rendezvous::{Member, RendezvousInfo, RoundEnd, RunEnd},
    transport,
};
use enn_common::{
    event::{EventKind, NodeBrief},
    failure::Failure,
    id::{LocalRank, Rank, Round, WorkerId},
    wire::node_agent::{Epoch, NodeEvent, WorkerExit},
};
use nix::sys::signal::Signal;
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// Reading what the workers do takes no longer.
const STACKS_MAX: Duration = Duration::from_secs(20);
/// Longest wait for the stacks of workers that hang.
const STACKS_WAIT_MAX: Duration = Duration::from_secs(25);

/// What the group is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GroupPhase {
    /// Waiting for a round.
    Joining,
    /// The round has begun; its workers wait for the fork server, which imports.
    Loading,
    /// The workers work.
    Running,
    /// No worker of this node is left, and the round is not over: others may still work.
    Idle,
    /// The round is over because no worker makes progress. It is read what they are doing, at most until then.
    Looking { until: Duration },
    /// Workers were asked to end, and get SIGKILL then.
    Stopping { kill_at: Duration },
    /// Workers got SIGKILL.
    Killed,
}

/// A round that is over, and why no other follows.
#[derive(Debug, Clone, PartialEq)]
struct ClosedRound {
    end: RoundEnd,
    last: Option<String>,
}

/// A worker of the present round.
#[derive(Debug, Clone, Copy)]
struct GroupWorker {
    ranks: Ranks,
    pid: u32,
    succeeded: bool,
}

/// Workers of one node.
#[derive(Debug)]
pub(super) struct ProgramGroup {
    settings: ProgramSettings,
    host: String,
    /// Round of the membership that has not begun on this node.
    planned: Option<RendezvousInfo>,
    /// Round that waits for the fork server.
    loading: Option<Box<ProgramRound>>,
    is_fork_server_ready: bool,
    /// Number of the round that began last, and its membership.
    round: u64,
    epoch: Epoch,
    workers: BTreeMap<WorkerId, GroupWorker>,
    phase: GroupPhase,
    /// The end of the round that began last is known.
    is_round_over: bool,
    /// The leader knows the failure of the round.
    is_failure_told: bool,
    /// A round that hung, while it is looked at what its workers are doing.
    hung: Option<ClosedRound>,
    end: Option<RunEnd>,
    stopped_by: Option<Signal>,
    is_stopped_twice: bool,
    rounds: u64,
    restarts: u32,
}

impl ProgramGroup {
    pub(super) fn new(settings: ProgramSettings, host: String) -> Self {
        Self {
            is_fork_server_ready: !settings.awaits_fork_server,
            settings,
            host,
            planned: None,
            loading: None,
            round: 0,
            epoch: Epoch::default(),
            workers: BTreeMap::new(),
            phase: GroupPhase::Joining,
            is_round_over: true,
            is_failure_told: false,
            hung: None,
            end: None,
            stopped_by: None,
            is_stopped_twice: false,
            rounds: 0,
            restarts: 0,
        }
    }

    /// Returns whether it is looked for signs of progress.
    pub(super) fn watches_progress(&self) -> bool {
        self.settings.watches_progress
    }

    /// Returns when something is due.
    pub(super) fn deadline(&self) -> Option<Duration> {
        match self.phase {
            GroupPhase::Looking { until: at } | GroupPhase::Stopping { kill_at: at } => Some(at),
            GroupPhase::Joining | GroupPhase::Loading | GroupPhase::Running | GroupPhase::Idle | GroupPhase::Killed => {
                None
            }
        }
    }

    /// The nodes agreed on a round.
    pub(super) fn plan(&mut self, plan: RendezvousInfo) {
        self.planned = Some(plan);
    }

    /// The leader begins a round with these workers on this node, by local rank.
    pub(super) fn begin(
        &mut self,
        round: u64,
        restarts: u32,
        workers: Vec<WorkerId>,
        records: &mut WorkerRecords,
        list: &mut EffectList<'_>,
    ) {
        let is_wanted = self.phase == GroupPhase::Joining && self.stopped_by.is_none() && self.end.is_none();
        let Some(plan) = self.planned.take_if(|plan| is_wanted && plan.round == round) else { return };
        self.epoch = transport::epoch_of(&plan);
        let ranks = Ranks::of_node(&plan);
        let world_size = ranks.first().map_or(0, |ranks| ranks.world);
        let brief = |member: &Member| NodeBrief { host: member.host.clone(), workers: member.local_world };
        let nodes = plan.members.iter().map(brief).collect();
        let master = format!("{}:{}", plan.master.0, plan.master.1);
        let number = Round(round);
        tell(list, EventKind::RoundFormed { round: number, restart: restarts, master, nodes });
        tell(list, EventKind::RoundStarted { round: number, world_size, attempt: restarts, resume_step: None });
        self.rounds += 1;
        self.restarts = restarts;
        self.round = round;
        self.is_round_over = false;
        self.is_failure_told = false;
        let seat = |ranks| GroupWorker { ranks, pid: 0, succeeded: false };
        self.workers = workers.iter().copied().zip(ranks.into_iter().map(seat)).collect();
        let starts = Box::new(ProgramRound { plan, restarts, workers });
        if self.is_fork_server_ready {
            self.start(starts, records, list);
        } else {
            self.phase = GroupPhase::Loading;
            self.loading = Some(starts);
        }
    }

    /// The fork server imports, or it has imported, or there is none any more.
    pub(super) fn on_fork_server(&mut self, is_loading: bool, records: &mut WorkerRecords, list: &mut EffectList<'_>) {
        self.is_fork_server_ready = !is_loading;
        if self.is_fork_server_ready
            && self.phase == GroupPhase::Loading
            && let Some(starts) = self.loading.take()
        {
            self.start(starts, records, list);
        }
    }

    fn start(&mut self, starts: Box<ProgramRound>, records: &mut WorkerRecords, list: &mut EffectList<'_>) {
        self.phase = GroupPhase::Running;
        starts.workers.iter().for_each(|worker| records.start_program(*worker));
        list.push(NodeEffect::StartPrograms(starts));
    }

    pub(super) fn on_spawned(&mut self, worker: WorkerId, pid: u32, forked: bool, list: &mut EffectList<'_>) {
        let Some(known) = self.workers.get_mut(&worker) else { return };
        known.pid = pid;
        let round = Round(self.round);
        let local_rank = LocalRank(known.ranks.local_rank);
        let rank = Rank(known.ranks.rank);
        let host = self.host.clone();
        tell(list, EventKind::WorkerStarted { round, local_rank, rank, pid, host, forked });
    }

    /// A worker ended. The first that failed ends the round on this node, as soon as it is known which one it was.
    pub(super) fn on_exited(&mut self, worker: WorkerId, exit: &WorkerExit, list: &mut EffectList<'_>) {
        let Some(known) = self.workers.get_mut(&worker) else { return };
        let WorkerExit { code, signal, late, .. } = *exit;
        known.succeeded = code == Some(0);
        let rank = Rank(known.ranks.rank);
        let pid = known.pid;
        let failed = !known.succeeded;
        let round = Round(self.round);
        let seconds_to_notice = late.as_secs_f64();
        tell(list, EventKind::WorkerExited { round, rank, pid, code, signal, seconds_to_notice });
        if self.phase == GroupPhase::Running && failed {
            list.push(NodeEffect::FindCause);
        }
    }

    /// Returns the membership of the round when all its workers have just exited with 0: this node's work is done.
    pub(super) fn done(&mut self) -> Option<Epoch> {
        let done = self.phase == GroupPhase::Running && self.workers.values().all(|worker| worker.succeeded);
        if done {
            self.phase = GroupPhase::Idle;
        }
        done.then_some(self.epoch)
    }

    /// A worker failed, or could not be started: the leader is told, and the others end.
    pub(super) fn fail(&mut self, failure: Box<Failure>, records: &WorkerRecords, list: &mut EffectList<'_>) {
        if self.phase == GroupPhase::Running && !self.is_failure_told {
            self.is_failure_told = true;
            list.report(NodeEvent::GroupFailed { round: failure.round, failure });
            self.stop(records, list);
        }
    }

    /// The round is over, and the run goes on.
    pub(super) fn end_round(&mut self, end: RoundEnd, records: &WorkerRecords, list: &mut EffectList<'_>) {
        // A round that has not begun here leaves nothing behind.
        self.planned = None;
        if self.is_round_over {
            self.rejoin(list);
        } else {
            self.close_round(ClosedRound { end, last: None }, records, list);
        }
    }

    /// The run is over for this node.
    pub(super) fn end_run(&mut self, end: RunEnd, records: &WorkerRecords, list: &mut EffectList<'_>) {
        self.planned = None;
        self.end = Some(end.clone());
        match end {
            RunEnd::Failed { end, reason } => {
                return self.close_round(ClosedRound { end, last: Some(reason) }, records, list);
            }
            RunEnd::LeaderLost { reason } | RunEnd::TimedOut { reason } | RunEnd::Refused { reason } => {
                tell(list, EventKind::GaveUp { reason });
            }
            RunEnd::Stopped { by } if self.stopped_by.is_none() => {
                tell(list, EventKind::GaveUp { reason: format!("the run was stopped: {by}") });
                // Nodes leave with the name of their signal: all of them end by it, and are put back into the queue
                // by it, whichever gets it first.
                let signal = by.split(' ').next().and_then(|name| name.parse().ok());
                self.ask_to_stop(signal.unwrap_or(Signal::SIGTERM), records, list);
            }
            RunEnd::Stopped { .. } | RunEnd::Finished => {}
        }
        self.stop(records, list);
    }

    fn close_round(&mut self, closed: ClosedRound, records: &WorkerRecords, list: &mut EffectList<'_>) {
        self.is_round_over = true;
        if let RoundEnd::Hung { .. } = closed.end
            && !self.is_ending()
        {
            self.hung = Some(closed);
            self.phase = GroupPhase::Looking { until: list.now + STACKS_WAIT_MAX };
            let workers = records.living().into_iter().map(|living| living.worker).collect();
            return list.push(NodeEffect::CollectStacks { round: self.round, workers, limit: STACKS_MAX });
        }
        self.tell_round_end(closed, list);
        self.stop(records, list);
    }

    /// Tells how the round ended.
    fn tell_round_end(&self, closed: ClosedRound, list: &mut EffectList<'_>) {
        let ClosedRound { end, last } = closed;
        let round = Round(self.round);
        match &end {
            RoundEnd::Failed(failure) => tell(list, EventKind::FailureReported { failure: failure.clone() }),
            RoundEnd::Hung { .. } => {}
            RoundEnd::NodeLost { .. } | RoundEnd::NodeWaiting { .. } if last.is_none() => {
                return tell(list, EventKind::RoundLeft { round, reason: end.to_string() });
            }
            RoundEnd::NodeLost { .. } | RoundEnd::NodeWaiting { .. } => {}
        }
        let restarting = last.is_none();
        let used = self.restarts + u32::from(restarting);
        let restarts_left = self.settings.restarts_max.saturating_sub(used);
        let cause = match (&end, last) {
            // The failure itself was told just now.
            (RoundEnd::Failed(_), Some(reason)) => reason,
            (_, Some(reason)) => format!("{end} ({reason})"),
            (_, None) => end.to_string(),
        };
        tell(list, EventKind::RoundFailed { round, cause, restarting, restarts_left });
    }

    /// It is known what the workers of a round that hung were doing.
    pub(super) fn on_stacks(
        &mut self,
        dir: PathBuf,
        summary: Vec<String>,
        records: &WorkerRecords,
        list: &mut EffectList<'_>,
    ) {
        let is_looking = matches!(self.phase, GroupPhase::Looking { .. });
        let Some(closed) = self.hung.take_if(|_| is_looking) else { return };
        if let RoundEnd::Hung { idle } = closed.end {
            let seconds = idle.as_secs_f64();
            let round = Round(self.round);
            tell(list, EventKind::HangDetected { round, seconds, stacks: Some(dir) });
        }
        summary.into_iter().for_each(|message| tell(list, EventKind::Warned { message }));
        self.tell_round_end(closed, list);
        self.stop(records, list);
    }

    /// A signal came to this node.
    pub(super) fn on_signal(&mut self, signal: Signal, records: &mut WorkerRecords, list: &mut EffectList<'_>) {
        // Slurm ends what it puts back into the queue: after SIGUSR1 that is no second wish of the user's.
        let second = self.stopped_by.is_some_and(|first| first != Signal::SIGUSR1);
        tell(list, EventKind::StopRequested { signal: signal.as_str().into(), second });
        if second {
            self.is_stopped_twice = true;
            return self.kill(records, list);
        }
        // Another node may have told of the same signal before it came here.
        if self.stopped_by != Some(signal) {
            list.push(NodeEffect::LeaveMembership { why: signal.as_str().to_owned() });
            self.ask_to_stop(signal, records, list);
        }
    }

    fn ask_to_stop(&mut self, signal: Signal, records: &WorkerRecords, list: &mut EffectList<'_>) {
        self.stopped_by.get_or_insert(signal);
        self.signal_all(EndSignal::Request(signal), records, list);
        if self.phase != GroupPhase::Killed {
            self.phase = GroupPhase::Stopping { kill_at: list.now + self.settings.grace };
        }
    }

    /// Asks the workers to end; they are killed after the grace.
    fn stop(&mut self, records: &WorkerRecords, list: &mut EffectList<'_>) {
        if !self.is_ending() {
            self.signal_all(EndSignal::Terminate, records, list);
            self.phase = GroupPhase::Stopping { kill_at: list.now + self.settings.grace };
        }
    }

    fn kill(&mut self, records: &mut WorkerRecords, list: &mut EffectList<'_>) {
        self.phase = GroupPhase::Killed;
        records.kill_all(list);
    }

    fn signal_all(&self, signal: EndSignal, records: &WorkerRecords, list: &mut EffectList<'_>) {
        for worker in self.workers.keys().copied().filter(|worker| records.is_alive(*worker)) {
            list.push(NodeEffect::Signal { worker, signal });
        }
    }

    /// Returns whether the workers were asked to end.
    fn is_ending(&self) -> bool {
        matches!(self.phase, GroupPhase::Stopping { .. } | GroupPhase::Killed)
    }

    pub(super) fn due(&mut self, records: &mut WorkerRecords, list: &mut EffectList<'_>) {
        match self.phase {
            GroupPhase::Stopping { kill_at } if kill_at <= list.now => {
                let living = self.workers.keys().filter(|worker| records.is_alive(**worker)).count();
                if living > 0 {
                    let seconds = self.settings.grace.as_secs_f64();
                    let message = format!("{living} workers did not end within {seconds:.1} s and were killed");
                    tell(list, EventKind::Warned { message });
                }
                self.kill(records, list);
            }
            GroupPhase::Looking { until } if until <= list.now => {
                let summary = vec!["the stacks of the workers could not be read in time".to_owned()];
                self.on_stacks(PathBuf::new(), summary, records, list);
            }
            GroupPhase::Joining
            | GroupPhase::Loading
            | GroupPhase::Running
            | GroupPhase::Idle
            | GroupPhase::Looking { .. }
            | GroupPhase::Stopping { .. }
            | GroupPhase::Killed => {}
        }
    }

    /// Joins the next round when no worker is left of one that is over. Returns how the run ended for this node, once it has.
    pub(super) fn settle(&mut self, records: &WorkerRecords, list: &mut EffectList<'_>) -> Option<NodeEnd> {
        if !self.is_ending() || !records.are_gone() {
            return None;
        }
        let ended_well = matches!(self.end, Some(RunEnd::Finished));
        list.push(NodeEffect::ClearGroup { keep_background: self.settings.leave_background && ended_well });
        self.workers.clear();
        self.loading = None;
        self.hung = None;
        let by = |signal: Signal| format!("{} on {}", signal.as_str(), self.host);
        let end = self.end.take().or_else(|| self.stopped_by.map(|signal| RunEnd::Stopped { by: by(signal) }));
        if let Some(end) = end {
            return Some(NodeEnd::Group(Box::new(GroupEnd {
                end,
                rounds: self.rounds,
                restarts: self.restarts,
                stopped_by: self.stopped_by,
                is_stopped_twice: self.is_stopped_twice,
            })));
        }
        // To join before the round is over would say that this node's workers left the next one.
        self.phase = GroupPhase::Idle;
        if self.is_round_over {
            self.rejoin(list);
        }
        None
    }

    /// Joins the next round, if none of its workers is left.
    fn rejoin(&mut self, list: &mut EffectList<'_>) {
        if matches!(self.phase, GroupPhase::Idle | GroupPhase::Joining) && self.end.is_none() {
            self.phase = GroupPhase::Joining;
            list.push(NodeEffect::RejoinMembership);
        }
    }
}

/// Writes an event for the people at this node: each keeps a journal of its own.
fn tell(list: &mut EffectList<'_>, event: EventKind) {
    list.push(NodeEffect::Journal(event));
}

#[cfg(test)]
mod tests;
