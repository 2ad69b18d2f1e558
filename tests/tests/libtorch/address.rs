//! Runs that are kept at an address, with the real worker: a machine is gone in the middle, and another one, which has nothing, goes on.
//!
//! Needs `enn` and `enn-worker`, which `make build` makes, and libtorch on the library path, as `make test` sets it.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::checkpoint::name;
use enn_tests::{
    data,
    launch::{enn, until},
    leavings,
};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

const EPOCHS: u32 = 16;

/// Machines that have nothing in common but the data and a store.
struct Fleet {
    dir: tempfile::TempDir,
}

impl Fleet {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        data::write(dir.path());
        Self { dir }
    }

    /// The address of the runs.
    fn runs(&self) -> String {
        format!("file://{}", self.shelf().display())
    }

    fn shelf(&self) -> PathBuf {
        self.dir.path().join("shelf")
    }

    /// The one run's directory in the store, when it is there.
    fn stored(&self) -> Option<PathBuf> {
        leavings::run_in(&self.shelf())
    }

    /// The run's address.
    fn run(&self) -> String {
        format!("{}/{}", self.runs(), self.stored().unwrap().file_name().unwrap().to_str().unwrap())
    }

    /// Steps of whole checkpoints in the store.
    fn steps(&self) -> Vec<u64> {
        let checkpoints = name::list(&self.stored().unwrap_or_default().join("checkpoints"));
        let whole = checkpoints.into_iter().filter(|(_, path)| path.join(name::MANIFEST).exists());
        whole.map(|(step, _)| step).collect()
    }

    /// A command on a machine.
    fn command(&self, machine: &str, words: &[&str]) -> Command {
        let mut command = Command::new(enn());
        command.args(words).current_dir(self.dir.path()).env("XDG_CACHE_HOME", self.dir.path().join(machine));
        command.env_remove("ENN_RUNS").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    #[track_caller]
    fn ends(&self, machine: &str, words: &[&str], code: i32) -> Output {
        let ended = self.command(machine, words).output().unwrap();
        assert_eq!(ended.status.code(), Some(code), "{words:?}\n{}", String::from_utf8_lossy(&ended.stderr));
        ended
    }

    /// What a command prints as JSON.
    #[track_caller]
    fn json(&self, machine: &str, words: &[&str]) -> Value {
        serde_json::from_slice(&self.ends(machine, words, 0).stdout).unwrap()
    }

    /// A training with a save after each epoch.
    fn train(&self, machine: &str, more: &[&str]) -> Command {
        let mut command = self.command(machine, &["train", "chaos.toml", "--quiet", "--nproc-per-node", "1"]);
        command.args(["--set", &format!("train.epochs={EPOCHS}"), "--set", "train.patience=0"]).args(more);
        command
    }
}

#[track_caller]
fn killed(mut child: Child) {
    assert!(child.try_wait().unwrap().is_none(), "it ended before it could be killed");
    child.kill().unwrap();
    child.wait().unwrap();
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The run of a machine that made it in a directory.
fn undisturbed(fleet: &Fleet) -> PathBuf {
    let done = fleet.train("none", &["--runs-dir", "runs"]).output().unwrap();
    assert!(done.status.success(), "{}", said(&done));
    leavings::run_in(&fleet.dir.path().join("runs")).unwrap()
}

#[test]
fn a_run_whose_machine_is_gone_goes_on_elsewhere_from_what_is_in_the_store_and_ends_with_the_same_bits() {
    let fleet = Fleet::new();
    let runs = fleet.runs();
    let child = fleet.train("first", &["--runs-dir", &runs]).spawn().unwrap();
    until("a checkpoint is in the store", || !fleet.steps().is_empty());
    killed(child);
    let before = fleet.steps();
    // The machine is gone with all it had.
    fs::remove_dir_all(fleet.dir.path().join("first")).unwrap();

    let done = fleet.train("second", &["--resume", "auto", "--runs-dir", &runs]).output().unwrap();
    assert!(done.status.success(), "{}", said(&done));
    let run = fleet.run();
    let listed = fleet.json("third", &["ckpt", "ls", &run, "--json"]);
    let last = listed.as_array().unwrap().last().unwrap();
    assert!(last["step"].as_u64().unwrap() > before[0] && last["complete"] == true, "{listed}");
    // The newest, the best and two more.
    assert!(listed.as_array().unwrap().len() <= 4, "{listed}");

    let metrics = fleet.json("third", &["metrics", "latest", "--runs-dir", &runs, "--json"]);
    assert_eq!(metrics["epoch"], EPOCHS, "{metrics}");
    let third = leavings::run_in(&copies(&fleet, "third")).unwrap();
    assert!(!third.join("checkpoints").exists(), "what the run says of itself is enough for this");
    let verified = fleet.json("third", &["ckpt", "verify", &run, "--deep", "--json"]);
    assert_eq!((&verified["ok"], verified["path"].as_str().unwrap().starts_with(&run)), (&true.into(), true));
    fleet.ends("third", &["predict", &run, "--data", "chaos.csv", "--out", "told.parquet", "--quiet"], 0);
    assert!(fleet.dir.path().join("told.parquet").is_file());
    fleet.ends("third", &["model", "save", &run, "told.safetensors"], 0);

    let undisturbed = undisturbed(&fleet);
    assert!(leavings::weights(&third) == leavings::weights(&undisturbed), "every tensor to the last bit");

    let told = said(&fleet.ends("third", &["ckpt", "prune", &run], 2));
    assert!(told.contains(&run), "{told}");
    let told = said(&fleet.ends("third", &["predict", "x", "--runs-dir", &runs, "--data", "a", "--out", "b"], 2));
    assert!(told.contains("no run \"x\"") && told.contains(&runs), "{told}");
    let told = said(&fleet.ends("third", &["cv", "chaos.toml", "--runs-dir", &runs, "--quiet"], 2));
    assert!(told.contains("a directory of a file system is needed"), "{told}");
    assert!(!fleet.dir.path().join("file:").exists(), "no directory is made of an address");
    let nowhere = format!("{runs}/nothing");
    let told = said(&fleet.ends("third", &["predict", &nowhere, "--data", "a", "--out", "b"], 5));
    assert!(told.contains(&nowhere), "{told}");
}

/// Where a machine has its copies of runs.
fn copies(fleet: &Fleet, machine: &str) -> PathBuf {
    let shelves = fs::read_dir(fleet.dir.path().join(machine).join("enn/runs")).unwrap();
    let mut shelves = shelves.map(|entry| entry.unwrap().path());
    let found = shelves.next().unwrap();
    assert_eq!(shelves.next(), None);
    found
}

#[test]
fn a_run_whose_end_does_not_come_to_its_address_has_failed_and_is_brought_there_later() {
    let fleet = Fleet::new();
    let runs = fleet.runs();
    let child = fleet.train("only", &["--runs-dir", &runs]).spawn().unwrap();
    until("the run is in the store", || fleet.stored().is_some());
    let blocked = fleet.stored().unwrap().join("checkpoints");
    fs::write(&blocked, "no directory").unwrap();
    let ended = child.wait_with_output().unwrap();
    let run = fleet.run();
    let told = said(&ended);
    assert_eq!(ended.status.code(), Some(4), "{told}");
    assert!(told.contains(&format!("the end of the run is not at {run}")) && told.contains("hint: "), "{told}");
    let copy = leavings::run_in(&copies(&fleet, "only")).unwrap();
    assert_eq!(journal_code(&copy), 4);

    fs::remove_file(&blocked).unwrap();
    let done = fleet.ends("only", &["train", "--resume", &run, "--quiet"], 0);
    assert!(!fleet.steps().is_empty(), "{}", said(&done));
    assert_eq!(journal_code(&fleet.stored().unwrap()), 0);
}

/// The code that the journal of a run ends with.
fn journal_code(run: &Path) -> u64 {
    let text = fs::read_to_string(run.join("events.jsonl")).unwrap();
    let mut codes = text.lines().filter_map(|line| {
        let event: Value = serde_json::from_str(line).unwrap();
        (event["event"] == "run_ended").then(|| event["code"].as_u64().unwrap())
    });
    codes.next_back().unwrap()
}
