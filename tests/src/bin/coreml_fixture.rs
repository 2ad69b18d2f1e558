//! Writes and checks Core ML packages for the conformance checks, so that coremltools judges the writer that is shipped.
//!
//! ```text
//! coreml_fixture write DIR        every sample as DIR/NN.mlpackage, and what it answers at several batches as DIR/NN.json
//! coreml_fixture check PACKAGE    what our own reader finds in it, as JSON
//! ```

use enn_common::graph::{Id, eval::Array};
use enn_export::{
    Batch, Model, Target, coreml,
    sample::{Sample, edges, samples},
};
use enn_tests::fixture;
use serde_json::{Value, json};
use std::{collections::BTreeMap, error::Error, fs, io::Write, path::Path, process::ExitCode};

type Outcome = Result<(), Box<dyn Error>>;

/// What is asked of each sample.
const BATCHES: [usize; 3] = [1, 2, 7];

fn main() -> ExitCode {
    fixture::main(run)
}

fn run(args: &[&str]) -> Outcome {
    match args {
        ["write", dir] => {
            // What Core ML has ports for; the sample that stands for a model is the last one.
            let patches = edges().into_iter().filter(|sample| sample.name.starts_with("patches"));
            let all: Vec<Sample> = patches.chain(samples()).collect();
            all.iter().enumerate().try_for_each(|(at, sample)| write(sample, at, Path::new(dir)))
        }
        ["check", package] => {
            let checked = coreml::check(Path::new(package))?;
            let told = json!({"operations": checked.operations, "weights": checked.weights, "about": checked.about});
            Ok(writeln!(std::io::stdout(), "{told}")?)
        }
        _ => Err("usage: coreml_fixture write DIR | check PACKAGE".into()),
    }
}

fn write(sample: &Sample, at: usize, dir: &Path) -> Outcome {
    let about = BTreeMap::from([("enn.sample".to_owned(), sample.name.clone())]);
    let graph = Target::Coreml.fitted(&sample.graph)?;
    let model = Model { name: &sample.name, graph: &graph, batch: Batch::default(), about: &about };
    coreml::write(&model, &dir.join(format!("{at:02}.mlpackage")))?;
    let named = |ids: &[Id], arrays: &[Array]| -> Value {
        let name = |id: &Id| sample.graph.value(*id).name.clone();
        ids.iter().map(name).zip(arrays.iter().map(|a| json!({"shape": a.shape, "values": a.values}))).collect()
    };
    let case = |batch| {
        let (inputs, outputs) = sample.case(batch);
        json!({"inputs": named(sample.graph.inputs(), &inputs), "outputs": named(sample.graph.outputs(), &outputs)})
    };
    let told = json!({"name": sample.name, "cases": BATCHES.map(case)});
    Ok(fs::write(dir.join(format!("{at:02}.json")), told.to_string())?)
}
