//! The agent with fake workers: started, watched event by event, and seen to its end. Every wait has a deadline, and an agent
//! that is let go is killed with all it started.
//!
//! What goes wrong here is a failed test, so everything panics.

#![expect(clippy::unwrap_used, reason = "it is part of tests, which fail by panicking")]

use crate::launch::alive;
use enn_common::event::{Event, EventKind};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

/// Nothing here takes longer, even on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The programs: `agent_under_test` and `fake_worker`.
pub type Programs = (&'static str, &'static str);

/// An agent at work.
pub struct Run {
    /// Its run directory.
    pub dir: tempfile::TempDir,
    /// Its process.
    pub agent: Child,
    lines: Receiver<String>,
    /// Events so far.
    pub seen: Vec<Event>,
}

/// What it left.
pub struct End {
    /// Exit code.
    pub code: Option<i32>,
    /// All events.
    pub events: Vec<Event>,
    /// Standard error.
    pub stderr: String,
}

/// Starts an agent: the fake workers' script; workers, restarts and grace; and its options.
pub fn start(programs: Programs, script: &str, numbers: (u32, u32, f64), options: &[&str]) -> Run {
    let dir = tempfile::tempdir().unwrap();
    let (world, restarts, grace) = numbers;
    let mut agent = Command::new(programs.0)
        .arg(dir.path())
        .args([world.to_string(), restarts.to_string(), grace.to_string()])
        .arg(programs.1)
        .args(options)
        .env("ENN_FAKE_SCRIPT", script)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = BufReader::new(agent.stdout.take().unwrap());
    let (into, lines) = channel();
    std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| into.send(line)));
    Run { dir, agent, lines, seen: Vec::new() }
}

impl Run {
    /// The next event, if one comes soon.
    pub fn event_within(&mut self, wait: Duration) -> Option<Event> {
        let event: Event = serde_json::from_str(&self.lines.recv_timeout(wait).ok()?).unwrap();
        self.seen.push(event.clone());
        Some(event)
    }

    /// The next event; `None` at the end.
    pub fn event(&mut self) -> Option<Event> {
        let line = match self.lines.recv_timeout(WAIT_MAX) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => panic!("nothing happened for {WAIT_MAX:?}; seen: {:#?}", self.seen),
        };
        let event: Event = serde_json::from_str(&line).unwrap();
        self.seen.push(event.clone());
        Some(event)
    }

    /// Reads events until one fits.
    pub fn until<T>(&mut self, mut wanted: impl FnMut(&EventKind) -> Option<T>) -> T {
        loop {
            let event = self.event().unwrap_or_else(|| panic!("the agent ended; seen: {:#?}", self.seen));
            if let Some(found) = wanted(&event.what) {
                return found;
            }
        }
    }

    /// Numbers of the processes of the next `world` workers.
    pub fn pids(&mut self, world: usize) -> Vec<i32> {
        let pid = |what: &EventKind| match what {
            EventKind::WorkerStarted { pid, .. } => Some(i32::try_from(*pid).unwrap()),
            _ => None,
        };
        (0..world).map(|_| self.until(pid)).collect()
    }

    /// Waits until `world` workers are ready.
    pub fn all_ready(&mut self, world: usize) {
        for _ in 0..world {
            self.until(|what| matches!(what, EventKind::WorkerReady { .. }).then_some(()));
        }
    }

    /// Waits until `count` spares are warm; returns their processes in order.
    pub fn spares(&mut self, count: usize) -> Vec<i32> {
        let ready = |what: &EventKind| match what {
            EventKind::SpareReady { pid, .. } => Some(i32::try_from(*pid).unwrap()),
            _ => None,
        };
        (0..count).map(|_| self.until(ready)).collect()
    }

    /// Lets workers go on that await this mark.
    pub fn mark(&self, name: &str) {
        std::fs::write(self.dir.path().join(name), "").unwrap();
    }

    /// Sends a signal to the agent.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.agent.id().try_into().unwrap()), signal).unwrap();
    }

    /// Reads to the end, and sees that nobody is left.
    pub fn end(mut self) -> End {
        while self.event().is_some() {}
        let status = self.agent.wait().unwrap();
        let mut stderr = String::new();
        self.agent.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let events = std::mem::take(&mut self.seen);
        let started = events.iter().filter_map(|event| match &event.what {
            EventKind::WorkerStarted { pid, .. } | EventKind::SpareStarted { pid, .. } => {
                Some(i32::try_from(*pid).unwrap())
            }
            _ => None,
        });
        let started: BTreeSet<i32> = started.collect();
        let started: Vec<i32> = started.into_iter().collect();
        assert!(gone_within(&started, Duration::from_secs(1)), "left behind: {started:?} after {events:#?}");
        End { code: status.code(), events, stderr }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Ended already, when all went well.
        let _ended = self.agent.kill();
        let _reaped = self.agent.wait();
    }
}

impl End {
    /// Rounds begun.
    pub fn rounds(&self) -> usize {
        self.count(|what| matches!(what, EventKind::RoundStarted { .. }))
    }

    /// Holds that it ended with this exit code after so many rounds.
    #[track_caller]
    pub fn has(&self, code: i32, rounds: usize) {
        assert_eq!((self.code, self.rounds()), (Some(code), rounds), "{}\n{:#?}", self.stderr, self.events);
    }

    /// Workers of each round.
    pub fn worlds(&self) -> Vec<u32> {
        self.all(|what| match what {
            EventKind::RoundStarted { world_size, .. } => Some(*world_size),
            _ => None,
        })
    }

    /// Why the first round failed that did.
    pub fn cause(&self) -> String {
        let cause = |event: &Event| match &event.what {
            EventKind::RoundFailed { cause, .. } => Some(cause.clone()),
            _ => None,
        };
        self.events.iter().find_map(cause).unwrap_or_else(|| panic!("no round failed: {:#?}", self.events))
    }

    /// Why rounds were left by workers that kept their state, in order.
    pub fn left(&self) -> Vec<String> {
        let reason = |event: &Event| match &event.what {
            EventKind::RoundLeft { reason, .. } => Some(reason.clone()),
            _ => None,
        };
        self.events.iter().filter_map(reason).collect()
    }

    /// Events of a kind.
    pub fn count(&self, wanted: impl Fn(&EventKind) -> bool) -> usize {
        self.events.iter().filter(|event| wanted(&event.what)).count()
    }

    /// What the events of a kind say, in order.
    pub fn all<T>(&self, wanted: impl Fn(&EventKind) -> Option<T>) -> Vec<T> {
        self.events.iter().filter_map(|event| wanted(&event.what)).collect()
    }
}

/// Numbers without a pattern, the same for a seed.
pub struct Dice(pub u64);

impl Dice {
    /// One of 0 to `sides` - 1.
    pub fn below(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or(0) % sides
    }
}

/// Number of a child that a worker with this rank started.
pub fn grandchild(dir: &Path, rank: u32) -> i32 {
    let path = dir.join(format!("grandchild-{rank}"));
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        match text.trim().parse() {
            Ok(pid) => return pid,
            Err(_) => {
                assert!(Instant::now() < deadline, "no grandchild");
                std::thread::park_timeout(Duration::from_millis(1));
            }
        }
    }
}

/// Kills a process with a signal that it cannot handle. One that is gone already is no mistake.
pub fn kill_9(pid: i32) {
    let _gone = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

/// Whether all are gone before the time is up.
pub fn gone_within(pids: &[i32], wait: Duration) -> bool {
    let deadline = Instant::now() + wait;
    while pids.iter().any(|pid| alive(*pid)) {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    true
}
