//! PT2 archives at work in libtorch, behind a worker's pipe.
//!
//! Needs `enn-worker`, which `make build` makes, and libtorch on the library path, as `make test` sets it.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::{graph::DType, wire::engine::Engine};
use enn_export::{
    Batch, Model, Runner, Tensor, pt2,
    sample::{Sample, edges, samples},
};
use enn_launcher::{
    agent::WorkerSpec,
    export::{Artifact, EngineRunner},
};
use enn_tests::artifact::{agrees, ports, worker};
use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::Path};

fn archive(sample: &Sample, path: &Path) -> Artifact {
    let about = BTreeMap::new();
    pt2::write(&Model { name: "model", graph: &sample.graph, batch: Batch::default(), about: &about }, path).unwrap();
    artifact(sample, Engine::Pt2, path)
}

fn artifact(sample: &Sample, engine: Engine, path: &Path) -> Artifact {
    let (inputs, outputs) = ports(&sample.graph);
    Artifact { engine, path: path.to_owned(), inputs, outputs }
}

fn small_model() -> Sample {
    samples().into_iter().find(|sample| sample.name == "a small model").unwrap()
}

fn refusal(worker: &WorkerSpec, artifact: Artifact, dir: &Path) -> String {
    EngineRunner::start(worker, artifact, dir).unwrap_err().to_string()
}

#[test]
fn every_sample_answers_as_the_reference_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt2");
    let singles = |sample: &Sample| {
        let ports = sample.graph.inputs().iter().chain(sample.graph.outputs());
        ports.copied().all(|id| sample.graph.value(id).dtype == DType::F32)
    };
    for sample in samples().into_iter().chain(edges()).filter(singles) {
        let mut runner = EngineRunner::start(&worker(), archive(&sample, &path), dir.path()).unwrap();
        assert!(runner.version().starts_with("libtorch 2."), "{}", runner.version());
        agrees(&mut runner, &sample, &[1, 2, 7, 300], 1e-5);
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left of what was exchanged");
}

#[test]
fn what_libtorch_would_trust_is_checked_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt2");
    let sample = small_model();
    let artifact = archive(&sample, &path);
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(11).position(|window| window == b"layer_norm.").unwrap();
    bytes[at] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = refusal(&worker(), artifact, dir.path());
    assert!(error.starts_with("enn refused") && error.ends_with("model/models/model.json is damaged"), "{error}");
}

#[test]
fn what_is_no_package_is_an_error_of_the_worker() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt2");
    let sample = small_model();
    archive(&sample, &path);
    let error = refusal(&worker(), artifact(&sample, Engine::Aoti, &path), dir.path());
    assert!(error.starts_with("libtorch refused") && error.contains("m.pt2"), "{error}");
    let error = refusal(&worker(), artifact(&sample, Engine::Aoti, &dir.path().join("none")), dir.path());
    assert!(error.starts_with("libtorch refused"), "{error}");
}

#[test]
fn a_worker_that_dies_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("worker");
    fs::write(&program, "#!/bin/sh\nread begin\nkill -SEGV $$\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let sample = small_model();
    let artifact = archive(&sample, &dir.path().join("m.pt2"));
    let error = refusal(&WorkerSpec { program, ..worker() }, artifact, dir.path());
    assert!(error.starts_with("libtorch refused") && error.contains("ended without a word"), "{error}");
}

#[test]
fn inputs_that_are_not_the_models_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let sample = small_model();
    let artifact = archive(&sample, &dir.path().join("m.pt2"));
    let mut runner = EngineRunner::start(&worker(), artifact, dir.path()).unwrap();
    let input = |name: &str, width: usize| {
        [Tensor { name: name.to_owned(), shape: vec![2, width], values: vec![0.5; 2 * width] }]
    };
    let error = runner.run(&input("z", 6)).unwrap_err().to_string();
    assert!(error.ends_with("input x was not given"), "{error}");
    let error = runner.run(&input("x", 5)).unwrap_err().to_string();
    assert!(error.starts_with("libtorch refused"), "{error}");
}
