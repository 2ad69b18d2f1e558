//! `enn train` on the weather example, its events read as they come. Every wait has a deadline, and a run that is let go is killed with all
//! it started.
//!
//! What goes wrong here is a failed test, so everything panics.

#![expect(clippy::unwrap_used, reason = "it is part of tests, which fail by panicking")]

use crate::pages::root;
use enn_common::{
    checkpoint::name,
    event::{Event, EventKind},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Nothing here takes longer, even on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(240);
/// More epochs than any test waits for.
pub const EPOCHS_ENDLESS: u32 = 100_000;

/// A run at work.
pub struct Run {
    /// The launcher.
    pub child: Child,
    /// Events so far.
    pub seen: Vec<Event>,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
}

/// `enn train` on the example with a checkpoint after each epoch, and with `more` on its command line; `enn` is the program, or starts it.
pub fn weather(mut enn: Command, runs: &Path, workers: u32, epochs: u32, more: &[&str]) -> Command {
    enn.args(["train", "examples/weather/weather.toml", "--json", "--device", "cpu"]);
    enn.args(["--nproc-per-node", &workers.to_string(), "--set", &format!("train.epochs={epochs}")]);
    enn.args(["--set", "train.patience=0", "--set", "train.checkpoint_every=1", "--set", "train.threads=1"]);
    enn.arg("--runs-dir").arg(runs).args(more).current_dir(root()).stdin(Stdio::null());
    enn
}

/// The example with two workers and a ledger, until it is stopped, with `more` on its command line; `enn` is the program, or starts it.
pub fn train_endlessly(enn: Command, runs: &Path, more: &[&str]) -> Run {
    Run::start(weather(enn, runs, 2, EPOCHS_ENDLESS, &[&["--set", "train.ledger=true"], more].concat()))
}

/// Steps of the checkpoints of a run that are there, whole.
pub fn saved_steps(run: &Path) -> Vec<u64> {
    let listed = name::list(&run.join("checkpoints")).into_iter();
    listed.filter(|(_, path)| path.join("manifest.json").is_file()).map(|(step, _)| step).collect()
}

impl Run {
    /// Starts it.
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut stderr = child.stderr.take().unwrap();
        let (into, lines) = channel();
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| into.send(line)));
        let stderr = std::thread::spawn(move || {
            let mut text = Vec::new();
            stderr.read_to_end(&mut text).unwrap();
            String::from_utf8_lossy(&text).into_owned()
        });
        Self { child, seen: Vec::new(), lines, stderr: Some(stderr) }
    }

    fn next(&mut self, deadline: Instant) -> Result<Event, RecvTimeoutError> {
        let line = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now()))?;
        let event: Event = serde_json::from_str(&line).unwrap();
        self.seen.push(event.clone());
        Ok(event)
    }

    /// Reads events until one fits.
    #[track_caller]
    pub fn until<T>(&mut self, what: &str, mut wanted: impl FnMut(&EventKind) -> Option<T>) -> T {
        let deadline = Instant::now() + WAIT_MAX;
        while let Ok(event) = self.next(deadline) {
            if let Some(found) = wanted(&event.what) {
                return found;
            }
        }
        let _killed = self.child.kill();
        let said = self.said();
        panic!("no {what}; seen: {:#?}\n{said}", self.seen)
    }

    /// The step of the next checkpoint.
    #[track_caller]
    pub fn committed(&mut self) -> u64 {
        self.until("checkpoint", |what| match what {
            EventKind::CheckpointCommitted { step, .. } => Some(*step),
            _ => None,
        })
    }

    /// The error of the next checkpoint that fails, and its step.
    #[track_caller]
    pub fn not_committed(&mut self) -> (u64, String) {
        self.until("failed checkpoint", |what| match what {
            EventKind::CheckpointFailed { step, error } => Some((*step, error.clone())),
            _ => None,
        })
    }

    /// Stops the run and proves that nothing ended before: one round, and everybody in it lived to its end.
    #[track_caller]
    pub fn stop_in_its_only_round(mut self) {
        self.signal(Signal::SIGINT);
        let rounds = self.until("end", |what| match what {
            EventKind::RunEnded { rounds, .. } => Some(*rounds),
            _ => None,
        });
        assert_eq!((self.child.wait().unwrap().code(), rounds), (Some(130), 1), "{:#?}", self.seen);
        let bad = |what: &EventKind| matches!(what, EventKind::WorkerExited { code, .. } if *code != Some(0));
        assert!(!self.seen.iter().any(|event| bad(&event.what)), "{:#?}", self.seen);
    }

    /// Waits for a checkpoint of this step or a later one.
    #[track_caller]
    pub fn committed_from(&mut self, at_least: u64) {
        while self.committed() < at_least {}
    }

    /// Waits for a step.
    #[track_caller]
    pub fn stepped(&mut self) {
        self.until("step", |what| matches!(what, EventKind::Stepped { .. }).then_some(()));
    }

    /// The step from which the next round goes on.
    #[track_caller]
    pub fn resumed(&mut self) -> Option<u64> {
        self.until("round", |what| match what {
            EventKind::RoundStarted { resume_step, .. } => Some(*resume_step),
            _ => None,
        })
    }

    /// Waits for a round of so many workers.
    #[track_caller]
    pub fn round_of(&mut self, world: u32) {
        self.until("round", |what| {
            matches!(what, EventKind::RoundStarted { world_size, .. } if *world_size == world).then_some(())
        });
    }

    /// The processes of the workers that were started, in order.
    pub fn workers(&self) -> Vec<i32> {
        let pid = |event: &Event| match event.what {
            EventKind::WorkerStarted { pid, .. } => Some(pid.cast_signed()),
            _ => None,
        };
        self.seen.iter().filter_map(pid).collect()
    }

    /// Sends a signal to the launcher.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Kills the launcher with a signal that it cannot handle.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// What is on standard error, when it has ended.
    pub fn said(&mut self) -> String {
        self.stderr.take().map(|reader| reader.join().unwrap()).unwrap_or_default()
    }

    /// All events, to the end, which must have this exit code.
    #[track_caller]
    pub fn end(mut self, expected: i32) -> Vec<Event> {
        let deadline = Instant::now() + WAIT_MAX;
        let ended = loop {
            if let Err(ended) = self.next(deadline) {
                break ended;
            }
        };
        assert_eq!(ended, RecvTimeoutError::Disconnected, "it does not end: {:#?}", self.seen);
        let code = self.child.wait().unwrap().code();
        let said = self.said();
        assert_eq!(code, Some(expected), "{said}\n{:#?}", self.seen);
        std::mem::take(&mut self.seen)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Ended already, when all went well; when not, its guard ends its workers.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}
