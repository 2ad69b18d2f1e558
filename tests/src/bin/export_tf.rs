//! `export_tf write DIR [GRAPH…]` writes every sample of the exporters, and the graphs of these directories, as SavedModel and for
//! LiteRT, with inputs and what they are answered with; `export_tf run DIR SITE_PACKAGES` runs them in TensorFlow's and LiteRT's own
//! libraries, which lie below a Python's site-packages.
//!
//! ```text
//! DIR/cases.json                     [{name, batches: [{inputs, outputs}]}], a port as {name, shape, bits}: f32 as their bits; or
//!                                    whole numbers as they are, and "whole": true
//! DIR/00/saved/  DIR/00/model.tflite  DIR/00/again/  DIR/00/again.tflite
//! ```

use enn_common::graph::{
    DType, Graph, Id,
    eval::{self, Array},
    file,
};
use enn_export::{
    Batch, Model, litert,
    sample::{self, Sample},
    savedmodel,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, error::Error, fs, path::Path};

/// In one loaded model, one after the other.
const BATCHES: [usize; 5] = [1, 2, 7, 300, 3];
/// A batch of the sample that stands for a model has these in its second row.
const STRANGE: [f64; 3] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["write", dir, graphs @ ..] => write(Path::new(dir), graphs),
        _ => Err("usage: export_tf write DIR [GRAPH…] | run DIR SITE_PACKAGES".into()),
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
    let mut cases = Vec::new();
    for (number, sample) in all(graphs)?.iter().enumerate() {
        let place = dir.join(format!("{number:02}"));
        fs::create_dir_all(&place)?;
        let about = BTreeMap::from([("enn.sample".to_owned(), sample.name.clone())]);
        let model = Model { name: &sample.name, graph: &sample.graph, batch: Batch::default(), about: &about };
        for name in ["saved", "again"] {
            savedmodel::write(&model, &place.join(name))?;
        }
        for name in ["model.tflite", "again.tflite"] {
            litert::write(&model, &place.join(name))?;
        }
        let batches: Vec<Value> = BATCHES.iter().map(|batch| case(sample, *batch)).collect();
        cases.push(json!({"name": sample.name, "batches": batches}));
    }
    Ok(fs::write(dir.join("cases.json"), serde_json::to_vec(&cases)?)?)
}

fn case(sample: &Sample, batch: usize) -> Value {
    let (mut inputs, mut outputs) = sample.case(batch);
    if sample.name == "a small model" && batch > 1 {
        let width = inputs[0].values.len() / batch;
        inputs[0].values[width..width + STRANGE.len()].copy_from_slice(&STRANGE);
        outputs = eval::run(&sample.graph, &inputs, batch).expect("a sample has no half precision");
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
