//! The run that a seed stands for: its nodes, its settings, and what its workers do.

use super::{random::Random, scripts::ScriptPlan};
use crate::{
    node_agent::settings::ProgramSettings,
    rendezvous::{self, NodeId},
    supervisor::{
        GroupLimits,
        settings::{Contract, RunJob, RunSettings, SupervisorSettings},
    },
};
use enn_common::config::train::Recovery;
use std::time::Duration;

/// Workers of a run at most.
const WORKERS_MAX: u64 = 48;
/// Longest silence of a node in a run that cannot go on without it.
const SILENCE_MAX_FIXED: Duration = Duration::from_secs(30);
/// Directory of the run, on a file system that all nodes share.
pub(super) const RUN_DIR: &str = "/runs/r";

/// How the ranks share the state of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharding {
    /// Every rank has all of it.
    Replicated,
    /// Every rank has another part.
    Full,
    /// Parts of so many, each of which several ranks may have.
    Groups(u32),
}

impl Sharding {
    /// Returns the part of a rank among `world`; `None`: all.
    pub(super) fn share(self, rank: u32, world: u32) -> Option<(u32, u32)> {
        match self {
            Self::Replicated => None,
            Self::Full if world < 2 => None,
            Self::Full => Some((rank, world)),
            Self::Groups(parts) => {
                let parts = parts.min(world);
                (parts > 1).then(|| (rank % parts, parts))
            }
        }
    }
}

/// A run of a seed.
#[derive(Debug, Clone)]
pub(super) struct RunPlan {
    pub(super) nodes: usize,
    pub(super) nodes_min: u32,
    pub(super) nodes_max: u32,
    /// Workers of each node, and what it has room for.
    pub(super) workers: u32,
    pub(super) workers_max: u32,
    pub(super) workers_min: u32,
    pub(super) spares: u32,
    pub(super) on_failure: Recovery,
    pub(super) max_restarts: u32,
    pub(super) evict_stragglers: bool,
    /// The workers are scripts.
    pub(super) scripts: Option<ScriptPlan>,
    pub(super) hang_timeout: Option<Duration>,
    pub(super) grace: Duration,
    pub(super) sharding: Sharding,
    /// Checkpoints are left in memory and written by the node agent.
    pub(super) in_memory: bool,
    /// Time of a step, steps of the run, of an epoch, and between two checkpoints.
    pub(super) step_time: Duration,
    pub(super) steps: u64,
    pub(super) epoch_steps: u64,
    pub(super) save_steps: u64,
    /// From the start of a process to its connection, and from there to a warm spare.
    pub(super) connect_time: Duration,
    pub(super) load_time: Duration,
    /// Longest delay of a link between two nodes, milliseconds.
    pub(super) link_delay_ms: u64,
    /// Time of a write to the shared disk.
    pub(super) disk_time: Duration,
    pub(super) pages_period: Duration,
    /// Longest silence of a node.
    pub(super) silence_max: Duration,
    /// The workers are any programs.
    pub(super) programs: bool,
}

impl RunPlan {
    /// Makes the run of a seed.
    pub(super) fn of(random: &mut Random) -> Self {
        let nodes = random.between(if random.clone().one_in(8) { 1 } else { 2 }, 12);
        let elastic = !random.one_in(4);
        let nodes_min = if elastic { random.between(1, nodes.div_ceil(2)) } else { nodes };
        let workers = random.between(1, (WORKERS_MAX / nodes).clamp(1, 8));
        let several = nodes > 1;
        let on_failure = if random.one_in(6) { Recovery::Restart } else { Recovery::Reform };
        let any_size = random.one_in(2);
        let sharding = match random.below(4) {
            0 => Sharding::Full,
            1 => Sharding::Groups(random.pick(&[2, 3])),
            _ => Sharding::Replicated,
        };
        let seconds = |low, high| (Duration::from_secs(low), Duration::from_secs(high));
        let (low, high) = seconds(8, 20);
        let hang_timeout = (!random.one_in(12)).then(|| random.time(low, high));
        let (low, high) = seconds(6, 20);
        Self {
            nodes: usize::try_from(nodes).unwrap_or(1),
            nodes_min: if several { u32::try_from(nodes_min).unwrap_or(1) } else { 1 },
            nodes_max: u32::try_from(nodes).unwrap_or(1),
            workers: u32::try_from(workers).unwrap_or(1),
            workers_max: u32::try_from(workers + random.below(3)).unwrap_or(1),
            workers_min: if any_size { 1 } else { u32::try_from(workers).unwrap_or(1) },
            spares: u32::try_from(random.below(3)).unwrap_or(0),
            on_failure,
            max_restarts: u32::try_from(random.pick(&[0, 1, 2, 3, 3, 5])).unwrap_or(3),
            evict_stragglers: random.one_in(2),
            scripts: None,
            hang_timeout,
            grace: random.time(low, high),
            sharding,
            in_memory: random.one_in(2),
            step_time: random.time(Duration::from_millis(200), Duration::from_millis(900)),
            steps: random.between(10, 40),
            epoch_steps: random.between(3, 12),
            save_steps: random.between(2, 9),
            connect_time: random.time(Duration::from_millis(100), Duration::from_millis(1500)),
            load_time: random.time(Duration::from_millis(100), Duration::from_secs(3)),
            link_delay_ms: random.pick(&[1, 5, 30]),
            disk_time: random.time(Duration::from_millis(5), Duration::from_millis(300)),
            pages_period: Duration::from_millis(500),
            silence_max: if elastic || random.one_in(2) { Duration::from_secs(5) } else { SILENCE_MAX_FIXED },
            programs: false,
        }
    }

    /// Makes a run of so many nodes with one worker each, which needs all of them.
    pub(super) fn for_tests(nodes: u32) -> Self {
        const SECOND: Duration = Duration::from_secs(1);
        Self {
            nodes: nodes as usize,
            nodes_min: nodes,
            nodes_max: nodes,
            workers: 1,
            workers_max: 1,
            workers_min: 1,
            spares: 0,
            on_failure: Recovery::Reform,
            max_restarts: 3,
            evict_stragglers: false,
            hang_timeout: Some(8 * SECOND),
            grace: 10 * SECOND,
            sharding: Sharding::Replicated,
            in_memory: true,
            step_time: SECOND / 2,
            steps: 40,
            epoch_steps: 10,
            save_steps: 30,
            connect_time: SECOND / 2,
            load_time: SECOND / 2,
            link_delay_ms: 2,
            disk_time: SECOND / 50,
            pages_period: SECOND / 2,
            silence_max: 5 * SECOND,
            scripts: None,
            programs: false,
        }
    }

    /// Makes a large run, for the long suite.
    pub(super) fn large(random: &mut Random, nodes: u32, workers: u32) -> Self {
        Self {
            nodes: nodes as usize,
            nodes_min: nodes / 2,
            nodes_max: nodes,
            workers,
            workers_max: workers,
            workers_min: 1,
            spares: 0,
            steps: 12,
            hang_timeout: Some(Duration::from_secs(20)),
            on_failure: Recovery::Reform,
            max_restarts: 20,
            pages_period: crate::node_agent::settings::NodeSettings::pages_period(nodes),
            ..Self::of(random)
        }
    }

    /// Whether the number of nodes may change while the run goes on.
    pub(super) fn elastic(&self) -> bool {
        self.nodes_min < self.nodes_max
    }

    /// Workers with which a run goes on at least, whatever else it lacks.
    pub(super) fn fewest(&self) -> u32 {
        if self.workers_min >= self.workers { self.workers * self.nodes_min } else { self.workers_min }
    }

    /// Whether nodes meet at all.
    pub(super) fn several_nodes(&self) -> bool {
        self.nodes > 1
    }

    /// Whether nodes meet in a membership; that of programs has a store in any case.
    pub(super) fn meets(&self) -> bool {
        self.several_nodes() || self.programs
    }

    /// How workers learn of their seats.
    fn contract(&self) -> Contract {
        match (self.programs, self.scripts.is_some()) {
            (true, _) => Contract::Env(GroupLimits { window: None, backoff: Duration::ZERO, retry_early: false }),
            (false, true) => Contract::Script,
            (false, false) => Contract::Broker,
        }
    }

    /// Settings of a node that runs programs.
    pub(super) fn program_settings(&self) -> Option<ProgramSettings> {
        self.programs.then(|| ProgramSettings {
            grace: self.grace,
            restarts_max: self.max_restarts,
            leave_background: false,
            awaits_fork_server: false,
            watches_progress: self.hang_timeout.is_some(),
        })
    }

    /// Settings of the membership for the node of this host.
    pub(super) fn membership(&self, host: &str) -> rendezvous::Settings {
        rendezvous::Settings {
            nodes_min: self.nodes_min,
            nodes_max: self.nodes_max,
            local_world: self.workers,
            host: host.to_owned(),
            restarts_max: self.max_restarts,
            join_timeout: Duration::from_secs(60),
            last_call: Duration::from_secs(3),
            silence_max: self.silence_max,
            store_kept: !self.programs,
            role: "train".to_owned(),
            ..rendezvous::settings_for_tests()
        }
    }

    /// Settings of the supervisor of this node.
    pub(super) fn supervisor(&self, own: NodeId, host: &str, launch: String) -> SupervisorSettings {
        let run = RunSettings {
            contract: self.contract(),
            workers_min: self.workers_min,
            on_failure: if self.programs { Recovery::Restart } else { self.on_failure },
            max_restarts: self.max_restarts,
            spares: self.spares,
            spares_are_bound: false,
            evict_stragglers: self.evict_stragglers,
            straggler_window: Duration::from_secs(5),
            regroup_wait: Duration::from_secs(5),
            hang_timeout: self.hang_timeout,
            grace: self.grace,
            first_round: 0,
            run_dir: RUN_DIR.into(),
            job: RunJob::Train { staged: "/staged".into(), init: None, config: "c".to_owned() },
        };
        SupervisorSettings {
            run,
            own,
            host: host.to_owned(),
            several_nodes: self.several_nodes(),
            nodes_min: self.nodes_min,
            workers: self.workers,
            agent_silence_max: Duration::from_secs(65),
            launch,
            store: String::new(),
            device: "cpu",
            threads: 1,
        }
    }

    /// Time in which the undisturbed run is over.
    pub(super) fn duration(&self) -> Duration {
        let starts = Duration::from_secs(6) + self.connect_time + self.load_time;
        let steps = u32::try_from(self.steps).unwrap_or(u32::MAX);
        starts + (self.step_time + self.disk_time) * steps
    }
}
