//! Exported artifacts in tests: who runs them, and whether they answer as the reference does.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "it is part of tests, which find programs by variables of their own"
)]

use crate::launch;
use enn_cluster::supervise::WorkerSpec;
use enn_common::graph::{Graph, eval::Array};
use enn_export::{
    Ports, Runner, Tensor,
    maker::prepare::{Backend, Installers, prepare},
    sample::Sample,
};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// Longest wait for what is expected.
const WAIT: Duration = Duration::from_secs(120);

/// What a program that is played by [`played`] begins with.
const PART: &str = r#"#!/usr/bin/env python3
import json, os, struct, sys, time
here = os.path.dirname(os.path.abspath(__file__))
job = json.loads(sys.stdin.readline())
def say(what):
    print(json.dumps(what), flush=True)
def mark(name):
    open(os.path.join(here, name), "w").close()
def marked(name):
    return sum(file.startswith(name) for file in os.listdir(here))
def double(question):
    """Twice the first column."""
    rows, width = question["shapes"][0]
    with open(question["inputs"], "rb") as file:
        values = struct.unpack(f"<{rows * width}f", file.read())
    with open(question["outputs"], "wb") as file:
        file.write(struct.pack(f"<{rows}f", *[2 * value for value in values[::width]]))
    say({"answered": [[rows, 1]]})
questions = (json.loads(line) for line in sys.stdin)
"#;

/// An exported archive under the name of a program of ExecuTorch, in `dir`, and what `PYTHON_EXEC` is to name: instead of that runtime
/// `lines` of Python play it, so that it can misbehave.
pub fn played(archive: &Path, dir: &Path, lines: &str) -> (PathBuf, PathBuf) {
    let artifact = dir.join("model.pte");
    let python = dir.join("python");
    fs::copy(archive, &artifact).unwrap();
    let said = fs::read(archive.with_extension("pt2.json")).unwrap();
    let mut said: Value = serde_json::from_slice(&said).unwrap();
    said["format"] = "executorch".into();
    said["artifact"] = "model.pte".into();
    said["files"][0]["path"] = "model.pte".into();
    fs::write(dir.join("model.pte.json"), said.to_string()).unwrap();
    fs::write(&python, format!("{PART}{lines}")).unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o700)).unwrap();
    (artifact, python)
}

/// A library that does what these lines of C say as soon as it is loaded.
pub fn library(dir: &Path, lines: &str) -> PathBuf {
    let source = dir.join("library.c");
    let path = dir.join("libonnxruntime.so");
    let heads = ["signal", "stdio", "stdlib", "unistd"].map(|name| format!("#include <{name}.h>\n")).concat();
    let begin = "__attribute__((constructor)) static void begin(void)";
    fs::write(&source, format!("{heads}{begin} {{ {lines} }}\n")).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&path, &source]).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    path
}

/// Waits until something is so.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < WAIT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a process is gone, or a zombie that waits for its parent.
pub fn gone(pid: i32) {
    let stat = format!("/proc/{pid}/stat");
    until(&format!("{pid} ends"), || !fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z")));
}

/// The worker beside `enn`, on the CPU; libtorch is where the environment says.
pub fn worker() -> WorkerSpec {
    let program = launch::enn().with_file_name("enn-worker");
    assert!(program.exists(), "{} is not there; run `make build`", program.display());
    WorkerSpec::new(program)
}

/// The Python of a maker's tools: that of the environment below `ENN_MAKER_ENVS`, which is made once; of AOTInductor's also
/// `ENN_AOTI_PYTHON`, which needs torch and nothing else. `None`, with a line, where neither variable is set; where `ENN_NEEDS_MAKERS`
/// is, one must be.
pub fn python(backend: Backend) -> Option<PathBuf> {
    if let Some(python) = std::env::var_os("ENN_AOTI_PYTHON").filter(|_| backend == Backend::Aoti) {
        return Some(python.into());
    }
    let Some(root) = std::env::var_os("ENN_MAKER_ENVS") else {
        assert!(std::env::var_os("ENN_NEEDS_MAKERS").is_none(), "ENN_MAKER_ENVS is not set; `make makers` sets it");
        eprintln!("skipped: ENN_MAKER_ENVS names no directory of environments; `make makers` makes them and sets it");
        return None;
    };
    let uv = std::env::var_os("ENN_UV").map(PathBuf::from);
    let installers = Installers { uv: uv.as_deref(), python: Path::new("python3") };
    Some(prepare(backend, Path::new(&root), installers, &mut |line| eprintln!("{line}")).unwrap())
}

/// Names of a graph's inputs and outputs.
pub fn ports(graph: &Graph) -> Ports {
    let names = |ids: &[enn_common::graph::Id]| ids.iter().map(|id| graph.value(*id).name.clone()).collect();
    Ports { inputs: names(graph.inputs()), outputs: names(graph.outputs()) }
}

/// Fails unless the runner answers batches of these rows as the reference does, within `tolerance` of 1 + |value|.
pub fn agrees(runner: &mut dyn Runner, sample: &Sample, batches: &[usize], tolerance: f64) {
    let Ports { inputs, outputs } = ports(&sample.graph);
    for &batch in batches {
        let (given, expected) = sample.case(batch);
        let single = |(name, array): (&String, &Array)| Tensor {
            name: name.clone(),
            shape: array.shape.clone(),
            values: array.values.iter().map(|value| *value as f32).collect(),
        };
        // In another order than the graph's: names count.
        let given: Vec<Tensor> = inputs.iter().zip(&given).map(single).rev().collect();
        let answered = runner.run(&given).unwrap_or_else(|error| panic!("{}, {batch} rows: {error}", sample.name));
        assert_eq!(answered.iter().map(|tensor| &tensor.name).collect::<Vec<_>>(), outputs.iter().collect::<Vec<_>>());
        for (tensor, array) in answered.iter().zip(&expected) {
            assert_eq!(tensor.shape, array.shape, "{}", sample.name);
            for (found, wanted) in tensor.values.iter().zip(&array.values) {
                let off = (f64::from(*found) - wanted).abs();
                assert!(off <= tolerance * (1.0 + wanted.abs()), "{}: {found}, expected {wanted}", sample.name);
            }
        }
    }
}
