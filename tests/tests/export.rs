//! `enn export` as a user has it: files that are whole or absent, equal for equal models, and checked before they are there.
//!
//! Needs `enn` and `enn-worker`, which `make build` makes, and libtorch on the library path, as `make test` sets it.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::artifact::export::{Level, Sidecar};
use enn_tests::{data, launch};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

fn enn() -> Command {
    let mut command = Command::new(launch::enn());
    // No runtime but libtorch, whatever this machine has.
    command.env("ENN_RUNTIMES", "/nowhere").env("XDG_CACHE_HOME", "/nowhere").env("PYTHON_EXEC", "/nowhere/python");
    command
}

fn trained(dir: &Path, more: &[&str]) -> PathBuf {
    data::trained(enn(), dir, more)
}

fn export(run: &Path, to: &str, out: &Path, more: &[&str]) -> Output {
    enn().arg("export").arg(run).args(["--to", to, "--out"]).arg(out).args(more).output().unwrap()
}

fn said(out: &Path, artifact: &str) -> Sidecar {
    serde_json::from_slice(&fs::read(out.join(format!("{artifact}.json"))).unwrap()).unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_libtorch_runs_is_checked_and_equal_twice() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), &["--set", "train.loss=quantile"]);
    let (out, again) = (dir.path().join("out"), dir.path().join("again"));
    let done = export(&run, "pt2,coreml", &out, &["--quantiles"]);
    assert!(
        done.status.success(),
        "{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    let parts = ["chaos.mlpackage", "chaos.mlpackage.json", "chaos.mlpackage.usage.py", "chaos.pt2", "chaos.pt2.json"];
    assert_eq!(names(&out)[..5], parts);
    let pt2 = said(&out, "chaos.pt2");
    assert_eq!((pt2.verified.level, pt2.verified.from.as_str()), (Level::Runtime, "test"));
    assert!(pt2.verified.largest <= pt2.verified.tolerance && pt2.verified.rows > 40, "{:?}", pt2.verified);
    assert_eq!(pt2.outputs.iter().map(|port| port.name.as_str()).collect::<Vec<_>>(), ["y", "quantiles"]);
    assert_eq!(pt2.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(said(&out, "chaos.mlpackage").verified.level, Level::Structure);
    // The staged rows are gone: rows are drawn, and the file is the same.
    fs::remove_file(run.join("staged")).unwrap();
    assert!(export(&run, "pt2", &again, &["--quantiles"]).status.success());
    let drawn = said(&again, "chaos.pt2");
    assert_eq!((drawn.blake3, drawn.graph, drawn.verified.from.as_str()), (pt2.blake3, pt2.graph, "drawn"));
}

#[test]
fn what_cannot_be_checked_is_published_only_when_asked_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), &["--set", "model.preset=temporal"]);
    let out = dir.path().join("out");
    let done = export(&run, "onnx,aoti,pt2", &out, &["--json"]);
    assert_eq!(done.status.code(), Some(5), "one of the formats is there");
    let told: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    let error = |i: usize| told["exported"][i]["error"].as_str().unwrap_or_default().to_owned();
    assert!(error(0).contains("onnxruntime is not available") && error(0).contains("hint"), "{told}");
    assert!(error(2).contains("AOTInductor is not available") && error(2).contains("--prepare aoti"), "{told}");
    assert_eq!(names(&out), ["chaos.pt2", "chaos.pt2.json", "chaos.pt2.usage.py"]);
    let done = export(&run, "onnx", &out, &["--unverified", "--name", "other", "--stream"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    assert!(String::from_utf8_lossy(&done.stdout).contains("not verified"));
    let other = said(&out, "other.onnx");
    assert_eq!(other.verified.level, Level::None);
    assert_eq!(other.inputs.len(), other.outputs.len(), "the state of a stream goes in and comes out");
    assert!(other.inputs.len() > 1);
}

#[test]
fn mistakes_are_told_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let run = trained(dir.path(), &[]);
    let out = dir.path().join("out");
    let refused = |to: &str, more: &[&str], said: &str| {
        let done = export(&run, to, &out, more);
        let told = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{told}");
        assert!(told.contains(said), "{told}");
    };
    refused("onxx", &[], "onxx is no format, expected one of onnx, ort, pt2");
    refused("pt2", &["--batch", "8:4:16"], "three numbers from 1 on that do not fall");
    assert!(!out.exists());
    // A file where the directory should be.
    fs::write(&out, "mine").unwrap();
    let done = export(&run, "pt2", &out, &[]);
    assert!(!done.status.success() && String::from_utf8_lossy(&done.stderr).contains("out"));
    assert_eq!(fs::read_to_string(&out).unwrap(), "mine");
}
