//! The Python package `enn` under `enn run --on-failure replace`: the program that users start, with a script of theirs.
//!
//! It needs a Python with PyTorch: `ENN_PYTHON`, else that of `make venv`. Without one, nothing is tested.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use super::elastic::python;
use enn_tests::{
    launch::{Ended, Place, end, kill, until},
    scripts::command,
};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::{fs, path::Path, process::Child};

/// A run of a script of the package's tests.
struct Script {
    place: Place,
    child: Child,
}

/// Starts a script, which trains once it is told to go on.
fn start(python: &Path, flags: &[&str], words: &[&str]) -> Script {
    let place = Place::new("");
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    let script = package.join("tests").join(words[0]);
    let all = [&["--standalone"], flags].concat();
    let words = [&[script.to_str().unwrap()], &words[1..]].concat();
    let mut command = command(&place, &all, &words);
    command.env("PYTHONPATH", &package).env("PYTHON_EXEC", python).env("OMP_NUM_THREADS", "1");
    command.env("ENN_TEST_DIR", place.dir.path()).env("ENN_TEST_GO", place.path("go"));
    let child = command.spawn().unwrap();
    Script { place, child }
}

impl Script {
    fn pids(&self, kind: &str, count: usize) -> Vec<i32> {
        let found = || {
            let events = self.place.events().into_iter().filter(|event| event["event"] == kind);
            events.map(|event| i32::try_from(event["pid"].as_i64().unwrap()).unwrap()).collect::<Vec<_>>()
        };
        until(kind, || found().len() >= count);
        found()
    }

    fn go(&self) {
        fs::write(self.place.path("go"), "").unwrap();
    }

    /// Waits until a worker has done `count` steps.
    fn at_step(&self, pid: i32, count: usize) {
        let path = self.place.path(&format!("steps-{pid}"));
        until("steps", || fs::read_to_string(&path).unwrap_or_default().lines().count() >= count);
    }

    fn end(self) -> (Vec<String>, Ended, Vec<Value>) {
        let ended = end(self.child);
        assert_eq!(ended.code, Some(0), "{}\n{}", ended.stderr, ended.stdout);
        let mut lines: Vec<String> = ended.stdout.lines().map(|line| line.trim_end().to_owned()).collect();
        lines.retain(|line| line.starts_with("end "));
        lines.sort();
        (lines, ended, self.place.events())
    }
}

#[test]
fn a_script_goes_on_with_the_bits_of_one_that_torchrun_would_start() {
    let Some(python) = python() else { return };
    let undisturbed = start(&python, &["--nproc-per-node=2", "--preload=none"], &["train_ddp.py"]);
    undisturbed.go();
    let (expected, _, _) = undisturbed.end();
    assert!(expected.len() == 2 && expected[1].contains("rank=1 step=64"), "{expected:#?}");

    let flags = ["--nproc-per-node=2", "--preload=none", "--on-failure=replace", "--spares=1"];
    let run = start(&python, &flags, &["train_ddp.py", "ms=80"]);
    let workers = run.pids("worker_started", 2);
    let spare = run.pids("spare_ready", 1)[0];
    run.go();
    run.at_step(workers[1], 2);
    kill(workers[1], Signal::SIGKILL);
    run.at_step(spare, 3);
    let (lines, ended, events) = run.end();
    assert_eq!(lines, expected);
    assert!(ended.stderr.contains(&format!("a spare (pid {spare}) takes the seat of worker 1")), "{}", ended.stderr);
    assert_eq!(events.iter().filter(|event| event["event"] == "recovered").count(), 1);
}

/// The number behind a name in a line.
fn number(line: &str, name: &str) -> f64 {
    line.split_once(&format!("{name}=")).unwrap().1.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_script_shrinks_and_grows_with_the_same_batches() {
    let Some(python) = python() else { return };
    let undisturbed = start(&python, &["--nproc-per-node=2", "--preload=none"], &["train_micro.py"]);
    undisturbed.go();
    let (expected, _, _) = undisturbed.end();
    assert!(expected.len() == 2 && expected[0].ends_with("worlds=[2]"), "{expected:#?}");

    let flags = ["--workers=1:2", "--preload=none", "--on-failure=replace"];
    let run = start(&python, &flags, &["train_micro.py", "ms=20", "hold=40"]);
    let workers = run.pids("worker_started", 2);
    run.go();
    run.at_step(workers[0], 3);
    kill(workers[1], Signal::SIGKILL);
    let (lines, _, events) = run.end();
    assert_eq!(events.iter().filter(|event| event["event"] == "recovered").count(), 1);
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert!(lines[0].ends_with("worlds=[2, 1, 2]"), "{lines:#?}");
    for name in ["loss", "weights"] {
        let difference = (number(&lines[0], name) - number(&expected[0], name)).abs();
        assert!(difference < 1e-5, "{name}: {difference}: {lines:#?} {expected:#?}");
    }
}

#[test]
fn a_script_goes_on_with_as_many_ranks_as_share_its_batch() {
    let Some(python) = python() else { return };
    let words = ["train_micro.py", "micro=1", "ms=5"];
    let undisturbed = start(&python, &["--nproc-per-node=4", "--preload=none"], &words);
    undisturbed.go();
    let (expected, _, _) = undisturbed.end();
    assert!(expected.len() == 4 && expected[0].ends_with("worlds=[4]"), "{expected:#?}");

    let run = start(&python, &["--workers=1:4", "--preload=none", "--on-failure=replace"], &words);
    let workers = run.pids("worker_started", 4);
    fs::write(run.place.path("no-spares"), "").unwrap();
    run.go();
    run.at_step(workers[0], 3);
    kill(workers[1], Signal::SIGKILL);
    let (lines, ended, _) = run.end();
    let waits =
        format!("8 parts cannot be shared by 3 ranks: the run goes on with 2, and rank 3 (pid {}) waits", workers[3]);
    assert!(ended.stderr.contains(&waits), "{}", ended.stderr);
    assert!(lines.len() == 2 && lines[0].ends_with("worlds=[4, 2]"), "{lines:#?}");
    for name in ["loss", "weights"] {
        let difference = (number(&lines[0], name) - number(&expected[0], name)).abs();
        assert!(difference < 1e-5, "{name}: {difference}: {lines:#?} {expected:#?}");
    }
}
