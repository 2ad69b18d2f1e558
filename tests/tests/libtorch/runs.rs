//! Runs beside each other in a directory: which one a name means, what is listed, what may be removed; and that going on with one that is
//! finished changes nothing.
//!
//! Needs `enn` and `enn-worker`, which `make build` makes, and libtorch on the library path, as `make test` sets it.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test's helpers fail the test by panicking, and look again until a deadline"
)]

use enn_tests::{data, launch::enn};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const WAIT_MAX: Duration = Duration::from_secs(120);

/// A directory with data, a configuration and runs.
struct Place {
    dir: tempfile::TempDir,
    config: PathBuf,
}

/// What a command said.
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = data::write(dir.path());
        Self { dir, config }
    }

    fn runs(&self) -> PathBuf {
        self.dir.path().join("runs")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(enn());
        command.args(words).current_dir(self.dir.path()).env_remove("ENN_RUNS").env("XDG_STATE_HOME", self.dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn enn(&self, words: &[&str]) -> Said {
        let done = self.command(words).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said { code: done.status.code(), out: text(&done.stdout), err: text(&done.stderr) }
    }

    #[track_caller]
    fn fine(&self, words: &[&str]) -> Said {
        let said = self.enn(words);
        assert_eq!(said.code, Some(0), "{words:?}\n{}\n{}", said.out, said.err);
        said
    }

    /// Trains so many epochs; the name of the run.
    #[track_caller]
    fn train(&self, epochs: u64) -> String {
        let epochs = format!("train.epochs={epochs}");
        let config = self.config.to_str().unwrap();
        self.fine(&[
            "train",
            config,
            "--lines",
            "--nproc-per-node",
            "1",
            "--set",
            &epochs,
            "--set",
            "train.patience=0",
        ]);
        self.newest()
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.runs())
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with('.'))
            .collect();
        names.sort();
        names
    }

    fn newest(&self) -> String {
        self.listed()[0]["name"].as_str().unwrap().to_owned()
    }

    fn listed(&self) -> Vec<Value> {
        let told: Value = serde_json::from_str(&self.fine(&["ls", "--json"]).out).unwrap();
        told["runs"].as_array().unwrap().clone()
    }

    fn staged(&self) -> usize {
        let all = fs::read_dir(self.runs().join(".staged")).into_iter().flatten().flatten();
        all.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.')).count()
    }

    /// Starts a training that does not end, and waits for a checkpoint of it.
    #[track_caller]
    #[expect(clippy::zombie_processes, reason = "whoever asks for it ends it")]
    fn long(&self) -> (Child, String) {
        let before = self.names();
        let config = self.config.to_str().unwrap();
        let mut command = self.command(&["train", config, "--quiet", "--nproc-per-node", "1"]);
        command.args(["--set", "train.epochs=100000", "--set", "train.patience=0"]).stdout(Stdio::null());
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let end = Instant::now() + WAIT_MAX;
        loop {
            let name = self.names().into_iter().find(|name| !before.contains(name));
            let has_model = |name: &String| {
                let saved = fs::read_dir(self.runs().join(name).join("checkpoints")).into_iter().flatten().flatten();
                saved.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("step-"))
            };
            if let Some(name) = name.filter(has_model) {
                return (child, name);
            }
            if Instant::now() > end {
                child.kill().unwrap();
                panic!("no checkpoint came; it ended with {:?}", child.wait());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn field<'a>(listed: &'a [Value], name: &str, key: &str) -> &'a Value {
    &listed.iter().find(|run| run["name"] == name).unwrap()[key]
}

/// Contents and times of all files below a directory, but for the lock, which everybody who looks may open.
fn content(dir: &Path) -> BTreeMap<PathBuf, (Vec<u8>, i64, i64)> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let found = path.symlink_metadata().unwrap();
        if found.is_dir() {
            all.extend(content(&path));
        } else if !path.ends_with(".lock") {
            let bytes = if found.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            all.insert(path, (bytes, found.mtime(), found.mtime_nsec()));
        }
    }
    all
}

#[test]
fn names_mean_runs_that_serve_and_runs_are_listed_and_removed_by_their_states() {
    let place = Place::new();
    let done = place.train(2);
    assert_eq!(place.staged(), 1);
    let config = place.config.to_str().unwrap().to_owned();
    // A run that fails before it has a model.
    let failed = place.enn(&["train", &config, "--quiet", "--set", "data.files=[\"absent.csv\"]"]);
    assert!(failed.code.is_some_and(|code| code != 0), "{}", failed.err);
    let failed = place.newest();
    assert_ne!(failed, done);
    let listed = place.listed();
    assert_eq!(
        (field(&listed, &failed, "state"), field(&listed, &done, "state")),
        (&"failed".into(), &"finished".into())
    );
    assert!(field(&listed, &failed, "error").as_str().unwrap().contains("absent.csv"), "{listed:#?}");
    assert!(
        field(&listed, &done, "model_step").as_u64().unwrap() > 0 && field(&listed, &failed, "model_step").is_null()
    );

    // Who needs a model gets the one before, and is told of it; who looks gets the newest.
    let rows = place.dir.path().join("chaos.csv");
    let rows = rows.to_str().unwrap();
    for name in ["latest", "chaos"] {
        let said = place.fine(&["predict", name, "--data", rows, "--out", "out.csv", "--replace", "--quiet"]);
        assert!(said.err.contains(&format!("passed over the newer run {failed} (failed")), "{}", said.err);
        assert!(said.err.contains("has no model") && said.err.contains(&done), "{}", said.err);
    }
    assert!(place.fine(&["status", "latest"]).out.contains("failed"));
    let said = place.enn(&["status", "chaos"]);
    assert!(said.code == Some(2) && said.err.contains(&format!("{done} (finished, model of step")), "{}", said.err);

    // A run under way, and the same killed.
    let (mut child, long) = place.long();
    let table = place.fine(&["ls"]).out;
    assert!(table.lines().nth(1).is_some_and(|line| line.starts_with(&long) && line.contains("running")), "{table}");
    assert!(!table.contains('\u{1b}'), "{table}");
    let said = place.enn(&["rm", &long]);
    assert!(said.code == Some(2) && said.err.contains("under way") && place.names().contains(&long), "{}", said.err);
    place.fine(&["gc", "--keep", "0", "--dry-run"]);
    let said = place.fine(&["gc", "--failed"]);
    assert!(said.out.contains(&failed) && !place.names().contains(&failed), "{}", said.out);
    child.kill().unwrap();
    child.wait().unwrap();
    let end = Instant::now() + WAIT_MAX;
    while field(&place.listed(), &long, "state") != "gone" {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(50));
    }
    // It can be gone on with: that is no failure.
    place.fine(&["gc", "--failed"]);
    assert_eq!(place.names().len(), 2);

    // What a link or a path outside names stays; the staged data go with the last run that used them.
    let outside = place.dir.path().join("outside");
    fs::rename(place.runs().join(&long), &outside).unwrap();
    symlink(&outside, place.runs().join("linked")).unwrap();
    for name in ["linked", outside.to_str().unwrap(), "runs/../outside"] {
        let said = place.enn(&["rm", name]);
        assert!(said.code == Some(2) && outside.join("run.json").exists(), "{name}: {}", said.err);
    }
    fs::remove_file(place.runs().join("linked")).unwrap();
    fs::rename(&outside, place.runs().join(&long)).unwrap();
    place.fine(&["rm", &long]);
    assert_eq!((place.names(), place.staged()), (vec![done.clone()], 1), "the other run uses the data");
    place.fine(&["rm", &done, "--json"]);
    assert_eq!((place.names().len(), place.staged()), (0, 0));
    assert!(place.fine(&["ls"]).out.contains("there are no runs"));
}

#[test]
fn hundreds_of_runs_are_listed_quickly_and_a_parent_outlives_its_child() {
    let place = Place::new();
    let parent = place.train(1);
    let config = place.config.to_str().unwrap().to_owned();
    place.fine(&["train", &config, "--quiet", "--from", &parent, "--scaler", "keep", "--set", "train.epochs=1"]);
    let child = place.newest();
    let said = place.fine(&["gc", "--keep", "1"]);
    assert!(said.err.contains(&format!("{parent} stays: {child} began with its model")), "{}{}", said.out, said.err);
    let journal = fs::read(place.runs().join(&child).join("events.jsonl")).unwrap();
    for number in 0..400 {
        let run = place.runs().join(format!("many-20250101T000000Z-{number:04x}"));
        fs::create_dir(&run).unwrap();
        fs::copy(place.runs().join(&child).join("run.json"), run.join("run.json")).unwrap();
        fs::write(run.join("events.jsonl"), &journal).unwrap();
    }
    let began = Instant::now();
    assert_eq!(place.listed().len(), 402);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let said = place.fine(&["gc", "--keep", "2", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&said.out).unwrap()["runs"].as_array().unwrap().len(), 400);
    assert_eq!(place.names().len(), 2);
}

#[test]
fn going_on_with_a_finished_run_changes_nothing_unless_more_is_asked_for() {
    let place = Place::new();
    let run = place.train(3);
    let dir = place.runs().join(&run);
    let before = content(&dir);
    let config = place.config.to_str().unwrap().to_owned();
    let epochs = ["--set", "train.epochs=3", "--set", "train.patience=0"];
    for words in [
        vec!["train", "--resume", &run],
        vec!["train", &config, "--resume", "auto", epochs[0], epochs[1], epochs[2], epochs[3]],
        vec!["train", "--resume", "latest", "--lines"],
    ] {
        let said = place.fine(&words);
        assert!(said.err.contains(&format!("{run} is finished (3 epochs)")), "{}", said.err);
        assert!(said.err.contains("--set train.epochs=6") && said.err.contains("--from"), "{}", said.err);
    }
    let said = place.enn(&["train", "--resume", &run, "--set", "train.epochs=2"]);
    assert!(said.code == Some(2) && said.err.contains("has done 3 epochs and is to do 2"), "{}", said.err);
    assert!(content(&dir) == before, "{:?}", content(&dir).keys());
    assert_eq!(place.listed()[0]["state"], "finished");

    place.fine(&["train", "--resume", &run, "--quiet", "--set", "train.epochs=5"]);
    let journal = fs::read(dir.join("events.jsonl")).unwrap();
    let old = &before[&dir.join("events.jsonl")].0;
    assert!(journal.len() > old.len() && journal.starts_with(old), "the old history is the beginning of the new one");
    assert!(place.fine(&["train", "--resume", &run]).err.contains("is finished (5 epochs)"));
}
