//! `run` in an allocation of Slurm: flags that were not given are filled in from it, tasks find their part, and a run that was
//! stopped before the time limit goes back into the queue.

use super::{
    launch,
    run::{RunOptions, run},
};
use crate::{
    Error,
    facts::Facts,
    process::outlive,
    rendezvous::Settings,
    slurm::{self, Allocation, Leader, Meeting, OnPath, Part, SlurmError, WorkersFrom},
    torchrun::{self, Flags, Launch, Manner, Own},
    ui::message,
};
use enn_common::{config::RunConfig, secrets};
use nix::sys::signal::Signal;
use std::{io, os::unix::process::CommandExt};

/// Exit status of a run that was stopped because its time limit is near.
const STOPPED_EARLY: u8 = 128 + Signal::SIGUSR1 as u8;

/// The allocation that says how the nodes meet; `None`: there is none, or flags say it.
///
/// # Errors
/// When the variables of the allocation are broken, or `--nnodes` asks for other nodes than it has.
pub fn allocation(flags: &Flags, manner: Manner, facts: &Facts) -> Result<Option<Allocation>, SlurmError> {
    let given = &flags.meeting;
    let texts = [&given.node_rank, &given.master_addr, &given.master_port, &given.rdzv_backend, &given.rdzv_endpoint];
    let said = given.standalone || texts.iter().any(|text| text.is_some());
    // torchrun itself knows no Slurm, and a launch by a worker of ours is a launch on one node.
    if said || manner == Manner::Torchrun || facts.launch_mark.is_some() {
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
        // What cannot be read is refused with the other flags.
        _ => Ok(Some(allocation)),
    }
}

/// Takes part in the run of an allocation; the exit status.
///
/// # Errors
/// As [`run`], and when Slurm or the tasks of this node do not do their part.
pub fn run_allocated(
    flags: Flags,
    own: &Own,
    facts: &Facts,
    options: &RunOptions,
    allocation: &Allocation,
) -> Result<u8, Error> {
    take_part(&flags.clone(), facts, allocation, || agent(flags, own, facts, options, allocation))
}

/// Does what this task of an allocation is there for: `agent` is the part of the node's first one; the exit status.
///
/// # Errors
/// As `agent`, and when Slurm or the tasks of this node do not do their part.
pub fn take_part(
    flags: &Flags,
    facts: &Facts,
    allocation: &Allocation,
    agent: impl FnOnce() -> Result<u8, Error>,
) -> Result<u8, Error> {
    match slurm::part(allocation) {
        Part::Follower => Ok(slurm::follow(&facts.socket_parent, allocation)?),
        Part::Shell => Err(through_srun(flags, facts, allocation).into()),
        Part::Agent => {
            let leader = Leader::stand(&facts.socket_parent, allocation)?;
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

/// How nodes meet to train; `None`: there is one only. Flags that were not given are filled in from the allocation.
///
/// # Errors
/// The first flag that cannot be read, or a token that is not to be had.
pub fn meeting(
    mut flags: Flags,
    own: &Own,
    (config, allocation): (&RunConfig, Option<&Allocation>),
    facts: &Facts,
) -> Result<Option<Settings>, Error> {
    let met = allocation.map(slurm::rendezvous);
    if let Some(met) = &met {
        fill(&mut flags, met, &slurm::address(&met.endpoint, &OnPath));
        // The run may end by another node's word before Slurm's signal comes here.
        outlive(Signal::SIGUSR1);
    }
    let given = &mut flags.meeting;
    let several = given.nnodes.as_deref().is_some_and(|nnodes| nnodes.trim() != "1" && nnodes.trim() != "1:1");
    if !several {
        return Ok(None);
    }
    let backend = if given.node_rank.is_some() { "static" } else { "c10d" };
    given.rdzv_backend.get_or_insert_with(|| backend.to_owned());
    let mut notes = Vec::new();
    let world = launch::world(config);
    let mut settings = torchrun::rendezvous(&flags, own, Manner::Enn, (world, facts), &mut notes).map_err(Box::new)?;
    for note in notes {
        tracing::warn!("{note}");
    }
    let host = met.map(|met| met.host).or(settings.local_addr.clone());
    settings.host = host.unwrap_or(settings.host);
    // A node that runs some program, under enn run, is none of these.
    settings.run_id = format!("train:{}", settings.run_id);
    settings.restarts_max = config.cluster.max_restarts;
    // Rounds of workers are not those of the rendezvous, which only says who takes part.
    settings.store_kept = true;
    settings.uneven = true;
    settings.retry_early = true;
    settings.role = "train".to_owned();
    Ok(Some(settings))
}

/// Puts srun in the place of this process. Returns only what went wrong.
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
    if flags.meeting.nproc_per_node.is_none() && tasks > 1 {
        words.push(format!("--nproc-per-node={tasks}"));
    }
    words.extend(facts.argv.iter().skip(2).cloned());
    let elastic = flags.meeting.nnodes.as_deref().is_some_and(|nodes| nodes.contains(':'));
    let srun = slurm::srun(allocation, &words, elastic);
    failed(secrets::trusted_command(&srun[0]).args(&srun[1..]).exec())
}

/// Runs the workers of this node.
fn agent(
    mut flags: Flags,
    own: &Own,
    facts: &Facts,
    options: &RunOptions,
    allocation: &Allocation,
) -> Result<u8, Error> {
    let meeting = slurm::rendezvous(allocation);
    fill(&mut flags, &meeting, &slurm::address(&meeting.endpoint, &OnPath));
    let mut launch = torchrun::resolve(flags, own, options.manner, facts).map_err(Box::new)?;
    settle(&mut launch, &meeting, allocation);
    // The run may end by another node's word before Slurm's signal comes here; the job is put back into the queue after that.
    outlive(Signal::SIGUSR1);
    let code = run(launch, facts, options)?;
    // The others end with 0: a bad exit of theirs makes srun end the host, which alone asks.
    let again = || if meeting.is_host { again(allocation.job_id) } else { true };
    Ok(if code == STOPPED_EARLY && again() { 0 } else { code })
}

/// Flags that were not given.
fn fill(flags: &mut Flags, meeting: &Meeting, host: &str) {
    let given = &mut flags.meeting;
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

/// What no flag says.
fn settle(launch: &mut Launch, meeting: &Meeting, allocation: &Allocation) {
    let spec = &mut launch.spec;
    let settings = &mut spec.rendezvous;
    settings.host.clone_from(&meeting.host);
    // Slurm's own order, as long as no node may be missing.
    if settings.nodes_min == settings.nodes_max && settings.nodes_max > 1 {
        settings.node_rank = Some(meeting.node_rank);
    }
    let workers = settings.local_world;
    if meeting.workers_from == WorkersFrom::Tasks && allocation.cpu_bind.len() == workers as usize {
        // This process is bound to the cores of its own task; each worker takes those of one task.
        spec.cpus.clone_from(&allocation.cpu_bind);
    }
}

/// After a run that was stopped because its time limit is near: whether its job is back in the queue. False outside Slurm.
///
/// # Errors
/// When the variables of the allocation are broken.
pub fn requeued(facts: &Facts) -> Result<bool, SlurmError> {
    Ok(Allocation::from(&facts.slurm)?.is_some_and(|allocation| again(allocation.job_id)))
}

/// Says that the job goes back into the queue, and puts it there: Slurm ends this process as soon as it has agreed.
fn again(job: u64) -> bool {
    message::print(&format!("stopped before the time limit; putting job {job} back in the queue"));
    let asked = slurm::requeue(job, &OnPath);
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
        let text = include_str!("../slurm/captured/srun-n8-N4.task3.env");
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let mut slurm: BTreeMap<String, String> =
            text.lines().filter_map(|line| line.split_once('=')).map(pair).collect();
        slurm.extend(more.iter().copied().map(pair));
        Facts { slurm, launch_mark: None, ..Facts::gather() }
    }

    fn flags(nnodes: Option<&str>) -> Flags {
        let mut flags = Flags::default();
        flags.meeting.nnodes = nnodes.map(str::to_owned);
        flags
    }

    #[test]
    fn flags_that_say_where_win() {
        let facts = facts(&[]);
        let mut endpoint = flags(Some("4"));
        endpoint.meeting.rdzv_endpoint = Some("n1:29400".into());
        assert!(allocation(&endpoint, Manner::Enn, &facts).unwrap().is_none());
        assert!(allocation(&flags(None), Manner::Torchrun, &facts).unwrap().is_none());
        assert!(allocation(&flags(Some("1")), Manner::Enn, &facts).unwrap().is_none());
        for nnodes in [None, Some("4"), Some("3:4"), Some("1:8")] {
            assert!(allocation(&flags(nnodes), Manner::Enn, &facts).unwrap().is_some(), "{nnodes:?}");
        }
        for nnodes in ["2", "8", "5:8", "1:3"] {
            let error = allocation(&flags(Some(nnodes)), Manner::Enn, &facts).unwrap_err().to_string();
            assert!(error.starts_with(&format!("--nnodes {nnodes}, but the allocation has 4 nodes")), "{error}");
        }
    }

    #[test]
    fn flags_that_were_not_given_come_from_the_allocation() {
        let facts = facts(&[("SLURM_LOCALID", "0")]);
        let mut flags = flags(None);
        flags.meeting.rdzv_conf = Some("join_timeout=5".into());
        let allocation = allocation(&flags, Manner::Enn, &facts).unwrap().unwrap();
        let meeting = slurm::rendezvous(&allocation);
        fill(&mut flags, &meeting, "fd00::1");
        let given = &flags.meeting;
        assert_eq!(given.rdzv_endpoint, Some(format!("[fd00::1]:{}", meeting.ports[0])));
        assert_eq!((given.nnodes.as_deref(), given.nproc_per_node.as_deref()), (Some("4"), Some("2")));
        assert_eq!(given.rdzv_conf.as_deref(), Some("join_timeout=5,is_host=0"));
        assert_eq!(given.rdzv_id.as_deref(), Some("slurm-2.0.0"));
    }
}
