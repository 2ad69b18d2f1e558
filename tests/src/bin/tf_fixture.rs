//! `tf_fixture write DIR [GRAPH…]` writes every sample of the exporters, and the graphs of these directories, as SavedModel and for
//! LiteRT, with inputs and what they are answered with; `tf_fixture run DIR PYTHON` runs them in TensorFlow's and LiteRT's own
//! libraries, which lie in an environment of Python.
//!
//! ```text
//! DIR/cases.json                 [{name, edge, batches: [{inputs, outputs}]}]
//!                                a port: {name, whole, shape, bits}; the bits are those of f32, or `whole` numbers as they are
//! DIR/00/saved/  DIR/00/model.tflite  DIR/00/again/  DIR/00/again.tflite
//! ```

use enn_common::graph::{
    DType, Graph, Id,
    eval::{self, Array},
    file,
};
use enn_export::{
    Batch, Model, Ports, Runner, Target, Tensor,
    litert::{self, runtime::LiteRt},
    maker::{Limits, apart::Library},
    sample::{self, Sample},
    savedmodel::{self, runtime::TensorFlow},
};
use enn_tests::fixture;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    error::Error,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

/// In one loaded model, one after the other.
const BATCHES: [usize; 5] = [1, 2, 7, 300, 3];
/// A batch of the sample that stands for a model has these in its second row.
const STRANGE: [f64; 3] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];

/// Of a number of size 1; what f32 loses in a sum of a few hundred products.
const APART_MAX: f32 = 1e-4;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    fixture::main(obeyed)
}

fn obeyed(args: &[&str]) -> Outcome<()> {
    match args {
        ["write", dir, graphs @ ..] => write(Path::new(dir), graphs),
        ["run", dir, python] => run(Path::new(dir), python.into()),
        _ => Err("usage: tf_fixture write DIR [GRAPH…] | run DIR PYTHON".into()),
    }
}

/// All that is tried, the graphs of `dirs` last.
fn all(dirs: &[&str]) -> Outcome<Vec<Sample>> {
    let mut all = sample::samples();
    all.extend(sample::edges());
    for dir in dirs {
        let graph = file::read(Path::new(dir))?;
        all.push(Sample { name: (*dir).to_owned(), graph });
    }
    Ok(all)
}

fn write(dir: &Path, graphs: &[&str]) -> Outcome<()> {
    let plain = sample::samples().len();
    let mut cases = Vec::new();
    for (number, sample) in all(graphs)?.iter().enumerate() {
        let place = dir.join(format!("{number:02}"));
        fs::create_dir_all(&place)?;
        let about = BTreeMap::from([("enn.sample".to_owned(), sample.name.clone())]);
        let model = Model { name: &sample.name, graph: &sample.graph, batch: Batch::default(), about: &about };
        for name in ["saved", "again"] {
            savedmodel::write(&model, &place.join(name))?;
        }
        let fitted = Target::Litert.fitted(&sample.graph)?;
        let model = Model { graph: &fitted, ..model };
        for name in ["model.tflite", "again.tflite"] {
            litert::write(&model, &place.join(name))?;
        }
        let batches: Vec<Value> = BATCHES.iter().map(|batch| case(sample, *batch)).collect();
        cases.push(json!({"name": sample.name, "edge": number >= plain, "batches": batches}));
    }
    Ok(fs::write(dir.join("cases.json"), serde_json::to_vec(&cases)?)?)
}

fn case(sample: &Sample, batch: usize) -> Value {
    let (mut inputs, mut outputs) = sample.case(batch);
    if sample.name == "a small model" && batch > 1 {
        let width = inputs[0].values.len() / batch;
        inputs[0].values[width..width + STRANGE.len()].copy_from_slice(&STRANGE);
        outputs = eval::run(&sample.graph, &inputs, batch);
    }
    let ports = |graph: &Graph, ids: &[Id], arrays: &[Array]| -> Vec<Value> {
        let port = |(id, array): (&Id, &Array)| {
            let whole = graph.value(*id).dtype == DType::I64;
            let bits = |value: &f64| if whole { *value as u32 } else { (*value as f32).to_bits() };
            let bits: Vec<u32> = array.values.iter().map(bits).collect();
            json!({"name": graph.value(*id).name, "whole": whole, "shape": array.shape, "bits": bits})
        };
        ids.iter().zip(arrays).map(port).collect()
    };
    let graph = &sample.graph;
    json!({"inputs": ports(graph, graph.inputs(), &inputs), "outputs": ports(graph, graph.outputs(), &outputs)})
}

fn run(dir: &Path, python: PathBuf) -> Outcome<()> {
    let places = [python];
    let tensorflow = TensorFlow::load(&savedmodel::runtime::library(&places)?)?;
    let litert = LiteRt::load(&litert::runtime::library(&places)?)?;
    let cases: Vec<Value> = serde_json::from_slice(&fs::read(dir.join("cases.json"))?)?;
    let mut worst = BTreeMap::new();
    let mut wrong = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let place = dir.join(format!("{number:02}"));
        let runners: [Box<dyn Runner>; 2] =
            [Box::new(tensorflow.open(&place.join("saved"))?), Box::new(litert.open(&place.join("model.tflite"))?)];
        for mut runner in runners {
            let most: &mut f32 = worst.entry(runner.version()).or_default();
            match tried(runner.as_mut(), case) {
                Ok(apart) => *most = most.max(apart),
                Err(error) => wrong.push(format!("{}: {error}", case["name"])),
            }
        }
    }
    if !wrong.is_empty() {
        return Err(wrong.join("\n").into());
    }
    refusals(dir, &tensorflow, &litert)?;
    apart(dir, &places, &cases)?;
    let mut out = std::io::stdout();
    for (version, apart) in worst {
        writeln!(out, "{version} called from Rust: at most {apart:.2e} apart")?;
    }
    Ok(())
}

/// The largest distance over all batches, in units of 1 + the expected number.
fn tried(runner: &mut dyn Runner, case: &Value) -> Outcome<f32> {
    let mut worst = 0.0_f32;
    for batch in case["batches"].as_array().ok_or("no batches")? {
        let inputs = tensors(&batch["inputs"])?;
        let expected = tensors(&batch["outputs"])?;
        let found = runner.run(&inputs).map_err(|error| format!("inputs of {:?}: {error}", inputs[0].shape))?;
        if found.len() != expected.len() {
            return Err(format!("{} outputs, expected {}", found.len(), expected.len()).into());
        }
        for (found, expected) in found.iter().zip(&expected) {
            if (&found.name, &found.shape) != (&expected.name, &expected.shape) {
                return Err(format!("{found:?}, expected {expected:?}").into());
            }
            for (a, b) in found.values.iter().zip(&expected.values) {
                let apart = if a == b || a.is_nan() && b.is_nan() { 0.0 } else { (a - b).abs() / (1.0 + b.abs()) };
                if apart.is_nan() || apart > APART_MAX {
                    return Err(format!("{} by {}: {a}, expected {b}", expected.name, runner.version()).into());
                }
                worst = worst.max(apart);
            }
        }
    }
    Ok(worst)
}

fn tensors(ports: &Value) -> Outcome<Vec<Tensor>> {
    let number = |port: &Value, value: &Value| {
        let bits = value.as_u64().and_then(|bits| u32::try_from(bits).ok())?;
        Some(if port["whole"] == true { bits as f32 } else { f32::from_bits(bits) })
    };
    let tensor = |port: &Value| {
        let values = port["bits"].as_array()?.iter().map(|value| number(port, value)).collect::<Option<_>>()?;
        let shape =
            port["shape"].as_array()?.iter().map(|size| Some(size.as_u64()? as usize)).collect::<Option<_>>()?;
        Some(Tensor { name: port["name"].as_str()?.to_owned(), shape, values })
    };
    ports.as_array().and_then(|ports| ports.iter().map(tensor).collect()).ok_or_else(|| "no ports".into())
}

/// The sample that stands for a model, in libraries that have a process of their own.
fn apart(dir: &Path, places: &[PathBuf], cases: &[Value]) -> Outcome<()> {
    let number = cases.iter().position(|case| case["name"] == "a small model").ok_or("no small model")?;
    let place = dir.join(format!("{number:02}"));
    let ports = Ports { inputs: vec!["x".to_owned()], outputs: vec!["y".to_owned(), "gate".to_owned()] };
    for (whose, library, artifact) in [
        (Library::TensorFlow, savedmodel::runtime::library(places)?, "saved"),
        (Library::LiteRt, litert::runtime::library(places)?, "model.tflite"),
    ] {
        let mut command = Command::new(std::env::current_exe()?.with_file_name("enn"));
        command.args(["runtime", whose.name()]).arg(library);
        let mut runner = whose.start(command, &place.join(artifact), ports.clone(), dir, Limits::MAKES)?;
        tried(&mut runner, &cases[number])?;
        let error = runner.run(&[]).err().map(|error| error.to_string());
        if !error.as_ref().is_some_and(|error| error.contains("input x was not given")) {
            return Err(format!("{}: nothing given: {error:?}", runner.version()).into());
        }
    }
    Ok(())
}

/// What is damaged, or called wrongly, is an error that says so, and nothing else happens.
fn refusals(dir: &Path, tensorflow: &TensorFlow, litert: &LiteRt) -> Outcome<()> {
    let damaged = dir.join("damaged");
    fs::create_dir_all(&damaged)?;
    let saved = damaged.join("saved_model.pb");
    let lite = damaged.join("model.tflite");
    let whole = (fs::read(dir.join("00/saved/saved_model.pb"))?, fs::read(dir.join("00/model.tflite"))?);
    for kept in [0, 1, 2] {
        fs::write(&saved, &whole.0[..whole.0.len() * kept / 3])?;
        fs::write(&lite, &whole.1[..whole.1.len() * kept / 3])?;
        for error in [tensorflow.open(&damaged).err(), litert.open(&lite).err()] {
            let error = error.ok_or_else(|| format!("{kept} thirds of a file were taken for a model"))?.to_string();
            if !error.contains("damaged") {
                return Err(format!("an error without its path: {error}").into());
            }
        }
    }
    let mut runners: Vec<Box<dyn Runner>> =
        vec![Box::new(tensorflow.open(&dir.join("00/saved"))?), Box::new(litert.open(&dir.join("00/model.tflite"))?)];
    let cases: Vec<Value> = serde_json::from_slice(&fs::read(dir.join("cases.json"))?)?;
    for runner in &mut runners {
        if let Ok(apart) = tried(runner.as_mut(), &cases[1]) {
            return Err(
                format!("{}: {} passes for {}: {apart}", runner.version(), cases[0]["name"], cases[1]["name"]).into()
            );
        }
    }
    let tensor = |name: &str, shape: &[usize], count| Tensor {
        name: name.into(),
        shape: shape.into(),
        values: vec![1.0; count],
    };
    for (inputs, said) in [
        (vec![], "input x was not given"),
        (vec![tensor("y", &[1, 3, 4], 12)], "input x was not given"),
        (vec![tensor("x", &[2, 3, 4], 12)], "12 values"),
    ] {
        for runner in &mut runners {
            let error = runner.run(&inputs).err().map(|error| error.to_string());
            if !error.as_ref().is_some_and(|error| error.contains(said)) {
                return Err(format!(
                    "{}: {inputs:?} gave {error:?}, expected an error with {said:?}",
                    runner.version()
                )
                .into());
            }
        }
    }
    Ok(())
}
