//! An exported model is all that is needed to predict with it: the run and its data may be gone. With onnxruntime, LiteRT and TensorFlow
//! it is tried by `tests/conformance/export_run.py` and `export_tf.py`.
//!
//! Needs `enn` and `enn-worker`, which `make build` makes, and libtorch on the library path, as `make test` sets it.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test's helpers fail the test by panicking and look again until a deadline"
)]

use enn_common::{
    artifact::{export::Sidecar, prediction::PredictionManifest},
    staged::reader::NpyMap,
    wire::engine::Engine,
};
use enn_export::{Runner, Tensor, ort};
use enn_launcher::export::{Artifact, EngineRunner};
use enn_tests::{
    artifact::{gone, played, until, worker},
    data::{self, mix},
    launch,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

/// Longest wait for what is expected.
const WAIT: Duration = Duration::from_secs(120);

fn enn() -> Command {
    let mut command = Command::new(launch::enn());
    // No runtime but libtorch, whatever this machine has; and one thread, as others want the machine, too.
    command.env("ENN_RUNTIMES", "/nowhere").env("PYTHON_EXEC", "/nowhere/python").env("OMP_NUM_THREADS", "1");
    command
}

/// Rows to predict: some have gaps, some have nothing.
fn table(path: &Path, rows: u64) {
    let mut text = "id,a,b,c\n".to_owned();
    for row in 0..rows {
        let cell = |column: u64| {
            let missing = row % 17 == 5 || (row + column) % 11 == 3;
            let value = (mix(row * 4 + column) % 2_000) as f64 / 1_000.0 - 1.0;
            if missing { "NA".to_owned() } else { value.to_string() }
        };
        writeln!(text, "{},{},{},{}", row + 7, cell(0), cell(1), cell(2)).unwrap();
    }
    fs::write(path, text).unwrap();
}

fn trained(dir: &Path) -> PathBuf {
    let more =
        ["--set", "train.loss=quantile", "--set", "train.levels=[0.1,0.5,0.9]", "--set", "data.missing=[\"NA\"]"];
    data::trained(enn(), dir, &more)
}

fn said(done: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
}

fn predict(model: &Path, csv: &Path, out: &Path, more: &[&str]) -> Output {
    let mut command = enn();
    // No environment that was prepared on this machine.
    command.env("XDG_CACHE_HOME", out.with_file_name("cache"));
    command.arg("predict").arg(model).arg("--data").arg(csv).arg("--out").arg(out).args(more).output().unwrap()
}

fn export(run: &Path, out: &Path, more: &[&str]) {
    let mut export = enn();
    let done = export.arg("export").arg(run).args(["--to", "pt2", "--name", "model", "--out"]).arg(out).args(more);
    let done = done.output().unwrap();
    assert!(done.status.success(), "{}", said(&done));
}

/// Compares two directories of predictions, name by name; within 10⁻⁴, the targets' spread being about a half.
fn same(one: &Path, two: &Path) {
    let names = |dir: &Path| {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(one), names(two));
    for name in names(one).iter().filter(|name| name.ends_with(".npy")) {
        let [a, b] = [one, two].map(|dir| NpyMap::open(&dir.join(name)).unwrap());
        assert_eq!(a.header().shape, b.header().shape, "{name}");
        match (a.numbers::<f32>(), b.numbers::<f32>()) {
            (Some(a), Some(b)) if name.starts_with("pred") || name.starts_with("levels") => {
                let near = |(a, b): (&f32, &f32)| (a.is_nan() && b.is_nan()) || (a - b).abs() < 1e-4;
                assert!(a.iter().zip(b).all(near), "{name}");
            }
            _ => assert_eq!(a.data(), b.data(), "{name}"),
        }
    }
}

#[test]
fn an_artifact_alone_predicts_what_its_run_does() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let run = trained(dir.path());
    table(&at("new.csv"), 500);
    let done = predict(&run, &at("new.csv"), &at("expected"), &["--quiet"]);
    assert!(done.status.success(), "{}", said(&done));
    export(&run, &at("out"), &["--quantiles", "--batch", "3:16:100"]);
    // By the run, which keeps what it has exported.
    for out in ["engine", "again"] {
        let done = predict(&run, &at("new.csv"), &at(out), &["--engine", "pt2", "--set", "train.threads=1"]);
        assert!(done.status.success(), "{}", said(&done));
        same(&at("expected"), &at(out));
    }
    let kept = fs::read_dir(run.join("engines")).unwrap().count();
    assert_eq!(kept, 3, "the archive, what is said of it, and how it is used");
    // Without the run, and without what it was trained on.
    fs::remove_dir_all(&run).unwrap();
    fs::remove_file(at("chaos.csv")).unwrap();
    let artifact = at("out").join("model.pt2");
    let done = predict(&artifact, &at("new.csv"), &at("alone"), &["--nproc-per-node", "2"]);
    assert!(done.status.success(), "{}", said(&done));
    assert!(said(&done).contains("have no prediction: no input is valid"), "{}", said(&done));
    same(&at("expected"), &at("alone"));
    let [expected, alone] =
        ["expected", "alone"].map(|name| PredictionManifest::read(&at(name).join("manifest.json")).unwrap());
    assert_eq!((&alone.failed, &alone.columns, &alone.levels), (&expected.failed, &expected.columns, &expected.levels));
    assert_eq!((&alone.checkpoint, &alone.data), (&expected.checkpoint, &expected.data));
    assert_eq!(alone.versions["engine"], "pt2");
    // The predictions alone.
    let done = predict(&artifact, &at("new.csv"), &at("point"), &["--point"]);
    assert!(done.status.success(), "{}", said(&done));
    let [all, point] = ["alone", "point"].map(|name| NpyMap::open(&at(name).join("pred.npy")).unwrap());
    let near = |(a, b): (&f32, &f32)| (a.is_nan() && b.is_nan()) || (a - b).abs() < 1e-6;
    assert!(all.numbers::<f32>().unwrap().iter().zip(point.numbers::<f32>().unwrap()).all(near));
    assert!(!at("point").join("levels.npy").exists());
}

#[test]
fn what_an_artifact_cannot_do_is_refused_with_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let run = trained(dir.path());
    table(&at("new.csv"), 20);
    export(&run, &at("out"), &[]);
    let artifact = at("out").join("model.pt2");
    let refused = |model: &Path, more: &[&str], expected: &str| {
        let done = predict(model, &at("new.csv"), &at("never"), more);
        let told = said(&done);
        assert!(!done.status.success() && told.contains(expected), "{more:?}: {told}");
        assert!(!at("never").exists());
    };
    refused(&artifact, &[], "the quantiles [0.1, 0.5, 0.9] that its model predicts do not come out of it");
    refused(&artifact, &["--engine", "onnx"], "--engine onnx: the exported model is pt2");
    refused(&artifact, &["--point", "--precision", "bf16"], "--precision bf16: pt2 computes in");
    refused(&run, &["--engine", "onnx"], "onnxruntime is not available");
    refused(&run, &["--engine", "aoti"], "`enn export --prepare aoti` makes a Python for it");
    refused(&run, &["--engine", "executorch"], "`enn export --prepare executorch` makes a Python for it");
    refused(&run, &["--engine", "coreml"], "coreml is no engine, expected one of native, onnx");
    let done = predict(&artifact, &at("new.csv"), &at("point"), &["--point"]);
    assert!(done.status.success(), "{}", said(&done));
    // Described by an older enn: it does not say how rows are read.
    let beside = at("out").join("model.pt2.json");
    let mut sidecar: serde_json::Value = serde_json::from_slice(&fs::read(&beside).unwrap()).unwrap();
    sidecar["version"] = 1.into();
    fs::write(&beside, sidecar.to_string()).unwrap();
    refused(&artifact, &["--point"], "export the run again");
}

/// Workers of a process that runs.
fn children(pid: u32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let all: String = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default()).collect();
    all.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn a_runtime_that_is_killed_is_started_again_and_does_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let run = trained(dir.path());
    table(&at("new.csv"), 30_000);
    export(&run, &at("out"), &["--quantiles"]);
    let done = predict(&run, &at("new.csv"), &at("expected"), &["--quiet"]);
    assert!(done.status.success(), "{}", said(&done));
    let mut command = enn();
    command.arg("predict").arg(at("out").join("model.pt2")).arg("--data").arg(at("new.csv"));
    command.arg("--out").arg(at("found")).args(["--set", "train.threads=1"]).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let began = Instant::now();
    let partial = at("found.partial").join("ledger.jsonl");
    let chunks = || fs::read_to_string(&partial).unwrap_or_default().lines().count();
    while chunks() < 4 {
        assert!(began.elapsed() < WAIT, "no chunk is written");
        std::thread::sleep(Duration::from_millis(2));
    }
    let [worker] = children(child.id())[..] else { panic!("one worker") };
    kill(Pid::from_raw(worker), Signal::SIGKILL).unwrap();
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success() && said(&done).contains("it is restarted"), "{}", said(&done));
    same(&at("expected"), &at("found"));
}

/// Rows without gaps, of which each is another one.
fn whole(path: &Path, rows: u64) {
    let mut text = "id,a,b,c\n".to_owned();
    (0..rows).for_each(|row| writeln!(text, "{row},{},0.5,-0.5", row as f64 / rows as f64).unwrap());
    fs::write(path, text).unwrap();
}

#[test]
fn runtimes_at_work_together_answer_their_own_rows_and_end_with_enn() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let run = data::trained(enn(), dir.path(), &[]);
    export(&run, &at("out"), &[]);
    whole(&at("new.csv"), 20_000);
    let command = |lines: &str| {
        let (artifact, python) = played(&at("out").join("model.pt2"), dir.path(), lines);
        let mut command = enn();
        command.arg("predict").arg(artifact).arg("--data").arg(at("new.csv")).arg("--out").arg(at("found"));
        command.env("PYTHON_EXEC", python).env("XDG_CACHE_HOME", at("cache"));
        command
    };
    // Neither reads what it was asked before the other one has been asked, too.
    let both = "mark('ready-' + str(os.getpid()))\nsay({'ready': '1'})\nfor question in questions:\n    \
                mark('asked-' + str(os.getpid()))\n    while marked('asked-') < 2:\n        time.sleep(0.001)\n    double(question)\n";
    let done = command(both).args(["--nproc-per-node", "2"]).output().unwrap();
    assert!(done.status.success(), "{}", said(&done));
    let found = NpyMap::open(&at("found").join("pred.npy")).unwrap();
    for (row, value) in found.numbers::<f32>().unwrap().iter().enumerate() {
        assert!((value - 2.0 * row as f32 / 20_000.0).abs() < 1e-6, "row {row}: {value}");
    }
    // One that answers nothing, and does not hear that nobody listens.
    let hangs =
        "mark('process-' + str(os.getpid()))\nsay({'ready': '1'})\nnext(questions)\nmark('hangs')\ntime.sleep(1000)\n";
    let loads = "mark('process-' + str(os.getpid()))\nmark('hangs')\ntime.sleep(1000)\n";
    for (lines, signal, code) in
        [(hangs, Signal::SIGTERM, Some(143)), (loads, Signal::SIGINT, Some(130)), (hangs, Signal::SIGKILL, None)]
    {
        let mut child = command(lines).args(["--replace", "--nproc-per-node", "1"]).spawn().unwrap();
        until("it computes", || at("hangs").exists());
        let all = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let names: Vec<String> = all.filter(|name| name.starts_with("process-")).collect();
        kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), code, "{signal}");
        let [name] = names.as_slice() else { panic!("{names:?}") };
        gone(name["process-".len()..].parse().unwrap());
        [name.as_str(), "hangs"].iter().for_each(|name| fs::remove_file(at(name)).unwrap());
    }
}

/// Numbers at, within and beyond what is believed: `a` has a declared range, the other columns what training has; −3 means "missing".
const DOUBTFUL: [[f32; 3]; 14] = [
    [0.5, 0.2, -0.1],
    [-9999.0, 0.2, -0.1],
    [f32::NAN, 0.2, -0.1],
    [9999.0, 0.2, -0.1],
    [5.0, 0.2, -0.1],
    [5.000_001, 0.2, -0.1],
    [0.5, -3.0, -0.1],
    [0.5, -3e8, -0.1],
    [0.5, f32::NAN, -0.1],
    [0.5, 0.2, 1e30],
    [0.5, 0.2, f32::INFINITY],
    [0.5, 100.0, -100.0],
    [-9999.0, -3.0, 1e30],
    [-3.0, 0.2, f32::NEG_INFINITY],
];

/// What a runtime answers to numbers that nobody has looked at.
fn raw(runner: &mut dyn Runner) -> Vec<f32> {
    let name = "x".to_owned();
    let shape = vec![DOUBTFUL.len(), 3];
    let outputs = runner.run(&[Tensor { name, shape, values: DOUBTFUL.concat() }]).unwrap();
    outputs[0].values.clone()
}

/// A number that `enn predict` takes for missing is missing for whoever has nothing but the artifact, too.
#[test]
fn numbers_that_prediction_does_not_believe_are_missing_inside_an_artifact() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let more = ["--set", "train.epochs=20", "--set", "data.ranges={a=[-5,5]}", "--set", "data.missing=[\"NA\",\"-3\"]"];
    let run = data::trained(enn(), dir.path(), &more);
    let lines = DOUBTFUL.iter().enumerate().map(|(row, [a, b, c])| format!("{row},{a},{b},{c}\n"));
    fs::write(at("new.csv"), format!("id,a,b,c\n{}", lines.collect::<String>().replace("NaN", ""))).unwrap();
    let done = predict(&run, &at("new.csv"), &at("expected"), &["--quiet"]);
    assert!(done.status.success(), "{}", said(&done));
    let expected = NpyMap::open(&at("expected").join("pred.npy")).unwrap();
    let expected = expected.numbers::<f32>().unwrap();
    assert!(expected[12].is_nan() && expected.iter().filter(|value| value.is_nan()).count() == 1, "{expected:?}");
    assert!((expected[0] - expected[1]).abs() > 1e-3 && (expected[1] - expected[2]).abs() < 1e-6, "{expected:?}");
    export(&run, &at("out"), &[]);
    let inputs = vec!["x".to_owned()];
    let outputs = vec!["y".to_owned()];
    let path = at("out").join("model.pt2");
    let artifact = Artifact { engine: Engine::Pt2, path, inputs, outputs };
    let mut runners: Vec<Box<dyn Runner>> =
        vec![Box::new(EngineRunner::start(&worker(), artifact, dir.path()).unwrap())];
    // And in onnxruntime, where it is.
    if let Some(places) = std::env::var_os("ENN_RUNTIMES") {
        let mut command = enn();
        command.env("ENN_RUNTIMES", &places).arg("export").arg(&run);
        let done = command.args(["--to", "onnx", "--name", "model", "--out"]).arg(at("out")).output().unwrap();
        assert!(done.status.success(), "{}", said(&done));
        let library = ort::find::library(&std::env::split_paths(&places).collect::<Vec<_>>()).unwrap();
        let runtime = ort::Runtime { library: &library, threads: 1 };
        runners.push(Box::new(ort::OrtRunner::load(&at("out").join("model.onnx"), runtime).unwrap()));
    }
    for mut runner in runners {
        let found = raw(runner.as_mut());
        for (row, (found, expected)) in found.iter().zip(expected).enumerate() {
            let same = (found.is_nan() && expected.is_nan()) || (found - expected).abs() < 1e-4;
            assert!(same, "{}, row {row} {:?}: {found}, expected {expected}", runner.version(), DOUBTFUL[row]);
        }
    }
    let beside: Sidecar = serde_json::from_slice(&fs::read(at("out").join("model.pt2.json")).unwrap()).unwrap();
    let bounds = &beside.columns[0].bounds;
    assert_eq!((bounds.low, bounds.high, bounds.missing.as_slice()), (Some(-5.0), Some(5.0), &[-3.0][..]));
    assert!(beside.columns[1].bounds.low.is_some_and(|low| low < -1e5), "{:?}", beside.columns[1]);
}
