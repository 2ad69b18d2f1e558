//! The agent with a fake worker and checkpoints that are plain renames: events as JSON lines on standard output, the exit
//! code as `enn` would give it.
//!
//! Arguments: run directory, world, max restarts, grace in seconds, the fake worker; then key=value: policy (restart unless
//! given), min, most, spares, hang (seconds), window (seconds between looks for stragglers), regroup (seconds to leave a round
//! together), evict (true), fails (commits that fail first; `always`: each hangs). The script comes by `ENN_FAKE_SCRIPT`.
//! With `ENN_TEST_SUPERVISOR` the supervisor of `enn_cluster::supervise` is tested instead of `agent`.

#![expect(clippy::disallowed_methods, reason = "a test program ends with the code it tests")]
#![expect(clippy::unwrap_used, reason = "a test program fails by panicking")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a test program reports on its standard streams")]

use enn_cluster::agent::{AgentSpec, Checkpoints, Committed, Ended, Job, ShardSet, Signal, WorkerSpec};
use enn_cluster::supervise;
use enn_common::{
    config::train::{Device, Recovery},
    event::Event,
    id::Round,
};
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
    fn prepare(&mut self) -> Result<Option<Committed>, Failure> {
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
        let newest = steps.into_iter().max();
        Ok(newest.map(|(step, path)| Committed { step, path, bytes: 0, metric: None }))
    }

    fn commit(&mut self, shards: &ShardSet) -> Result<Committed, Failure> {
        let path = self.rename(shards.step, &shards.dir)?;
        Ok(Committed { step: shards.step, path, bytes: 5, metric: shards.metric })
    }
}

impl supervise::Checkpoints for Renames {
    fn prepare(&mut self) -> Result<Option<supervise::FoundCheckpoint>, Failure> {
        let found = Checkpoints::prepare(self)?;
        Ok(found.map(|found| supervise::FoundCheckpoint { step: found.step, path: found.path }))
    }

    fn commit(&mut self, shards: &supervise::CompleteCheckpoint) -> Result<supervise::CommittedCheckpoint, Failure> {
        let path = self.rename(shards.step, &shards.dir)?;
        Ok(supervise::CommittedCheckpoint { path, bytes: 5, metric: shards.metric })
    }
}

/// Runs the new supervisor; returns the exit code.
fn launch(spec: AgentSpec, fails: Option<u32>, print: &mut dyn FnMut(enn_common::event::EventKind)) -> i32 {
    let spec = supervise::AgentSpec {
        worker: spec.worker,
        workers: spec.world,
        workers_min: spec.workers_min,
        workers_max: spec.workers_most,
        on_failure: spec.policy,
        spares: spec.spares,
        evict_stragglers: spec.evict_stragglers,
        straggler_window: spec.straggler_window,
        regroup_wait: spec.regroup_wait,
        hang_timeout: spec.hang_timeout,
        host: spec.host,
        run_dir: spec.run_dir,
        lock: None,
        first_round: 0,
        job: supervise::RunJob::Train { staged: "/staged".into(), init: None, config: String::new() },
        max_restarts: spec.max_restarts,
        grace: spec.grace,
        socket_parent: spec.socket_parent,
        handle_signals: spec.handle_signals,
    };
    let checkpoints = Box::new(Renames(spec.run_dir.join("checkpoints"), fails));
    match supervise::run(&spec, checkpoints, print) {
        Ok(outcome) => match outcome.end {
            supervise::RunEnd::Finished => 0,
            supervise::RunEnd::Stopped(supervise::StopSignal::Interrupt) => 130,
            supervise::RunEnd::Stopped(supervise::StopSignal::Terminate) => 143,
            supervise::RunEnd::Stopped(supervise::StopSignal::TimeLimit) => 138,
            supervise::RunEnd::Failed { cause } => {
                eprintln!("{cause}");
                1
            }
            other => panic!("{other:?}"),
        },
        Err(error) => {
            eprintln!("{error}");
            4
        }
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
    let spec = AgentSpec {
        worker: WorkerSpec {
            program: worker.into(),
            args: Vec::new(),
            library_dir: None,
            library_path: None,
            device: Device::Cpu,
            threads: 1,
            sleeps: true,
            repeatable_products: false,
        },
        world,
        workers_min: option("min").map_or(world, |text| text.parse().unwrap()),
        workers_most: option("most").map_or(world, |text| text.parse().unwrap()),
        policy: if option("policy") == Some("reform") { Recovery::Reform } else { Recovery::Restart },
        spares: option("spares").map_or(0, |text| text.parse().unwrap()),
        evict_stragglers: option("evict") == Some("true"),
        straggler_window: Duration::from_secs_f64(option("window").map_or(10.0, |text| text.parse().unwrap())),
        regroup_wait: Duration::from_secs_f64(option("regroup").map_or(120.0, |text| text.parse().unwrap())),
        hang_timeout: option("hang").map(|text| Duration::from_secs_f64(text.parse().unwrap())),
        host: "here".into(),
        run_dir: run_dir.clone(),
        first_round: Round(0),
        job: Job::Train { staged: "/staged".into(), init: None },
        max_restarts: max_restarts.parse().unwrap(),
        grace: Duration::from_secs_f64(grace.parse().unwrap()),
        socket_parent: std::env::temp_dir(),
        handle_signals: true,
    };
    let mut print = |what| {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        println!("{}", serde_json::to_string(&Event { time, what }).unwrap());
    };
    if std::env::var_os("ENN_TEST_SUPERVISOR").is_some() {
        std::process::exit(launch(spec, fails, &mut print));
    }
    let outcome = enn_cluster::agent::run(&spec, Box::new(Renames(run_dir.join("checkpoints"), fails)), &mut print);
    let code = match outcome {
        Ok(outcome) => match outcome.ended {
            Ended::Finished => 0,
            Ended::Stopped(Signal::Interrupt) => 130,
            Ended::Stopped(Signal::Terminate) => 143,
            Ended::Stopped(Signal::TimeLimit) => 138,
            Ended::Failed { cause } => {
                eprintln!("{cause}");
                1
            }
        },
        Err(error) => {
            eprintln!("{error}");
            4
        }
    };
    std::process::exit(code);
}
