//! Kills at any moment of a save, with the real worker: what is there afterwards is a whole checkpoint, and the run goes on from it.
//!
//! Needs `enn` and `enn-worker`, which `make build` makes, and libtorch on the library path, as `make test` sets it.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::{
    checkpoint::latest,
    event::{Event, What},
};
use enn_tests::{launch::enn, leavings};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    io::{BufRead, BufReader, Lines},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

/// Kills of each kind.
const KILLS: u32 = 5;

/// `enn train` on the example with a checkpoint after each epoch and two workers, whose events are read.
struct Run {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    pids: Vec<u32>,
}

impl Run {
    fn start(runs: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(enn());
        command.args(["train", "examples/weather/weather.toml", "--json", "--device", "cpu", "--nproc-per-node", "2"]);
        command.args([
            "--set",
            "train.epochs=100000",
            "--set",
            "train.patience=0",
            "--set",
            "train.checkpoint_every=1",
        ]);
        command.args(["--set", "train.threads=1", "--runs-dir"]).arg(runs).args(more);
        command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, pids: Vec::new() }
    }

    /// The next event that is wanted; the end of the run is none.
    #[track_caller]
    fn until<T>(&mut self, wanted: impl Fn(&What) -> Option<T>) -> T {
        for line in self.lines.by_ref() {
            let event: Event = serde_json::from_str(&line.unwrap()).unwrap();
            if let What::WorkerStarted { pid, .. } = event.what {
                self.pids.push(pid);
            }
            if let Some(found) = wanted(&event.what) {
                return found;
            }
        }
        panic!("the run ended")
    }

    #[track_caller]
    fn committed(&mut self) -> u64 {
        self.until(|what| match what {
            What::CheckpointCommitted { step, .. } => Some(*step),
            _ => None,
        })
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Ended already, when all went well; when not, its guard ends its workers.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn killed(pid: u32) {
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).unwrap();
}

/// The step of the newest checkpoint, after every byte of it was read.
#[track_caller]
fn newest(run: &Path) -> u64 {
    let found = latest(&run.join("checkpoints"));
    assert!(found.skipped.is_empty(), "{:?}", found.skipped);
    let found = found.found.unwrap();
    found.verify(&mut |_| {}).unwrap();
    found.manifest().unwrap().step
}

/// Moments of an epoch of the example, milliseconds.
fn moment(kill: u32) -> Duration {
    Duration::from_millis(u64::from(kill * 37 % 60))
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a moment at random is what is wanted")]
fn a_launcher_killed_at_any_moment_leaves_a_whole_checkpoint_that_the_run_goes_on_from() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::start(dir.path(), &[]);
    let mut before = run.committed();
    for kill in 0..KILLS {
        std::thread::sleep(moment(kill));
        killed(run.child.id());
        run.child.wait().unwrap();
        let own = leavings::run_in(dir.path()).unwrap();
        let saved = newest(&own);
        assert!(saved >= before, "{saved} after {before} was committed");
        run = Run::start(dir.path(), &["--resume", own.to_str().unwrap()]);
        let resumed = run.until(|what| match what {
            What::RoundStarted { resume_step, .. } => Some(*resume_step),
            _ => None,
        });
        assert_eq!(resumed, Some(saved));
        before = run.committed();
        assert!(before > saved);
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a moment at random is what is wanted")]
fn workers_killed_at_any_moment_cost_no_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::start(dir.path(), &["--max-restarts", "100", "--policy", "restart"]);
    for kill in 0..KILLS {
        let before = run.committed();
        std::thread::sleep(moment(kill));
        killed(run.pids[run.pids.len() - 1]);
        let resumed = run.until(|what| match what {
            What::RoundStarted { resume_step, .. } => Some(*resume_step),
            _ => None,
        });
        assert!(resumed >= Some(before), "{resumed:?} after {before} was committed");
        let own = leavings::run_in(dir.path()).unwrap();
        assert!(newest(&own) >= before);
    }
}
