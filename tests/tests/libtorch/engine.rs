//! PT2 archives at work in libtorch, behind a worker's pipe.
//!
//! Needs `enn-worker`, which `make build` makes, and libtorch on the library path, as `make test` sets it.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_cluster::supervise::WorkerSpec;
use enn_common::{
    graph::{DType, Dim, Fold, Graph, Op, Unary},
    wire::{
        engine::{Engine, EngineQuestion, EngineReply, EngineSetup},
        message::PROTOCOL,
        serve::{get, put},
    },
};
use enn_export::{
    Batch, Model, Ports, Runner, Tensor, pt2,
    sample::{Sample, edges, samples},
};
use enn_launcher::export::{Artifact, EngineRunner};
use enn_tests::artifact::{agrees, ports, worker};
use std::{
    collections::BTreeMap,
    fs,
    io::BufReader,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

fn archive(sample: &Sample, path: &Path) -> Artifact {
    let about = BTreeMap::new();
    pt2::write(&Model { name: "model", graph: &sample.graph, batch: Batch::default(), about: &about }, path).unwrap();
    artifact(sample, Engine::Pt2, path)
}

fn artifact(sample: &Sample, engine: Engine, path: &Path) -> Artifact {
    let Ports { inputs, outputs } = ports(&sample.graph);
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
    let sample = small_model();
    for (said, how) in
        [("", "ended without a word (signal: 11"), ("printf '{\"re'", "ended within an answer (signal: 11")]
    {
        fs::write(&program, format!("#!/bin/sh\nread begin\n{said}\nkill -SEGV $$\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let artifact = archive(&sample, &dir.path().join("m.pt2"));
        let error = refusal(&WorkerSpec { program: program.clone(), ..worker() }, artifact, dir.path());
        assert!(error.starts_with("libtorch refused") && error.contains(how), "{error}");
    }
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

/// Numbers that each row becomes.
const WIDE: u64 = 1 << 20;
const ROWS: usize = 192;

/// Each row's number as many, and their sum.
fn wide() -> Sample {
    let mut graph = Graph::new();
    let x = graph.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(1)]);
    let many = graph.node(Op::Expand { shape: vec![Dim::BATCH, Dim::Fixed(WIDE)] }, &[x], "m").unwrap();
    let other = graph.node(Op::Unary(Unary::Exp), &[many], "m").unwrap();
    let sum = graph.node(Op::Reduce { fold: Fold::Sum, axes: vec![1], keep: true }, &[other], "m").unwrap();
    graph.output(sum, "y");
    Sample { name: "wide".to_owned(), graph }
}

/// What an engine that may have so much memory says of an archive and of so many rows.
fn answered(archive: &Path, dir: &Path, rows: usize, memory_bytes: u64) -> (EngineReply, EngineReply) {
    let scratch = dir.join("scratch");
    let inputs = dir.join("inputs");
    fs::create_dir(&scratch).unwrap();
    let mut header = format!(r#"{{"0":{{"dtype":"F32","shape":[{rows},1],"data_offsets":[0,{}]}}}}"#, 4 * rows);
    header += &" ".repeat(8 - header.len() % 8);
    fs::write(&inputs, [&header.len().to_le_bytes(), header.as_bytes(), &vec![0; 4 * rows]].concat()).unwrap();
    let worker = worker();
    let mut command = Command::new(&worker.program);
    let mut child = command.arg("--engine").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut to = child.stdin.take().unwrap();
    let mut from = BufReader::new(child.stdout.take().unwrap());
    let begin = EngineSetup {
        protocol: PROTOCOL,
        engine: Engine::Pt2,
        artifact: archive.to_owned(),
        device: "cpu".to_owned(),
        threads: 1,
        memory_bytes: Some(memory_bytes),
        scratch: scratch.clone(),
    };
    put(&mut to, &begin).unwrap();
    let ready: EngineReply = get(&mut from).unwrap().unwrap();
    put(&mut to, &EngineQuestion { inputs, outputs: dir.join("outputs") }).unwrap();
    let reply = get(&mut from).unwrap().unwrap();
    drop(to);
    child.wait().unwrap();
    assert!(!scratch.exists(), "it goes with the engine");
    (ready, reply)
}

/// As much as the rows become: with itself beside them it needs more.
#[test]
fn an_engine_takes_no_more_memory_than_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt2");
    archive(&wide(), &path);
    let needed = 4 * WIDE * ROWS as u64;
    for (rows, memory_bytes, fits) in [(ROWS, 8 * needed, true), (1, needed, true), (ROWS, needed, false)] {
        let (ready, reply) = answered(&path, dir.path(), rows, memory_bytes);
        assert!(matches!(ready, EngineReply::Ready { .. }), "{ready:?}");
        match reply {
            EngineReply::Answered => assert!(fits, "{rows} rows in {memory_bytes} bytes"),
            EngineReply::Failed { error } => assert!(!fits && error.contains("can't allocate memory"), "{error}"),
            EngineReply::Ready { .. } | EngineReply::Unavailable { .. } => panic!("it was ready before"),
        }
    }
}
