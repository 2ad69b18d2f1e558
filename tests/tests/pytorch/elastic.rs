//! The Python package `enn` under the supervisor: a script is killed, goes on, and ends with the bits of an undisturbed run.
//!
//! It needs a Python with PyTorch: `ENN_PYTHON`, else that of `make venv`. Without one, nothing is tested.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test's helpers fail the test by panicking, and it says that it tested nothing"
)]

use enn_common::event::EventKind;
use enn_tests::{
    agent::{self, Run, kill_9},
    launch,
};
use nix::sys::signal::Signal;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

const WAIT_MAX: Duration = Duration::from_secs(60);
/// Number of seeded schedules of faults, unless `ENN_PYTHON_SCHEDULES` has another one.
const SCHEDULES: u32 = 10;

/// Path of a Python that can import PyTorch.
#[expect(clippy::disallowed_methods, reason = "the environment says which Python has PyTorch")]
pub(crate) fn python() -> Option<PathBuf> {
    let of_venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/venv/bin/python");
    let python = std::env::var_os("ENN_PYTHON").map_or(of_venv, PathBuf::from);
    let works = Command::new(&python).args(["-c", "import torch"]).status().is_ok_and(|status| status.success());
    if !works {
        assert!(
            std::env::var_os("ENN_NEEDS_TORCH").is_none(),
            "{} cannot import torch; `make venv` installs it",
            python.display()
        );
        eprintln!("{} cannot import torch: nothing was tested", python.display());
    }
    works.then_some(python)
}

/// A run of two workers of the package's own test script, with a folder in which they leave marks.
struct Training {
    run: Run,
    marks: tempfile::TempDir,
}

fn start(python: &Path, options: &[&str]) -> Training {
    let marks = tempfile::tempdir().unwrap();
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    let worker = marks.path().join("worker.sh");
    let lines = [
        "#!/bin/sh".to_owned(),
        format!("export PYTHONPATH={} OMP_NUM_THREADS=1 ENN_TEST_DIR={}", package.display(), marks.path().display()),
        format!("export ENN_TEST_GO={}/go", marks.path().display()),
        format!("exec {} {}/tests/train_ddp.py ms=80", python.display(), package.display()),
    ];
    fs::write(&worker, lines.join("\n")).unwrap();
    fs::set_permissions(&worker, fs::Permissions::from_mode(0o700)).unwrap();
    // The name of a program lives as long as the process: tests are few.
    let program: &'static str = Box::leak(worker.to_str().unwrap().to_owned().into_boxed_str());
    let all = [&["policy=reform", "contract=script"], options].concat();
    let run = agent::start((env!("CARGO_BIN_EXE_agent_under_test"), program), "", (2, 3, 20.0), &all);
    Training { run, marks }
}

impl Training {
    /// Lets the workers begin to train.
    fn go(&self) {
        fs::write(self.marks.path().join("go"), "").unwrap();
    }

    /// Waits until a worker has done `count` steps.
    fn at_step(&self, pid: i32, count: usize) {
        let path = self.marks.path().join(format!("steps-{pid}"));
        let deadline = Instant::now() + WAIT_MAX;
        while fs::read_to_string(&path).unwrap_or_default().lines().count() < count {
            assert!(Instant::now() < deadline, "no {count} steps in {}; seen: {:#?}", path.display(), self.run.seen);
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }

    /// Reads to the end; returns the last lines of both workers, by rank, and the events.
    fn end(mut self, code: i32) -> (Vec<String>, agent::End) {
        while self.run.event().is_some() {}
        let mut texts = Vec::new();
        read_logs(self.run.dir.path(), &mut texts);
        let mut lines: Vec<String> = texts.iter().flat_map(|text| text.lines()).map(str::to_owned).collect();
        lines.retain(|line| line.starts_with("end ") || line.starts_with("stopped "));
        lines.sort();
        // A worker has its log in the folder of each of its rounds.
        lines.dedup();
        let end = self.run.end();
        assert_eq!(end.code, Some(code), "{}\n{}\n{:#?}", end.stderr, texts.join("\n"), end.events);
        (lines, end)
    }
}

fn read_logs(dir: &Path, texts: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            read_logs(&entry, texts);
        } else if entry.extension().is_some_and(|extension| extension == "log") {
            texts.push(fs::read_to_string(entry).unwrap());
        }
    }
}

#[test]
fn a_killed_python_script_goes_on_with_the_same_bits() {
    let Some(python) = python() else { return };
    let undisturbed = start(&python, &[]);
    undisturbed.go();
    let (expected, _) = undisturbed.end(0);
    assert!(expected.len() == 2 && expected[1].contains("rank=1 step=64"), "{expected:#?}");

    let mut spared = start(&python, &["spares=1"]);
    let pids = spared.run.pids(2);
    // On a busy machine a spare takes longer to be ready than the training takes.
    let spare = spared.run.spares(1)[0];
    spared.go();
    spared.at_step(pids[1], 7);
    kill_9(pids[1]);
    spared.at_step(spare, 12);
    kill_9(pids[0]);
    let (lines, end) = spared.end(0);
    assert_eq!(lines, expected);
    let taken = end.all(|what| match what {
        EventKind::SeatTaken { round, rank, pid, spare, .. } => Some((round.0, rank.0, pid.cast_signed(), *spare)),
        _ => None,
    });
    assert_eq!(taken[..2], [(1, 0, pids[0], false), (1, 1, spare, true)]);
    assert_eq!(end.count(|what| matches!(what, EventKind::Recovered { .. })), 2);
}

#[test]
fn a_stop_ends_python_scripts_after_the_same_step() {
    let Some(python) = python() else { return };
    let mut training = start(&python, &[]);
    training.go();
    let pids = training.run.pids(2);
    training.at_step(pids[0], 5);
    training.run.signal(Signal::SIGTERM);
    let (lines, _) = training.end(143);
    let steps: Vec<&str> = lines.iter().map(|line| line.split(' ').nth(2).unwrap()).collect();
    assert!(lines.len() == 2 && lines[0].starts_with("stopped ") && steps[0] == steps[1], "{lines:#?}");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the environment says how long a soak test is")]
fn seeded_schedules_of_faults_end_with_the_same_bits() {
    let Some(python) = python() else { return };
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../python");
    let schedules = std::env::var("ENN_PYTHON_SCHEDULES").map_or(SCHEDULES, |text| text.parse().unwrap());
    let status = Command::new(python)
        .arg(package.join("tests/schedules.py"))
        .arg("--supervisor")
        .arg(launch::enn())
        .args(["--jobs", "2", "--seeds", &format!("0:{schedules}")])
        .env("PYTHONPATH", package)
        .status()
        .unwrap();
    assert!(status.success(), "a schedule has failed: its seed is above");
}
