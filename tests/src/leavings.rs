//! What a run of training leaves behind: its directory, the weights, the ledger, and no process.

#![expect(clippy::unwrap_used, reason = "it is part of tests, which fail by panicking")]

use enn_common::{
    checkpoint,
    ledger::{self, Line},
};
use std::{
    collections::{BTreeMap, HashMap},
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// A killed process is gone from /proc when its parent has noticed.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// The one run in a directory of runs, if it has begun.
pub fn run_in(runs: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(runs).into_iter().flatten().flatten();
    let found: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.join("run.json").is_file()).collect();
    assert!(found.len() < 2, "{found:?}");
    found.into_iter().next()
}

/// Every tensor of a run's newest checkpoint.
pub fn weights(run: &Path) -> BTreeMap<String, Vec<u8>> {
    let checkpoint = checkpoint::latest(&run.join("checkpoints")).found.unwrap();
    let names: Vec<String> = checkpoint.tensor_names().map(ToOwned::to_owned).collect();
    let bytes = |name: String| {
        let bytes = checkpoint.tensor(&name).unwrap().bytes.to_vec();
        (name, bytes)
    };
    names.into_iter().map(bytes).collect()
}

/// By the ledger of all processes of a run, in the rounds in which a step was done: every row once in each of `epochs` epochs.
/// `told` is said of a failure.
pub fn every_row_once_per_epoch(run: &Path, epochs: u64, told: impl Fn() -> String) {
    type Attempt = (u64, u64, String);
    let files = fs::read_dir(run.join(ledger::FOLDER)).unwrap();
    let texts = files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    let lines: Vec<Line> = texts.flat_map(|text| Line::decode_all(&text).unwrap()).collect();
    let mut begun: HashMap<Attempt, (u64, Vec<i64>)> = HashMap::new();
    for line in &lines {
        if let Line::Begun { round, attempt, step, epoch, rows, .. } = line {
            let entry = begun.entry((*step, *round, attempt.clone())).or_default();
            entry.0 = *epoch;
            entry.1.extend(rows);
        }
    }
    let mut steps: BTreeMap<u64, (u64, Vec<i64>)> = BTreeMap::new();
    for line in &lines {
        let Line::Done { done, round, attempt } = line else { continue };
        let mut used = begun[&(*done, *round, attempt.clone())].clone();
        used.1.sort_unstable();
        // A step that was done again, from a checkpoint, took the same rows.
        assert_eq!(steps.entry(*done).or_insert_with(|| used.clone()), &used, "step {done}: {}", told());
    }
    let mut used: BTreeMap<u64, Vec<i64>> = BTreeMap::new();
    for (epoch, rows) in steps.into_values() {
        used.entry(epoch).or_default().extend(rows);
    }
    assert_eq!(used.len() as u64, epochs, "{}", told());
    for rows in used.values_mut() {
        rows.sort_unstable();
        let count = rows.len();
        rows.dedup();
        assert_eq!(rows.len(), count, "a row was used twice in an epoch: {}", told());
    }
    let first = used.values().next().unwrap();
    assert!(used.values().all(|rows| rows == first), "an epoch lacks rows: {}", told());
}

/// Whether no process lives whose environment names `dir`, zombies aside; one that was killed may take a moment.
pub fn nobody_is_left(dir: &Path) -> bool {
    let deadline = Instant::now() + GONE_WITHIN;
    while !carriers(dir).is_empty() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    true
}

fn carriers(dir: &Path) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let wanted = dir.as_os_str().as_bytes();
        environment.windows(wanted.len()).any(|window| window == wanted)
    })
    .collect()
}
