//! `run` in an allocation of Slurm: missing flags are filled in from it, each task finds its part, and a run that was stopped before the
//! time limit is requeued.

use super::{
    launch,
    run::{RunOptions, run},
};
use crate::{
    Error,
    facts::Facts,
    torchrun::{self, Dialect, EnnFlags, Flags, Launch},
};
use enn_cluster::{
    rendezvous::Settings,
    slurm::{self, Allocation, AllocationRendezvous, NodeLeader, SlurmError, SystemCommands, TaskRole, WorkersFrom},
};
use enn_common::{config::RunConfig, secrets};
use enn_process::outlive;
use enn_ui::message;
use nix::sys::signal::Signal;
use std::{io, os::unix::process::CommandExt, time::Duration};

/// A run of fixed size waits so long for a node that is silent, unless --rdzv-conf sets a time: it could not go on without the node, and
/// gaps of a network of up to 20 s cost torchrun nothing.
const SILENCE_MAX_FIXED: Duration = Duration::from_secs(30);
/// Exit status of a run that was stopped because its time limit is near.
const STOPPED_EARLY: u8 = 128 + Signal::SIGUSR1 as u8;

/// Returns the allocation by which the nodes meet; `None` when there is none or flags say how they meet.
///
/// # Errors
/// The variables of the allocation are malformed, or `--nnodes` does not match its number of nodes.
pub fn allocation(flags: &Flags, dialect: Dialect, facts: &Facts) -> Result<Option<Allocation>, SlurmError> {
    let given = &flags.rendezvous;
    let texts = [&given.node_rank, &given.master_addr, &given.master_port, &given.rdzv_backend, &given.rdzv_endpoint];
    let is_given = given.standalone || texts.iter().any(|text| text.is_some());
    // torchrun itself does not support Slurm, and a launch by one of our workers is on one node.
    if is_given || dialect == Dialect::Torchrun || facts.launch_mark.is_some() {
        return Ok(None);
    }
    let allocation = Allocation::from(&facts.slurm)?;
    let Some((allocation, nnodes)) = allocation.zip(given.nnodes.as_deref().or(Some(""))) else { return Ok(None) };
    let nodes = u32::try_from(allocation.nodes.len()).unwrap_or(u32::MAX);
    let (least, most) = nnodes.split_once(':').unwrap_or((nnodes, nnodes));
    match (least.trim().parse::<u32>(), most.trim().parse::<u32>()) {
        (Ok(1), Ok(1)) => Ok(None),
        (Ok(least), Ok(most)) if least > nodes || most < nodes => {
            Err(SlurmError::Nnodes { found: nnodes.to_owned(), nodes })
        }
        // A value that does not parse is refused with the other flags.
        _ => Ok(Some(allocation)),
    }
}

/// Takes part in the run of an allocation; returns the exit status.
///
/// # Errors
/// The errors of [`run`], or Slurm or another task of this node fails.
pub fn run_allocated(
    flags: Flags,
    own: &EnnFlags,
    facts: &Facts,
    options: &RunOptions,
    allocation: &Allocation,
) -> Result<u8, Error> {
    take_part(&flags.clone(), facts, allocation, || agent(flags, own, facts, options, allocation))
}

/// Does the part of this task of an allocation; `agent` is the part of the first task of a node. Returns the exit status.
///
/// # Errors
/// The errors of `agent`, or Slurm or another task of this node fails.
pub fn take_part(
    flags: &Flags,
    facts: &Facts,
    allocation: &Allocation,
    agent: impl FnOnce() -> Result<u8, Error>,
) -> Result<u8, Error> {
    match slurm::task_role(allocation) {
        TaskRole::Follower => Ok(slurm::follow(&facts.socket_parent, allocation)?),
        TaskRole::Shell => Err(through_srun(flags, facts, allocation).into()),
        TaskRole::Agent => {
            let leader = NodeLeader::announce(&facts.socket_parent, allocation)?;
            let ended = agent();
            if let Some(leader) = leader {
                leader.end(match &ended {
                    Ok(code) => *code,
                    Err(error) => error.exit_code() as u8,
                })?;
            }
            ended
        }
    }
}

/// Returns the rendezvous settings for training on several nodes; `None` for one node. Missing flags are filled in from the allocation.
///
/// # Errors
/// The first flag that does not parse, or a token that cannot be read.
pub fn meeting(
    mut flags: Flags,
    own: &EnnFlags,
    config: &RunConfig,
    allocation: Option<&Allocation>,
    facts: &Facts,
) -> Result<Option<Settings>, Error> {
    let met = allocation.map(slurm::rendezvous);
    if let Some(met) = &met {
        fill(&mut flags, met, &slurm::address(&met.endpoint, &SystemCommands));
        // Another node may end the run before Slurm's signal arrives here.
        outlive(Signal::SIGUSR1);
    }
    let given = &mut flags.rendezvous;
    let several = given.nnodes.as_deref().is_some_and(|nnodes| nnodes.trim() != "1" && nnodes.trim() != "1:1");
    if !several {
        return Ok(None);
    }
    let backend = if given.node_rank.is_some() { "static" } else { "c10d" };
    given.rdzv_backend.get_or_insert_with(|| backend.to_owned());
    let mut notes = Vec::new();
    let world = launch::world(config);
    let mut settings = torchrun::rendezvous(&flags, own, Dialect::Enn, world, facts, &mut notes).map_err(Box::new)?;
    for note in notes {
        tracing::warn!("{note}");
    }
    let host = met.map(|met| met.host).or(settings.local_addr.clone());
    settings.host = host.unwrap_or(settings.host);
    // The prefix keeps these nodes apart from those of `enn run`.
    settings.run_id = format!("train:{}", settings.run_id);
    let is_silence_given = flags.rendezvous.rdzv_conf.is_some_and(|conf| conf.contains("keep_alive_"));
    if settings.nodes_min == settings.nodes_max && !is_silence_given {
        settings.silence_max = SILENCE_MAX_FIXED;
    }
    settings.restarts_max = config.cluster.max_restarts;
    // Rounds of workers are independent of the rendezvous, which only decides who takes part.
    settings.store_kept = true;
    settings.uneven = true;
    settings.role = "train".to_owned();
    Ok(Some(settings))
}

/// Replaces this process by srun. Returns only on failure.
fn through_srun(flags: &Flags, facts: &Facts, allocation: &Allocation) -> SlurmError {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => SlurmError::NoProgram { program: "srun" },
        _ => SlurmError::Run { program: "srun", source },
    };
    let enn = match std::env::current_exe() {
        Ok(path) => path.to_string_lossy().into_owned(),
        Err(source) => return failed(source),
    };
    let mut words = vec![enn];
    words.extend(facts.argv.iter().skip(1).take(1).cloned());
    let tasks = allocation.tasks_per_node.iter().copied().max().unwrap_or(1);
    if flags.rendezvous.nproc_per_node.is_none() && tasks > 1 {
        words.push(format!("--nproc-per-node={tasks}"));
    }
    words.extend(facts.argv.iter().skip(2).cloned());
    let elastic = flags.rendezvous.nnodes.as_deref().is_some_and(|nodes| nodes.contains(':'));
    let srun = slurm::srun(allocation, &words, elastic);
    failed(secrets::trusted_command(&srun[0]).args(&srun[1..]).exec())
}

fn agent(
    mut flags: Flags,
    own: &EnnFlags,
    facts: &Facts,
    options: &RunOptions,
    allocation: &Allocation,
) -> Result<u8, Error> {
    let own = &own.clone().with_variables(&flags, facts).map_err(Box::new)?;
    let meeting = slurm::rendezvous(allocation);
    let workers = flags.rendezvous.nproc_per_node.clone();
    fill(&mut flags, &meeting, &slurm::address(&meeting.endpoint, &SystemCommands));
    if own.workers.is_some() {
        // --workers says how many there are.
        flags.rendezvous.nproc_per_node = workers;
    }
    let mut launch = torchrun::resolve(flags, own, options.dialect, facts).map_err(Box::new)?;
    settle(&mut launch, &meeting, allocation);
    // Another node may end the run before Slurm's signal arrives here; the job is requeued after that.
    outlive(Signal::SIGUSR1);
    let code = run(launch, facts, options)?;
    // The other nodes exit with 0: a nonzero status makes srun end the host, which alone requeues the job.
    let again = || if meeting.is_host { again(allocation.job_id) } else { true };
    Ok(if code == STOPPED_EARLY && again() { 0 } else { code })
}

/// Fills in missing flags.
fn fill(flags: &mut Flags, meeting: &AllocationRendezvous, host: &str) {
    let given = &mut flags.rendezvous;
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    given.rdzv_backend = Some("c10d".to_owned());
    given.rdzv_endpoint = Some(format!("{host}:{}", meeting.ports[0]));
    given.nnodes.get_or_insert_with(|| meeting.nodes.to_string());
    given.nproc_per_node.get_or_insert_with(|| meeting.workers.to_string());
    given.rdzv_id.get_or_insert_with(|| meeting.run_id.clone());
    let conf = given.rdzv_conf.get_or_insert_default();
    if !conf.contains("is_host") {
        let comma = if conf.is_empty() { "" } else { "," };
        conf.push_str(&format!("{comma}is_host={}", u8::from(meeting.is_host)));
    }
}

/// Fills in settings that have no flag.
fn settle(launch: &mut Launch, meeting: &AllocationRendezvous, allocation: &Allocation) {
    let spec = &mut launch.spec;
    let settings = &mut spec.rendezvous;
    settings.host.clone_from(&meeting.host);
    // The nodes have Slurm's order unless some may be missing.
    if settings.nodes_min == settings.nodes_max && settings.nodes_max > 1 {
        settings.node_rank = Some(meeting.node_rank);
    }
    let workers = settings.local_world;
    if meeting.workers_from == WorkersFrom::Tasks && allocation.cpu_bind.len() == workers as usize {
        // This process is bound to the cores of its own task; each worker uses the cores of one task.
        spec.cpus.clone_from(&allocation.cpu_bind);
    }
}

/// Requeues the job of a run that was stopped because its time limit is near; returns whether it is in the queue again. Returns false
/// outside Slurm.
///
/// # Errors
/// The variables of the allocation are malformed.
pub fn requeued(facts: &Facts) -> Result<bool, SlurmError> {
    Ok(Allocation::from(&facts.slurm)?.is_some_and(|allocation| again(allocation.job_id)))
}

/// Announces that the job is requeued and requeues it: Slurm ends this process as soon as it has agreed.
fn again(job: u64) -> bool {
    message::print(&format!("stopped before the time limit; putting job {job} back in the queue"));
    let asked = slurm::requeue(job, &SystemCommands);
    if let Err(error) = &asked {
        message::print(&format!("job {job} cannot be requeued: {error}"));
    }
    asked.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn facts(more: &[(&str, &str)]) -> Facts {
        let text = include_str!("../../cluster/src/slurm/captured/srun-n8-N4.task3.env");
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let mut slurm: BTreeMap<String, String> =
            text.lines().filter_map(|line| line.split_once('=')).map(pair).collect();
        slurm.extend(more.iter().copied().map(pair));
        Facts { slurm, launch_mark: None, ..Facts::gather() }
    }

    fn flags(nnodes: Option<&str>) -> Flags {
        let mut flags = Flags::default();
        flags.rendezvous.nnodes = nnodes.map(str::to_owned);
        flags
    }

    #[test]
    fn flags_that_say_where_win() {
        let facts = facts(&[]);
        let mut endpoint = flags(Some("4"));
        endpoint.rendezvous.rdzv_endpoint = Some("n1:29400".into());
        assert!(allocation(&endpoint, Dialect::Enn, &facts).unwrap().is_none());
        assert!(allocation(&flags(None), Dialect::Torchrun, &facts).unwrap().is_none());
        assert!(allocation(&flags(Some("1")), Dialect::Enn, &facts).unwrap().is_none());
        for nnodes in [None, Some("4"), Some("3:4"), Some("1:8")] {
            assert!(allocation(&flags(nnodes), Dialect::Enn, &facts).unwrap().is_some(), "{nnodes:?}");
        }
        for nnodes in ["2", "8", "5:8", "1:3"] {
            let error = allocation(&flags(Some(nnodes)), Dialect::Enn, &facts).unwrap_err().to_string();
            assert!(error.starts_with(&format!("--nnodes {nnodes}, but the allocation has 4 nodes")), "{error}");
        }
    }

    #[test]
    fn flags_that_were_not_given_come_from_the_allocation() {
        let facts = facts(&[("SLURM_LOCALID", "0")]);
        let mut flags = flags(None);
        flags.rendezvous.rdzv_conf = Some("join_timeout=5".into());
        let allocation = allocation(&flags, Dialect::Enn, &facts).unwrap().unwrap();
        let meeting = slurm::rendezvous(&allocation);
        fill(&mut flags, &meeting, "fd00::1");
        let given = &flags.rendezvous;
        assert_eq!(given.rdzv_endpoint, Some(format!("[fd00::1]:{}", meeting.ports[0])));
        assert_eq!((given.nnodes.as_deref(), given.nproc_per_node.as_deref()), (Some("4"), Some("2")));
        assert_eq!(given.rdzv_conf.as_deref(), Some("join_timeout=5,is_host=0"));
        assert_eq!(given.rdzv_id.as_deref(), Some("slurm-2.0.0"));
    }
}
