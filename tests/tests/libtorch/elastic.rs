//! The whole path with the real worker on the weather example: kills, signals and resumes change nothing in the result.
//!
//! Needs `enn` and `enn-worker`, which `make build` makes, and libtorch on the library path, as `make test` sets it.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::event::{Event, EventKind};
use enn_tests::{
    launch::alive,
    pages::root,
    training::{Run, weather},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

const NOTICED_MAX_S: f64 = 0.05;
const EPOCHS: u32 = 8;

fn enn() -> Command {
    let mut command = Command::new(enn_tests::launch::enn());
    command.current_dir(root());
    command
}

/// Trains the example for eight epochs with a checkpoint after each.
fn train(runs: &Path, workers: u32, more: &[&str]) -> Run {
    Run::start(weather(enn(), runs, workers, EPOCHS, more))
}

fn run_dir(runs: &Path) -> PathBuf {
    let entries = std::fs::read_dir(runs).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<PathBuf> = entries.filter(|path| path.join("run.json").is_file()).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

/// Errors of the best model, and its weights as bytes.
fn result(runs: &Path) -> (serde_json::Value, Vec<u8>) {
    let run = run_dir(runs);
    let out = enn().args(["metrics", "--json"]).arg(&run).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metrics: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let checkpoint = enn_common::checkpoint::latest(&run.join("checkpoints")).found.unwrap();
    let mut bytes = Vec::new();
    let names: Vec<String> = checkpoint.tensor_names().map(ToOwned::to_owned).collect();
    assert!(names.iter().any(|name| name.starts_with("optim.")), "{names:?}");
    for name in names {
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(&checkpoint.tensor(&name).unwrap().bytes);
    }
    (metrics["split"].clone(), bytes)
}

fn undisturbed(workers: u32, more: &[&str]) -> (serde_json::Value, Vec<u8>) {
    let runs = tempfile::tempdir().unwrap();
    train(runs.path(), workers, more).end(0);
    result(runs.path())
}

/// Steps from which the rounds behind the first went on.
fn resumed(events: &[Event]) -> Vec<Option<u64>> {
    let rounds = events.iter().filter_map(|event| match event.what {
        EventKind::RoundStarted { resume_step, .. } => Some(resume_step),
        _ => None,
    });
    rounds.skip(1).collect()
}

#[test]
fn a_killed_worker_costs_a_restart_and_not_one_bit() {
    let expected = undisturbed(2, &[]);
    let runs = tempfile::tempdir().unwrap();
    let mut run = train(runs.path(), 2, &[]);
    run.committed_from(16);
    kill(Pid::from_raw(run.workers()[1]), Signal::SIGKILL).unwrap();
    let events = run.end(0);
    let noticed = events.iter().find_map(|event| match event.what {
        EventKind::WorkerExited { signal: Some(9), seconds_to_notice, .. } => Some(seconds_to_notice),
        _ => None,
    });
    assert!(noticed.unwrap() < NOTICED_MAX_S, "{noticed:?}");
    let resumed = events.iter().filter_map(|event| match event.what {
        EventKind::RoundStarted { resume_step, .. } => resume_step,
        _ => None,
    });
    assert!(resumed.into_iter().all(|step| step >= 16));
    assert_eq!(result(runs.path()), expected);
}

#[test]
fn workers_that_share_the_state_go_on_from_the_newest_checkpoint_after_a_death() {
    let shared = ["--set", "train.strategy=zero1"];
    let expected = undisturbed(2, &shared);
    let runs = tempfile::tempdir().unwrap();
    let mut run = train(runs.path(), 2, &shared);
    run.committed_from(16);
    kill(Pid::from_raw(run.workers()[1]), Signal::SIGKILL).unwrap();
    let events = run.end(0);
    let kept: Vec<u64> = events
        .iter()
        .filter_map(|event| match event.what {
            EventKind::CheckpointCommitted { step, .. } => Some(step),
            _ => None,
        })
        .collect();
    let resumed = resumed(&events);
    assert!(
        !resumed.is_empty() && resumed.iter().all(|step| step.is_some_and(|step| kept.contains(&step))),
        "{resumed:?}"
    );
    assert_eq!(result(runs.path()), expected);
}

#[test]
fn a_shared_state_follows_the_workers_when_they_become_fewer_and_more() {
    let runs = tempfile::tempdir().unwrap();
    let more = ["--set", "train.epochs=4000", "--set", "train.checkpoint_every=4000", "--set", "train.strategy=fsdp"];
    let mut run = train(runs.path(), 2, &more);
    let resize = |world: u32| {
        let mut command = enn();
        command.args(["resize", "latest", &world.to_string(), "--runs-dir"]).arg(runs.path());
        assert!(command.output().unwrap().status.success());
    };
    for world in [1, 2] {
        run.stepped();
        resize(world);
        run.round_of(world);
    }
    run.stepped();
    run.signal(Signal::SIGINT);
    let events = run.end(130);
    let resumed = resumed(&events);
    assert_eq!(resumed.len(), 2);
    // No file was read: none was written before the stop.
    assert!(resumed.iter().all(|step| step.is_some_and(|step| step > 0)), "{resumed:?}");
    let steps = events.iter().filter_map(|event| match event.what {
        EventKind::Stepped { step, .. } => Some(step),
        _ => None,
    });
    assert!(steps.collect::<Vec<_>>().is_sorted());
}

/// Bytes that each worker of a run has read through the system when a step is done, which then saves and ends; bytes of what it saved.
fn read(runs: &Path, world: u32, more: &[&str]) -> (Vec<u64>, u64) {
    let mut run = train(runs, world, more);
    run.stepped();
    let of = |pid: &i32| -> u64 {
        let told = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
        told.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
    };
    let read = run.workers()[..world as usize].iter().map(of).collect();
    run.signal(Signal::SIGINT);
    let committed = |event: &Event| match event.what {
        EventKind::CheckpointCommitted { bytes, .. } => Some(bytes),
        _ => None,
    };
    (read, run.end(130).iter().rev().find_map(committed).unwrap())
}

#[test]
fn a_worker_that_shares_the_state_reads_its_share_of_a_checkpoint() {
    let runs = tempfile::tempdir().unwrap();
    let sets = ["train.epochs=4000", "train.checkpoint_every=4000", "train.strategy=fsdp", "model.d_model=128"];
    let mut more: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let (begun, mut saved) = read(runs.path(), 4, &more);
    let run = run_dir(runs.path());
    more.extend(["--resume", run.to_str().unwrap()]);
    let mut saved_by = 4;
    for world in [4, 2, 4] {
        let (again, bytes) = read(runs.path(), world, &more);
        let most = again.iter().max().unwrap() - begun.iter().max().unwrap();
        // A tensor of which a share has a part is read as far as others wrote it together.
        let share = saved / u64::from(world.min(saved_by));
        assert!(
            most < share + share / 4 + (2 << 20),
            "{world} after {saved_by}: {again:?} of {saved} bytes, {begun:?}"
        );
        saved = bytes;
        saved_by = world;
    }
}

#[test]
fn an_interrupted_run_goes_on_to_the_same_weights() {
    let expected = undisturbed(1, &[]);
    let runs = tempfile::tempdir().unwrap();
    let mut run = train(runs.path(), 1, &[]);
    run.committed_from(24);
    run.signal(Signal::SIGINT);
    let events = run.end(130);
    let last = events.iter().rev().find_map(|event| match event.what {
        EventKind::CheckpointCommitted { step, .. } => Some(step),
        _ => None,
    });
    assert!(last.is_some_and(|step| (24..64).contains(&step)), "{last:?}");
    let run = run_dir(runs.path());
    let again = train(runs.path(), 1, &["--resume", run.to_str().unwrap()]);
    again.end(0);
    assert_eq!(result(runs.path()), expected);
}

#[test]
fn nothing_survives_a_killed_launcher_and_the_run_goes_on() {
    let expected = undisturbed(2, &[]);
    let runs = tempfile::tempdir().unwrap();
    let mut run = train(runs.path(), 2, &[]);
    run.committed_from(16);
    let workers = run.workers();
    assert_eq!(workers.len(), 2);
    run.kill();
    let began = Instant::now();
    for worker in workers {
        // A worker's death is its parent's to collect; here init does, at once.
        while alive(worker) {
            assert!(began.elapsed() < Duration::from_secs(2), "worker {worker} outlives its launcher");
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }
    let run = run_dir(runs.path());
    train(runs.path(), 2, &["--resume", run.to_str().unwrap()]).end(0);
    assert_eq!(result(runs.path()), expected);
}

#[test]
fn a_run_is_paused_resized_and_stopped_by_commands() {
    let runs = tempfile::tempdir().unwrap();
    let mut run = train(runs.path(), 1, &["--set", "train.epochs=4000"]);
    let ask = |words: &[&str]| {
        let mut command = enn();
        command.args(words).arg("latest").arg("--runs-dir").arg(runs.path());
        command
    };
    run.stepped();
    let says = ask(&["pause"]).output().unwrap();
    assert!(says.status.success(), "{}", String::from_utf8_lossy(&says.stderr));
    run.until("pause", |what| matches!(what, EventKind::Paused { .. }).then_some(()));
    let again = ask(&["pause"]).output().unwrap();
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("paused already"));
    assert!(ask(&["resize"]).arg("2").output().unwrap().status.success());
    assert!(ask(&["continue"]).output().unwrap().status.success());
    run.round_of(2);
    run.stepped();
    assert!(ask(&["resize"]).arg("1").output().unwrap().status.success());
    run.round_of(1);
    assert!(ask(&["stop"]).output().unwrap().status.success());
    let events = run.end(130);
    let failed = |what: &EventKind| matches!(what, EventKind::RoundFailed { .. } | EventKind::WorkerFailed { .. });
    assert!(!events.iter().any(|event| failed(&event.what)), "{events:#?}");
}

#[test]
fn predictions_do_not_depend_on_the_number_of_workers() {
    let runs = tempfile::tempdir().unwrap();
    train(runs.path(), 2, &[]).end(0);
    let run = run_dir(runs.path());
    let predict = |workers: &str, name: &str| {
        let out = runs.path().join(name);
        let mut command = enn();
        command.arg("predict").arg(&run).args(["--data", "examples/weather/weather.csv", "--quiet"]);
        command.args(["--nproc-per-node", workers, "--out"]).arg(&out);
        let done = command.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        (std::fs::read(out.join("pred.npy")).unwrap(), std::fs::read(out.join("row_id.npy")).unwrap())
    };
    assert_eq!(predict("1", "one"), predict("3", "three"));
}

/// The last step that was told.
fn last_step(events: &[Event]) -> u64 {
    let step = |event: &Event| if let EventKind::Stepped { step, .. } = event.what { Some(step) } else { None };
    events.iter().filter_map(step).max().unwrap_or(0)
}

#[test]
fn a_stop_at_any_moment_of_a_recovery_keeps_the_newest_state_and_every_bit() {
    let expected = undisturbed(2, &[]);
    for wait_ms in [0, 30, 100, 300] {
        let runs = tempfile::tempdir().unwrap();
        let mut run = train(runs.path(), 2, &["--set", "train.checkpoint_every=100000"]);
        while last_step(&run.seen) < 16 {
            run.stepped();
        }
        kill(Pid::from_raw(run.workers()[1]), Signal::SIGKILL).unwrap();
        std::thread::park_timeout(Duration::from_millis(wait_ms));
        run.signal(Signal::SIGTERM);
        let events = run.end(143);
        let saved = events.iter().filter_map(|event| match event.what {
            EventKind::CheckpointCommitted { step, .. } => Some(step),
            _ => None,
        });
        assert!(saved.max() >= Some(last_step(&events)), "after {wait_ms} ms: {events:#?}");
        let dir = run_dir(runs.path());
        train(runs.path(), 2, &["--resume", dir.to_str().unwrap()]).end(0);
        assert_eq!(result(runs.path()), expected, "after {wait_ms} ms");
    }
}

#[test]
fn a_stop_while_a_spare_hangs_in_its_seat_saves_what_the_survivor_has() {
    let runs = tempfile::tempdir().unwrap();
    let endless = ["--set", "train.epochs=4000", "--set", "train.checkpoint_every=100000", "--spares", "1"];
    let mut run = train(runs.path(), 2, &endless);
    let spare = run.until("spare", |what| match what {
        EventKind::SpareReady { pid, .. } => Some(pid.cast_signed()),
        _ => None,
    });
    run.stepped();
    kill(Pid::from_raw(spare), Signal::SIGSTOP).unwrap();
    kill(Pid::from_raw(run.workers()[1]), Signal::SIGKILL).unwrap();
    run.until("seat", |what| matches!(what, EventKind::SeatTaken { spare: true, .. }).then_some(()));
    run.signal(Signal::SIGTERM);
    let events = run.end(143);
    let saved = events.iter().any(|event| matches!(event.what, EventKind::CheckpointCommitted { .. }));
    assert!(saved, "{events:#?}");
}
