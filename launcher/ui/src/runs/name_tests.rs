//! Runs are found by their names: the directories are made by `enn-process`.

use super::{Need, select};
use enn_common::config::{
    RunConfig,
    model::ModelConfig,
    train::{ClusterConfig, TrainConfig},
};
use enn_process::run_dir::{LAUNCH_JSON, RunDir, RunDirError, is_living, newest};
use std::{
    fs,
    path::{Path, PathBuf},
};
use time::macros::datetime;

fn config(name: &str) -> RunConfig {
    RunConfig {
        version: 1,
        name: name.into(),
        seed: 0,
        data: None,
        model: ModelConfig::default(),
        train: TrainConfig::default(),
        cluster: ClusterConfig::default(),
        kernels: std::collections::BTreeMap::new(),
        parent: None,
    }
}

fn find_in(runs: &[PathBuf], reference: &str) -> Result<PathBuf, RunDirError> {
    select(runs, reference, Need::Any).map(|selected| selected.path)
}

fn find(runs: &Path, reference: &str) -> Result<PathBuf, RunDirError> {
    find_in(&[runs.to_owned()], reference)
}

#[test]
fn an_address_is_no_directory_of_runs() {
    let dir = tempfile::tempdir().unwrap();
    for given in [PathBuf::from("s3://bucket/runs"), dir.path().join("gs://bucket/runs")] {
        let made = RunDir::create(&given, "a", datetime!(2026-01-01 00:00 UTC)).unwrap_err().to_string();
        assert!(made.contains("://bucket/runs") && made.contains("enn ckpt push"), "{made}");
        assert_eq!(find(&given, "latest").unwrap_err().to_string(), made);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is made");
}

#[test]
fn names_sort_by_time_and_are_found_by_their_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    let old = RunDir::create(&runs, "weather", datetime!(2026-01-02 03:04:05 UTC)).unwrap();
    old.write_config(&config("weather")).unwrap();
    let new = RunDir::create(&runs, "a b/ü", datetime!(2026-02-02 03:04:05 +1)).unwrap();
    new.write_config(&config("a b/ü")).unwrap();
    assert!(old.id().starts_with("weather-20260102T030405Z-"), "{}", old.id());
    assert!(new.id().starts_with("a-b---20260202T020405Z-"), "{}", new.id());
    let canonical = fs::canonicalize(&runs).unwrap();
    assert_eq!(find(&canonical, "latest").unwrap(), new.path());
    assert_eq!(find(&canonical, "weather-2026").unwrap(), old.path());
    assert_eq!(find(&canonical, &old.path().to_string_lossy()).unwrap(), old.path());
    let error = find(&canonical, "wether").unwrap_err().to_string();
    assert!(error.contains("no run \"wether\"") && error.contains(&new.id()), "{error}");
    let earlier: Vec<PathBuf> = (0..9)
        .map(|_| {
            let run = RunDir::create(&runs, "hail", datetime!(2026-03-02 03:04:05 UTC)).unwrap();
            run.write_config(&config("hail")).unwrap();
            assert_eq!(find(&canonical, "latest").unwrap(), run.path(), "of one second, the one that was made last");
            run.path().to_owned()
        })
        .collect();
    let several = find(&canonical, "hail").unwrap_err().to_string();
    assert!(several.contains("more than one run begins with \"hail\"") && !several.contains(&new.id()), "{several}");
    earlier.iter().for_each(|run| fs::remove_dir_all(run).unwrap());
    assert_eq!(newest(&canonical, "weather"), None);
    fs::create_dir_all(old.checkpoints().join("step-00000003")).unwrap();
    assert_eq!(newest(&canonical, "weather").as_deref(), Some(old.path()));
}

#[test]
fn runs_of_both_kinds_are_found_and_seen_alive() {
    let dir = tempfile::tempdir().unwrap();
    let places = [dir.path().join("runs"), dir.path().join("launches")];
    let old = RunDir::create(&places[0], "weather", datetime!(2026-01-02 03:04:05 UTC)).unwrap();
    old.write_config(&config("weather")).unwrap();
    let new = RunDir::create(&places[1], "train", datetime!(2026-01-02 03:04:06 UTC)).unwrap();
    fs::write(new.path().join(LAUNCH_JSON), "{}").unwrap();
    assert_eq!(find_in(&places, "latest").unwrap(), new.path());
    assert_eq!(find_in(&places, "wea").unwrap(), old.path());
    let error = find_in(&places, "x").unwrap_err().to_string();
    assert!(error.contains("/runs and ") && error.contains(&new.id()), "{error}");
    let path = new.path().to_owned();
    assert!(is_living(&path) && is_living(&path));
    drop(new);
    assert!(!is_living(&path) && !is_living(dir.path()));
    assert!(RunDir::open(&path).is_ok());
}
