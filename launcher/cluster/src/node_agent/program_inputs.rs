//! What a node agent does with its inputs where the workers are any programs.

use super::{
    effect::NodeEffect,
    input::NodeInput,
    report::EffectList,
    state::{NodeState, RunKnowledge},
};
use crate::rendezvous::{NodeId, RoundEnd};
use enn_common::{
    event::EventKind,
    wire::node_agent::{Epoch, NodeCommand, NodeEvent, RunFacts},
};
use std::path::PathBuf;

impl NodeState {
    /// Handles an input of a node that runs programs.
    pub(super) fn on_program_input(&mut self, input: NodeInput, list: &mut EffectList<'_>) {
        let Some(group) = &mut self.group else { return };
        match input {
            NodeInput::RoundPlanned(plan) => group.plan(*plan),
            NodeInput::LeaderFound { epoch } => self.leader_found(epoch, list),
            NodeInput::BecameLeader { epoch, .. } if self.is_leading => self.leader_found(epoch, list),
            NodeInput::BecameLeader { epoch, members } => self.become_leader_of_programs(epoch, members, list),
            NodeInput::LeaderLost { .. } => {
                self.leader = None;
                list.has_leader = false;
            }
            NodeInput::RoundEnded(end) => {
                if let (RoundEnd::Failed(_) | RoundEnd::Hung { .. }, Some(snapshot)) = (&end, &mut self.snapshot) {
                    // What a node that takes over has to know.
                    snapshot.restarts += 1;
                }
                group.end_round(end, &self.workers, list);
            }
            NodeInput::GroupOver(end) => {
                self.leader = None;
                group.end_run(end, &self.workers, list);
            }
            NodeInput::Waiting { reason } => list.push(NodeEffect::Journal(EventKind::Waiting { reason })),
            NodeInput::Command { epoch, command } => {
                if self.leader.is_some_and(|leader| epoch.is_of_leader(leader.since)) {
                    self.on_program_command(command, list);
                }
            }
            NodeInput::ProgramSignal(signal) => group.on_signal(signal, &mut self.workers, list),
            NodeInput::ForkServer { is_loading } => group.on_fork_server(is_loading, &mut self.workers, list),
            NodeInput::Notice(event) => list.push(NodeEffect::Journal(event)),
            NodeInput::ProgramSpawned { worker, pid, forked } => {
                group.on_spawned(worker, pid, forked, list);
                self.workers.on_spawned(worker, pid, forked, list);
            }
            NodeInput::ProgramNotStarted { worker, failure } => {
                let error = failure.as_ref().and_then(|failure| failure.message.clone()).unwrap_or_default();
                self.workers.on_spawn_failed(worker, error, list);
                failure.into_iter().for_each(|failure| group.fail(failure, &self.workers, list));
            }
            NodeInput::Exited { worker, exit } => {
                self.pages.forget(worker);
                group.on_exited(worker, &exit, list);
                self.workers.on_exited(worker, exit, list);
            }
            NodeInput::Evidence { worker, evidence, .. } => {
                self.workers.settle(worker, evidence, list);
                list.extend(group.done().map(|epoch| NodeEffect::FinishMembership { epoch }));
            }
            NodeInput::CauseFound(failure) => group.fail(failure, &self.workers, list),
            NodeInput::StacksCollected { dir, summary, .. } => group.on_stacks(dir, summary, &self.workers, list),
            NodeInput::Pages(mut pages) => {
                pages.retain(|page| self.workers.is_alive(page.worker));
                self.pages.on_pages(pages, list);
            }
            // Of ENN's own workers only; what is due is done after every input.
            NodeInput::Tick
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

    /// Every node sees its own run directory, and a round that nobody heard of has used nothing up.
    fn become_leader_of_programs(&mut self, epoch: Epoch, members: Vec<NodeId>, list: &mut EffectList<'_>) {
        let run_dir = PathBuf::new();
        self.run = RunKnowledge::Seen(RunFacts { run_dir, config: String::new(), staged: PathBuf::new() });
        self.snapshot.get_or_insert_default();
        self.become_leader(epoch, members, list);
    }

    fn on_program_command(&mut self, command: NodeCommand, list: &mut EffectList<'_>) {
        match command {
            NodeCommand::BeginGroup { round, restarts, workers, snapshot } => {
                self.learn(*snapshot);
                if let Some(group) = &mut self.group {
                    group.begin(round, restarts, workers, &mut self.workers, list);
                }
            }
            // Processes of which the leader knows nothing.
            NodeCommand::Stop { workers, kill_after } => {
                workers.into_iter().for_each(|worker| self.workers.terminate(worker, kill_after, list));
            }
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
}
