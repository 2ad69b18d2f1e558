//! The child process that builds and runs TensorRT engines, with a TensorRT and a driver that are not there: a Python environment
//! whose `tensorrt` records what it is asked and misbehaves on command. No real TensorRT can be installed where these tests run.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use enn_common::graph::{DType, Dim, Graph, Op};
use enn_export::{
    Batch, ExportError, Model, Ports, Runner, Tensor,
    maker::{
        Limits, Made,
        exchange::Exchange,
        tensorrt::{self, TensorRtPython, build},
    },
    onnx,
};
use nix::{errno::Errno, sys::signal::kill, unistd::Pid};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tempfile::TempDir;

const LIMITS: Limits = Limits { time: Duration::from_secs(120), memory_bytes: 8 << 30 };

/// An environment of Python with the TensorRT that stands in, and a model.
struct Bench {
    dir: TempDir,
    packages: PathBuf,
}

impl Bench {
    fn new(version: &str, behaviour: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let venv = dir.path().join("venv");
        run(Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&venv));
        let packages = fs::read_dir(venv.join("lib")).unwrap().next().unwrap().unwrap().path().join("site-packages");
        fs::write(packages.join("tensorrt.py"), include_str!("tensorrt.py")).unwrap();
        let source = dir.path().join("cuda.c");
        fs::write(&source, include_str!("cuda.c")).unwrap();
        run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(dir.path().join("libcuda.so")).arg(source));
        let bench = Self { dir, packages };
        bench.behave(version, behaviour);
        bench
    }

    fn behave(&self, version: &str, behaviour: &str) {
        self.told(&json!({"version": version, "behaviour": behaviour}));
    }

    fn told(&self, told: &Value) {
        fs::write(self.packages.join("behaviour.json"), told.to_string()).unwrap();
    }

    fn python(&self) -> TensorRtPython {
        let driver = self.dir.path().join("libcuda.so");
        TensorRtPython { driver, ..TensorRtPython::new(self.dir.path().join("venv/bin/python3")) }
    }

    fn build(&self) -> Result<Made, ExportError> {
        self.build_with(&self.python(), LIMITS)
    }

    fn build_with(&self, python: &TensorRtPython, limits: Limits) -> Result<Made, ExportError> {
        let mut graph = Graph::new();
        let x = graph.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(3)]);
        let y = graph.node(Op::Softmax, &[x], "m").unwrap();
        graph.output(y, "y");
        let model =
            Model { name: "m", graph: &graph, batch: Batch { min: 1, opt: 4, max: 7 }, about: &BTreeMap::default() };
        let path = self.dir.path().join("out/m.onnx");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        onnx::write(&model, &path).unwrap();
        build(python, &model, &path, &self.engine(), limits)
    }

    fn load(&self, path: &Path) -> Result<Exchange, ExportError> {
        let ports = Ports { inputs: vec!["x".to_owned()], outputs: vec!["double".to_owned(), "again".to_owned()] };
        tensorrt::start(&self.python(), path, ports, self.dir.path(), LIMITS)
    }

    fn engine(&self) -> PathBuf {
        self.dir.path().join("out/m.engine")
    }

    /// What is in the folder of the model, in order.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("out")).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Arguments of the calls of a name, in order.
    fn calls(&self, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.packages.join("calls.jsonl")).unwrap();
        let calls = text.lines().map(|line| serde_json::from_str::<Vec<Value>>(line).unwrap());
        calls.filter(|call| call[0] == name).map(|call| Value::Array(call[1..].to_vec())).collect()
    }

    /// The number of the process that imported TensorRT as the `at`th one.
    fn process(&self, at: usize) -> Pid {
        Pid::from_raw(self.calls("process")[at][0].as_i64().unwrap() as i32)
    }
}

fn run(command: &mut Command) {
    let done = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn an_engine_is_built_strongly_typed_for_the_range_of_batches() {
    for version in ["10.3.0", "11.4.0.106"] {
        let bench = Bench::new(version, "well");
        let made = bench.build().unwrap();
        assert_eq!(made.versions["tensorrt"], version);
        assert_eq!((made.about["device"].as_str(), made.about["capability"].as_str()), ("Fake GPU", "9.0"));
        assert_eq!(fs::read(bench.engine()).unwrap(), b"an engine");
        assert_eq!(bench.files(), ["m.engine", "m.onnx"]);
        assert_eq!(bench.calls("create_network"), [json!([2])]);
        assert_eq!(bench.calls("set_shape"), [json!(["x", [1, 3], [4, 3], [7, 3]])]);
        assert_eq!(bench.calls("clear_flag"), [json!(["TF32"])]);
        assert_eq!(bench.calls("set_flag"), [json!(["STRICT_NANS"])]);
    }
}

#[test]
fn what_fails_is_told_and_leaves_no_half_engine() {
    let bench = Bench::new("10.3.0", "well");
    let cases = [
        (
            "10.3.0",
            "parse",
            "TensorRT failed on ",
            "m.onnx: it gave up: m.linear_0 Gemm: Assertion failed: inputs.size() == 3",
        ),
        (
            "10.3.0",
            "no engine",
            "TensorRT failed on ",
            "it gave up: could not find any implementation for node m.linear_0",
        ),
        ("10.3.0", "profile", "TensorRT refused ", "the profile of batches does not fit"),
        (
            "10.3.0",
            "die",
            "TensorRT failed on ",
            "it was killed, as the system does where memory is short: [TRT] Assertion failed: wisdom; its output",
        ),
        ("10.3.0", "exit", "TensorRT failed on ", "it ended with exit status: 9: [TRT] more of it; its output"),
        ("10.3.0", "no device", "TensorRT is not available", "CUDA initialization failure"),
        ("10.3.0", "broken", "TensorRT is not available", "libnvinfer.so.10: cannot open"),
        ("9.3.0", "well", "TensorRT is not available", "has TensorRT 9.3.0, expected 10 or 11"),
        ("12.0.1", "well", "TensorRT is not available", "has TensorRT 12.0.1, expected 10 or 11"),
    ];
    for (version, behaviour, start, part) in cases {
        bench.behave(version, behaviour);
        let said = bench.build().unwrap_err().to_string();
        assert!(said.starts_with(start) && said.contains(part), "{behaviour}: {said}");
        let log = bench.engine().with_extension("engine.log");
        assert_eq!(said.contains(&format!("its output is in {}", log.display())), log.exists(), "{said}");
        let _absent = fs::remove_file(log);
        assert_eq!(bench.files(), ["m.onnx"], "{behaviour}");
    }
    bench.told(&json!({"version": "10.3.0", "behaviour": "well", "input": "other"}));
    let said = bench.build().unwrap_err().to_string();
    assert!(said.contains("the model has an input other"), "{said}");
}

#[test]
fn a_tool_that_is_not_there_is_told_with_a_hint() {
    let bench = Bench::new("10.3.0", "well");
    let none = TensorRtPython { driver: bench.dir.path().join("absent.so"), ..bench.python() };
    let said = bench.build_with(&none, LIMITS).unwrap_err().to_string();
    assert!(said.starts_with("TensorRT is not available: no NVIDIA driver: ") && said.contains("hint: "), "{said}");
    let none = TensorRtPython { interpreter: bench.dir.path().join("absent/python3"), ..bench.python() };
    let said = bench.build_with(&none, LIMITS).unwrap_err().to_string();
    assert!(said.starts_with("TensorRT is not available: ") && said.contains("absent/python3"), "{said}");
    fs::remove_file(bench.packages.join("tensorrt.py")).unwrap();
    let said = bench.build().unwrap_err().to_string();
    assert!(said.contains("No module named 'tensorrt'") && said.contains("`enn export --prepare tensorrt`"), "{said}");
}

#[test]
fn a_build_that_is_late_is_killed() {
    let bench = Bench::new("10.3.0", "hang");
    let limits = Limits { time: Duration::from_secs(8), ..LIMITS };
    let said = bench.build_with(&bench.python(), limits).unwrap_err().to_string();
    assert!(
        said.starts_with("TensorRT failed on ") && said.contains("it was not done within 8 s; its output"),
        "{said}"
    );
    assert_eq!(kill(bench.process(0), None), Err(Errno::ESRCH));
    assert_eq!(bench.files(), ["m.engine.log", "m.onnx"]);
}

fn doubled(runner: &mut Exchange, shape: &[usize]) -> Result<Vec<Tensor>, ExportError> {
    let values: Vec<f32> = (0..shape.iter().product()).map(|at: usize| at as f32 - 1.5).collect();
    runner.run(&[Tensor { name: "x".into(), shape: shape.to_vec(), values }])
}

#[test]
fn an_engine_answers_batch_after_batch() {
    let bench = Bench::new("10.3.0", "well");
    bench.build().unwrap();
    let mut runner = bench.load(&bench.engine()).unwrap();
    assert_eq!(runner.version(), "tensorrt 10.3.0");
    for batch in [1, 2, 7] {
        let outputs = doubled(&mut runner, &[batch, 3]).unwrap();
        let expected: Vec<f32> = (0..batch * 3).map(|at| 2.0 * at as f32 - 3.0).collect();
        assert_eq!(outputs.iter().map(|out| out.name.as_str()).collect::<Vec<_>>(), ["double", "again"]);
        for output in outputs {
            assert_eq!((output.shape, output.values), (vec![batch, 3], expected.clone()));
        }
    }
    // What it refuses leaves it at work, and frees what it held: the driver has room for one batch.
    for _ in 0..3 {
        let said = doubled(&mut runner, &[8, 3]).unwrap_err().to_string();
        assert!(said.contains("input x of shape [8, 3] is outside the profile"), "{said}");
    }
    let strange = Tensor { name: "z".into(), shape: vec![1], values: vec![f32::NAN] };
    assert!(runner.run(&[strange]).unwrap_err().to_string().contains("input x was not given"));
    let nan = runner.run(&[Tensor { name: "x".into(), shape: vec![1, 2], values: vec![f32::NAN, f32::INFINITY] }]);
    let values = nan.unwrap().remove(0).values;
    assert!(values[0].is_nan() && values[1] == f32::INFINITY, "{values:?}");
    assert_eq!(kill(bench.process(1), None), Ok(()));
    drop(runner);
    assert_eq!(kill(bench.process(1), None), Err(Errno::ESRCH));
}

#[test]
fn what_is_no_engine_of_the_model_is_refused() {
    let bench = Bench::new("11.4.0", "integers");
    bench.build().unwrap();
    let refused = |path: &Path| bench.load(path).unwrap_err().to_string();
    let said = refused(&bench.engine());
    assert!(said.ends_with("x has elements of type int64, expected f32"), "{said}");
    let said = refused(&bench.dir.path().join("out/m.onnx"));
    assert!(said.contains("m.onnx: it gave up: the engine plan file is not compatible"), "{said}");
    let ports = Ports { inputs: vec!["x".to_owned()], outputs: vec!["y".to_owned()] };
    let said = tensorrt::start(&bench.python(), &bench.engine(), ports, bench.dir.path(), LIMITS);
    let said = said.unwrap_err().to_string();
    assert!(said.contains("it has inputs ['x'] and outputs ['again', 'double'], expected ['x'] and ['y']"), "{said}");
}
