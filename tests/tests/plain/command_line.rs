//! What people type besides trainings: version, help, completions in a real bash, and comparisons of runs that are made up.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_tests::launch::enn;
use serde_json::{Value, json};
use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

/// How long `enn --version` may take, the fastest of several times on a busy machine.
const VERSION_MAX: Duration = Duration::from_millis(10);
/// How long a completion of a name among a thousand runs may take, the fastest of several times on a busy machine. On a
/// quiet one it takes 17 ms without optimisation.
const COMPLETION_MAX: Duration = Duration::from_millis(60);
const TRIES: usize = 25;

fn run(dir: &Path, words: &[&str]) -> Output {
    Command::new(enn()).args(words).current_dir(dir).env_remove("ENN_RUNS").output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Returns the shortest time of a command.
fn fastest(mut command: impl FnMut() -> Command) -> Duration {
    let time = |_| {
        let begun = Instant::now();
        assert!(command().stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
        begun.elapsed()
    };
    (0..TRIES).map(time).min().unwrap()
}

/// A run with a configuration and the events that a training of two epochs records.
fn make_run(runs: &Path, name: &str, rate: f64, error: f64) {
    let dir = runs.join(name);
    fs::create_dir_all(&dir).unwrap();
    let config = json!({"version": 1, "name": "weather", "seed": 0, "train": {"lr": rate}, "model": {}, "cluster": {}, "data": null});
    fs::write(dir.join("run.json"), config.to_string()).unwrap();
    let metrics = |error: f64| json!({"mae": error, "rmse": error, "r2": 0.5, "n": 10, "loss": error});
    let events = [
        json!({"time": 1.0, "event": "run_started", "run": name, "mode": "train", "dir": dir, "host": "h", "nproc": 1, "argv": ["enn"]}),
        json!({"time": 2.0, "event": "baselines_computed", "split": {"val": {"cell_mean": metrics(9.0)}}, "notes": []}),
        json!({"time": 3.0, "event": "trained", "epoch": 2, "step": 20, "stopped_early": false,
            "split": {"val": metrics(error)}, "samples_per_s": 1.0, "seconds": 2.0}),
        json!({"time": 4.0, "event": "run_ended", "code": 0, "seconds": 3.0, "restarts": 0, "rounds": 1, "cause": null}),
    ];
    let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
    fs::write(dir.join("events.jsonl"), lines).unwrap();
}

const FIRST: &str = "weather-20260101T000000Z-0001";
const SECOND: &str = "weather-20260102T000000Z-0002";

fn two_runs() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("two runs ").tempdir().unwrap();
    make_run(&dir.path().join("runs"), FIRST, 0.001, 4.4);
    make_run(&dir.path().join("runs"), SECOND, 0.003, 4.1);
    dir
}

#[test]
fn the_version_is_told_at_once() {
    let time = fastest(|| {
        let mut command = Command::new(enn());
        command.arg("--version");
        command
    });
    assert!(time <= VERSION_MAX, "enn --version took {time:?}");
}

#[test]
fn a_comparison_names_the_best_run_and_what_differs() {
    let dir = two_runs();
    let output = run(dir.path(), &["compare"]);
    let shown = text(&output);
    assert!(output.status.success() && !shown.contains('\u{1b}'), "{shown}");
    assert!(shown.contains("best by validation MAE: 1, weather-20260102") && shown.contains("train.lr"), "{shown}");
    let document: Value =
        serde_json::from_slice(&run(dir.path(), &["compare", FIRST, "latest", "--json"]).stdout).unwrap();
    assert_eq!((&document["best"], &document["runs"][0]["run"]), (&json!(SECOND), &json!(FIRST)));
    assert_eq!(document["differences"], json!({"train.lr": {FIRST: "0.001", SECOND: "0.003"}}));
    let table = text(&run(dir.path(), &["compare", "--csv", "--sort", "name"]));
    assert!(table.lines().nth(1).unwrap().starts_with(&format!("{FIRST},finished,,false,")), "{table}");
    let output = run(dir.path(), &["compare", "--page", "a page.html"]);
    assert!(output.status.success(), "{}", text(&output));
    let page = fs::read_to_string(dir.path().join("a page.html")).unwrap();
    assert!(page.contains("Keys that differ") && page.contains(SECOND) && !page.contains("<script"), "{page}");
    for (words, told) in
        [(vec!["compare", "nobody"], "no run \"nobody\""), (vec!["compare", "weather"], "more than one run begins")]
    {
        let output = run(dir.path(), &words);
        assert!(output.status.code() == Some(2) && text(&output).contains(told), "{}", text(&output));
    }
    let empty = tempfile::tempdir().unwrap();
    let output = run(empty.path(), &["compare", "--runs-dir", "."]);
    assert!(output.status.code() == Some(2) && text(&output).contains("there is no training in "), "{}", text(&output));
}

#[test]
fn runs_are_exported_to_mlflow_and_updated() {
    let dir = two_runs();
    let exported = text(&run(dir.path(), &["mlflow", "--to", "a store"]));
    assert_eq!(exported.matches("exported weather-").count(), 2, "{exported}");
    let output = run(dir.path(), &["mlflow", SECOND, "--to", "a store", "--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let stored = &document["runs"][0];
    assert_eq!((&stored["new"], &stored["experiment"]), (&json!(false), &json!("weather")), "{document}");
    let path = Path::new(stored["path"].as_str().unwrap());
    assert_eq!(fs::read_to_string(path.join("params/train.lr")).unwrap(), "0.003");
    assert_eq!(fs::read_to_string(path.join("metrics/mae/val_best")).unwrap(), "3000 4.1 20\n");
    fs::write(dir.path().join("file"), "").unwrap();
    let output = run(dir.path(), &["mlflow", "--to", "file"]);
    assert!(output.status.code() == Some(2) && text(&output).contains("is no store of MLflow"), "{}", text(&output));
}

#[test]
fn help_on_a_topic_a_key_and_a_command() {
    let here = tempfile::tempdir().unwrap();
    let shown = |words: &[&str]| text(&run(here.path(), words));
    let overview = shown(&["help"]);
    assert!(
        overview.contains("recovery") && overview.contains("\ncompare ") && !overview.contains("\nruntime "),
        "{overview}"
    );
    let key = shown(&["help", "train.epochs"]);
    assert!(
        key.contains("a whole number from 0 to 10000000") && key.contains("Passes over the training rows"),
        "{key}"
    );
    assert!(shown(&["help", "ckpt", "diff"]).contains("Usage: enn ckpt diff"), "clap's own help");
    let output = run(here.path(), &["help", "recovrey"]);
    assert!(
        output.status.code() == Some(2) && text(&output).contains("hint: `enn help recovery`"),
        "{}",
        text(&output)
    );
}

#[test]
fn a_real_bash_completes_the_names_of_runs() {
    let dir = two_runs();
    let bin = enn().parent().unwrap().to_owned();
    let script = format!(
        "PATH={}:$PATH; source <(enn completions bash); COMP_WORDS=(enn status weather-20260102); COMP_CWORD=2; COMP_TYPE=9\n\
         _clap_complete_enn enn weather-20260102 status; printf '%s\\n' \"${{COMPREPLY[@]}}\"; complete -p enn",
        bin.display()
    );
    let output =
        Command::new("bash").args(["-c", &script]).current_dir(dir.path()).env_remove("ENN_RUNS").output().unwrap();
    let shown = text(&output);
    let mut lines = shown.lines();
    assert_eq!(lines.next(), Some(SECOND), "{shown}");
    assert!(lines.any(|line| line.contains("_clap_complete_enn enn")), "{shown}");
}

#[test]
fn a_name_among_a_thousand_runs_is_completed_at_once() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..1000 {
        let run = dir.path().join(format!("runs/job-20260101T000000Z-{number:04x}"));
        fs::create_dir_all(&run).unwrap();
        fs::write(run.join("launch.json"), "{}").unwrap();
    }
    let command = || {
        let mut command = Command::new(enn());
        command.args(["--", "enn", "status", "job-2026"]).env_remove("ENN_RUNS").current_dir(dir.path());
        command.env("ENN_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", "2").env("_CLAP_IFS", "\n");
        command
    };
    let output = command().output().unwrap();
    assert_eq!(text(&output).lines().count(), 1000, "{}", text(&output));
    let time = fastest(command);
    assert!(time <= COMPLETION_MAX, "a completion took {time:?}");
}
