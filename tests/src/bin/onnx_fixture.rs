//! Writes and runs ONNX files for the conformance checks, so that other runtimes judge the writer that is shipped.
//!
//! ```text
//! onnx_fixture write DIR               every sample as DIR/NN.onnx, and what it answers at several batches as DIR/NN.json
//! onnx_fixture f16 DIR, bf16 DIR       every sample in half precision inside, with the same answers
//! onnx_fixture split DIR [WIDTH]       so a few layers whose tensors lie outside the model's file
//! onnx_fixture time DIR                seconds to write seven million parameters to DIR, as JSON
//! onnx_fixture run PLACE FILE          what onnxruntime, found in PLACE, answers to the cases beside FILE, as JSON
//! onnx_fixture ort PLACE FILE OUT      an .ort file of an .onnx file
//! ```

use enn_common::graph::{
    Binary, DType, Dim, Fold, Graph, Id, Known, Op, Unary,
    eval::{self, Array},
};
use enn_export::{
    Batch, Model, Runner, Tensor, onnx,
    ort::{self, OrtRunner, Runtime, find},
    sample::{Sample, halved, samples},
};
use enn_tests::fixture;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    error::Error,
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

type Outcome = Result<(), Box<dyn Error>>;
/// Inputs and outputs.
type Case = (Vec<Array>, Vec<Array>);

/// What is asked of each sample.
const BATCHES: [usize; 3] = [1, 2, 7];

fn main() -> ExitCode {
    fixture::main(run)
}

fn run(args: &[&str]) -> Outcome {
    match args {
        ["write", dir] => {
            let one = |(at, sample)| write(&numbered(dir, at), &sample, onnx::FILE_BYTES_MAX);
            samples().into_iter().chain(extras()?).enumerate().try_for_each(one)
        }
        ["f16", dir] => write_halved(dir, DType::F16),
        ["bf16", dir] => write_halved(dir, DType::Bf16),
        ["split", dir] => run(&["split", dir, "40"]),
        ["split", dir, width] => write(&Path::new(dir).join("layers.onnx"), &layers(width.parse()?, 3)?, 4096),
        ["time", dir] => time(Path::new(dir)),
        ["run", place, file] => answer(&find::library(&[place.into()])?, Path::new(file)),
        ["ort", place, file, out] => {
            ort::convert(Path::new(file), Path::new(out), &find::library(&[place.into()])?)?;
            Ok(())
        }
        _ => Err("usage: onnx_fixture write|f16|bf16 DIR | split DIR [WIDTH] | time DIR | run PLACE FILE | ort PLACE FILE OUT"
            .into()),
    }
}

fn numbered(dir: &str, at: usize) -> PathBuf {
    Path::new(dir).join(format!("{at:02}.onnx"))
}

fn write_halved(dir: &str, to: DType) -> Outcome {
    for (at, sample) in samples().iter().enumerate() {
        let path = numbered(dir, at);
        let graph = halved(&sample.graph, to)?;
        let about = about(sample);
        onnx::write(&Model { name: &sample.name, graph: &graph, batch: Batch::default(), about: &about }, &path)?;
        tell(&path, sample, BATCHES.map(|batch| sample.case(batch)))?;
    }
    Ok(())
}

fn about(sample: &Sample) -> BTreeMap<String, String> {
    BTreeMap::from([("enn.sample".to_owned(), sample.name.clone())])
}

fn write(path: &Path, sample: &Sample, file_bytes_max: u64) -> Outcome {
    let about = about(sample);
    let model = Model { name: &sample.name, graph: &sample.graph, batch: Batch::default(), about: &about };
    onnx::write_within(&model, path, file_bytes_max)?;
    tell(path, sample, BATCHES.into_iter().map(|batch| sample.case(batch)).chain(strange(sample)))
}

/// Writes what a sample answers beside its model.
fn tell(path: &Path, sample: &Sample, cases: impl IntoIterator<Item = Case>) -> Outcome {
    let cases: Vec<Value> = cases.into_iter().map(|case| told(&sample.graph, &case)).collect();
    Ok(fs::write(path.with_extension("json"), json!({"name": sample.name, "cases": cases}).to_string())?)
}

/// What ONNX needs ways of its own for.
fn extras() -> Result<[Sample; 4], Box<dyn Error>> {
    let number = |i: u64| ((i as f64 * 0.754_877_666_246_693).fract() - 0.5) as f32;
    let matrix = |graph: &mut Graph, rows: u64, columns: u64| {
        let bytes: Vec<u8> = (0..rows * columns).flat_map(|i| number(i).to_le_bytes()).collect();
        graph.known("m.weight", DType::F32, &[rows, columns], Known::Parameter, bytes)
    };
    let multiple = |input: Vec<Dim>| {
        let mut graph = Graph::new();
        let x = graph.input("x", DType::F32, input);
        let flat = graph.node(Op::Reshape { shape: vec![Dim::Batch(6), Dim::Fixed(2)] }, &[x], "m")?;
        let one = graph.number(1.5);
        let ones = graph.node(Op::Expand { shape: vec![Dim::Batch(6), Dim::ONE] }, &[one], "m")?;
        let both = graph.node(Op::Concat { axis: 1 }, &[flat, ones], "m")?;
        graph.output(both, "y");
        Ok::<_, Box<dyn Error>>(graph)
    };
    let mut tied = Graph::new();
    let x = tied.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(3), Dim::Fixed(4)]);
    let weight = matrix(&mut tied, 5, 4)?;
    let y = tied.node(Op::Linear, &[x, weight], "m")?;
    let last = tied.integers(&[], &[4])?;
    let row = tied.node(Op::Gather { axis: 0 }, &[weight, last], "m")?;
    let y = tied.node(Op::Reduce { fold: Fold::Sum, axes: vec![1], keep: false }, &[y], "m")?;
    for (id, name) in [(y, "y"), (row, "row"), (x, "x")] {
        tied.output(id, name);
    }
    let mut line = Graph::new();
    let x = line.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(4)]);
    let weight = matrix(&mut line, 5, 4)?;
    let bias = line.floats(&[5], &[1.0, 2.0, 3.0, 4.0, 5.0])?;
    let four = line.floats(&[4], &[0.5, -1.0, 2.0, 0.25])?;
    let vector = line.node(Op::Linear, &[four, weight, bias], "m")?;
    let y = line.node(Op::Linear, &[x, weight, vector], "m")?;
    let y = line.node(Op::Reduce { fold: Fold::Max, axes: vec![], keep: false }, &[y], "m")?;
    line.output(y, "y");
    Ok([
        Sample {
            name: "expand over a multiple of the batch".into(),
            graph: multiple(vec![Dim::BATCH, Dim::Fixed(12)])?,
        },
        Sample {
            name: "an input of a multiple of the batch".into(),
            graph: multiple(vec![Dim::Fixed(4), Dim::Batch(3)])?,
        },
        Sample { name: "a matrix as it is and transposed, and an input that is answered".into(), graph: tied },
        Sample { name: "linear of a vector, and a fold of no axes".into(), graph: line },
    ])
}

/// Layers of three axes, whose weights are stored transposed, and one of two.
fn layers(width: u64, count: usize) -> Result<Sample, Box<dyn Error>> {
    let mut graph = Graph::new();
    let mut x = graph.input("x", DType::F32, vec![Dim::BATCH, Dim::ONE, Dim::Fixed(width)]);
    let weight = |graph: &mut Graph, name: String| {
        let unit = |i: u64| (i as f64 * 0.754_877_666_246_693).fract() - 0.5;
        let bytes: Vec<u8> = (0..width * width).flat_map(|i| (unit(i) as f32).to_le_bytes()).collect();
        graph.known(&name, DType::F32, &[width, width], Known::Parameter, bytes)
    };
    for layer in 0..count {
        let weight = weight(&mut graph, format!("layers.{layer}.weight"))?;
        x = graph.node(Op::Linear, &[x, weight], &format!("layers.{layer}"))?;
        x = graph.node(Op::Unary(Unary::Tanh), &[x], &format!("layers.{layer}"))?;
    }
    x = graph.node(Op::Reshape { shape: vec![Dim::BATCH, Dim::Fixed(width)] }, &[x], "head")?;
    let weight = weight(&mut graph, "head.weight".to_owned())?;
    x = graph.node(Op::Linear, &[x, weight], "head")?;
    graph.output(x, "y");
    Ok(Sample { name: "layers".to_owned(), graph })
}

fn time(dir: &Path) -> Outcome {
    let sample = layers(1024, 6)?;
    let about = BTreeMap::new();
    let model = Model { name: "layers", graph: &sample.graph, batch: Batch::default(), about: &about };
    let begun = Instant::now();
    onnx::write(&model, &dir.join("layers.onnx"))?;
    writeln!(std::io::stdout(), "{}", json!({"seconds": begun.elapsed().as_secs_f64()}))?;
    Ok(())
}

/// Rows with NaN and both infinities among rows without. None where nothing is promised of them.
fn strange(sample: &Sample) -> Option<Case> {
    let open = |op: &Op| {
        let integers = matches!(op, Op::Cast { to: DType::I64 });
        integers || matches!(op, Op::Binary(Binary::Max | Binary::Min) | Op::Reduce { fold: Fold::Max, .. })
    };
    if sample.graph.nodes().iter().any(|node| open(&node.op)) {
        return None;
    }
    let batch = 5;
    let (mut inputs, _) = sample.case(batch);
    for input in &mut inputs {
        let row = input.values.len() / batch;
        for (at, value) in [(1, f64::NAN), (2, f64::INFINITY), (4, f64::NEG_INFINITY)] {
            input.values[at * row] = value;
        }
    }
    let outputs = eval::run(&sample.graph, &inputs, batch);
    Some((inputs, outputs))
}

fn answer(library: &Path, file: &Path) -> Outcome {
    let mut runner = OrtRunner::load(file, Runtime { library, threads: 1 })?;
    let told: Value = serde_json::from_slice(&fs::read(file.with_extension("json"))?)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut cases = Vec::new();
    for case in list(&told["cases"]) {
        let inputs: Option<Vec<Tensor>> = list(&case["inputs"]).iter().map(tensor).collect();
        let outputs = runner.run(&inputs.ok_or("an input that is none")?)?;
        cases.push(
            outputs.iter().map(|out| port(&out.name, &out.shape, out.values.iter().map(|v| f64::from(*v)))).collect(),
        );
    }
    let cases: Vec<Value> = cases;
    writeln!(std::io::stdout(), "{}", json!({"version": runner.version(), "cases": cases}))?;
    Ok(())
}

fn tensor(told: &Value) -> Option<Tensor> {
    let number = |v: &Value| v.as_f64().or_else(|| v.as_str()?.parse().ok()).map(|v| v as f32);
    Some(Tensor {
        name: told["name"].as_str()?.to_owned(),
        shape: told["shape"].as_array()?.iter().map(|size| Some(size.as_u64()? as usize)).collect::<Option<_>>()?,
        values: told["values"].as_array()?.iter().map(number).collect::<Option<_>>()?,
    })
}

fn told(graph: &Graph, (inputs, outputs): &Case) -> Value {
    let ports = |ids: &[Id], arrays: &[Array]| -> Value {
        let named = ids.iter().map(|id| &graph.value(*id).name).zip(arrays);
        named.map(|(name, array)| port(name, &array.shape, array.values.iter().copied())).collect()
    };
    json!({"inputs": ports(graph.inputs(), inputs), "outputs": ports(graph.outputs(), outputs)})
}

fn port(name: &str, shape: &[usize], values: impl Iterator<Item = f64>) -> Value {
    // JSON has no such numbers; Python and Rust read their names.
    let values = values.map(|v| if v.is_finite() { json!(v) } else { json!(v.to_string()) });
    json!({"name": name, "shape": shape, "values": values.collect::<Vec<_>>()})
}
