//! What the makers' own tools make of an archive, in their own runtimes. Each takes a minute or more.
//!
//! Needs what `tests/libtorch` needs, a C++ compiler, and `ENN_MAKER_ENVS`: where the environments of the tools are, or are made. Without it
//! a test says so and passes, except where `ENN_NEEDS_MAKERS` is set, as `make makers` sets it.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test's helpers fail the test by panicking, and it says how long tools take"
)]

use enn_common::staged::reader::NpyMap;
use enn_common::{
    graph::{DType, Graph, Id},
    wire::engine::Engine,
};
use enn_export::{
    Batch, Model, Ports,
    maker::{
        Limits, aoti,
        executorch::{self, Delegate},
        prepare::Backend,
    },
    pt2,
    sample::{Sample, samples},
};
use enn_launcher::export::{Artifact, EngineRunner};
use enn_tests::{
    artifact::{agrees, ports, python, worker},
    data, launch,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
};

/// Largest batch of the archives.
const ROWS_MAX: usize = 300;
/// Most memory that a call of the small model may plan, bytes.
const PLANNED_MAX: u64 = 4 << 20;

fn small_model(path: &Path) -> Sample {
    let sample = samples().into_iter().find(|sample| sample.name == "a small model").unwrap();
    write(&sample.graph, path);
    sample
}

fn write(graph: &Graph, path: &Path) {
    let batch = Batch { min: 1, opt: 7, max: ROWS_MAX as u64 };
    pt2::write(&Model { name: "model", graph, batch, about: &BTreeMap::new() }, path).unwrap();
}

/// The same program, trained anew: every float that it knows is another one, those of less than ten elements too.
fn anew(sample: &Sample) -> Sample {
    let old = &sample.graph;
    let mut graph = Graph::new();
    let mut ids = Vec::new();
    let mut nodes = old.nodes().iter();
    for (id, value) in old.values() {
        ids.push(match &value.data {
            Some(data) if value.dtype == DType::F32 => {
                let other = |(i, v): (usize, f32)| if v == f32::MAX { v } else { v * 0.9 + 0.01 * (i % 7) as f32 };
                let bytes = value.floats().into_iter().enumerate().map(other).flat_map(f32::to_le_bytes);
                let shape = value.fixed().unwrap();
                graph.known(&value.name, value.dtype, &shape, data.known, bytes.collect::<Vec<u8>>()).unwrap()
            }
            Some(data) => {
                let shape = value.fixed().unwrap();
                graph.known(&value.name, value.dtype, &shape, data.known, data.bytes.clone()).unwrap()
            }
            None if old.inputs().contains(&id) => graph.input(&value.name, value.dtype, value.shape.clone()),
            None => {
                let node = nodes.next().unwrap();
                let ins: Vec<Id> = node.ins.iter().map(|id| ids[id.0]).collect();
                graph.node(node.op.clone(), &ins, &node.place).unwrap()
            }
        });
    }
    old.outputs().iter().for_each(|id| graph.output(ids[id.0], &old.value(*id).name));
    Sample { name: format!("{} anew", sample.name), graph }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn aoti_compiles_an_archive_and_libtorch_runs_it() {
    let Some(python) = python(Backend::Aoti) else { return };
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("m.pt2");
    let package = dir.path().join("m.aoti.pt2");
    let sample = small_model(&source);
    let made = aoti::compile(&python, &source, &package, "cpu", Limits::MAKES).unwrap();
    assert!(made.versions["torch"].starts_with("2.11.0"));
    assert_eq!(made.about["AOTI_DEVICE_KEY"], "cpu");
    assert!(made.about.contains_key("AOTI_CPU_ISA"), "{:?}", made.about);
    assert_eq!(names(dir.path()), ["m.aoti.pt2", "m.pt2"]);
    let Ports { inputs, outputs } = ports(&sample.graph);
    let artifact = Artifact { engine: Engine::Aoti, path: package, inputs, outputs };
    let mut runner = EngineRunner::start(&worker(), artifact, dir.path()).unwrap();
    assert_eq!(runner.about(), &made.about);
    agrees(&mut runner, &sample, &[1, 2, 7, ROWS_MAX], 1e-5);
    drop(runner);
    assert_eq!(names(dir.path()), ["m.aoti.pt2", "m.pt2"], "what was unpacked is gone with the worker");
    new_weights_take_the_place_of_old_ones(&python, &sample, dir.path());
}

/// In the package that was compiled: without compiling, and only where the program is the same.
fn new_weights_take_the_place_of_old_ones(python: &Path, sample: &Sample, dir: &Path) {
    let old = dir.join("m.aoti.pt2");
    let source = dir.join("n.pt2");
    let package = dir.join("n.aoti.pt2");
    let other = anew(sample);
    write(&other.graph, &source);
    let begun = std::time::Instant::now();
    let made = aoti::replace(python, &source, &package, &old, Limits::MAKES).unwrap();
    eprintln!("new weights after {:.1} s", begun.elapsed().as_secs_f64());
    assert!(made.about.contains_key("AOTI_CPU_ISA"), "{:?}", made.about);
    let Ports { inputs, outputs } = ports(&other.graph);
    let artifact = Artifact { engine: Engine::Aoti, path: package.clone(), inputs, outputs };
    let mut runner = EngineRunner::start(&worker(), artifact, dir).unwrap();
    agrees(&mut runner, &other, &[1, 2, 7, ROWS_MAX], 1e-5);
    drop(runner);
    fs::remove_file(&package).unwrap();
    // A program of other shapes, and something that is no package of ours.
    write(&samples().into_iter().find(|sample| sample.name == "softmax").unwrap().graph, &source);
    let error = aoti::replace(python, &source, &package, &old, Limits::MAKES).unwrap_err().to_string();
    assert!(error.contains("is the code of another program"), "{error}");
    let error = aoti::replace(python, &source, &package, &source, Limits::MAKES).unwrap_err().to_string();
    assert!(error.contains("says where its weights lie"), "{error}");
    assert!(!package.exists());
}

#[test]
fn executorch_lowers_an_archive_and_runs_it_at_every_batch() {
    let Some(python) = python(Backend::ExecuTorch) else { return };
    for delegate in [Delegate::Portable, Delegate::Xnnpack] {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("m.pt2");
        let program = dir.path().join("m.pte");
        let sample = small_model(&source);
        let made = executorch::lower(&python, &source, &program, delegate, Limits::MAKES).unwrap();
        assert_eq!(made.versions["executorch"], "1.2.0");
        let planned: u64 = made.about["planned_memory_bytes"].parse().unwrap();
        assert!(planned > 0 && planned < PLANNED_MAX, "{planned}");
        let mut runner = executorch::start(&python, &program, ports(&sample.graph), dir.path(), Limits::MAKES).unwrap();
        agrees(&mut runner, &sample, &[1, 2, 7, ROWS_MAX], 1e-5);
        drop(runner);
        assert_eq!(names(dir.path()), ["m.pt2", "m.pte"]);
    }
}

#[test]
fn a_maker_that_cannot_read_its_source_says_so() {
    let Some(python) = python(Backend::ExecuTorch) else { return };
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("m.pt2");
    let program = dir.path().join("m.pte");
    fs::write(&source, "no archive").unwrap();
    let made = executorch::lower(&python, &source, &program, Delegate::Portable, Limits::MAKES);
    let error = made.unwrap_err().to_string();
    assert!(error.starts_with("ExecuTorch refused") && error.contains("m.pt2") && error.contains("Error"), "{error}");
    assert_eq!(names(dir.path()), ["m.pt2"]);
}

#[test]
fn aoti_is_an_engine_of_predictions_and_of_servers() {
    is_an_engine(Backend::Aoti, "chaos.aoti.pt2");
}

#[test]
fn executorch_is_an_engine_of_predictions_and_of_servers() {
    is_an_engine(Backend::ExecuTorch, "chaos.pte");
}

/// From the command line: a run predicts by it, what it leaves predicts and serves alone, and the program beside that runs.
fn is_an_engine(backend: Backend, artifact: &str) {
    let Some(python) = python(backend) else { return };
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let enn = || {
        let mut command = Command::new(launch::enn());
        command.env("PYTHON_EXEC", &python).env("XDG_CACHE_HOME", at("cache"));
        command
    };
    let run = data::trained(enn(), dir.path(), &[]);
    let rows = [[0.25, -0.5, 0.125], [0.5, 0.75, -1.0], [-0.25, 0.0, 0.5]];
    let lines = rows.iter().enumerate().map(|(row, [a, b, c])| format!("{row},{a},{b},{c}\n"));
    fs::write(at("new.csv"), format!("id,a,b,c\n{}", lines.collect::<String>())).unwrap();
    let predicted = |model: &Path, name: &str, more: &[&str]| -> Vec<f32> {
        let mut command = enn();
        command.arg("predict").arg(model).args(["--quiet", "--nproc-per-node", "2"]).args(more);
        let done = command.arg("--data").arg(at("new.csv")).arg("--out").arg(at(name)).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        NpyMap::open(&at(name).join("pred.npy")).unwrap().numbers().unwrap().to_vec()
    };
    let near = |found: &[f32], expected: &[f32]| {
        let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(found.len() == expected.len() && off < 1e-5, "{found:?}, expected {expected:?}");
    };
    let expected = predicted(&run, "native", &[]);
    near(&predicted(&run, "engine", &["--engine", backend.name()]), &expected);
    let kept = at("kept");
    fs::rename(run.join("engines"), &kept).unwrap();
    fs::remove_dir_all(&run).unwrap();
    near(&predicted(&kept.join(artifact), "alone", &[]), &expected);
    near(&served(enn().arg("serve").arg(kept.join(artifact)), &rows), &expected);
    fs::write(kept.join("rows.json"), json!(rows).to_string()).unwrap();
    near(&used(Command::new(&python).args([&format!("{artifact}.usage.py"), "rows.json"]), &kept), &expected);
    let usage = kept.join(format!("{artifact}.usage.cpp"));
    assert_eq!(usage.exists(), backend == Backend::Aoti);
    if let Ok(text) = fs::read_to_string(usage) {
        let line = text.lines().find_map(|line| line.strip_prefix("//     c++ ")).unwrap();
        let torch = "import pathlib, torch; print(pathlib.Path(torch.__file__).parent)";
        let torch = Command::new(&python).args(["-c", torch]).output().unwrap().stdout;
        let torch = String::from_utf8(torch).unwrap();
        let made_up =
            used(Command::new("sh").args(["-c", &format!("c++ {line}")]).env("LIBTORCH", torch.trim()), &kept);
        assert!(made_up.len() == 2 && made_up[0] == made_up[1], "{made_up:?}");
        near(&used(Command::new(kept.join("usage")).arg("rows.json"), &kept), &expected);
    }
}

/// The numbers that a program beside an artifact prints.
fn used(command: &mut Command, dir: &Path) -> Vec<f32> {
    let done = command.current_dir(dir).env_remove("LD_LIBRARY_PATH").output().unwrap();
    let told = String::from_utf8_lossy(&done.stdout);
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{told}{error}");
    told.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// What a server answers to rows.
fn served(command: &mut Command, rows: &[[f64; 3]]) -> Vec<f32> {
    let mut server = command.args(["--addr", "0", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let told = loop {
        text += &lines.next().expect("it says where it listens").unwrap();
        if let Ok(told) = serde_json::from_str::<Value>(&text) {
            break told;
        }
    };
    let mut stream = TcpStream::connect(told["address"].as_str().unwrap()).unwrap();
    let body = json!({ "rows": rows }).to_string();
    let head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json";
    write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let told: Value = serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap();
    let value = |row: &Value| row[0].as_f64().map(|value| value as f32);
    told["rows"].as_array().unwrap_or_else(|| panic!("{told}")).iter().filter_map(value).collect()
}
