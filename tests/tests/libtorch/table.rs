//! From a table to a prediction in two commands.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_tests::launch::enn;
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn say(dir: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(enn());
    command.args(words).current_dir(dir).env("OMP_NUM_THREADS", "1");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// A class that follows from two columns; an identifier and a copy of the class are of no use.
fn table(rows: u64) -> String {
    let mut text = "id,width,colour,kind,kind_code\n".to_owned();
    for row in 0..rows {
        let mixed = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        let width = (mixed % 1000) as f64 / 100.0;
        let colour = ["red", "green"][(mixed / 1000 % 2) as usize];
        let is_large = (width > 5.0) == (colour == "red");
        text += &format!(
            "{},{width},{colour},{},{}\n",
            row + 5000,
            if is_large { "large" } else { "small" },
            u8::from(is_large)
        );
    }
    text
}

fn only_run(dir: &Path) -> PathBuf {
    let runs = fs::read_dir(dir.join("runs")).unwrap().map(|entry| entry.unwrap().path());
    let mut runs: Vec<PathBuf> = runs.filter(|path| path.join("run.json").is_file() && !path.is_symlink()).collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs.remove(0)
}

#[test]
fn a_table_is_trained_on_and_predicted_without_its_target() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("things.csv"), table(400)).unwrap();
    let train = [
        "train",
        "things.csv",
        "--target",
        "kind",
        "--nproc-per-node",
        "1",
        "--set",
        "train.epochs=3",
        "--set",
        "seed=5",
    ];
    let said = say(dir.path(), &train);
    let lines = String::from_utf8(said.stderr).unwrap();
    assert!(lines.contains("left out: kind_code: likely leak") && lines.contains("config.toml"), "{lines}");
    let run = only_run(dir.path());
    let config: Value = serde_json::from_str(&fs::read_to_string(run.join("run.json")).unwrap()).unwrap();
    assert_eq!((config["train"]["epochs"].as_u64(), config["seed"].as_u64()), (Some(3), Some(5)));
    assert_eq!(config["data"]["layout"]["features"].as_array().map(Vec::len), Some(2), "{config}");
    let kept = fs::read_to_string(run.join("config.toml")).unwrap();
    assert!(kept.contains("target_kind = \"category\"") && kept.contains("things.csv"), "{kept}");
    let without: String = table(30)
        .lines()
        .map(|line| format!("{}\n", line.splitn(4, ',').take(3).collect::<Vec<_>>().join(",")))
        .collect();
    fs::write(dir.path().join("new.csv"), without).unwrap();
    say(dir.path(), &["predict", "latest", "--data", "new.csv", "--out", "out.csv", "--nproc-per-node", "1"]);
    let out = fs::read_to_string(dir.path().join("out.csv")).unwrap();
    assert_eq!(out.lines().count(), 31, "{out}");
    // The kept file is a configuration, too, whatever directory it is read in.
    say(dir.path(), &["stage", run.join("config.toml").to_str().unwrap(), "--quiet"]);
}

#[test]
fn all_columns_of_a_training_are_those_of_its_predictions() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("things.csv"), table(300)).unwrap();
    let config = "name = \"all\"\n[data]\nfiles = \"things.csv\"\n[data.rows]\ntargets = [\"kind\"]\ntarget_kind = \"category\"\n\
                  features = \"*\"\nexcept = [\"id\", \"kind_code\"]\n[train]\nepochs = 1\n";
    fs::write(dir.path().join("all.toml"), config).unwrap();
    let said = say(dir.path(), &["train", "all.toml", "--nproc-per-node", "1"]);
    let lines = String::from_utf8(said.stderr).unwrap();
    assert!(lines.contains("features = \"*\": 1 of kind number (width), 1 of kind category (colour)"), "{lines}");
    let stored: Value =
        serde_json::from_str(&fs::read_to_string(only_run(dir.path()).join("run.json")).unwrap()).unwrap();
    assert_eq!(stored["data"]["layout"]["features"][1]["column"], "colour");
    let wider: String = table(20)
        .lines()
        .enumerate()
        .map(|(at, line)| format!("{line},{}\n", if at == 0 { "later" } else { "x" }))
        .collect();
    fs::write(dir.path().join("wider.csv"), wider).unwrap();
    say(dir.path(), &["predict", "latest", "--data", "wider.csv", "--out", "out.csv", "--nproc-per-node", "1"]);
    assert_eq!(fs::read_to_string(dir.path().join("out.csv")).unwrap().lines().count(), 21);
}
