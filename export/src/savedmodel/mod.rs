//! TensorFlow SavedModel: a frozen GraphDef, weights inside, behind the signature `serving_default`.
//!
//! ```text
//! DIR/saved_model.pb            the graph; protocol buffers of tensorflow/core/protobuf/{saved_model,meta_graph}.proto
//! DIR/assets.extra/enn.json     what is said of the model
//! ```
//! **Invariant:** the directory is whole or absent, and equal models give equal bytes.

mod emit;
mod nodes;
pub mod runtime;
mod signature;

use crate::{ExportError, Model, proto::Message};
use emit::Emitter;
use enn_common::{
    fs::{Disk, FileError, Storage, atomic},
    graph::{Graph, Id},
};
use nodes::{BYTES_MAX, Name, kind, signed, sizes};
use std::{fs, path::Path};

/// In error messages.
const TARGET: &str = "tensorflow";
/// The signature that serving systems call when none is named.
pub const SIGNATURE: &str = "serving_default";
/// The set of graphs to be loaded.
pub const TAG: &str = "serve";
const GRAPH: &str = "saved_model.pb";
const EXTRA: &str = "assets.extra";

/// Writes the directory `dir`, which is replaced when it is there.
///
/// # Errors
/// What the format does not hold, or what the system says.
pub fn write(model: &Model<'_>, dir: &Path) -> Result<(), ExportError> {
    let graph = bytes(model)?;
    let about = serde_json::to_vec_pretty(model.about).expect("text becomes JSON");
    let beside = atomic::temporary(dir);
    let written = fill(&beside, &graph, &about).and_then(|()| atomic::place_dir(&beside, dir));
    if written.is_err() {
        // The first error is told; the leftover has a hidden name.
        let _ = fs::remove_dir_all(&beside);
    }
    Ok(written?)
}

fn fill(beside: &Path, graph: &[u8], about: &[u8]) -> Result<(), FileError> {
    let extra = beside.join(EXTRA);
    Disk.create_dir(&extra)?;
    atomic::write(&extra.join("enn.json"), about)?;
    atomic::write(&beside.join(GRAPH), graph)
}

/// `SavedModel`.
fn bytes(model: &Model<'_>) -> Result<Vec<u8>, ExportError> {
    let graph = model.graph;
    let weights: usize = graph.values().filter_map(|(_, value)| Some(value.data.as_ref()?.bytes.len())).sum();
    fits(model, weights)?;
    let mut emitter = Emitter::new(graph);
    for node in graph.nodes() {
        emitter.node(node)?;
    }
    // Identities: an output may be an input, or known.
    emitter.nodes.enter("");
    let outputs: Vec<Name> = graph
        .outputs()
        .iter()
        .map(|id| {
            let made = emitter.name(*id);
            let name = format!("output/{}", graph.value(*id).name);
            let attributes = [("T", nodes::Attribute::Kind(graph.value(*id).dtype))];
            emitter.nodes.named(&name, "Identity", &[&made], &attributes)
        })
        .collect();
    let inputs: Vec<Name> = graph.inputs().iter().map(|id| emitter.name(*id)).collect();
    let signature = Message::new()
        .messages(1, ports(graph, graph.inputs(), &inputs))
        .messages(2, ports(graph, graph.outputs(), &outputs))
        .text(3, "tensorflow/serving/predict");
    let meta = Message::new()
        .message(1, &Message::new().text(4, TAG))
        .message(2, &emitter.nodes.into_graph())
        .message(5, &Message::new().text(1, SIGNATURE).message(2, &signature));
    let whole = Message::new().uint(1, 1).message(2, &meta).into_bytes();
    fits(model, whole.len())?;
    Ok(whole)
}

/// Entries of a map from a port's name to `TensorInfo`.
fn ports(graph: &Graph, ids: &[Id], names: &[Name]) -> Vec<Message> {
    let entry = |(id, name): (&Id, &Name)| {
        let value = graph.value(*id);
        let info = Message::new()
            .text(1, &format!("{name}:0"))
            .uint(2, kind(value.dtype))
            .message(3, &sizes(value.shape.iter().map(|dim| signed(*dim))));
        Message::new().text(1, &value.name).message(2, &info)
    };
    ids.iter().zip(names).map(entry).collect()
}

fn fits(model: &Model<'_>, found: usize) -> Result<(), ExportError> {
    if found <= BYTES_MAX {
        return Ok(());
    }
    Err(ExportError::Unsupported {
        target: TARGET,
        op: "weights".to_owned(),
        place: model.name.to_owned(),
        why: format!("the graph has {found} bytes, and a protocol buffer holds {BYTES_MAX}"),
        hint: "export to onnx or pt2, which hold weights of any size".to_owned(),
    })
}

#[cfg(test)]
mod tests;
