//! The agent with a fake worker and checkpoints that are plain renames: events as JSON lines on standard output, the exit
//! code as `enn` would give it.
//!
//! Arguments: run directory, world, max restarts, grace in seconds, the fake worker; then key=value: policy (restart unless
//! given), contract (`script`: the program is one), min, most, spares, hang (seconds), window (seconds between looks for stragglers), regroup (seconds to leave a round
//! together), evict (true), fails (commits that fail first; `always`: each hangs). The script comes by `ENN_FAKE_SCRIPT`.

#![expect(clippy::disallowed_methods, reason = "a test program ends with the code it tests")]
#![expect(clippy::unwrap_used, reason = "a test program fails by panicking")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a test program reports on its standard streams")]

use enn_cluster::supervise::{
    self, AgentSpec, Checkpoints, CommittedCheckpoint, CompleteCheckpoint, Contract, FoundCheckpoint, NodeSpec, RunEnd,
    RunJob, RunSettings, StopSignal, WorkerSpec,
};
use enn_common::{config::train::Recovery, event::Event};
use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Where, and how many commits fail first; `None`: each hangs.
struct Renames(PathBuf, Option<u32>);

impl Renames {
    /// Makes the shards of a step a checkpoint.
    fn rename(&mut self, step: u64, shards: &Path) -> Result<PathBuf, Failure> {
        let fails = loop {
            match &mut self.1 {
                Some(fails) => break fails,
                None => std::thread::park(),
            }
        };
        if let Some(left) = fails.checked_sub(1) {
            *fails = left;
            return Err("the disk is full".into());
        }
        let path = self.0.join(format!("step-{step:08}"));
        fs::rename(shards, &path)?;
        Ok(path)
    }
}

impl Checkpoints for Renames {
    fn prepare(&mut self) -> Result<Option<FoundCheckpoint>, Failure> {
        fs::create_dir_all(&self.0)?;
        let mut steps = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            let name = entry.file_name().into_string().unwrap();
            if name.starts_with('.') {
                fs::remove_dir_all(entry.path())?;
            } else if let Some(step) = name.strip_prefix("step-") {
                steps.push((step.parse::<u64>()?, entry.path()));
            }
        }
        Ok(steps.into_iter().max().map(|(step, path)| FoundCheckpoint { step, path }))
    }

    fn commit(&mut self, shards: &CompleteCheckpoint) -> Result<CommittedCheckpoint, Failure> {
        let path = self.rename(shards.step, &shards.dir)?;
        Ok(CommittedCheckpoint { path, bytes: 5, metric: shards.metric })
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [run_dir, world, max_restarts, grace, worker, options @ ..] = &arguments[..] else { panic!("arguments") };
    let run_dir = PathBuf::from(run_dir);
    let option = |name: &str| {
        options.iter().filter_map(|option| option.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
    };
    let world: u32 = world.parse().unwrap();
    let fails = match option("fails") {
        Some("always") => None,
        fails => Some(fails.map_or(0, |text| text.parse().unwrap())),
    };
    let node = NodeSpec {
        worker: WorkerSpec::new(worker.into()),
        runs_scripts: option("contract") == Some("script"),
        workers: world,
        workers_max: option("most").map_or(world, |text| text.parse().unwrap()),
        host: "here".into(),
        visible_devices: None,
        socket_parent: std::env::temp_dir(),
        handle_signals: true,
    };
    let run = RunSettings {
        contract: if option("contract") == Some("script") { Contract::Script } else { Contract::Broker },
        workers_min: option("min").map_or(world, |text| text.parse().unwrap()),
        on_failure: if option("policy") == Some("reform") { Recovery::Reform } else { Recovery::Restart },
        spares: option("spares").map_or(0, |text| text.parse().unwrap()),
        spares_are_bound: false,
        evict_stragglers: option("evict") == Some("true"),
        straggler_window: Duration::from_secs_f64(option("window").map_or(10.0, |text| text.parse().unwrap())),
        regroup_wait: Duration::from_secs_f64(option("regroup").map_or(120.0, |text| text.parse().unwrap())),
        hang_timeout: option("hang").map(|text| Duration::from_secs_f64(text.parse().unwrap())),
        run_dir: run_dir.clone(),
        first_round: 0,
        job: RunJob::Train { staged: "/staged".into(), init: None, config: String::new() },
        max_restarts: max_restarts.parse().unwrap(),
        grace: Duration::from_secs_f64(grace.parse().unwrap()),
    };
    let spec = AgentSpec { node, run, lock: None };
    let mut print = |what| {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        println!("{}", serde_json::to_string(&Event { time, what }).unwrap());
    };
    let outcome = supervise::run(&spec, Box::new(Renames(run_dir.join("checkpoints"), fails)), &mut print);
    let code = match outcome {
        Ok(outcome) => match outcome.end {
            RunEnd::Finished => 0,
            RunEnd::Stopped(StopSignal::Interrupt) => 130,
            RunEnd::Stopped(StopSignal::Terminate) => 143,
            RunEnd::Stopped(StopSignal::TimeLimit) => 138,
            RunEnd::Failed { cause } => {
                eprintln!("{cause}");
                1
            }
            other => panic!("{other:?}"),
        },
        Err(error) => {
            eprintln!("{error}");
            4
        }
    };
    std::process::exit(code);
}
