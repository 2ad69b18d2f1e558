//! A worker that speaks the protocol and misbehaves on command: no libtorch, no data.
//!
//! `ENN_FAKE_SCRIPT` holds `round.rank=action,action…` separated by `;`, and `spare.worker=…` for who has no seat; `*` matches
//! any number; the first match counts. A worker that gets another seat goes on with the line of its new round and rank. Actions
//! are listed in `act`.

#![expect(
    clippy::disallowed_methods,
    reason = "a test program: reads its script from the environment, sleeps as a hang"
)]
#![expect(clippy::unwrap_used, reason = "a test program fails by panicking")]

use enn_common::{
    checkpoint::{
        ShardLayout,
        layout::BoxOf,
        table::{ShardTable, TensorDType},
    },
    wire::{
        client::{Client, Sender},
        control::PAGE_BYTES,
        message::{Assignment, FromWorker, PROTOCOL, StagedShard, ToWorker, WorkerTask},
    },
};
use nix::{
    sys::signal::{SigSet, Signal, raise},
    time::{ClockId, clock_gettime},
};
use std::{
    io::Write,
    os::unix::{fs::FileExt, net::UnixStream},
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread::sleep,
    time::{Duration, Instant},
};

/// Bits of the control page's wishes.
const STOP: u8 = 1;
const REGROUP: u8 = 2;

/// Where the page says whose the first snapshot is.
const SNAPSHOT_AT: u64 = 62 * 8;
/// The elements of a staged tensor.
const STAGED: &[u8] = b"left in memory";

const HANG: Duration = Duration::from_secs(600);

struct Worker {
    script: String,
    sender: Option<Sender>,
    inbox: Receiver<ToWorker>,
    broker: PathBuf,
    run_dir: PathBuf,
    /// "round.rank" or "spare.worker".
    place: String,
    round: u64,
    rank: u32,
    attempt: String,
    /// It is to save where it stands, and to do no step.
    saves: bool,
    /// Into so many its micro-batches are cut.
    split: u32,
    /// Percent of its time that it says it waits for others.
    waits: u64,
    grandchild: Option<std::process::Child>,
}

/// What follows an action.
#[derive(PartialEq)]
enum Next {
    Action,
    /// The line of another place.
    Line,
}

fn main() {
    let text = |name: &str| std::env::var(name);
    let round = text("ENN_ROUND");
    let worker = text("ENN_WORKER_ID").unwrap();
    assert_eq!(round.is_ok(), text("RANK").is_ok(), "a spare has neither");
    let rank = text("RANK").unwrap_or_default();
    let place = round.as_ref().map_or_else(|_| format!("spare.{worker}"), |round| format!("{round}.{rank}"));
    let mut worker = Worker {
        script: text("ENN_FAKE_SCRIPT").unwrap(),
        sender: None,
        inbox: channel().1,
        broker: text("ENN_BROKER").unwrap().into(),
        run_dir: text("ENN_RUN_DIR").unwrap().into(),
        place,
        round: round.map_or(0, |round| round.parse().unwrap()),
        rank: rank.parse().unwrap_or(0),
        attempt: String::new(),
        saves: false,
        split: 0,
        waits: 0,
        grandchild: None,
    };
    while worker.line() == Next::Line {}
}

impl Worker {
    /// Acts the line of its place out.
    fn line(&mut self) -> Next {
        let (round, rank) = self.place.split_once('.').unwrap();
        let fits = |place: &str| {
            let (r, k) = place.split_once('.').unwrap();
            // A star stands for a number.
            (r == round || (r == "*" && round != "spare")) && (k == "*" || k == rank)
        };
        let mut lines = self.script.split(';').filter_map(|line| line.split_once('='));
        let found = lines.find(|(place, _)| fits(place)).map(|(_, actions)| actions.to_owned());
        let actions = found.unwrap_or_else(|| panic!("no line for {}", self.place));
        for action in actions.split(',') {
            let (name, argument) = action.split_once(':').unwrap_or((action, ""));
            if self.act(name, argument) == Next::Line {
                return Next::Line;
            }
        }
        Next::Action
    }

    fn act(&mut self, name: &str, argument: &str) -> Next {
        match name {
            // Who has a seat of an earlier round is connected.
            "hello" if self.sender.is_some() => {}
            "hello" => return self.hello(PROTOCOL),
            "run" => return self.run(),
            "hello_foreign" => return self.hello(PROTOCOL + 1),
            "warm" => self.send(&FromWorker::Warm),
            "seat" => return self.seat(),
            "halt" => return self.halt(argument.parse().unwrap(), STOP | REGROUP),
            "halt_through_stop" => return self.halt(argument.parse().unwrap(), REGROUP),
            "halt_through_wishes" => return self.halt(argument.parse().unwrap(), 0),
            "step" => self.step(argument.parse().unwrap()),
            "received" => {
                let step = argument.parse().unwrap();
                self.send(&FromWorker::StateReceived { step, from: 0, bytes: 8, seconds: 0.1 });
            }
            "phase" => self.write(12, &argument.parse::<u32>().unwrap().to_le_bytes()),
            "split" => assert_eq!(self.split.to_string(), argument, "parts of micro-batches"),
            "oom" => self.out_of_memory(argument.parse().unwrap()),
            "waits" => self.waits = argument.parse().unwrap(),
            "halted" => {
                let step = argument.parse().unwrap();
                self.send(&FromWorker::Halted { round: self.round, step, kept: true });
            }
            "ready" => {
                self.send(&FromWorker::Ready { device: "cpu".into(), backend: "fake".into(), libtorch: "none".into() });
            }
            "done" | "stopped" => self.send(&FromWorker::Done { stopped: name == "stopped" }),
            "failed" => self.send(&FromWorker::Failed { error: argument.into() }),
            "shard" | "staged" | "saves" => self.save(name, argument.parse().unwrap()),
            "stderr" => std::io::stderr().write_all(format!("{argument}\n").as_bytes()).unwrap(),
            "exit" => std::process::exit(argument.parse().unwrap()),
            "kill" => raise(argument.parse::<Signal>().unwrap()).unwrap(),
            "ignore_term" => {
                // Blocked is as good as ignored, and needs no unsafe.
                let mut term = SigSet::empty();
                term.add(Signal::SIGTERM);
                term.thread_block().unwrap();
            }
            "hang" => sleep(HANG),
            "listen" => while self.inbox.recv().is_ok() {},
            "beat_ms" => self.beat(Duration::from_millis(argument.parse().unwrap())),
            "sleep_ms" => sleep(Duration::from_millis(argument.parse().unwrap())),
            "wait_stop" => {
                while self.wishes() & STOP == 0 {
                    sleep(Duration::from_millis(2));
                }
            }
            "await" => self.wait_for(argument),
            "garbage" => {
                let mut socket = UnixStream::connect(&self.broker).unwrap();
                socket.write_all(&[0xff; 4096]).unwrap();
            }
            "flood" => {
                let message = FromWorker::Warned { message: "x".repeat(1000) };
                while self.sender.as_ref().unwrap().send(&message).is_ok() {}
            }
            "grandchild" => {
                // Ignores TERM and stays in the group. The file comes with the number in it: this worker may end as soon as it is there.
                let mut command = Command::new("/bin/sh");
                let script = "trap '' TERM; echo $$ > \"$0.part\"; mv \"$0.part\" \"$0\"; sleep 600 & wait; sleep 600";
                command.args(["-c", script]).arg(self.run_dir.join(format!("grandchild-{}", self.rank)));
                self.grandchild = Some(command.spawn().unwrap());
                self.wait_for(&format!("grandchild-{}", self.rank));
            }
            other => panic!("unknown action {other}"),
        }
        Next::Action
    }

    /// Waits for a file in the run directory.
    fn wait_for(&self, name: &str) {
        while !self.run_dir.join(name).exists() {
            sleep(Duration::from_millis(2));
        }
    }

    fn hello(&mut self, protocol: u32) -> Next {
        let client = Client::connect(&self.broker).unwrap();
        let (sender, mut receiver) = client.into_parts();
        let worker = std::env::var("ENN_WORKER_ID").unwrap().parse().unwrap();
        sender.send(&FromWorker::Hello { protocol, worker, pid: std::process::id() }).unwrap();
        let (into, inbox) = channel();
        std::thread::spawn(move || {
            while let Ok(message) = receiver.recv() {
                if message == ToWorker::Dismissed {
                    std::process::exit(0);
                }
                if into.send(message).is_err() {
                    break;
                }
            }
        });
        self.sender = Some(sender);
        self.inbox = inbox;
        match self.inbox.recv().unwrap() {
            ToWorker::Assign(assignment) => {
                let before = self.place.clone();
                self.sit(*assignment);
                if before == self.place { Next::Action } else { Next::Line }
            }
            ToWorker::Stand(standby) => {
                assert_eq!(standby.run_dir, self.run_dir);
                if self.place.starts_with("spare") {
                    return Next::Action;
                }
                // The round it was started for is over.
                self.send(&FromWorker::Warm);
                self.seat()
            }
            other => {
                std::io::stderr().write_all(format!("not assigned: {other:?}\n").as_bytes()).unwrap();
                std::process::exit(7);
            }
        }
    }

    fn sit(&mut self, assignment: Assignment) {
        self.round = assignment.round;
        self.rank = assignment.rank;
        self.place = format!("{}.{}", self.round, self.rank);
        self.split = assignment.split;
        self.saves = matches!(assignment.task, WorkerTask::Save { .. });
        if let WorkerTask::Train { attempt, .. } | WorkerTask::Save { attempt } = assignment.task {
            self.attempt = attempt;
        }
        self.send(&FromWorker::Entered { round: self.round });
    }

    /// Waits for a seat.
    fn seat(&mut self) -> Next {
        loop {
            match self.inbox.recv() {
                Ok(ToWorker::Assign(assignment)) => {
                    self.sit(*assignment);
                    return Next::Line;
                }
                Ok(_) => {}
                // The launcher is gone, or does not want it any more.
                Err(_) => std::process::exit(1),
            }
        }
    }

    /// Waits until the round is over, or it is asked to leave it and heeds that, and then for the next seat. A wish to stop lets
    /// it act on, if it heeds it.
    fn halt(&mut self, step: u64, heeds: u8) -> Next {
        loop {
            match self.inbox.recv_timeout(Duration::from_millis(2)) {
                Ok(ToWorker::RoundEnded { round, .. }) if round == self.round => break,
                Err(RecvTimeoutError::Disconnected) => std::process::exit(1),
                _ => {}
            }
            match self.wishes() & heeds {
                REGROUP => break,
                0 => {}
                _ => return Next::Action,
            }
        }
        self.send(&FromWorker::Halted { round: self.round, step, kept: true });
        self.seat()
    }

    /// Does steps until the round is over, or until it is asked to stop.
    fn run(&mut self) -> Next {
        let bytes = std::fs::read(page()).unwrap();
        let mut step = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
        let began = Instant::now();
        while self.wishes() == 0 {
            match self.inbox.recv_timeout(Duration::from_millis(2)) {
                Ok(ToWorker::RoundEnded { round, .. }) if round == self.round => break,
                Err(RecvTimeoutError::Disconnected) => std::process::exit(1),
                _ => {}
            }
            step += 1;
            self.step(step);
            let waited = began.elapsed() * u32::try_from(self.waits).unwrap() / 100;
            self.write(480, &u64::try_from(waited.as_nanos()).unwrap().to_le_bytes());
        }
        if self.wishes() & STOP != 0 {
            self.send(&FromWorker::Done { stopped: true });
            std::process::exit(0);
        }
        self.send(&FromWorker::Halted { round: self.round, step, kept: true });
        self.seat()
    }

    /// Makes progress within a step, for so long.
    fn beat(&self, long: Duration) {
        let end = Instant::now() + long;
        while Instant::now() < end {
            let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap();
            let ns = u64::try_from(Duration::from(now).as_nanos()).unwrap();
            self.write(24, &ns.to_le_bytes());
            sleep(Duration::from_millis(50));
        }
    }

    fn out_of_memory(&self, step: u64) {
        self.send(&FromWorker::OutOfMemory { step, error: "no room for 3 GiB".into() });
    }

    /// Says that a step was done, in words and on the page.
    fn step(&self, step: u64) {
        self.write(16, &step.to_le_bytes());
        let loss = 1.0;
        let lr = 0.1;
        let grad_norm = 1.0;
        let samples_per_s = 1.0;
        self.send(&FromWorker::Stepped { epoch: 1, step, loss, lr, grad_norm, samples_per_s });
    }

    fn send(&self, message: &FromWorker) {
        self.sender.as_ref().unwrap().send(message).unwrap();
    }

    fn save(&mut self, how: &str, step: u64) {
        match how {
            "staged" => self.staged(step),
            "saves" if self.saves => {
                self.shard(step);
                self.send(&FromWorker::Done { stopped: true });
                std::process::exit(0);
            }
            // It is to train.
            "saves" => {}
            _ => self.shard(step),
        }
    }

    /// Writes a shard of a few bytes and waits for the commit.
    fn shard(&mut self, step: u64) {
        let dir = self.run_dir.join(format!("checkpoints/.step-{step:08}.tmp-{}", self.attempt));
        std::fs::create_dir_all(&dir).unwrap();
        let file = format!("__{}_0.distcp", self.rank);
        std::fs::write(dir.join(&file), b"shard").unwrap();
        let table = ShardTable { file, bytes: 5, ..ShardTable::default() };
        self.send(&FromWorker::ShardWritten { step, epoch: 1, dir, metric: Some(1.5), table, blocked: 0.0 });
        match self.inbox.recv().unwrap() {
            ToWorker::Committed { step: found, path } => assert!(found == step && Path::new(&path).exists()),
            other => panic!("{other:?}"),
        }
    }

    /// Leaves a share of one tensor in the memory behind the page, and does not wait. The file `staged-RANK` says that it is there.
    fn staged(&self, step: u64) {
        let dir = self.run_dir.join(format!("checkpoints/.step-{step:08}.tmp-{}", self.attempt));
        let fqn = format!("rank{}", self.rank);
        let sizes = vec![STAGED.len() as u64];
        let part = BoxOf { fqn, dtype: TensorDType::U8, global: sizes.clone(), offsets: vec![0], sizes };
        let layout = ShardLayout::of(vec![part]).unwrap();
        let ticket = step;
        let at = PAGE_BYTES as u64;
        self.write(at + layout.bytes - 1, &[0]);
        self.write(at + layout.spans[0].payload_at, STAGED);
        self.write(SNAPSHOT_AT, &ticket.to_le_bytes());
        let metric = Some(1.5);
        let boxes = layout.boxes;
        let blake3 = false;
        let blocked = 0.25;
        let shard = StagedShard { step, epoch: 1, dir, metric, ticket, at, boxes, blake3, blocked, must: true };
        self.send(&FromWorker::ShardStaged(Box::new(shard)));
        std::fs::write(self.run_dir.join(format!("staged-{}", self.rank)), b"").unwrap();
    }

    /// Reads the wishes through the inherited descriptor, as bytes of the page.
    fn wishes(&self) -> u8 {
        let bytes = std::fs::read(page()).unwrap();
        assert_eq!((bytes.len() >= PAGE_BYTES, &bytes[..8]), (true, b"ENNctl01".as_slice()));
        bytes[8]
    }

    /// Writes bytes of the page.
    fn write(&self, offset: u64, bytes: &[u8]) {
        std::fs::File::options().write(true).open(page()).unwrap().write_all_at(bytes, offset).unwrap();
    }
}

fn page() -> String {
    format!("/proc/self/fd/{}", std::env::var("ENN_CONTROL_FD").unwrap())
}
