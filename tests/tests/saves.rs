//! Kills at any moment of a save, with the real worker: what is there afterwards is a whole checkpoint, and the run goes on from it.
//!
//! Needs `enn` and `enn-worker`, which `make build` makes, and libtorch on the library path, as `make test` sets it.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::{
    checkpoint::{Checkpoint, latest, name},
    event::{Event, EventKind},
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
    seen: Vec<Event>,
}

impl Run {
    fn start(runs: &Path, more: &[&str]) -> Self {
        let mut command = Self::command(runs, more);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, pids: Vec::new(), seen: Vec::new() }
    }

    fn command(runs: &Path, more: &[&str]) -> Command {
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
        command
    }

    /// The next event that is wanted; the end of the run is none.
    #[track_caller]
    fn until<T>(&mut self, wanted: impl Fn(&EventKind) -> Option<T>) -> T {
        for line in self.lines.by_ref() {
            let event: Event = serde_json::from_str(&line.unwrap()).unwrap();
            if let EventKind::WorkerStarted { pid, .. } = event.what {
                self.pids.push(pid);
            }
            self.seen.push(event.clone());
            if let Some(found) = wanted(&event.what) {
                return found;
            }
        }
        panic!("the run ended")
    }

    #[track_caller]
    fn committed(&mut self) -> u64 {
        self.until(|what| match what {
            EventKind::CheckpointCommitted { step, .. } => Some(*step),
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
            EventKind::RoundStarted { resume_step, .. } => Some(*resume_step),
            _ => None,
        });
        assert_eq!(resumed, Some(saved));
        before = run.committed();
        assert!(before > saved);
    }
}

/// Flips a bit in the middle of the largest shard of a checkpoint, which is in the elements of a tensor.
fn flip(checkpoint: &Path) {
    let shards = std::fs::read_dir(checkpoint).unwrap().map(|entry| entry.unwrap().path());
    let shards = shards.filter(|path| path.extension().is_some_and(|end| end == "distcp"));
    let shard = shards.max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&shard).unwrap();
    let open = Checkpoint::open(checkpoint).unwrap();
    let chunks = open.metadata().tensors.values().flat_map(|tensor| &tensor.chunks).map(|chunk| &chunk.place);
    let name = shard.file_name().unwrap().to_str().unwrap();
    let largest = chunks.filter(|place| place.file == name).max_by_key(|place| place.length).unwrap();
    let at = usize::try_from(largest.offset + largest.length / 2).unwrap();
    bytes[at] ^= 4;
    std::fs::write(&shard, bytes).unwrap();
}

#[test]
fn a_damaged_checkpoint_is_set_aside_and_the_one_before_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::start(dir.path(), &[]);
    for _ in 0..4 {
        run.committed();
    }
    killed(run.child.id());
    run.child.wait().unwrap();
    let own = leavings::run_in(dir.path()).unwrap();
    let checkpoints = own.join("checkpoints");
    let mut saved = name::list(&checkpoints);
    assert!(saved.len() >= 3, "{saved:?}");
    let older = saved.split_off(2);
    saved.iter().for_each(|(_, path)| flip(path));
    // Not even one restart is allowed: to go on from another checkpoint is none.
    let resume = ["--resume", own.to_str().unwrap(), "--max-restarts", "0"];
    let mut run = Run::start(dir.path(), &resume);
    for (step, path) in &saved {
        let told = run.until(|what| match what {
            EventKind::CheckpointDamaged { step, path, error } => Some((*step, path.clone(), error.clone())),
            _ => None,
        });
        assert_eq!((told.0, &told.1), (*step, path));
        assert!(told.2.contains("distcp") && told.2.contains("CRC-32"), "{}", told.2);
    }
    let resumed = run.until(|what| match what {
        EventKind::RoundStarted { resume_step, .. } => Some(*resume_step),
        _ => None,
    });
    assert_eq!(resumed, Some(older[0].0));
    let words =
        |event: &Event| matches!(&event.what, EventKind::WorkerFailed { error, .. } if error.contains("is damaged: "));
    assert!(run.seen.iter().any(words), "a worker names the tensor: {:?}", run.seen);
    assert!(run.committed() > older[0].0);
    killed(run.child.id());
    run.child.wait().unwrap();

    // With none that is whole the run ends, and says why.
    let (aside, whole): (Vec<_>, Vec<_>) =
        name::list(&checkpoints).into_iter().partition(|(_, path)| path.join(name::SET_ASIDE).exists());
    assert!(!whole.is_empty() && aside.iter().all(|one| saved.contains(one)));
    whole.iter().for_each(|(_, path)| flip(path));
    let mut command = Run::command(dir.path(), &resume);
    let ended = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(5), "{said}");
    assert!(said.contains("holds no complete checkpoint") && said.contains("set aside"), "{said}");
    assert!(whole.iter().all(|(_, path)| path.join(name::SET_ASIDE).exists()));
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
            EventKind::RoundStarted { resume_step, .. } => Some(*resume_step),
            _ => None,
        });
        assert!(resumed >= Some(before), "{resumed:?} after {before} was committed");
        let own = leavings::run_in(dir.path()).unwrap();
        assert!(newest(&own) >= before);
    }
}
