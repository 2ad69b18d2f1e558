//! Any programs on this node, together with those of the other nodes of a run.

use super::{
    NodeCounts,
    owner_loop::{LoopParts, OwnerLoop},
    spec::AGENT_SILENCE_MAX,
};
use crate::{
    leader::{Fence, Journal, LeaderParts},
    node_agent::{
        AgentError,
        any_shell::AnyShell,
        effect::{GroupEnd, NodeEnd},
        programs::{GroupSpec, ProgramShell, Requests},
        settings::{NodeSettings, ProgramSettings},
        state::NodeState,
    },
    rendezvous::{NodeId, Rendezvous, RunEnd},
    supervisor::{
        Supervisor,
        settings::{Contract, RunJob, SupervisorSettings},
    },
};
use enn_common::{config::train::Recovery, event::EventKind, kernels::KernelBook, wire::node_agent::RunSnapshot};
use nix::sys::signal::Signal;
use std::{
    path::PathBuf,
    rc::Rc,
    time::{Duration, Instant},
};

/// How often progress is looked at, as a part of the time after which its lack is a hang.
const PROGRESS_LOOKS: u32 = 10;

/// What became of the run on this node.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupOutcome {
    /// How the run ended.
    pub end: RunEnd,
    /// Rounds this node took part in.
    pub rounds: u64,
    /// Restarts of the run.
    pub restarts: u32,
    /// The signal that asked this node to stop.
    pub stopped_by: Option<Signal>,
    /// Bytes of the workers' output that were not written, because a second signal ended the wait for their reader.
    pub output_lost: u64,
}

/// Runs programs on this node until the run ends. Every event goes to `emit`.
///
/// The calling thread must live until this returns: workers die with the thread that forked them.
///
/// # Errors
/// When the machine refuses something the launcher itself needs; a worker's failure is an outcome.
pub fn run_programs(spec: &GroupSpec, emit: &mut dyn FnMut(EventKind)) -> Result<GroupOutcome, AgentError> {
    let mut shell = ProgramShell::new(spec)?;
    let rendezvous = Rc::new(Rendezvous::start(spec.rendezvous.clone())?);
    shell.meet(Rc::clone(&rendezvous));
    let own = rendezvous.node();
    let leads = rendezvous.is_host();
    let settings = supervisor_settings(spec, own, rendezvous.silence_max());
    let mut never = |_| {};
    let mut owner = OwnerLoop::new(LoopParts {
        state: NodeState::new(node_settings(spec, leads, shell.is_loading()), Duration::ZERO),
        origin: Instant::now(),
        shell: AnyShell::Programs(Box::new(shell)),
        rendezvous: Some(Rc::clone(&rendezvous)),
        own,
        nodes: NodeCounts { min: spec.rendezvous.nodes_min, max: spec.rendezvous.nodes_max },
        emit,
        begin_lead: &mut never,
        programs: Some(settings.clone()),
    })?;
    if leads {
        owner.lead_programs(Supervisor::new(settings, KernelBook::default()))?;
    }
    rendezvous.join();
    owner.run_programs()
}

impl OwnerLoop<'_> {
    /// Leads a run of programs from now on.
    pub(super) fn lead_programs(&mut self, supervisor: Supervisor) -> Result<(), AgentError> {
        let host = self.programs.as_ref().map(|settings| settings.host.clone()).unwrap_or_default();
        self.lead(LeaderParts {
            supervisor,
            journal: Journal::Queued(Vec::new()),
            checkpoints: None,
            fence: Fence::default(),
            run_dir: PathBuf::new(),
            program: PathBuf::new(),
            host,
            own: self.own,
            rendezvous: self.rendezvous.clone(),
        })
    }

    /// Leads a run of programs whose leader is gone.
    pub(super) fn succeed_in_leading_programs(&mut self, settings: SupervisorSettings, snapshot: RunSnapshot) {
        let supervisor = Supervisor::take_over(settings, KernelBook::default(), snapshot);
        if let Err(error) = self.lead_programs(supervisor) {
            self.failure = Some(error);
        }
    }

    /// Runs until the run is over for this node, and until what its workers wrote is read.
    fn run_programs(mut self) -> Result<GroupOutcome, AgentError> {
        let end = self.run_until_group_ends();
        let requests = match &end {
            Ok(GroupEnd { stopped_by, is_stopped_twice, .. }) => {
                Requests { first: *stopped_by, second: *is_stopped_twice }
            }
            Err(_) => Requests { first: None, second: false },
        };
        let AnyShell::Programs(shell) = &mut self.shell else { return Err(AgentError::LeadLost) };
        let waited = shell.end(requests, self.emit)?;
        let output_lost = shell.output_lost();
        let GroupEnd { end, rounds, restarts, .. } = end?;
        Ok(GroupOutcome { end, rounds, restarts, stopped_by: waited.first, output_lost })
    }

    fn run_until_group_ends(&mut self) -> Result<GroupEnd, AgentError> {
        loop {
            self.drive();
            if let Some(error) = self.failure.take().or_else(|| self.shell.take_failure()) {
                return Err(error);
            }
            match self.node_end.take() {
                Some(NodeEnd::Group(end)) => return Ok(*end),
                Some(NodeEnd::Ended(_) | NodeEnd::Stopped(_) | NodeEnd::Drained | NodeEnd::Failed(_)) => {
                    return Err(AgentError::LeadLost);
                }
                None => self.wait()?,
            }
        }
    }
}

fn node_settings(spec: &GroupSpec, leads: bool, awaits_fork_server: bool) -> NodeSettings {
    let rendezvous = &spec.rendezvous;
    NodeSettings {
        host: rendezvous.host.clone(),
        workers: rendezvous.local_world,
        workers_max: rendezvous.local_world,
        leads,
        pages_period: rendezvous
            .hang_timeout
            .map_or_else(|| NodeSettings::pages_period(rendezvous.nodes_max), |limit| limit / PROGRESS_LOOKS),
        programs: Some(ProgramSettings {
            grace: spec.grace,
            restarts_max: rendezvous.restarts_max,
            leave_background: spec.leave_background,
            awaits_fork_server,
            watches_progress: rendezvous.hang_timeout.is_some(),
        }),
    }
}

fn supervisor_settings(spec: &GroupSpec, own: NodeId, silence_max: Duration) -> SupervisorSettings {
    let rendezvous = &spec.rendezvous;
    SupervisorSettings {
        contract: Contract::Env,
        own,
        host: rendezvous.host.clone(),
        several_nodes: true,
        nodes_min: rendezvous.nodes_min,
        nodes_max: rendezvous.nodes_max,
        workers_min: 1,
        workers: rendezvous.local_world,
        on_failure: Recovery::Restart,
        max_restarts: rendezvous.restarts_max,
        restart_window: spec.restart_window,
        backoff: spec.backoff,
        retry_early: spec.retry_early,
        spares: 0,
        evict_stragglers: false,
        straggler_window: Duration::ZERO,
        regroup_wait: Duration::ZERO,
        hang_timeout: rendezvous.hang_timeout,
        grace: spec.grace,
        agent_silence_max: AGENT_SILENCE_MAX + silence_max,
        first_round: 0,
        launch: String::new(),
        run_dir: spec.run_dir.clone(),
        store: String::new(),
        device: "cpu",
        threads: 1,
        job: RunJob::Program,
    }
}
