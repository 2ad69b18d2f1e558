//! One of several nodes with fake workers and checkpoints that are plain renames: it leads, or follows and may take over. Events as JSON
//! lines on standard output; the last line of standard error says how it ended.
//!
//! Arguments: run directory, host, port of the rendezvous, `leads` or `follows`, workers, the fake worker; then key=value: min and max
//! (nodes), spares, hang (seconds), grace (seconds), prepare (seconds that a successor takes to prepare). The script comes by
//! `ENN_FAKE_SCRIPT`.

#![expect(clippy::disallowed_methods, reason = "a test program: it reads its arguments and ends with a code")]
#![expect(clippy::unwrap_used, reason = "a test program fails by panicking")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a test program reports on its standard streams")]

use enn_cluster::{
    rendezvous::{Rendezvous, Settings, StoreLocation},
    supervise::{
        self, AgentSpec, CheckpointFailure, Checkpoints, CommittedCheckpoint, CompleteCheckpoint, Contract,
        FollowerEnd, FoundCheckpoint, Membership, NodeCounts, NodeSpec, RunJob, RunSettings, WorkerSpec,
    },
};
use enn_common::{
    config::train::Recovery,
    event::{Event, EventKind},
};
use std::{
    fs,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Directory of the checkpoints.
struct Renames(PathBuf);

impl Checkpoints for Renames {
    fn prepare(&mut self) -> Result<Option<FoundCheckpoint>, CheckpointFailure> {
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

    fn commit(&mut self, shards: &CompleteCheckpoint) -> Result<CommittedCheckpoint, CheckpointFailure> {
        let path = self.0.join(format!("step-{:08}", shards.step));
        fs::rename(&shards.dir, &path)?;
        Ok(CommittedCheckpoint { path, bytes: 5, metric: shards.metric })
    }
}

/// Arguments of this node.
struct Node {
    arguments: Vec<String>,
}

impl Node {
    fn argument(&self, index: usize) -> &str {
        &self.arguments[index]
    }

    fn number(&self, name: &str) -> Option<f64> {
        let option = self.arguments.iter().filter_map(|option| option.split_once('=')).find(|(key, _)| *key == name);
        option.map(|(_, value)| value.parse().unwrap())
    }

    fn count(&self, name: &str) -> Option<u32> {
        self.number(name).map(|number| number as u32)
    }

    fn run_dir(&self) -> &Path {
        Path::new(self.argument(0))
    }

    fn workers(&self) -> u32 {
        self.argument(4).parse().unwrap()
    }

    fn nodes(&self) -> NodeCounts {
        NodeCounts { min: self.count("min").unwrap_or(1), max: self.count("max").unwrap_or(2) }
    }

    fn leads(&self) -> bool {
        self.argument(3) == "leads"
    }

    fn checkpoints(&self) -> Box<dyn Checkpoints> {
        Box::new(Renames(self.run_dir().join("checkpoints")))
    }

    fn worker(&self) -> WorkerSpec {
        WorkerSpec::new(self.argument(5).into())
    }

    fn spec(&self) -> AgentSpec {
        let logs = fs::read_dir(self.run_dir().join("logs")).into_iter().flatten().flatten();
        let rounds = logs.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok());
        let run = RunSettings {
            contract: Contract::Broker,
            workers_min: 1,
            on_failure: Recovery::Reform,
            spares: self.count("spares").unwrap_or(0),
            spares_are_bound: false,
            evict_stragglers: false,
            straggler_window: Duration::from_secs(10),
            regroup_wait: Duration::from_secs(20),
            hang_timeout: self.number("hang").map(Duration::from_secs_f64),
            run_dir: self.run_dir().to_owned(),
            first_round: rounds.max().map_or(0, |last| last + 1),
            job: RunJob::Train { staged: self.run_dir().join("staged"), init: None, config: self.config() },
            max_restarts: 3,
            grace: Duration::from_secs_f64(self.number("grace").unwrap_or(20.0)),
        };
        AgentSpec { node: self.node(), run, lock: None }
    }

    /// The digest of the run's configuration, which is empty.
    fn config(&self) -> String {
        "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262".into()
    }

    fn node(&self) -> NodeSpec {
        NodeSpec {
            worker: self.worker(),
            runs_scripts: false,
            workers: self.workers(),
            workers_max: self.workers(),
            host: self.argument(1).to_owned(),
            visible_devices: None,
            socket_parent: std::env::temp_dir(),
            handle_signals: true,
        }
    }

    fn settings(&self) -> Settings {
        let NodeCounts { min, max } = self.nodes();
        let port = self.argument(2).parse().unwrap();
        Settings {
            run_id: "fakes".into(),
            nodes_min: min,
            nodes_max: max,
            location: StoreLocation::Endpoint { host: "127.0.0.1".into(), port, is_host: Some(self.leads()) },
            node_rank: None,
            local_world: self.workers(),
            uneven: true,
            role: "train".into(),
            local_addr: Some("127.0.0.1".into()),
            host: self.argument(1).to_owned(),
            restarts_max: 3,
            join_timeout: Duration::from_secs(60),
            last_call: Duration::from_secs(30),
            silence_max: Duration::from_secs(5),
            hang_timeout: None,
            token: None,
            store_open: false,
            store_kept: true,
        }
    }
}

fn print(what: EventKind) {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    println!("{}", serde_json::to_string(&Event { time, what }).unwrap());
}

fn main() {
    let node = Node { arguments: std::env::args().skip(1).collect() };
    if node.leads() {
        fs::write(node.run_dir().join("run.json"), "").unwrap();
        fs::create_dir_all(node.run_dir().join("staged")).unwrap();
        fs::write(node.run_dir().join("staged/meta.json"), "{}").unwrap();
    }
    let guard = supervise::guard().unwrap();
    let rendezvous = Rc::new(Rendezvous::start(node.settings()).unwrap());
    rendezvous.join();
    let membership = Membership { guard, rendezvous, nodes: node.nodes() };
    if node.leads() {
        let outcome = supervise::lead(&node.spec(), node.checkpoints(), &mut print, membership);
        eprintln!("led: {:?}", outcome.map(|outcome| outcome.end));
        return;
    }
    let end = supervise::take_part(&node.node(), membership, &mut print, |order| {
        std::thread::sleep(Duration::from_secs_f64(node.number("prepare").unwrap_or(0.0)));
        assert_eq!(order.facts.run_dir, node.run_dir());
        supervise::succeed(&node.spec(), node.checkpoints(), &mut print, order)
    });
    match end.unwrap() {
        FollowerEnd::Ended(end) => eprintln!("followed: {end:?}"),
        FollowerEnd::Led(outcome) => eprintln!("took over: {:?}", outcome.map(|outcome| outcome.end)),
    }
}
