//! Any programs on this node, together with those of the other nodes of a run.

use super::{NodeCounts, owner_loop::OwnerLoop, spec::AGENT_SILENCE_MAX};
use crate::{
    node_agent::{
        AgentError,
        effect::{GroupEnd, NodeEnd},
        programs::{GroupSpec, ProgramShell, ReplaceSpec, Requests},
        settings::{NodeSettings, ProgramSettings},
        state::NodeState,
    },
    rendezvous::{Rendezvous, RunEnd},
    supervisor::{
        Supervisor,
        settings::{Contract, RunJob, RunSettings, SupervisorSettings},
    },
};
use enn_common::{config::train::Recovery, event::EventKind, kernels::KernelBook};
use nix::sys::signal::Signal;
use std::{rc::Rc, time::Duration};

/// How often progress is looked at, as a part of the time after which its lack is a hang.
const PROGRESS_LOOKS: u32 = 10;

/// Time between two looks at who waits for whom.
const STRAGGLER_WINDOW: Duration = Duration::from_secs(10);

/// What became of the run on this node.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupOutcome {
    pub end: RunEnd,
    /// Rounds this node took part in.
    pub rounds: u64,
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
    let leads = rendezvous.is_host();
    if let Some(replace) = &spec.replace {
        shell.serve_scripts(replace, Rc::clone(&rendezvous))?;
    }
    let settings = supervisor_settings(spec, &rendezvous);
    let state = NodeState::new(node_settings(spec, leads, shell.is_loading()), Duration::ZERO);
    let nodes = NodeCounts { min: spec.rendezvous.nodes_min, max: spec.rendezvous.nodes_max };
    let mut owner = OwnerLoop::new(state, shell, Some(Rc::clone(&rendezvous)), nodes)?;
    owner.emit = Box::new(emit);
    owner.programs = Some(settings.clone());
    if leads {
        let host = settings.host.clone();
        owner.lead_programs(Supervisor::new(settings, KernelBook::default()), host)?;
    }
    rendezvous.join();
    if spec.replace.is_some() { owner.run_scripts(spec) } else { owner.run_programs() }
}

impl OwnerLoop<'_, ProgramShell> {
    /// Runs until the run is over for this node, and until what its workers wrote is read.
    fn run_programs(mut self) -> Result<GroupOutcome, AgentError> {
        let end = self.run_until_group_ends();
        let requests = match &end {
            Ok(GroupEnd { stopped_by, is_stopped_twice, .. }) => {
                Requests { first: *stopped_by, second: *is_stopped_twice }
            }
            Err(_) => Requests { first: None, second: false },
        };
        let waited = self.shell.end(requests, &mut *self.emit)?;
        let output_lost = self.shell.output_lost();
        let GroupEnd { end, rounds, restarts, .. } = end?;
        Ok(GroupOutcome { end, rounds, restarts, stopped_by: waited.first, output_lost })
    }

    fn run_until_group_ends(&mut self) -> Result<GroupEnd, AgentError> {
        loop {
            self.drive();
            if let Some(error) = self.failure.take().or_else(|| self.shell.failure.take()) {
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
        programs: spec.replace.is_none().then(|| ProgramSettings {
            grace: spec.grace,
            restarts_max: rendezvous.restarts_max,
            leave_background: spec.leave_background,
            awaits_fork_server,
            watches_progress: rendezvous.hang_timeout.is_some(),
        }),
    }
}

fn supervisor_settings(spec: &GroupSpec, met: &Rendezvous) -> SupervisorSettings {
    let rendezvous = &spec.rendezvous;
    let run = RunSettings {
        contract: Contract::Env(spec.limits),
        workers_min: 1,
        on_failure: Recovery::Restart,
        max_restarts: rendezvous.restarts_max,
        spares: 0,
        spares_are_bound: false,
        evict_stragglers: false,
        straggler_window: Duration::ZERO,
        regroup_wait: Duration::ZERO,
        hang_timeout: rendezvous.hang_timeout,
        grace: spec.grace,
        first_round: 0,
        run_dir: spec.run_dir.clone(),
        job: RunJob::Program,
    };
    let (host, port) = met.store();
    SupervisorSettings {
        run: match &spec.replace {
            None => run,
            Some(replace) => replacing(run, replace),
        },
        own: met.node(),
        host: rendezvous.host.clone(),
        several_nodes: true,
        nodes_min: rendezvous.nodes_min,
        workers: rendezvous.local_world,
        agent_silence_max: AGENT_SILENCE_MAX + met.silence_max(),
        // Unique among all leaders of a run, as far as nodes have different hosts or processes.
        launch: format!("{:x}", std::process::id()),
        store: format!("{host}:{port}"),
        device: "cpu",
        threads: 1,
    }
}

/// Returns the settings of a run whose workers are replaced, from those of one in which all restart.
fn replacing(run: RunSettings, replace: &ReplaceSpec) -> RunSettings {
    RunSettings {
        contract: Contract::Script,
        workers_min: replace.workers_min,
        on_failure: Recovery::Reform,
        spares: replace.spares,
        spares_are_bound: replace.warm_device,
        straggler_window: STRAGGLER_WINDOW,
        ..run
    }
}
