//! The bytes that MLflow reads, of a run whose journal was made up.

use super::*;
use crate::{journal, model::tests::events, runs::made_run};
use std::{fs, path::PathBuf};

fn run(runs: &Path, name: &str) -> PathBuf {
    let run = made_run(runs, name, 0, &[], &[]);
    let mut writer = journal::JournalWriter::open(run.path()).unwrap();
    events().iter().for_each(|event| writer.write(event).unwrap());
    fs::write(run.path().join(crate::report::FILE), "<html>").unwrap();
    run.path().to_owned()
}

fn options(store: &Path, artifacts: ArtifactMode) -> MlflowOptions {
    MlflowOptions { store: store.to_owned(), experiment: None, artifacts }
}

#[test]
fn an_export_has_parameters_metrics_tags_and_artifacts_and_a_second_one_updates_it() {
    let dir = tempfile::tempdir().unwrap();
    let run = run(dir.path(), "weather");
    let store = dir.path().join("a store");
    let first = export(&run, &options(&store, ArtifactMode::Copy)).unwrap();
    assert!(
        first.is_new && first.experiment == "weather" && first.run_id.len() == 32 && first.experiment_id.len() == 18
    );
    let read = |name: &str| fs::read_to_string(first.path.join(name)).unwrap();
    let meta = read("meta.yaml");
    assert!(meta.contains("\nstatus: 3\n") && meta.contains(&format!("\nrun_id: '{}'\n", first.run_id)), "{meta}");
    assert!(meta.contains("a%20store"), "{meta}");
    assert_eq!(read("params/train.lr"), "0.001");
    let losses = read("metrics/loss/train");
    assert_eq!(losses.lines().count(), 3, "{losses}");
    assert!(losses.lines().last().unwrap().ends_with(" 24"), "{losses}");
    assert!(first.path.join("metrics/mae/test_best").is_file());
    assert!(first.path.join("metrics/mae/test_baseline_ridge").is_file());
    assert_eq!(read("tags/mlflow.source.name"), "enn train weather.toml");
    assert_eq!(read("artifacts/report.html"), "<html>");
    // Somebody writes a note; a key of the configuration is gone.
    fs::write(first.path.join("tags/mlflow.note.content"), "good").unwrap();
    fs::write(first.path.join("params/train.gone"), "1").unwrap();
    let second = export(&run, &options(&store, ArtifactMode::Link)).unwrap();
    assert_eq!(StoredRun { is_new: true, ..second.clone() }, first);
    assert!(!second.is_new && !first.path.join("params/train.gone").exists());
    assert_eq!(read("tags/mlflow.note.content"), "good");
    let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    assert_eq!(inode(&first.path.join("artifacts/report.html")), inode(&run.join("report.html")));
    let hidden =
        fs::read_dir(&first.path).unwrap().flatten().filter(|entry| entry.file_name().as_encoded_bytes()[0] == b'.');
    assert_eq!(hidden.count(), 0, "nothing temporary is left");
}

#[test]
fn an_experiment_that_mlflow_made_is_used_and_what_it_deleted_stays_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let run = run(dir.path(), "weather");
    let store = dir.path().join("mlruns");
    let theirs = store.join("77");
    fs::create_dir_all(&theirs).unwrap();
    fs::write(theirs.join("meta.yaml"), "experiment_id: '77'\nlifecycle_stage: active\nname: weather\n").unwrap();
    let stored = export(&run, &options(&store, ArtifactMode::None)).unwrap();
    assert_eq!(stored.experiment_id, "77");
    assert!(!stored.path.join("artifacts/report.html").exists());
    let meta = fs::read_to_string(stored.path.join("meta.yaml")).unwrap();
    fs::write(stored.path.join("meta.yaml"), meta.replace("stage: active", "stage: deleted")).unwrap();
    let error = export(&run, &options(&store, ArtifactMode::None)).unwrap_err();
    assert!(error.to_string().contains("was deleted in MLflow") && error.is_of_usage(), "{error}");
    fs::create_dir(store.join(".trash")).unwrap();
    fs::rename(&theirs, store.join(".trash/77")).unwrap();
    let error = export(&run, &options(&store, ArtifactMode::None)).unwrap_err();
    assert!(matches!(error, MlflowError::DeletedExperiment { .. }), "{error}");
}

#[test]
fn names_are_those_that_mlflow_accepts() {
    let free = |_: &str| false;
    assert_eq!(names::key("data.features[wind km/h].form", free), "data.features.wind km_h.form");
    assert_eq!(names::key("..", free), "_..");
    let long = names::key(&"ä".repeat(300), free);
    assert!(long.len() <= 250 && long != names::key(&"ä".repeat(301), free), "{long}");
    assert!(names::key("a", |name| name == "a").starts_with("a-"));
    assert_eq!(names::param(&"x".repeat(7_000)).chars().count(), 6_000);
    assert_eq!(names::yaml("a \"b\"\n\u{85}"), r#""a \"b\"\n\u0085""#);
    let read = |line: &str| names::yaml_value(&format!("x: 1\n{line}\n"), "name");
    assert_eq!(read("name: a b").as_deref(), Some("a b"));
    assert_eq!(read("name: 'it''s'").as_deref(), Some("it's"));
    assert_eq!(read(r#"name: "a\u0085b""#).as_deref(), Some("a\u{85}b"));
    assert_eq!(names::file_uri(Path::new("/a b/ü")), "file:///a%20b/%C3%BC");
}

#[test]
fn names_of_experiments_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let run = run(dir.path(), "weather");
    let mut options = options(&dir.path().join("m"), ArtifactMode::None);
    for name in ["", "a\nb", &"x".repeat(501)] {
        options.experiment = Some(name.to_owned());
        let error = export(&run, &options).unwrap_err();
        assert!(matches!(error, MlflowError::ExperimentName { .. }), "{error}");
    }
    assert!(!options.store.exists());
    options.experiment = Some("other".into());
    let other = export(&run, &options).unwrap();
    options.experiment = None;
    assert_ne!(other.run_id, export(&run, &options).unwrap().run_id);
}
