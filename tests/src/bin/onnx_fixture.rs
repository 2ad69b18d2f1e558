//! Writes and runs ONNX files for the conformance checks, so that other runtimes judge the writer that is shipped.
//!
//! ```text
//! onnx_fixture write DIR               every sample as DIR/NN.onnx, and what it answers at several batches as DIR/NN.json
//! onnx_fixture split DIR               the same, tensors outside the model's file
//! ```

use enn_common::graph::{
    Binary, DType, Fold, Op,
    eval::{self, Array},
};
use enn_export::{
    Batch, Model, onnx,
    sample::{Sample, samples},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, error::Error, fs, io::Write, path::Path, process::ExitCode};

type Outcome = Result<(), Box<dyn Error>>;

/// What is asked of each sample.
const BATCHES: [usize; 3] = [1, 2, 7];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _gone = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["write", dir] => write(Path::new(dir), onnx::FILE_BYTES_MAX),
        ["split", dir] => write(Path::new(dir), 0),
        _ => Err("usage: onnx_fixture write DIR | split DIR".into()),
    }
}

fn write(dir: &Path, file_bytes_max: u64) -> Outcome {
    for (at, sample) in samples().iter().enumerate() {
        let about = BTreeMap::from([("enn.sample".to_owned(), sample.name.clone())]);
        let model = Model { name: &sample.name, graph: &sample.graph, batch: Batch::default(), about: &about };
        onnx::write_within(&model, &dir.join(format!("{at:02}.onnx")), file_bytes_max)?;
        let mut cases: Vec<Value> = BATCHES.map(|batch| told(&sample.case(batch))).to_vec();
        cases.extend(strange(sample).as_ref().map(told));
        fs::write(dir.join(format!("{at:02}.json")), json!({"name": sample.name, "cases": cases}).to_string())?;
    }
    Ok(())
}

/// Rows with NaN and both infinities among rows without. None where nothing is promised of them.
fn strange(sample: &Sample) -> Option<(Vec<Array>, Vec<Array>)> {
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
    let outputs = eval::run(&sample.graph, &inputs, batch)?;
    Some((inputs, outputs))
}

fn told((inputs, outputs): &(Vec<Array>, Vec<Array>)) -> Value {
    let array = |array: &Array| {
        // JSON has no such numbers; Python reads their names.
        let number = |v: &f64| if v.is_finite() { json!(v) } else { json!(v.to_string()) };
        json!({"shape": array.shape, "values": array.values.iter().map(number).collect::<Vec<_>>()})
    };
    json!({"inputs": inputs.iter().map(array).collect::<Vec<_>>(), "outputs": outputs.iter().map(array).collect::<Vec<_>>()})
}
