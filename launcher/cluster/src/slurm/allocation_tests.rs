//! Allocations as a real Slurm 22.05 wrote them (folder captured/), and broken ones.

use super::*;

fn variables(text: &str) -> BTreeMap<String, String> {
    text.lines().filter_map(|line| line.split_once('=')).map(|(name, value)| (name.into(), value.into())).collect()
}

fn allocation(text: &str) -> Allocation {
    Allocation::from(&variables(text)).unwrap().unwrap()
}

fn error(text: &str) -> String {
    Allocation::from(&variables(text)).unwrap_err().to_string()
}

fn nodes(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn outside_slurm_there_is_none() {
    assert_eq!(Allocation::from(&variables("PATH=/bin\nSLURM_CONF=/etc/slurm.conf")).unwrap(), None);
}

#[test]
fn a_step_of_two_tasks_per_node() {
    let text = include_str!("captured/srun-n8-N4.task3.env");
    let expected = Allocation {
        job_id: 2,
        step_id: Some(0),
        job_name: "bash".into(),
        nodes: nodes(&["n1", "n2", "n3", "n4"]),
        node_index: 1,
        node: Some("n2".into()),
        tasks_per_node: vec![2; 4],
        local_id: 1,
        proc_id: 3,
        gpus: None,
        cpus_per_task: None,
        cpu_bind: Vec::new(),
        restart_count: 0,
        end_time: None,
        submit_dir: Some("/home/ada/weather".into()),
        het_size: None,
        launcher_port: Some(34_841),
        in_step: true,
    };
    assert_eq!(allocation(text), expected);
}

#[test]
fn a_batch_script_is_no_step() {
    let batch = allocation(include_str!("captured/sbatch-N4-two-tasks-per-node.env"));
    assert_eq!((batch.in_step, batch.step_id, batch.nodes.len()), (false, None, 4));
    assert_eq!((batch.node.as_deref(), batch.node_index), (Some("n1"), 0));
    assert_eq!((batch.tasks_per_node.as_slice(), batch.cpus_per_task), ([2; 4].as_slice(), Some(1)));
}

#[test]
fn a_step_inside_a_batch_script_counts_its_own_tasks() {
    let step = allocation(include_str!("captured/step-of-that.task1.env"));
    assert_eq!((step.in_step, step.node_index, step.local_id), (true, 1, 0));
    assert_eq!((step.tasks_per_node.as_slice(), step.local_tasks()), ([1; 4].as_slice(), 1));
    assert!(step.cpu_bind.is_empty(), "quiet,none binds nothing");
}

#[test]
fn the_shell_of_salloc_is_on_no_node() {
    let shell = allocation(include_str!("captured/salloc-N2.env"));
    assert_eq!((shell.in_step, shell.node, shell.nodes), (false, None, nodes(&["n1", "n2"])));
}

#[test]
fn an_interactive_step_is_no_step_of_srun() {
    let text = format!("{}\nSLURM_STEP_ID=4294967290", include_str!("captured/salloc-N2.env"));
    assert!(!allocation(&text).in_step);
}

#[test]
fn heterogeneous_jobs() {
    let batch = allocation(include_str!("captured/het.batch.env"));
    assert_eq!((batch.nodes, batch.het_size), (nodes(&["n1", "n2", "n3"]), Some(2)));
    assert_eq!(batch.tasks_per_node, [1, 1, 1]);
    let step = allocation(include_str!("captured/het.step.task2.env"));
    assert_eq!((step.nodes, step.node_index, step.job_id), (nodes(&["n1", "n2", "n3"]), 2, 7));
}

#[test]
fn tasks_that_nobody_asked_for_are_one() {
    let text = "SLURM_JOB_ID=1\nSLURM_JOB_NODELIST=n[1-2]\nSLURM_TASKS_PER_NODE=64(x2)";
    assert_eq!(allocation(text).tasks_per_node, [1, 1]);
    assert_eq!(allocation(&format!("{text}\nSLURM_NTASKS=128")).tasks_per_node, [64, 64]);
}

#[test]
fn gpus_are_counted() {
    let of = |more: &str| allocation(&format!("SLURM_JOB_ID=1\nSLURM_JOB_NODELIST=n1\n{more}")).gpus;
    assert_eq!(of(""), None);
    assert_eq!(of("SLURM_GPUS_ON_NODE=4"), Some(4));
    assert_eq!(of("SLURM_GPUS_ON_NODE=gpu:h100:8"), Some(8));
    assert_eq!(of("SLURM_JOB_GPUS=0,1,4-7"), Some(6));
    assert_eq!(of("SLURM_JOB_GPUS=GPU-1f2e"), None);
}

#[test]
fn lists_of_tasks() {
    assert_eq!(task_counts("2(x3),1", 4), Some(vec![2, 2, 2, 1]));
    assert_eq!(task_counts("1,16(x2)", 3), Some(vec![1, 16, 16]));
    for list in ["", "x", "2(x3", "2(3)", "2(x9999999999999)", "1,,2", "-1"] {
        assert_eq!(task_counts(list, 4), None, "{list}");
    }
}

#[test]
fn what_is_wrong_is_said_in_one_sentence() {
    let step = include_str!("captured/srun-n8-N4.task3.env");
    let with = |line: &str| {
        let name = line.split('=').next().unwrap();
        let kept: Vec<_> = step.lines().filter(|old| old.split('=').next() != Some(name)).collect();
        error(&format!("{}\n{line}", kept.join("\n")))
    };
    assert!(error("SLURM_JOB_ID=1").starts_with("SLURM_JOB_ID is set but SLURM_JOB_NODELIST is not"));
    assert_eq!(error("SLURM_JOB_ID=one"), "SLURM_JOB_ID=\"one\" is not a number");
    assert!(with("SLURM_NODEID=").contains("SLURM_NODEID is not"));
    assert_eq!(with("SLURM_NODEID=4"), "SLURM_NODEID=4 but SLURM_STEP_NODELIST names only 4 hosts");
    assert_eq!(with("SLURM_STEP_NUM_NODES=3"), "SLURM_STEP_NUM_NODES=3 but SLURM_STEP_NODELIST names 4 hosts");
    assert!(with("SLURM_STEP_NODELIST=n[1-").starts_with("SLURM_STEP_NODELIST: the host list \"n[1-\" has a bracket"));
    assert!(with("SLURM_STEP_TASKS_PER_NODE=2x4").contains("is not a list of tasks"));
    assert_eq!(with("SLURM_RESTART_COUNT=4294967296"), "SLURM_RESTART_COUNT=\"4294967296\" is not a number");
}
