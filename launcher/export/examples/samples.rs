//! `samples FORMAT DIR`: every sample of the crate as a file of a format, with inputs and what is to be answered, for the
//! conformance tests: `DIR/NN.EXT` and `DIR/samples.json`.

use enn_common::graph::eval::Array;
use enn_export::{
    Batch, ExportError, Model, pt2,
    sample::{Sample, edges, samples},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, error::Error, path::PathBuf};

/// Rows of the cases.
const BATCHES: [usize; 4] = [1, 2, 7, 300];

type Write = fn(&Model<'_>, &std::path::Path) -> Result<(), ExportError>;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, format, dir] = arguments.as_slice() else { return Err("usage: samples FORMAT DIR".into()) };
    let write: Write = match format.as_str() {
        "pt2" => pt2::write,
        other => return Err(format!("{other} is no format with samples, expected pt2").into()),
    };
    let dir = PathBuf::from(dir);
    let about = BTreeMap::from([("about.json".to_owned(), json!({ "samples": true }).to_string())]);
    let mut all = Vec::new();
    for (number, sample) in samples().into_iter().chain(edges()).enumerate() {
        let file = format!("{number:03}.{format}");
        let model = Model { name: "sample", graph: &sample.graph, batch: Batch::default(), about: &about };
        write(&model, &dir.join(&file))?;
        let cases: Vec<Value> = BATCHES.iter().map(|batch| case(&sample, *batch)).collect();
        let outputs: Vec<&String> = sample.graph.outputs().iter().map(|id| &sample.graph.value(*id).name).collect();
        let kinds: Vec<&str> = sample.graph.inputs().iter().map(|id| sample.graph.value(*id).dtype.name()).collect();
        let description =
            json!({ "name": sample.name, "file": file, "inputs": kinds, "outputs": outputs, "cases": cases });
        all.push(description);
    }
    std::fs::write(dir.join("samples.json"), Value::from(all).to_string())?;
    Ok(())
}

fn case(sample: &Sample, batch: usize) -> Value {
    let (inputs, outputs) = sample.case(batch);
    let one = |array: &Array| json!({ "shape": array.shape, "values": array.values });
    json!({
        "inputs": inputs.iter().map(one).collect::<Vec<_>>(),
        "outputs": outputs.iter().map(one).collect::<Vec<_>>(),
    })
}
