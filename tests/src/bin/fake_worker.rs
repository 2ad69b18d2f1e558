//! A worker that speaks the protocol and misbehaves on command: no libtorch, no data.
//!
//! `ENN_FAKE_SCRIPT` holds `round.rank=action,action…` separated by `;`; `*` matches any number; the first match counts.
//! Actions are listed in `act`.

#![expect(
    clippy::disallowed_methods,
    reason = "a test program: reads its script from the environment, sleeps as a hang"
)]
#![expect(clippy::unwrap_used, reason = "a test program fails by panicking")]

use enn_common::{
    checkpoint::table::ShardTable,
    wire::{
        client::Client,
        control::PAGE_BYTES,
        message::{FromWorker, PROTOCOL, ToWorker},
    },
};
use nix::sys::signal::{SigSet, Signal, raise};
use std::{
    io::Write,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    thread::sleep,
    time::Duration,
};

const HANG: Duration = Duration::from_secs(600);

struct Worker {
    client: Option<Client>,
    broker: PathBuf,
    run_dir: PathBuf,
    round: u64,
    rank: u32,
    attempt: String,
    grandchild: Option<std::process::Child>,
}

fn main() {
    let text = |name: &str| std::env::var(name).unwrap();
    let (round, rank) = (text("ENN_ROUND"), text("LOCAL_RANK"));
    let script = text("ENN_FAKE_SCRIPT");
    let actions = script
        .split(';')
        .filter_map(|line| line.split_once('='))
        .find(|(place, _)| {
            let (r, k) = place.split_once('.').unwrap();
            (r == "*" || r == round) && (k == "*" || k == rank)
        })
        .map(|(_, actions)| actions.to_owned())
        .unwrap();
    let mut worker = Worker {
        client: None,
        broker: text("ENN_BROKER").into(),
        run_dir: text("ENN_RUN_DIR").into(),
        round: round.parse().unwrap(),
        rank: rank.parse().unwrap(),
        attempt: String::new(),
        grandchild: None,
    };
    for action in actions.split(',') {
        let (name, argument) = action.split_once(':').unwrap_or((action, ""));
        worker.act(name, argument);
    }
}

impl Worker {
    fn act(&mut self, name: &str, argument: &str) {
        match name {
            "hello" => self.hello(PROTOCOL),
            "hello_foreign" => self.hello(PROTOCOL + 1),
            "ready" => {
                self.send(&FromWorker::Ready { device: "cpu".into(), backend: "fake".into(), libtorch: "none".into() });
            }
            "done" => self.send(&FromWorker::Done { stopped: false }),
            "stopped" => self.send(&FromWorker::Done { stopped: true }),
            "failed" => self.send(&FromWorker::Failed { error: argument.into() }),
            "shard" => self.shard(argument.parse().unwrap()),
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
            "listen" => while self.client.as_mut().unwrap().recv().is_ok() {},
            "sleep_ms" => sleep(Duration::from_millis(argument.parse().unwrap())),
            "wait_stop" => {
                while !self.stop() {
                    sleep(Duration::from_millis(2));
                }
            }
            "garbage" => {
                let mut socket = UnixStream::connect(&self.broker).unwrap();
                socket.write_all(&[0xff; 4096]).unwrap();
            }
            "flood" => {
                let message = FromWorker::Warned { message: "x".repeat(1000) };
                while self.client.as_ref().unwrap().send(&message).is_ok() {}
            }
            "grandchild" => {
                // Ignores TERM and stays in the group.
                let mut command = Command::new("/bin/sh");
                command.args(["-c", "trap '' TERM; echo $$ > \"$0\"; sleep 600 & wait; sleep 600"]);
                command.arg(self.run_dir.join(format!("grandchild-{}", self.rank)));
                self.grandchild = Some(command.spawn().unwrap());
                while !self.run_dir.join(format!("grandchild-{}", self.rank)).exists() {
                    sleep(Duration::from_millis(1));
                }
            }
            other => panic!("unknown action {other}"),
        }
    }

    fn hello(&mut self, protocol: u32) {
        let mut client = Client::connect(&self.broker).unwrap();
        let pid = std::process::id();
        client.send(&FromWorker::Hello { protocol, round: self.round, local_rank: self.rank, pid }).unwrap();
        match client.recv().unwrap() {
            ToWorker::Assign(assignment) => {
                assert_eq!((assignment.rank, assignment.round), (self.rank, self.round));
                if let enn_common::wire::message::Task::Train { attempt, .. } = assignment.task {
                    self.attempt = attempt;
                }
            }
            other => {
                std::io::stderr().write_all(format!("not assigned: {other:?}\n").as_bytes()).unwrap();
                std::process::exit(7);
            }
        }
        self.client = Some(client);
    }

    fn send(&self, message: &FromWorker) {
        self.client.as_ref().unwrap().send(message).unwrap();
    }

    /// Writes a shard of a few bytes and waits for the commit.
    fn shard(&mut self, step: u64) {
        let dir = self.run_dir.join(format!("checkpoints/.step-{step:08}.tmp-{}", self.attempt));
        std::fs::create_dir_all(&dir).unwrap();
        let file = format!("__{}_0.distcp", self.rank);
        std::fs::write(dir.join(&file), b"shard").unwrap();
        let table = ShardTable { file, bytes: 5, ..ShardTable::default() };
        self.send(&FromWorker::ShardWritten { step, epoch: 1, dir, metric: Some(1.5), table });
        match self.client.as_mut().unwrap().recv().unwrap() {
            ToWorker::Committed { step: found, path } => assert!(found == step && Path::new(&path).exists()),
            other => panic!("{other:?}"),
        }
    }

    /// Reads the stop flag through the inherited descriptor, as bytes of the page.
    fn stop(&self) -> bool {
        let fd = std::env::var("ENN_CONTROL_FD").unwrap();
        let bytes = std::fs::read(format!("/proc/self/fd/{fd}")).unwrap();
        assert_eq!((bytes.len(), &bytes[..8]), (PAGE_BYTES, b"ENNctl01".as_slice()));
        bytes[8] == 1
    }
}
