//! What a node agent does with its inputs where the workers are any programs.

use super::{
    effect::NodeEffect,
    input::NodeInput,
    report::EffectList,
    state::{NodeState, RunKnowledge},
};
use crate::rendezvous::RoundEnd;
use enn_common::{
    event::EventKind,
    id::WorkerId,
    wire::node_agent::{NodeCommand, NodeEvent, RunFacts},
};
use std::{path::PathBuf, time::Duration};

impl NodeState {
    /// Handles an input of a node that runs programs.
    pub(super) fn on_program_input(&mut self, now: Duration, input: NodeInput, list: &mut EffectList<'_>) {
        let Some(group) = &mut self.group else { return };
        match input {
            NodeInput::RoundPlanned(plan) => group.plan(*plan),
            NodeInput::LeaderFound { epoch } => self.leader_found(now, epoch, list),
            NodeInput::BecameLeader { epoch, .. } if self.is_leading => self.leader_found(now, epoch, list),
            NodeInput::BecameLeader { epoch, members } => {
                // Every node sees its own run directory, and a round that nobody heard of has used nothing up.
                let run_dir = PathBuf::new();
                self.run = RunKnowledge::Seen(RunFacts { run_dir, config: String::new(), staged: PathBuf::new() });
                self.snapshot.get_or_insert_default();
                self.become_leader(now, epoch, members, list);
            }
            NodeInput::LeaderLost { .. } => {
                self.leader = None;
                list.set_leader(false);
            }
            NodeInput::RoundEnded(end) => {
                if let (RoundEnd::Failed(_) | RoundEnd::Hung { .. }, Some(snapshot)) = (&end, &mut self.snapshot) {
                    // What a node that takes over has to know.
                    snapshot.restarts += 1;
                }
                group.end_round(now, end, &self.workers, list);
            }
            NodeInput::GroupOver(end) => {
                self.leader = None;
                group.end_run(now, end, &self.workers, list);
            }
            NodeInput::Waiting { reason } => list.push(NodeEffect::Journal(EventKind::Waiting { reason })),
            NodeInput::Command { epoch, command } => {
                if self.leader.is_some_and(|leader| epoch.is_of_leader(leader.since)) {
                    self.on_program_command(now, command, list);
                }
            }
            NodeInput::ProgramSignal(signal) => group.on_signal(now, signal, &mut self.workers, list),
            NodeInput::ForkServer { is_loading } => group.on_fork_server(is_loading, &mut self.workers, list),
            NodeInput::Notice(event) => list.push(NodeEffect::Journal(event)),
            input => self.on_program(now, input, list),
        }
    }

    /// Handles what the programs do.
    fn on_program(&mut self, now: Duration, input: NodeInput, list: &mut EffectList<'_>) {
        let Some(group) = &mut self.group else { return };
        match input {
            NodeInput::ProgramSpawned { worker, pid, forked } => {
                group.on_spawned(worker, pid, forked, list);
                self.workers.on_spawned(now, worker, pid, list);
            }
            NodeInput::ProgramNotStarted { worker, failure } => {
                let error = failure.as_ref().and_then(|failure| failure.message.clone()).unwrap_or_default();
                self.workers.on_spawn_failed(worker, error, list);
                if let Some(failure) = failure {
                    group.fail(now, failure, &self.workers, list);
                }
            }
            NodeInput::Exited { worker, exit } => {
                self.pages.forget(worker);
                group.on_exited(worker, &exit, list);
                self.workers.on_exited(now, worker, exit, list);
            }
            NodeInput::Evidence { worker, evidence } => {
                self.workers.settle(worker, evidence, list);
                self.tell_when_done(list);
            }
            NodeInput::CauseFound(failure) => group.fail(now, failure, &self.workers, list),
            NodeInput::StacksCollected { dir, summary, .. } => {
                group.on_stacks(now, dir, summary, &self.workers, list);
            }
            NodeInput::Pages(mut pages) => {
                pages.retain(|page| self.workers.is_alive(page.worker));
                self.pages.on_pages(now, pages, list);
            }
            // Handled above, or of ENN's own workers only.
            NodeInput::RoundPlanned(_)
            | NodeInput::LeaderFound { .. }
            | NodeInput::BecameLeader { .. }
            | NodeInput::LeaderLost { .. }
            | NodeInput::RoundEnded(_)
            | NodeInput::GroupOver(_)
            | NodeInput::Waiting { .. }
            | NodeInput::Command { .. }
            | NodeInput::ProgramSignal(_)
            | NodeInput::ForkServer { .. }
            | NodeInput::Notice(_)
            | NodeInput::Tick
            | NodeInput::MembershipReopened
            | NodeInput::MembershipOver(_)
            | NodeInput::RunSeen(_)
            | NodeInput::Spawned { .. }
            | NodeInput::SpawnFailed { .. }
            | NodeInput::Broker(_)
            | NodeInput::Signal(_)
            | NodeInput::SnapshotWritten { .. }
            | NodeInput::Fault { .. } => {}
        }
    }

    fn on_program_command(&mut self, now: Duration, command: NodeCommand, list: &mut EffectList<'_>) {
        match command {
            NodeCommand::BeginGroup { round, restarts, workers, snapshot } => {
                self.learn(*snapshot);
                if let Some(group) = &mut self.group {
                    group.begin(round, restarts, workers, &mut self.workers, list);
                }
            }
            NodeCommand::Stop { workers, kill_after } => self.end_strange(now, workers, kill_after, list),
            NodeCommand::ReplicateSnapshot(snapshot) => {
                let requests = snapshot.requests;
                self.learn(*snapshot);
                list.report(NodeEvent::SnapshotAcked { requests });
            }
            NodeCommand::CutLink { time } => list.push(NodeEffect::CutLink { time }),
            // For ENN's own workers.
            NodeCommand::JoinRun(_)
            | NodeCommand::Start { .. }
            | NodeCommand::BeginRound { .. }
            | NodeCommand::EndRound { .. }
            | NodeCommand::SetFlag { .. }
            | NodeCommand::Broadcast(_)
            | NodeCommand::Dismiss { .. }
            | NodeCommand::DisconnectAll
            | NodeCommand::LinkLogs { .. }
            | NodeCommand::PersistSnapshot { .. }
            | NodeCommand::ReleaseSnapshot { .. }
            | NodeCommand::CollectStacks { .. }
            | NodeCommand::LeaveRun { .. }
            | NodeCommand::EndRun(_) => {}
        }
    }

    /// Ends processes of which the leader knows nothing.
    fn end_strange(&mut self, now: Duration, workers: Vec<WorkerId>, kill_after: Duration, list: &mut EffectList<'_>) {
        for worker in workers {
            self.workers.terminate(now, worker, kill_after, list);
        }
    }

    /// Tells the membership when all workers of this node exited with 0.
    fn tell_when_done(&mut self, list: &mut EffectList<'_>) {
        if let Some(group) = &mut self.group
            && group.is_done()
        {
            list.push(NodeEffect::FinishMembership { epoch: group.epoch() });
        }
    }
}
