//! `enn run` and `enn slurm` in a real Slurm of four nodes on this host: ranks, tasks, batch scripts, host lists, loss of a node,
//! requeue before the time limit, scancel.
//!
//! Needs Slurm and munge (`tests/slurm/install.sh`) and the binary `enn` (`make build`). Without Slurm the tests say so and end,
//! except where ENN_NEEDS_SLURM is set.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]
#![expect(clippy::disallowed_methods, reason = "tests ask the environment where things are")]
#![expect(clippy::print_stderr, reason = "a test that is skipped says so")]

use enn_cluster::slurm::hostlist;
use enn_tests::{
    data,
    launch::{alive, enn},
    pages::root,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::{
        OnceLock,
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Nothing of the cluster takes longer, even on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// From Slurm's KILL to processes that are gone: KillWait of the cluster is 5 s.
const GRACE_MAX: Duration = Duration::from_secs(20);
/// States of a job that is over.
const JOB_ENDS: [&str; 9] =
    ["BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"];

/// A cluster that ends with this process.
struct Cluster {
    conf: String,
    dir: PathBuf,
    /// Its standard input is what keeps it; never dropped, so closed at the end of the process.
    _script: Child,
}

/// The cluster of this process; `None`, with a line, when there is no Slurm.
fn cluster() -> Option<&'static Cluster> {
    static CLUSTER: OnceLock<Option<Cluster>> = OnceLock::new();
    CLUSTER.get_or_init(start).as_ref()
}

fn start() -> Option<Cluster> {
    let path = env::var("PATH").unwrap_or_default();
    let there =
        |program: &str| format!("{path}:/usr/sbin:/sbin").split(':').any(|dir| Path::new(dir).join(program).exists());
    if let Some(missing) = ["munged", "slurmctld", "slurmd", "srun"].into_iter().find(|program| !there(program)) {
        assert!(env::var_os("ENN_NEEDS_SLURM").is_none(), "{missing} is missing; tests/slurm/install.sh installs it");
        eprintln!("skipped: {missing} is not installed; tests/slurm/install.sh installs Slurm");
        return None;
    }
    // Short: below it are sockets. The script removes it.
    let dir = tempfile::Builder::new().prefix("enn-slurm-").tempdir().unwrap().keep();
    let mut script = Command::new(root().join("tests/slurm/cluster.sh"))
        .arg(&dir)
        .arg("--remove")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines: Vec<String> = BufReader::new(script.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .take_while(|line| line != "ready")
        .collect();
    let conf = lines.iter().find_map(|line| line.strip_prefix("export SLURM_CONF="));
    let conf = conf.unwrap_or_else(|| panic!("the cluster did not start: {}", script.wait().unwrap())).to_owned();
    Some(Cluster { conf, dir, _script: script })
}

impl Cluster {
    /// A folder of its own for a test, seen by all nodes.
    fn folder(&self, name: &str) -> PathBuf {
        let folder = self.dir.join(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// A command of Slurm in `folder`; nothing of the environment of the tests' own Slurm job is left in it.
    fn command(&self, program: &str, folder: &Path) -> Command {
        let mut command = Command::new(program);
        for (name, _) in env::vars().filter(|(name, _)| name.starts_with("SLURM") || name.starts_with("PET_")) {
            command.env_remove(name);
        }
        command.env("SLURM_CONF", &self.conf).env("ENN_RUNS", folder.join("runs")).env("XDG_CONFIG_HOME", folder);
        command.env("ENN", enn()).current_dir(folder).stdin(Stdio::null());
        command
    }

    fn run(&self, folder: &Path, words: &[&str]) -> Output {
        finish(self.command(words[0], folder).args(&words[1..]))
    }

    /// Standard output of a command that has to succeed.
    fn ok(&self, folder: &Path, words: &[&str]) -> String {
        let output = self.run(folder, words);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            output.status.success(),
            "{words:?}: {}\n{}\n{}",
            output.status,
            text(&output.stdout),
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    /// Submits a script of `lines`; the job's number.
    fn submit(&self, folder: &Path, options: &[&str], lines: &str) -> String {
        let script = folder.join("job.sh");
        fs::write(&script, format!("#!/bin/bash\n{lines}\n")).unwrap();
        let mut words = vec!["sbatch", "--parsable", "--output=out.txt", "--open-mode=append"];
        words.extend_from_slice(options);
        words.push(script.to_str().unwrap());
        self.ok(folder, &words).trim().to_owned()
    }

    fn job(&self, job: &str, name: &str) -> String {
        let text = self.ok(&self.dir, &["scontrol", "-o", "show", "job", job]);
        let value = text.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
    }

    /// Waits until the job is over; its state.
    fn end_of(&self, job: &str) -> String {
        wait_for("the end of the job", WAIT_MAX, || {
            // There are more states on the way, such as SIGNALING.
            let state = self.job(job, "JobState");
            JOB_ENDS.contains(&state.as_str()).then_some(state)
        })
    }
}

/// Runs to the end, within the time that anything may take.
fn finish(command: &mut Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    let (send, output) = channel();
    thread::spawn(move || send.send(child.wait_with_output()));
    match output.recv_timeout(WAIT_MAX) {
        Ok(output) => output.unwrap(),
        Err(RecvTimeoutError::Timeout) => {
            kill(pid, Signal::SIGKILL).unwrap();
            let output = output.recv().unwrap().unwrap();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            panic!("{command:?} did not end; it said:\n{}\n{}", text(&output.stdout), text(&output.stderr))
        }
        Err(RecvTimeoutError::Disconnected) => unreachable!("the thread sends before it ends"),
    }
}

/// Asks again and again, for things that no descriptor tells of.
fn wait_for<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    let (_never, tick) = channel::<()>();
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(began.elapsed() < limit, "{what} did not come within {limit:?}");
        let _tick = tick.recv_timeout(Duration::from_millis(100));
    }
}

/// A worker that prints what torchrun's contract says of it, as one write.
fn probe(folder: &Path) -> String {
    script(
        folder,
        "probe.sh",
        "printf 'rank=%s local=%s/%s world=%s group=%s/%s master=%s:%s node=%s pid=%s\\n' \"$RANK\" \"$LOCAL_RANK\" \"$LOCAL_WORLD_SIZE\" \
         \"$WORLD_SIZE\" \"$GROUP_RANK\" \"$GROUP_WORLD_SIZE\" \"$MASTER_ADDR\" \"$MASTER_PORT\" \"$SLURMD_NODENAME\" \"$$\"",
    )
}

fn script(folder: &Path, name: &str, lines: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, format!("#!/bin/bash\n{lines}\n")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&path, mode).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The lines of probes, in order of rank, by name.
fn probes(text: &str) -> Vec<BTreeMap<String, String>> {
    let lines = text.lines().filter_map(|line| Some(&line[line.find("rank=")?..]));
    let pairs = |line: &str| {
        line.split_whitespace()
            .filter_map(|word| word.split_once('='))
            .map(|(n, v)| (n.to_owned(), v.to_owned()))
            .collect()
    };
    let mut probes: Vec<BTreeMap<String, String>> = lines.map(pairs).collect();
    probes.sort_by_key(|probe| probe["rank"].parse::<u32>().unwrap());
    probes
}

/// Asserts a whole world: ranks, one master, workers of each node.
fn whole_world(text: &str, world: usize, per_node: usize) {
    let probes = probes(text);
    let of = |name: &str| probes.iter().map(|probe| probe[name].clone()).collect::<Vec<_>>();
    let expected = |value: &dyn Fn(usize) -> String| (0..world).map(value).collect::<Vec<_>>();
    assert_eq!(of("rank"), expected(&|rank| rank.to_string()), "{text}");
    assert_eq!(of("world"), expected(&|_| world.to_string()));
    assert_eq!(of("local"), expected(&|rank| format!("{}/{per_node}", rank % per_node)));
    assert_eq!(of("group"), expected(&|rank| format!("{}/{}", rank / per_node, world / per_node)));
    assert_eq!(of("node"), expected(&|rank| format!("n{}", rank / per_node + 1)), "Slurm's order");
    assert_eq!(of("master").into_iter().collect::<BTreeSet<_>>().len(), 1, "{text}");
}

/// Processes whose environment has `NAME=value`.
fn with_variable(variable: &str) -> Vec<i32> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let has = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|one| one == variable.as_bytes())
    };
    pids.filter(has).filter(|pid| alive(*pid)).collect()
}

#[test]
fn host_lists_are_read_as_scontrol_reads_them() {
    let Some(cluster) = cluster() else { return };
    let folder = cluster.folder("hostlists");
    for list in [
        "n1",
        "a,b,c",
        "n[1-3]",
        "n[09-11]",
        "n[9-11]",
        "n[1-002]",
        "n[01-1]",
        "n[8-0010]",
        "n[1-3,7,09-11]",
        "n[1-3,2]",
        "gpu[001-003,007],cpu[1-2]",
        "n[1-3]x[01-02]",
        "r[0-1]n[08-11]",
        "[1-2]",
        "node-[1-2],login",
        "n[098-101],n[98-101]",
        "10.0.0.[1-3]",
    ] {
        let theirs = cluster.ok(&folder, &["scontrol", "show", "hostnames", list]);
        let theirs: Vec<String> = theirs.lines().map(str::to_owned).collect();
        let ours = hostlist::expand(list).unwrap();
        assert_eq!(ours, theirs, "{list}");
    }
    for list in ["n[3-1]", "n[]", "n[1,]", "n[-1]", "n[1-2-3]", "n[[1-2]]", "n[a-c]"] {
        let theirs = cluster.run(&folder, &["scontrol", "show", "hostnames", list]);
        // Its exit code is 0 all the same.
        assert!(theirs.stdout.is_empty() && !theirs.stderr.is_empty(), "{list}");
        assert!(hostlist::expand(list).is_err(), "{list}");
    }
    // Slurm 22.05 nests three brackets in an order of its own; the names are the same.
    let theirs = cluster.ok(&folder, &["scontrol", "show", "hostnames", "r[1-2]n[1-2]c[1-2]"]);
    let ours: BTreeSet<String> = hostlist::expand("r[1-2]n[1-2]c[1-2]").unwrap().into_iter().collect();
    assert_eq!(ours, theirs.lines().map(str::to_owned).collect());
}

#[test]
fn one_task_per_node_needs_no_flags() {
    let Some(cluster) = cluster() else { return };
    let folder = cluster.folder("one-task");
    let enn = enn();
    let probe = probe(&folder);
    let text = cluster.ok(&folder, &["srun", "-N4", "-n4", enn.to_str().unwrap(), "run", "--no-python", &probe]);
    whole_world(&text, 4, 1);
}

#[test]
fn several_tasks_per_node_become_workers_of_one_agent() {
    let Some(cluster) = cluster() else { return };
    let folder = cluster.folder("two-tasks");
    let enn = enn();
    let probe = probe(&folder);
    let text = cluster.ok(&folder, &["srun", "-N4", "-n8", enn.to_str().unwrap(), "run", "--no-python", &probe]);
    whole_world(&text, 8, 2);
    // The tasks that wait end with the code of the one that works.
    let failing = script(&folder, "failing.sh", "exit 3");
    let words = ["srun", "-N2", "-n4", enn.to_str().unwrap(), "run", "--propagate-exit", "--no-python", &failing];
    assert_eq!(cluster.run(&folder, &words).status.code(), Some(3));
}

#[test]
fn in_a_batch_script_no_srun_is_needed() {
    let Some(cluster) = cluster() else { return };
    let folder = cluster.folder("batch");
    let probe = probe(&folder);
    let job = cluster.submit(&folder, &["-N4", "--ntasks-per-node=2"], &format!("exec $ENN run --no-python {probe}"));
    let state = cluster.end_of(&job);
    let text = fs::read_to_string(folder.join("out.txt")).unwrap();
    assert_eq!(state, "COMPLETED", "{text}");
    whole_world(&text, 8, 2);
}

#[test]
fn a_warm_server_serves_the_runs_of_its_job_and_ends_with_it() {
    let Some(cluster) = cluster() else { return };
    let folder = cluster.folder("warm");
    fs::create_dir_all(folder.join("sockets")).unwrap();
    fs::write(folder.join("script.py"), "import os\nprint('ran', os.environ['RANK'])\n").unwrap();
    let run = "\"$ENN\" run --warm --standalone --preload json --nproc-per-node 2 script.py";
    let lines = format!(
        "export XDG_RUNTIME_DIR=$PWD/sockets\n\"$ENN\" warm start --preload json || exit 1\n{run} || exit 1\n{run} || exit 1\n\
         \"$ENN\" warm status --json > status.json"
    );
    let job = cluster.submit(&folder, &["--nodes=1"], &lines);
    let state = cluster.end_of(&job);
    let out = fs::read_to_string(folder.join("out.txt")).unwrap_or_default();
    assert_eq!((state.as_str(), out.matches("ran ").count()), ("COMPLETED", 4), "{out}");
    let status: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(folder.join("status.json")).unwrap()).unwrap();
    let servers = status["servers"].as_array().unwrap();
    assert_eq!((servers.len(), servers[0]["server"]["runs"].as_u64()), (1, Some(3)), "{status}\n{out}");
    let server = i32::try_from(servers[0]["server"]["pid"].as_i64().unwrap()).unwrap();
    wait_for("the end of the server", GRACE_MAX, || (!alive(server)).then_some(()));
}

#[test]
fn a_failure_names_its_node_and_ends_the_others() {
    let Some(cluster) = cluster() else { return };
    let folder = cluster.folder("failure");
    let enn = enn();
    let worker =
        script(&folder, "worker.sh", "[[ $RANK != 2 ]] || { echo 'no such dragon' >&2; exit 7; }\nexec sleep 600");
    let began = Instant::now();
    let output = cluster.run(&folder, &["srun", "-N4", "-n4", enn.to_str().unwrap(), "run", "--no-python", &worker]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(began.elapsed() < GRACE_MAX, "{:?}", began.elapsed());
    for words in ["n3", "no such dragon"] {
        assert!(text.contains(words), "{words} is not in:\n{text}");
    }
}

#[test]
fn the_loss_of_a_node_is_survived_by_the_others() {
    let Some(cluster) = cluster() else { return };
    let folder = cluster.folder("loss");
    // The world of the first round waits; the second, of three, ends.
    let worker = script(
        &folder,
        "worker.sh",
        "echo $$ > pid.$WORLD_SIZE.$RANK.tmp && mv pid.$WORLD_SIZE.$RANK.tmp pid.$WORLD_SIZE.$RANK\n\
         [[ $WORLD_SIZE == 3 ]] || exec sleep 600\necho $SLURMD_NODENAME > again.$RANK",
    );
    let lines = format!(
        "srun --no-kill --kill-on-bad-exit=0 --wait=0 --ntasks-per-node=1 $ENN run --nnodes=3:4 \
         --rdzv-conf last_call_timeout=2 --no-python {worker} || echo \"srun $?\""
    );
    let job = cluster.submit(&folder, &["-N4", "--ntasks-per-node=1", "--no-kill"], &lines);
    wait_for("the first world", WAIT_MAX, || {
        (0..4).all(|rank| folder.join(format!("pid.4.{rank}")).exists()).then_some(())
    });
    // The node n3 dies: the agent and everything it started, at once.
    let lost: Vec<i32> = with_variable("SLURMD_NODENAME=n3")
        .into_iter()
        .filter(|pid| with_variable(&format!("SLURM_JOB_ID={job}")).contains(pid))
        .collect();
    assert!(lost.len() >= 2, "the agent and its worker: {lost:?}");
    for pid in lost {
        let _gone = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    cluster.end_of(&job);
    let text = fs::read_to_string(folder.join("out.txt")).unwrap();
    // Not by the output: srun may drop what comes after the death of one of its tasks.
    let name = |rank: u32| fs::read_to_string(folder.join(format!("again.{rank}"))).unwrap_or_default();
    let again: BTreeSet<String> = (0..3).map(|rank| name(rank).trim().to_owned()).collect();
    assert_eq!(again, ["n1", "n2", "n4"].map(str::to_owned).into(), "{text}");
}

#[test]
fn before_the_time_limit_a_run_saves_and_is_requeued() {
    let Some(cluster) = cluster() else { return };
    let folder = cluster.folder("requeue");
    let worker = script(
        &folder,
        "worker.sh",
        "trap 'echo \"saved rank=$RANK\"; exit 0' USR1 TERM\n\
         echo \"rank=$RANK world=$WORLD_SIZE restart=${SLURM_RESTART_COUNT:-0} token=${#ENN_TOKEN}\"\n\
         [[ ${SLURM_RESTART_COUNT:-0} == 0 ]] || exit 0\nfor _ in {1..600}; do sleep 0.1; done",
    );
    let enn = enn();
    // The signal comes as soon as less than this is left: at once.
    let options =
        ["slurm", "submit", "-N2", "-t", "2", "--signal-before=119", "-o", "out.txt", "--", "--no-python", &worker];
    let words: Vec<&str> = std::iter::once(enn.to_str().unwrap()).chain(options).collect();
    let job = cluster.ok(&folder, &words).trim().to_owned();
    let state = cluster.end_of(&job);
    let text = fs::read_to_string(folder.join("out.txt")).unwrap();
    assert_eq!((state.as_str(), cluster.job(&job, "Restarts").as_str()), ("COMPLETED", "1"), "{text}");
    for line in ["saved rank=0", "saved rank=1", "rank=0 world=2 restart=1", "rank=1 world=2 restart=1"] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
    assert!(text.contains("back in the queue"), "{text}");
    let status = cluster.ok(&folder, &[enn.to_str().unwrap(), "slurm", "status", &job]);
    assert!(status.starts_with("COMPLETED") && status.contains("requeued 1 times"), "{status}");
}

/// What the journal of the only run in `folder` tells, last line left out while it may be torn.
fn journal(folder: &Path) -> String {
    let runs = fs::read_dir(folder.join("runs")).into_iter().flatten().flatten();
    let journals = runs.map(|run| run.path().join("events.jsonl")).filter(|path| path.exists());
    journals.map(|path| fs::read_to_string(path).unwrap_or_default()).collect()
}

#[test]
fn training_spans_the_nodes_with_no_flags() {
    let Some(cluster) = cluster() else { return };
    let folder = cluster.folder("train");
    data::write(&folder);
    let enn = enn();
    cluster.ok(&folder, &["srun", "-N2", "-n2", enn.to_str().unwrap(), "train", "chaos.toml", "--quiet"]);
    let journal = journal(&folder);
    assert!(journal.contains(r#""nodes":[{"host":"n1","workers":1},{"host":"n2","workers":1}]"#), "{journal}");
    assert_eq!(journal.matches(r#""event":"run_ended","code":0"#).count(), 1, "{journal}");
}

#[test]
fn before_the_time_limit_training_saves_once_and_goes_on_after_the_queue() {
    let Some(cluster) = cluster() else { return };
    let folder = cluster.folder("train-limit");
    data::write(&folder);
    // The second time the first epoch that is not the best one ends it.
    let train = "train chaos.toml --lines --resume auto --set train.epochs=100000 --set train.patience=$PATIENCE";
    let lines = format!(
        "[ \"${{SLURM_RESTART_COUNT:-0}}\" = 0 ] && PATIENCE=0 || PATIENCE=1\nexec srun --ntasks-per-node=1 $ENN {train}"
    );
    let job = cluster.submit(&folder, &["-N2", "--ntasks-per-node=1", "--requeue"], &lines);
    wait_for("a checkpoint", WAIT_MAX, || journal(&folder).contains("checkpoint_committed").then_some(()));
    cluster.ok(&folder, &["scancel", "--signal=USR1", &job]);
    wait_for("the requeue", WAIT_MAX, || (cluster.job(&job, "Restarts") == "1").then_some(()));
    let state = cluster.end_of(&job);
    let text = fs::read_to_string(folder.join("out.txt")).unwrap();
    assert_eq!(state, "COMPLETED", "{text}");
    assert_eq!(text.matches("back in the queue").count(), 1, "only the head asks: {text}");
}

#[test]
fn nothing_outlives_scancel() {
    let Some(cluster) = cluster() else { return };
    let folder = cluster.folder("scancel");
    // A worker that does not want to end, with a child that has left its session.
    let worker = script(
        &folder,
        "worker.sh",
        "trap '' TERM\nsetsid sleep 600 &\necho $! > child.$RANK\necho $$ > pid.$RANK.tmp && mv pid.$RANK.tmp pid.$RANK\n\
         while :; do sleep 600; done",
    );
    let lines = format!("exec srun --ntasks-per-node=1 $ENN run --grace 2 --no-python {worker}");
    let job = cluster.submit(&folder, &["-N4", "--ntasks-per-node=1"], &lines);
    wait_for("all workers", WAIT_MAX, || (0..4).all(|rank| folder.join(format!("pid.{rank}")).exists()).then_some(()));
    let number = |name: String| fs::read_to_string(folder.join(name)).unwrap().trim().parse::<i32>().unwrap();
    let pids: Vec<i32> =
        (0..4).flat_map(|rank| [number(format!("pid.{rank}")), number(format!("child.{rank}"))]).collect();
    assert!(pids.iter().all(|pid| alive(*pid)));
    cluster.ok(&folder, &["scancel", &job]);
    wait_for("the end of every worker", GRACE_MAX, || (!pids.iter().any(|pid| alive(*pid))).then_some(()));
    wait_for("the end of all else", GRACE_MAX, || {
        with_variable(&format!("SLURM_JOB_ID={job}")).is_empty().then_some(())
    });
    assert_eq!(cluster.end_of(&job), "CANCELLED");
}

#[test]
fn the_secret_of_a_run_is_on_no_command_line_and_in_no_file() {
    let Some(cluster) = cluster() else { return };
    let folder = cluster.folder("secret");
    let enn = enn();
    // No command of the script may have it among its words either: bash compares, and grep reads it from a pipe.
    let worker = script(
        &folder,
        "worker.sh",
        "token=$(tr '\\0' '\\n' < /proc/$PPID/environ | sed -n 's/^ENN_TOKEN=//p')\nshown=0\n\
         for file in /proc/[0-9]*/cmdline; do\n\
         words=$(tr '\\0' ' ' 2> /dev/null < \"$file\")\n[[ $words != *\"$token\"* ]] || shown=$((shown + 1))\ndone\n\
         files=$(printf '%s' \"$token\" | grep -rlF -f - . | wc -l)\n\
         script=$(scontrol write batch_script $SLURM_JOB_ID - | grep -cF -f <(printf '%s' \"$token\"))\n\
         echo \"length ${#token} shown $shown files $files script $script\"",
    );
    let options = ["slurm", "submit", "-N2", "-o", "out.txt", "--", "--no-python", &worker];
    let words: Vec<&str> = std::iter::once(enn.to_str().unwrap()).chain(options).collect();
    let job = cluster.ok(&folder, &words).trim().to_owned();
    let state = cluster.end_of(&job);
    let text = fs::read_to_string(folder.join("out.txt")).unwrap();
    assert_eq!(state, "COMPLETED", "{text}");
    assert_eq!(text.matches("length 64 shown 0 files 0 script 0").count(), 2, "{text}");
}

#[test]
fn refusals_are_slurms_own_words() {
    let Some(cluster) = cluster() else { return };
    let folder = cluster.folder("refusals");
    let enn = enn();
    let probe = probe(&folder);
    let enn = enn.to_str().unwrap();
    let refused = |words: &[&str], code: i32, expected: &str| {
        let output = cluster.run(&folder, words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(code) && text.contains(expected), "{words:?}: {}\n{text}", output.status);
    };
    refused(
        &[enn, "slurm", "submit", "-p", "nowhere", "--", "--no-python", &probe],
        4,
        "invalid partition specified: nowhere",
    );
    refused(&[enn, "slurm", "status", "99999"], 4, "Invalid job id specified");
    refused(&["srun", "-N2", "-n2", enn, "run", "--nnodes=3", "--no-python", &probe], 2, "the allocation has 2 nodes");
}
