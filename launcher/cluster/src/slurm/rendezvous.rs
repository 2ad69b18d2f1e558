//! The rendezvous of the nodes of an allocation, computed by every node for itself without messages.
//!
//! The first node hosts. Its port is derived from job, step and restart, so that two jobs that share a node do not collide; when
//! the first port is taken nevertheless, the host takes the next of the list and the others follow the list too.

use super::Allocation;
use enn_common::mix::spread;

/// Lowest port: above the well-known services, below the kernels' ephemeral ports (from 32,768).
const PORT_MIN: u16 = 20_000;
const PORT_COUNT: u16 = 10_000;
const PORTS_TRIED: u64 = 8;

/// Rendezvous and workers of this node, as the allocation determines them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocationRendezvous {
    /// Name of the run: equal on all nodes, different after a requeue.
    pub run_id: String,
    pub nodes: u32,
    pub node_rank: u32,
    /// Slurm's name of this node.
    pub host: String,
    /// Slurm's name of the host node; [`super::address`] returns how to reach it.
    pub endpoint: String,
    /// Ports of the host to try, in this order; never empty.
    pub ports: Vec<u16>,
    pub is_host: bool,
    /// Workers of this node when the user sets no number.
    pub workers: u32,
    pub workers_from: WorkersFrom,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkersFrom {
    /// Tasks of the node: `srun -n8 -N4`, `--ntasks-per-node=2`.
    Tasks,
    Gpus,
    /// Default of one worker, as in torchrun.
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskRole {
    /// The process runs the workers of its node.
    Agent,
    /// Another task of the node runs them; this one waits for it and ends with its code.
    Follower,
    /// The process is in the shell of the allocation and must start srun on the nodes.
    Shell,
}

pub fn task_role(allocation: &Allocation) -> TaskRole {
    match (allocation.in_step, allocation.local_id) {
        (true, 0) => TaskRole::Agent,
        (true, _) => TaskRole::Follower,
        (false, _) if allocation.nodes.len() == 1 && allocation.node.is_some() => TaskRole::Agent,
        (false, _) => TaskRole::Shell,
    }
}

/// Returns where the nodes meet and how many workers each has.
pub fn rendezvous(allocation: &Allocation) -> AllocationRendezvous {
    let (workers, workers_from) = workers(allocation);
    let step = allocation.step_id.map_or_else(|| "batch".to_owned(), |step| step.to_string());
    let restart = allocation.restart_count;
    AllocationRendezvous {
        run_id: format!("slurm-{}.{step}.{restart}", allocation.job_id),
        nodes: u32::try_from(allocation.nodes.len()).unwrap_or(u32::MAX),
        node_rank: u32::try_from(allocation.node_index).unwrap_or(u32::MAX),
        host: allocation.nodes[allocation.node_index].clone(),
        endpoint: allocation.nodes[0].clone(),
        ports: ports(allocation.job_id, allocation.step_id, restart),
        is_host: allocation.node_index == 0,
        workers,
        workers_from,
    }
}

/// Returns the workers of this node: its tasks where the user requested several, else one per GPU, else 1.
fn workers(allocation: &Allocation) -> (u32, WorkersFrom) {
    match (allocation.local_tasks(), allocation.gpus) {
        (tasks, _) if tasks > 1 => (tasks, WorkersFrom::Tasks),
        (_, Some(gpus)) if gpus > 0 => (gpus, WorkersFrom::Gpus),
        _ => (1, WorkersFrom::Nothing),
    }
}

/// Returns distinct ports, equal on every node.
fn ports(job_id: u64, step_id: Option<u64>, restart: u32) -> Vec<u16> {
    let seed = spread(spread(job_id) ^ spread(step_id.map_or(0, |step| step + 1)).rotate_left(1) ^ u64::from(restart));
    let start = seed % u64::from(PORT_COUNT);
    // A stride coprime to 10,000 visits all ports before it repeats one.
    let stride = 1 + 10 * (spread(seed) % 1_000);
    let port = |attempt| {
        let offset = (start + attempt * stride) % u64::from(PORT_COUNT);
        PORT_MIN + u16::try_from(offset).unwrap_or(0)
    };
    (0..PORTS_TRIED).map(port).collect()
}

/// Returns the command with which the shell of an allocation starts `program` on every node, one task each.
///
/// Tasks that were requested beforehand (`sbatch --ntasks-per-node=4`) become workers: the caller passes their number on as
/// `--nproc-per-node`. The step has all cores of the job on a node, and the agent is not bound to a part of them.
pub fn srun(allocation: &Allocation, program: &[String], elastic: bool) -> Vec<String> {
    let nodes = allocation.nodes.len();
    let mut words = vec!["srun".to_owned()];
    match allocation.het_size {
        // Each component has its own numbers of nodes and tasks; where it has several tasks, the others follow the first.
        Some(groups) if groups > 1 => words.push(format!("--het-group=0-{}", groups - 1)),
        _ => words.extend([format!("--nodes={nodes}"), format!("--ntasks={nodes}"), "--ntasks-per-node=1".to_owned()]),
    }
    words.extend(["--cpu-bind=none".to_owned(), "--export=ALL".to_owned()]);
    // An elastic run outlives the loss of a node.
    words.push(format!("--kill-on-bad-exit={}", u8::from(!elastic)));
    if elastic {
        words.push("--no-kill".to_owned());
    }
    words.extend(program.iter().cloned());
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn allocation(more: &[(&str, &str)]) -> Allocation {
        let step = [
            ("SLURM_JOB_ID", "42"),
            ("SLURM_STEP_ID", "3"),
            ("SLURM_STEP_NODELIST", "gpu[07-10]"),
            ("SLURM_NODEID", "2"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_PROCID", "2"),
        ];
        let all = step.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Allocation::from(&all.collect()).unwrap().unwrap()
    }

    fn in_shell(mut allocation: Allocation, node: Option<&str>) -> Allocation {
        allocation.in_step = false;
        allocation.step_id = None;
        allocation.node_index = 0;
        allocation.node = node.map(str::to_owned);
        allocation
    }

    #[test]
    fn every_node_finds_the_same_place() {
        let third = rendezvous(&allocation(&[]));
        let first = rendezvous(&allocation(&[("SLURM_NODEID", "0")]));
        assert_eq!((third.node_rank, third.nodes, third.host.as_str()), (2, 4, "gpu09"));
        assert_eq!((third.is_host, first.is_host), (false, true));
        assert_eq!((&third.endpoint, &third.ports, &third.run_id), (&first.endpoint, &first.ports, &first.run_id));
        assert_eq!((third.endpoint.as_str(), third.run_id.as_str()), ("gpu07", "slurm-42.3.0"));
    }

    #[test]
    fn another_incarnation_meets_elsewhere() {
        let first = allocation(&[]);
        let again = allocation(&[("SLURM_RESTART_COUNT", "1")]);
        assert_ne!(rendezvous(&first).ports[0], rendezvous(&again).ports[0]);
        assert_ne!(rendezvous(&first).run_id, rendezvous(&again).run_id);
    }

    #[test]
    fn workers_come_from_tasks_then_gpus() {
        let of = |more: &[(&str, &str)]| workers(&allocation(more));
        assert_eq!(of(&[]), (1, WorkersFrom::Nothing));
        assert_eq!(of(&[("SLURM_GPUS_ON_NODE", "8")]), (8, WorkersFrom::Gpus));
        assert_eq!(of(&[("SLURM_STEP_TASKS_PER_NODE", "2(x2),3(x2)")]), (3, WorkersFrom::Tasks));
        assert_eq!(of(&[("SLURM_GPUS_ON_NODE", "8"), ("SLURM_TASKS_PER_NODE", "4(x4)")]), (4, WorkersFrom::Tasks));
    }

    #[test]
    fn parts() {
        assert_eq!(task_role(&allocation(&[])), TaskRole::Agent);
        assert_eq!(task_role(&allocation(&[("SLURM_LOCALID", "1")])), TaskRole::Follower);
        assert_eq!(task_role(&in_shell(allocation(&[]), Some("gpu07"))), TaskRole::Shell);
        let mut one = in_shell(allocation(&[]), Some("gpu07"));
        one.nodes.truncate(1);
        assert_eq!(task_role(&one), TaskRole::Agent);
        one.node = None;
        assert_eq!(task_role(&one), TaskRole::Shell, "salloc's shell may be on a login node");
    }

    #[test]
    fn srun_starts_one_agent_per_node() {
        let program = ["enn".to_owned(), "run".to_owned(), "train.py".to_owned()];
        let mut batch = in_shell(allocation(&[]), Some("gpu07"));
        assert_eq!(
            srun(&batch, &program, false).join(" "),
            "srun --nodes=4 --ntasks=4 --ntasks-per-node=1 --cpu-bind=none --export=ALL --kill-on-bad-exit=1 enn run train.py"
        );
        batch.het_size = Some(2);
        assert_eq!(
            srun(&batch, &program, true).join(" "),
            "srun --het-group=0-1 --cpu-bind=none --export=ALL --kill-on-bad-exit=0 --no-kill enn run train.py"
        );
    }

    proptest! {
        #[test]
        fn ports_are_distinct_and_in_range(job: u64, step in prop::option::of(0_u64..1000), restart in 0_u32..5) {
            let ports = ports(job, step, restart);
            prop_assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 8);
            prop_assert!(ports.iter().all(|port| (PORT_MIN..PORT_MIN + PORT_COUNT).contains(port)));
        }
    }

    #[test]
    fn neighbouring_jobs_do_not_meet() {
        let first: BTreeSet<u16> = (0..100).map(|job| ports(job, Some(0), 0)[0]).collect();
        assert!(first.len() >= 97, "{} of 100 jobs have a first port of their own", first.len());
    }
}
