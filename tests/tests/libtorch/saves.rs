//! Kills at any moment of a save, with the real worker: what is there afterwards is a whole checkpoint, and the run goes on from it.
//!
//! Needs `enn` and `enn-worker`, which `make build` makes, and libtorch on the library path, as `make test` sets it.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::{
    checkpoint::{Checkpoint, latest, name},
    event::{Event, EventKind},
};
use enn_tests::{
    launch::{self, enn},
    leavings,
    training::{EPOCHS_ENDLESS, Run, weather},
};
use nix::sys::signal::Signal;
use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

/// Kills of each kind, unless the environment says how many.
const KILLS: u32 = 3;

#[expect(clippy::disallowed_methods, reason = "the environment says how many kills, as `make soak` does")]
fn kills() -> u32 {
    std::env::var("ENN_SAVES_KILLS").map_or(KILLS, |text| text.parse().expect("ENN_SAVES_KILLS is a number"))
}

/// The example with two workers, until it is stopped.
fn command(runs: &Path, more: &[&str]) -> Command {
    weather(Command::new(enn()), runs, 2, EPOCHS_ENDLESS, more)
}

fn start(runs: &Path, more: &[&str]) -> Run {
    Run::start(command(runs, more))
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
    let mut run = start(dir.path(), &[]);
    let mut before = run.committed();
    for kill in 0..kills() {
        std::thread::sleep(moment(kill));
        run.kill();
        let own = leavings::run_in(dir.path()).unwrap();
        let saved = newest(&own);
        assert!(saved >= before, "{saved} after {before} was committed");
        run = start(dir.path(), &["--resume", own.to_str().unwrap()]);
        let resumed = run.resumed();
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
    let mut run = start(dir.path(), &[]);
    for _ in 0..4 {
        run.committed();
    }
    run.kill();
    let own = leavings::run_in(dir.path()).unwrap();
    let checkpoints = own.join("checkpoints");
    let mut saved = name::list(&checkpoints);
    assert!(saved.len() >= 3, "{saved:?}");
    let older = saved.split_off(2);
    saved.iter().for_each(|(_, path)| flip(path));
    // Not even one restart is allowed: to go on from another checkpoint is none.
    let resume = ["--resume", own.to_str().unwrap(), "--max-restarts", "0"];
    let mut run = start(dir.path(), &resume);
    for (step, path) in &saved {
        let told = run.until("damaged checkpoint", |what| match what {
            EventKind::CheckpointDamaged { step, path, error } => Some((*step, path.clone(), error.clone())),
            _ => None,
        });
        assert_eq!((told.0, &told.1), (*step, path));
        assert!(told.2.contains("distcp") && told.2.contains("CRC-32"), "{}", told.2);
    }
    let resumed = run.resumed();
    assert_eq!(resumed, Some(older[0].0));
    let words =
        |event: &Event| matches!(&event.what, EventKind::WorkerFailed { error, .. } if error.contains("is damaged: "));
    assert!(run.seen.iter().any(words), "a worker names the tensor: {:?}", run.seen);
    assert!(run.committed() > older[0].0);
    run.kill();

    // With none that is whole the run ends, and says why.
    let (aside, whole): (Vec<_>, Vec<_>) =
        name::list(&checkpoints).into_iter().partition(|(_, path)| path.join(name::SET_ASIDE).exists());
    assert!(!whole.is_empty() && aside.iter().all(|one| saved.contains(one)));
    whole.iter().for_each(|(_, path)| flip(path));
    let mut command = command(dir.path(), &resume);
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
    let mut run = start(dir.path(), &["--max-restarts", "1000", "--policy", "restart"]);
    for kill in 0..kills() {
        let before = run.committed();
        std::thread::sleep(moment(kill));
        launch::kill(*run.workers().last().unwrap(), Signal::SIGKILL);
        let resumed = run.resumed();
        assert!(resumed >= Some(before), "{resumed:?} after {before} was committed");
        let own = leavings::run_in(dir.path()).unwrap();
        assert!(newest(&own) >= before);
    }
}
