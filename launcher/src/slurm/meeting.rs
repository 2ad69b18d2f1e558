//! Where the nodes of an allocation meet, found out by every node for itself: no message is needed to agree.
//!
//! The first node hosts. Its port comes from job, step and restart, so that two jobs that share a node do not collide; when
//! the first port is taken there all the same, the host takes the next of the list and the others follow the list too.

use super::Allocation;
use crate::rendezvous::Place;
use enn_common::mix::spread;

/// Lowest port: above the well-known services, below what kernels hand out by themselves (from 32,768).
const PORT_MIN: u16 = 20_000;
/// Ports to choose from.
const PORT_COUNT: u16 = 10_000;
/// Ports to try.
const PORTS_TRIED: u64 = 8;

/// What an allocation says about the rendezvous and the workers of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meeting {
    /// Name of the run: the same on all nodes, another one after a requeue.
    pub run_id: String,
    /// Nodes that come.
    pub nodes: u32,
    /// Rank of this node.
    pub node_rank: u32,
    /// Slurm's name of this node.
    pub host: String,
    /// The node that hosts, by Slurm's name; [`super::address`] says how to reach it.
    pub endpoint: String,
    /// Ports to try there, in this order; never empty.
    pub ports: Vec<u16>,
    /// Whether this node hosts.
    pub is_host: bool,
    /// Workers of this node when the user does not say.
    pub workers: u32,
    /// Where that number comes from.
    pub workers_from: WorkersFrom,
}

/// Where a number of workers comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkersFrom {
    /// Tasks of the node: `srun -n8 -N4`, `--ntasks-per-node=2`.
    Tasks,
    /// GPUs of the node.
    Gpus,
    /// Nothing: one worker, as torchrun has it.
    Nothing,
}

/// How this process takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// It runs the workers of its node.
    Agent,
    /// Another task of its node does; this one waits for it and ends with its code.
    Follower,
    /// It is in the shell of the allocation: srun has to bring it to the nodes.
    Shell,
}

/// How this process takes part.
pub fn part(allocation: &Allocation) -> Part {
    match (allocation.in_step, allocation.local_id) {
        (true, 0) => Part::Agent,
        (true, _) => Part::Follower,
        (false, _) if allocation.nodes.len() == 1 && allocation.node.is_some() => Part::Agent,
        (false, _) => Part::Shell,
    }
}

/// Where the nodes meet and how many workers each has.
pub fn rendezvous(allocation: &Allocation) -> Meeting {
    let (workers, workers_from) = workers(allocation);
    let step = allocation.step_id.map_or_else(|| "batch".to_owned(), |step| step.to_string());
    let restart = allocation.restart_count;
    Meeting {
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

impl Meeting {
    /// As the rendezvous takes it; `host` is how the node `endpoint` is reached from here.
    pub fn place(&self, host: String) -> Place {
        Place::Endpoint { host, port: self.ports[0], is_host: Some(self.is_host) }
    }
}

/// Several tasks are what the user asked for; else one worker per GPU; else one.
fn workers(allocation: &Allocation) -> (u32, WorkersFrom) {
    match (allocation.local_tasks(), allocation.gpus) {
        (tasks, _) if tasks > 1 => (tasks, WorkersFrom::Tasks),
        (_, Some(gpus)) if gpus > 0 => (gpus, WorkersFrom::Gpus),
        _ => (1, WorkersFrom::Nothing),
    }
}

/// Distinct ports, the same on every node.
fn ports(job_id: u64, step_id: Option<u64>, restart: u32) -> Vec<u16> {
    let seed = spread(spread(job_id) ^ spread(step_id.map_or(0, |step| step + 1)).rotate_left(1) ^ u64::from(restart));
    let start = seed % u64::from(PORT_COUNT);
    // A stride without a factor in common with 10,000 visits all of them before it repeats one.
    let stride = 1 + 10 * (spread(seed) % 1_000);
    let port = |attempt| {
        let offset = (start + attempt * stride) % u64::from(PORT_COUNT);
        PORT_MIN + u16::try_from(offset).unwrap_or(0)
    };
    (0..PORTS_TRIED).map(port).collect()
}

/// The command by which the shell of an allocation brings `program` to every node, one task each.
///
/// Tasks that were asked for beforehand (`sbatch --ntasks-per-node=4`) become workers: the caller passes their number on as
/// `--nproc-per-node`. The step has all cores of the job on a node, and none of them is taken from the agent.
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
        let place = Place::Endpoint { host: "10.0.0.7".into(), port: third.ports[0], is_host: Some(false) };
        assert_eq!(third.place("10.0.0.7".into()), place);
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
        assert_eq!(part(&allocation(&[])), Part::Agent);
        assert_eq!(part(&allocation(&[("SLURM_LOCALID", "1")])), Part::Follower);
        assert_eq!(part(&in_shell(allocation(&[]), Some("gpu07"))), Part::Shell);
        let mut one = in_shell(allocation(&[]), Some("gpu07"));
        one.nodes.truncate(1);
        assert_eq!(part(&one), Part::Agent);
        one.node = None;
        assert_eq!(part(&one), Part::Shell, "salloc's shell may be on a login node");
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
