//! Many rows at default settings: the first step comes soon, and memory is bounded.

use enn_common::{
    config::RunConfig,
    event::{Event, EventKind},
};
use enn_tests::{data::mix, launch::enn};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

const ROWS: u64 = 100_000;
const INPUTS: u64 = 10;
/// All processes of the run together.
const BYTES_MAX: u64 = 1_500_000_000;
/// Generous: on two cores the first step takes one second, and an epoch less than twenty.
const FIRST_STEP_MAX: Duration = Duration::from_secs(60);
const TRAINED_MAX: Duration = Duration::from_secs(570);

/// A table of numbers of which two matter together.
fn table() -> String {
    let value = |row: u64, column: u64| (mix(row * 16 + column) % 20_000) as f64 / 10_000.0 - 1.0;
    let line = |row: u64| {
        let inputs: String = (0..INPUTS).map(|column| format!("{:.4},", value(row, column))).collect();
        let target = value(row, 0) * value(row, 1) + 0.5 * value(row, 2) + 0.1 * value(row, INPUTS);
        format!("{inputs}{target:.4}\n")
    };
    let names: String = (0..INPUTS).map(|column| format!("x{column},")).collect();
    std::iter::once(format!("{names}y\n")).chain((0..ROWS).map(line)).collect()
}

/// What happened so far in the only run below `runs`.
fn events(runs: &Path) -> Vec<EventKind> {
    let entries = fs::read_dir(runs).into_iter().flatten().flatten().map(|entry| entry.path().join("events.jsonl"));
    let text = entries.filter_map(|path| fs::read_to_string(path).ok()).collect::<String>();
    text.lines().filter_map(|line| Some(serde_json::from_str::<Event>(line).ok()?.what)).collect()
}

/// The most memory that a process had so far, in bytes.
fn peak(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[test]
fn a_hundred_thousand_rows_train_soon_and_in_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    fs::write(dir.path().join("many.csv"), table()).unwrap();
    let columns = (0..INPUTS).map(|column| format!("\"x{column}\", ")).collect::<String>();
    let config = format!("[data]\nfiles = \"many.csv\"\n[data.rows]\nfeatures = [{columns}]\ntargets = [\"y\"]\n");
    fs::write(dir.path().join("many.toml"), config).unwrap();
    let mut command = Command::new(enn());
    // One epoch: memory is that of all, and the sizes do not depend on it.
    command.args(["train", "many.toml", "--lines", "--set", "train.epochs=1", "--set", "cluster.device=cpu"]);
    command.arg("--runs-dir").arg(&runs).current_dir(dir.path()).env_remove("ENN_RUNS").stdin(Stdio::null());
    let log = fs::File::create(dir.path().join("log")).unwrap();
    let began = Instant::now();
    let mut child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
    let mut launcher = 0;
    let mut worker = 0;
    let mut first = None;
    let status = loop {
        launcher = peak(child.id()).unwrap_or(0).max(launcher);
        for what in events(&runs) {
            match what {
                EventKind::WorkerStarted { pid, .. } => worker = peak(pid).unwrap_or(0).max(worker),
                EventKind::Stepped { .. } => first = first.or_else(|| Some(began.elapsed())),
                _ => {}
            }
        }
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(began.elapsed() < TRAINED_MAX, "the run goes on after {TRAINED_MAX:?}");
        std::thread::park_timeout(Duration::from_millis(100));
    };
    let told = fs::read_to_string(dir.path().join("log")).unwrap();
    assert!(status.success(), "{told}");
    assert!(first.is_some_and(|first| first < FIRST_STEP_MAX), "{first:?}");
    assert!(worker > 0 && launcher + worker <= BYTES_MAX, "{launcher} and {worker} bytes");
    let chosen: Vec<&str> = told.lines().filter(|line| line.contains("sizes chosen by the data: ")).collect();
    assert!(chosen.len() == 1 && chosen[0].contains("on two cores"), "{told}");
    // The run goes on with what was chosen, whatever a later version would choose.
    let run =
        fs::read_dir(&runs).unwrap().map(|entry| entry.unwrap().path()).find(|path| path.join("run.json").is_file());
    let kept: RunConfig = serde_json::from_slice(&fs::read(run.unwrap().join("run.json")).unwrap()).unwrap();
    assert!(!kept.model.by_rows && kept.train.batch > 0 && !kept.train.rate_by_rows, "{kept:?}");
    let trained = events(&runs).into_iter().find_map(|what| match what {
        EventKind::Trained { split, .. } => Some(split["test"].r2),
        _ => None,
    });
    assert!(trained.is_some_and(|r2| r2 > 0.8), "{trained:?}");
}
