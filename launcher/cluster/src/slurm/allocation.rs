//! The allocation that Slurm gave this process: job, step, nodes, tasks, GPUs. Read from variables, never from commands.
//!
//! In a step the variables of the step take precedence over those of the job: a step may have fewer nodes, and the variables of a
//! heterogeneous job name one component only.

use super::{SlurmError, binding, hostlist};
use std::collections::BTreeMap;

/// Lowest id of the special steps, which srun did not start: batch script, interactive shell, extern.
const STEP_ID_SPECIAL: u64 = 0xffff_fff0;
/// Limit on the components of a heterogeneous job; Slurm allows 128.
const HET_GROUPS_MAX: usize = 128;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    pub job_id: u64,
    /// Step that srun started; `None` in a batch script and in the shell of salloc.
    pub step_id: Option<u64>,
    pub job_name: String,
    /// Nodes of the step, else of the job, in Slurm's order.
    pub nodes: Vec<String>,
    /// Index of this node in `nodes`.
    pub node_index: usize,
    /// Name of this node; `None` in the shell of salloc, which may be on a login node.
    pub node: Option<String>,
    pub tasks_per_node: Vec<u32>,
    /// Index of this task among the tasks of its node.
    pub local_id: u32,
    /// Index of this task in the step.
    pub proc_id: u32,
    /// GPUs of this node; `None` when Slurm does not tell.
    pub gpus: Option<u32>,
    pub cpus_per_task: Option<u32>,
    /// Cores that each task of this node is bound to, by local id; empty: not bound, or not by a mask.
    pub cpu_bind: Vec<Vec<usize>>,
    /// Number of requeues of the job.
    pub restart_count: u32,
    /// End of the job's time limit, in seconds since the Unix epoch; set by Slurm 23.02 and later.
    pub end_time: Option<u64>,
    /// Directory in which sbatch was called.
    pub submit_dir: Option<String>,
    /// Number of components of a heterogeneous job.
    pub het_size: Option<u32>,
    /// Port of the srun that started the step, which distinguishes it from steps of another cluster with the same ids.
    pub launcher_port: Option<u32>,
    /// Whether srun started this process.
    pub in_step: bool,
}

impl Allocation {
    /// Reads the SLURM_* variables; `None` outside Slurm.
    pub fn from(variables: &BTreeMap<String, String>) -> Result<Option<Self>, SlurmError> {
        let of = Variables(variables);
        let Some(job_id) = of.number("SLURM_JOB_ID")?.or(of.number("SLURM_JOBID")?) else { return Ok(None) };
        let step_id = of.number("SLURM_STEP_ID")?.or(of.number("SLURM_STEPID")?).filter(|id| *id < STEP_ID_SPECIAL);
        let in_step = step_id.is_some();
        let (nodes, list_of) = of.nodes(in_step)?;
        of.agree(in_step, nodes.len(), list_of)?;
        let node = of.text("SLURMD_NODENAME");
        let node_index = if in_step { of.small("SLURM_NODEID")?.ok_or(missing("SLURM_NODEID"))? as usize } else { 0 };
        if node_index >= nodes.len() {
            return Err(SlurmError::Index { index: node_index, list_of, listed: nodes.len() });
        }
        Ok(Some(Self {
            job_id,
            step_id,
            job_name: of.text("SLURM_JOB_NAME").unwrap_or_else(|| "enn".to_owned()),
            node,
            node_index,
            tasks_per_node: of.tasks(in_step, nodes.len())?,
            nodes,
            local_id: if in_step { of.small("SLURM_LOCALID")?.ok_or(missing("SLURM_LOCALID"))? } else { 0 },
            proc_id: if in_step { of.small("SLURM_PROCID")?.unwrap_or(0) } else { 0 },
            gpus: of.gpus(in_step),
            cpus_per_task: of.small("SLURM_CPUS_PER_TASK")?,
            cpu_bind: if in_step {
                of.text("SLURM_CPU_BIND").map_or(Vec::new(), |text| binding::cpus(&text))
            } else {
                Vec::new()
            },
            restart_count: of.small("SLURM_RESTART_COUNT")?.unwrap_or(0),
            end_time: of.number("SLURM_JOB_END_TIME")?,
            submit_dir: of.text("SLURM_SUBMIT_DIR"),
            het_size: of.small("SLURM_HET_SIZE")?,
            launcher_port: of.small("SLURM_STEP_LAUNCHER_PORT")?,
            in_step,
        }))
    }

    pub fn local_tasks(&self) -> u32 {
        self.tasks_per_node.get(self.node_index).copied().unwrap_or(1)
    }
}

fn missing(name: &'static str) -> SlurmError {
    SlurmError::Missing { name }
}

struct Variables<'a>(&'a BTreeMap<String, String>);

impl Variables<'_> {
    /// Returns a value; Slurm writes "(null)" for none.
    fn text(&self, name: &str) -> Option<String> {
        self.0.get(name).filter(|value| !value.is_empty() && *value != "(null)").cloned()
    }

    fn number(&self, name: &'static str) -> Result<Option<u64>, SlurmError> {
        self.text(name).map(|value| value.trim().parse().map_err(|_| SlurmError::Number { name, value })).transpose()
    }

    fn small(&self, name: &'static str) -> Result<Option<u32>, SlurmError> {
        let Some(number) = self.number(name)? else { return Ok(None) };
        let small = u32::try_from(number).map_err(|_| SlurmError::Number { name, value: number.to_string() })?;
        Ok(Some(small))
    }

    /// Returns the first of these variables that is set.
    fn first(&self, names: &[&'static str]) -> Option<(&'static str, String)> {
        names.iter().find_map(|name| Some((*name, self.text(name)?)))
    }

    /// Returns the values of NAME_0, NAME_1, … outside a step: each component of a heterogeneous job has its own.
    fn het_groups(&self, in_step: bool, name: &str) -> Vec<String> {
        if in_step {
            return Vec::new();
        }
        (0..HET_GROUPS_MAX).map_while(|group| self.text(&format!("{name}{group}"))).collect()
    }

    /// Returns the nodes, and the variable that names them.
    fn nodes(&self, in_step: bool) -> Result<(Vec<String>, &'static str), SlurmError> {
        let name = "SLURM_JOB_NODELIST_HET_GROUP_n";
        let groups = self.het_groups(in_step, "SLURM_JOB_NODELIST_HET_GROUP_");
        if !groups.is_empty() {
            let lists = groups.iter().map(|list| hostlist::expand(list)).collect::<Result<Vec<_>, _>>();
            return Ok((lists.map_err(|source| SlurmError::Nodes { name, source })?.concat(), name));
        }
        let names = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
        let names = if in_step { &names[..] } else { &names[1..] };
        let (name, list) = self.first(names).ok_or(missing("SLURM_JOB_NODELIST"))?;
        let nodes = hostlist::expand(&list).map_err(|source| SlurmError::Nodes { name, source })?;
        Ok((nodes, name))
    }

    /// Checks that the number of nodes is the length of the list.
    fn agree(&self, in_step: bool, listed: usize, list_of: &'static str) -> Result<(), SlurmError> {
        let names = ["SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"];
        if list_of.ends_with("_n") {
            return Ok(());
        }
        let names = if list_of == "SLURM_STEP_NODELIST" && in_step { &names[..1] } else { &names[1..] };
        let Some((count_of, _)) = self.first(names) else { return Ok(()) };
        match self.number(count_of)?.map(usize::try_from) {
            Some(Ok(count)) if count != listed => Err(SlurmError::Mismatch { count_of, count, list_of, listed }),
            _ => Ok(()),
        }
    }

    /// Returns the tasks of each node. Without a list of them: SLURM_NTASKS_PER_NODE, else 1.
    fn tasks(&self, in_step: bool, nodes: usize) -> Result<Vec<u32>, SlurmError> {
        let groups = self.het_groups(in_step, "SLURM_TASKS_PER_NODE_HET_GROUP_").join(",");
        if let Some(tasks) = task_counts(&groups, nodes).filter(|tasks| tasks.len() == nodes) {
            return Ok(tasks);
        }
        let names = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"];
        // Outside a step SLURM_TASKS_PER_NODE holds how many would fit when no number of tasks was requested.
        let is_requested = in_step || self.first(&["SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"]).is_some();
        if let Some((name, value)) = self.first(if in_step { &names[..] } else { &names[1..] }).filter(|_| is_requested)
        {
            let tasks = task_counts(&value, nodes).ok_or_else(|| SlurmError::Tasks { name, value: value.clone() })?;
            if tasks.len() == nodes {
                return Ok(tasks);
            }
        }
        Ok(vec![self.small("SLURM_NTASKS_PER_NODE")?.unwrap_or(1).max(1); nodes])
    }

    /// Returns SLURM_GPUS_ON_NODE, else the length of the list of GPUs.
    fn gpus(&self, in_step: bool) -> Option<u32> {
        let count = |text: String| text.rsplit(':').next().and_then(|number| number.trim().parse().ok());
        let lists = ["SLURM_STEP_GPUS", "SLURM_JOB_GPUS"];
        let lists = if in_step { &lists[..] } else { &lists[1..] };
        let listed = || self.first(lists).and_then(|(_, list)| listed_count(&list));
        self.text("SLURM_GPUS_ON_NODE").and_then(count).or_else(listed)
    }
}

/// Counts the items of a list; "0,1,4-7" has 6.
fn listed_count(list: &str) -> Option<u32> {
    let item = |item: &str| match item.trim().split_once('-') {
        None => item.trim().parse::<u32>().ok().map(|_| 1),
        Some((first, last)) => last.parse::<u32>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1),
    };
    list.split(',').map(item).try_fold(0_u32, |sum, count| sum.checked_add(count?))
}

/// Expands a list: "2(x3),1" is 2, 2, 2, 1; `None` when it cannot be parsed or has more than `nodes` entries.
fn task_counts(list: &str, nodes: usize) -> Option<Vec<u32>> {
    let mut counts = Vec::new();
    for item in list.split(',') {
        let (tasks, times) = match item.split_once("(x") {
            None => (item, 1),
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse::<usize>().ok()?),
        };
        if counts.len().checked_add(times)? > nodes {
            return None;
        }
        counts.extend(std::iter::repeat_n(tasks.trim().parse::<u32>().ok()?, times));
    }
    Some(counts)
}

#[cfg(test)]
#[path = "allocation_tests.rs"]
mod tests;
