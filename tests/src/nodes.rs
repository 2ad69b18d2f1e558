//! `enn train` on several nodes of this machine: loopback addresses, or network namespaces. What happens is read from the run's
//! journal, which they share.
//!
//! What goes wrong here is a failed test, so everything panics.

#![expect(clippy::unwrap_used, reason = "it is part of tests, which fail by panicking")]

use crate::{
    data,
    launch::{self, free_port},
    leavings,
    network::Network,
};
use enn_common::{
    event::{Event, EventKind},
    id::Round,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    rc::Rc,
    time::{Duration, Instant},
};

/// Nothing here takes longer, even on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The agents of a run, by node.
pub struct Agents<'a> {
    /// Where they work.
    pub dir: tempfile::TempDir,
    network: Option<&'a Network>,
    port: u16,
    nnodes: String,
    epochs: u64,
    workers: u32,
    more: Vec<String>,
    living: BTreeMap<u32, Child>,
    killed: usize,
    wait: u32,
    journal: RefCell<Journal>,
}

/// The whole lines of a journal that were read so far: a run of thousands of steps is looked at every few milliseconds.
#[derive(Default)]
struct Journal {
    path: PathBuf,
    bytes: usize,
    events: Rc<Vec<EventKind>>,
}

impl Journal {
    /// All events that are in the file by now. A file that is shorter than before, or another one, is read from its beginning.
    fn read(&mut self, path: &Path) -> Rc<Vec<EventKind>> {
        let length = fs::metadata(path).map_or(0, |found| found.len()) as usize;
        if self.path != path || length < self.bytes {
            *self = Self { path: path.to_owned(), ..Self::default() };
        }
        let mut new = Vec::new();
        if let Ok(mut file) = File::open(path) {
            file.seek(SeekFrom::Start(self.bytes as u64)).unwrap();
            file.read_to_end(&mut new).unwrap();
        }
        let whole = new.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if whole > 0 {
            self.bytes += whole;
            let lines = new[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            let events = lines.map(|line| serde_json::from_slice::<Event>(line).unwrap().what);
            Rc::make_mut(&mut self.events).extend(events);
        }
        Rc::clone(&self.events)
    }
}

impl<'a> Agents<'a> {
    /// None yet, of a run of so many epochs on so many nodes, on loopback addresses or a network.
    pub fn new(nnodes: &str, epochs: u64, network: Option<&'a Network>) -> Self {
        let dir = tempfile::Builder::new().prefix("en").tempdir().unwrap();
        fs::create_dir(dir.path().join("tmp")).unwrap();
        data::write(dir.path());
        let port = free_port();
        let nnodes = nnodes.to_owned();
        let more = Vec::new();
        let living = BTreeMap::new();
        let journal = RefCell::default();
        Self { dir, network, port, nnodes, epochs, workers: 1, more, living, killed: 0, wait: 60, journal }
    }

    /// So many workers on each node.
    pub fn of(mut self, workers: u32) -> Self {
        self.workers = workers;
        self
    }

    /// The nodes wait so many seconds for each other.
    pub fn waiting(mut self, wait: u32) -> Self {
        self.wait = wait;
        self
    }

    /// With flags that all nodes get.
    pub fn with(mut self, more: &[&str]) -> Self {
        self.more.extend(more.iter().map(|flag| (*flag).to_owned()));
        self
    }

    /// Address of a node.
    pub fn host(&self, node: u32) -> String {
        self.network.map_or_else(|| format!("127.0.0.{node}"), |network| network.address(node))
    }

    /// Starts the agent of a node; the first node leads.
    pub fn start(&mut self, node: u32) {
        let command = self.agent(node);
        self.begin(node, &command);
    }

    /// The same on a node of a network that has another file system where the runs are.
    pub fn start_blind(&mut self, node: u32) {
        let agent = self.agent(node);
        let mut command = Command::new("sh");
        // Each command has a mount namespace of its own there.
        command.args(["-c", "mount -t tmpfs none runs && exec \"$0\" \"$@\""]).arg(agent.get_program());
        command.args(agent.get_args()).current_dir(self.dir.path());
        command.envs(agent.get_envs().filter_map(|(key, value)| Some((key, value?))));
        self.begin(node, &command);
    }

    /// Asks something of the run, which it does; what it says.
    pub fn ask(&self, words: &[&str]) -> String {
        let (done, said) = self.asked(words);
        assert!(done, "{words:?}: {said}");
        said
    }

    /// Waits until the run is paused.
    pub fn paused(&mut self) {
        self.until("a pause", |events| {
            events.iter().any(|what| matches!(what, EventKind::Paused { .. })).then_some(())
        });
    }

    /// Asks the run to stop: the nodes that are left save and end, and nothing stays behind.
    pub fn stop(&mut self, left: &[u32]) {
        self.ask(&["stop"]);
        let codes: Vec<_> = left.iter().map(|node| self.end(*node)).collect();
        assert_eq!(codes, vec![Some(130); left.len()], "{}", self.told());
        self.nothing_is_left();
    }

    /// Asks something of the run, which it does not; what it says.
    pub fn ask_in_vain(&self, words: &[&str]) -> String {
        let (done, said) = self.asked(words);
        assert!(!done, "{words:?}: {said}");
        said
    }

    fn asked(&self, words: &[&str]) -> (bool, String) {
        let run = self.run_dir().unwrap();
        let output = Command::new(launch::enn()).arg(words[0]).arg(run).args(&words[1..]).output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.success(), said)
    }

    fn agent(&self, node: u32) -> Command {
        let endpoint = format!("{}:{}", self.host(1), self.port);
        let mut command = self.command("runs");
        let workers = self.workers.to_string();
        command.args(["--nproc-per-node", &workers, "--nnodes", &self.nnodes, "--rdzv-endpoint", &endpoint]);
        // On one machine all own the address.
        let conf = format!("last_call_timeout=1,join_timeout={},is_host={}", self.wait, u8::from(node == 1));
        command.args(["--local-addr", &self.host(node), "--rdzv-conf", &conf]);
        command.args(&self.more);
        command
    }

    fn begin(&mut self, node: u32, command: &Command) {
        let mut command = match self.network {
            Some(network) => network.inside(node, command),
            None => launch::copy(command, &[]),
        };
        // Appended: a node may come again.
        let file = || fs::OpenOptions::new().create(true).append(true).open(self.output(node)).unwrap();
        command.stdin(Stdio::null()).stdout(file()).stderr(file());
        self.living.insert(node, command.spawn().unwrap());
    }

    /// The same run on one node with so many workers, to its end.
    pub fn alone(&self, workers: u32) -> BTreeMap<String, Vec<u8>> {
        self.alone_by(workers, "auto")
    }

    /// The same with Gloo between the workers.
    pub fn alone_with_gloo(&self, workers: u32) -> BTreeMap<String, Vec<u8>> {
        self.alone_by(workers, "gloo")
    }

    fn alone_by(&self, workers: u32, collectives: &str) -> BTreeMap<String, Vec<u8>> {
        let mut command = self.command("alone");
        command.args(["--set", &format!("cluster.collectives=\"{collectives}\"")]);
        command.args(["--nproc-per-node", &workers.to_string()]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        leavings::weights(&leavings::run_in(&self.dir.path().join("alone")).unwrap())
    }

    fn command(&self, runs: &str) -> Command {
        let mut command = Command::new(launch::enn());
        command.current_dir(self.dir.path()).args(["train", "chaos.toml", "--lines", "--runs-dir", runs]);
        command.args(["--set", &format!("train.epochs={}", self.epochs), "--set", "train.patience=0"]);
        // All that it starts carries the directory in its environment, and its sockets lie there.
        command.env("TMPDIR", self.dir.path().join("tmp")).env_remove("ENN_RUNS");
        command.env("XDG_CONFIG_HOME", self.dir.path().join("config"));
        command
    }

    fn output(&self, node: u32) -> PathBuf {
        self.dir.path().join(format!("node{node}.log"))
    }

    /// What a node printed.
    pub fn printed(&self, node: u32) -> String {
        fs::read_to_string(self.output(node)).unwrap_or_default()
    }

    /// The run's directory.
    pub fn run_dir(&self) -> Option<PathBuf> {
        leavings::run_in(&self.dir.path().join("runs"))
    }

    /// The journal; its last line may be torn.
    pub fn events(&self) -> Rc<Vec<EventKind>> {
        let run = self.run_dir();
        run.map_or_else(Rc::default, |run| self.journal.borrow_mut().read(&run.join("events.jsonl")))
    }

    /// Waits until the journal tells it.
    pub fn until<T>(&self, what: &str, mut found: impl FnMut(&[EventKind]) -> Option<T>) -> T {
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            if let Some(found) = found(&self.events()) {
                return found;
            }
            assert!(Instant::now() < deadline, "not within {WAIT_MAX:?}: {what}\n{}", self.told());
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Waits until a step at or beyond this one was done in a round of so many workers; the round.
    pub fn working(&self, world: u32, from: u64) -> u64 {
        self.until(&format!("step {from} by {world} workers"), |events| {
            let begun = events.iter().rposition(|what| matches!(what, EventKind::RoundStarted { .. }))?;
            let EventKind::RoundStarted { round: Round(round), world_size, .. } = &events[begun] else { return None };
            let stepped = |what: &EventKind| matches!(what, EventKind::Stepped { step, .. } if *step >= from);
            (*world_size == world && events[begun..].iter().any(stepped)).then_some(*round)
        })
    }

    /// The one of these nodes that leads, at whose door people ask.
    pub fn leader(&self, nodes: &[u32]) -> u32 {
        let door = self.run_dir().unwrap().join("control");
        self.until("a door", |_| {
            let named = fs::read_to_string(&door).ok()?;
            nodes.iter().copied().find(|node| named.lines().nth(1) == Some(&self.host(*node)))
        })
    }

    /// The last step that was told.
    pub fn step(&self) -> u64 {
        let step = |what: &EventKind| if let EventKind::Stepped { step, .. } = what { Some(*step) } else { None };
        self.events().iter().filter_map(step).max().unwrap_or(0)
    }

    /// The process with a seat on a node, as the journal tells last.
    pub fn worker(&self, node: u32) -> u32 {
        let own = self.host(node);
        let seat = |what: &EventKind| match what {
            EventKind::WorkerStarted { pid, host, .. } | EventKind::SeatTaken { pid, host, .. } if *host == own => {
                Some(*pid)
            }
            _ => None,
        };
        self.events().iter().rev().find_map(seat).unwrap_or_else(|| panic!("nobody on {own}: {}", self.told()))
    }

    /// The process of a node's agent.
    pub fn pid(&self, node: u32) -> u32 {
        self.living[&node].id()
    }

    /// Signals a node's agent.
    pub fn signal(&self, node: u32, signal: Signal) {
        kill(Pid::from_raw(self.pid(node).cast_signed()), signal).unwrap();
    }

    /// Kills a node's agent, and everything of it dies.
    pub fn kill(&mut self, node: u32) {
        let mut agent = self.living.remove(&node).unwrap();
        self.killed += 1;
        // `ip netns exec` becomes the command: it is the agent itself.
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    /// Waits for the end of a node's agent; its exit code.
    pub fn end(&mut self, node: u32) -> Option<i32> {
        let mut agent = self.living.remove(&node).unwrap();
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            if let Some(status) = agent.try_wait().unwrap() {
                return status.code();
            }
            if Instant::now() > deadline {
                let _killed = agent.kill();
                panic!("node {node} did not end within {WAIT_MAX:?}\n{}", self.told());
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// For the message of a failure.
    pub fn told(&self) -> String {
        let printed = (1..=3).map(|node| format!("--- node {node}\n{}", self.printed(node)));
        let events = self.events();
        let lines = events.iter().filter(|what| !matches!(what, EventKind::Stepped { .. }));
        let lines: Vec<String> = lines.map(|what| format!("{what:?}")).collect();
        format!("{}\n{}", lines.join("\n"), printed.collect::<String>())
    }

    /// Every tensor of the newest checkpoint.
    pub fn weights(&self) -> BTreeMap<String, Vec<u8>> {
        leavings::weights(&self.run_dir().unwrap())
    }

    /// Nothing of the run lives or lies about.
    pub fn nothing_is_left(&self) {
        assert!(leavings::nobody_is_left(self.dir.path()), "processes are left: {}", self.told());
        let left: Vec<_> = fs::read_dir(self.dir.path().join("tmp")).unwrap().flatten().collect();
        // What a killed agent leaves is removed by the next one of its host.
        assert!(left.len() <= self.killed, "left where sockets are: {left:?}");
    }

    /// By the ledger of all processes, in the rounds in which a step was done: every row once per epoch.
    pub fn every_row_once_per_epoch(&self) {
        leavings::every_row_once_per_epoch(&self.run_dir().unwrap(), self.epochs, || self.told());
    }
}

impl Drop for Agents<'_> {
    fn drop(&mut self) {
        // Ended already, when all went well; when not, their guards end their workers.
        for agent in self.living.values_mut() {
            let _ended = agent.kill();
            let _reaped = agent.wait();
        }
    }
}

/// Kills a worker. One that is gone already is no mistake.
pub fn kill_9(pid: u32) {
    let _gone = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
}
