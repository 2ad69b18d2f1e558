//! TensorFlow SavedModel: a frozen GraphDef that contains the weights, with the signature `serving_default`.
//!
//! ```text
//! DIR/saved_model.pb            the graph; protocol buffers of tensorflow/core/protobuf/{saved_model,meta_graph}.proto
//! DIR/assets.extra/enn.json     metadata of the model
//! ```
//! **Invariant:** the directory is whole or absent, and equal models give equal bytes.

mod emit;
mod nodes;
pub mod runtime;
mod signature;

use crate::{
    ExportError, Model,
    model::{ANY_SIZE, signed, write_dir},
    proto::Message,
    spelling::numbers,
};
use emit::{TARGET, TensorFlowEmitter};
use enn_common::{
    fs::{Disk, Storage, atomic},
    graph::{Graph, Id},
};
use nodes::{BYTES_MAX, NodeName, sizes};
use std::path::Path;

/// Signature that serving systems call by default.
pub const SIGNATURE: &str = "serving_default";
/// Tag of the graph to load.
pub const TAG: &str = "serve";
const GRAPH: &str = "saved_model.pb";
const EXTRA: &str = "assets.extra";

/// Writes the directory `dir`, replacing an existing one.
///
/// # Errors
/// The format cannot hold the model, or any error of the system.
pub fn write(model: &Model<'_>, dir: &Path) -> Result<(), ExportError> {
    let graph = bytes(model)?;
    let about = serde_json::to_vec_pretty(model.about).expect("text becomes JSON");
    write_dir(dir, |temporary| {
        let extra = temporary.join(EXTRA);
        Disk.create_dir(&extra)?;
        atomic::write(&extra.join("enn.json"), &about)?;
        Ok(atomic::write(&temporary.join(GRAPH), &graph)?)
    })
}

fn bytes(model: &Model<'_>) -> Result<Vec<u8>, ExportError> {
    let graph = model.graph;
    let weights: usize = graph.values().filter_map(|(_, value)| Some(value.data.as_ref()?.bytes.len())).sum();
    fits(model, weights)?;
    let mut emitter = TensorFlowEmitter::new(graph);
    for node in graph.nodes() {
        emitter.node(node)?;
    }
    // Outputs are identities: an output may be an input, or known.
    emitter.nodes.enter("");
    let outputs: Vec<NodeName> = graph
        .outputs()
        .iter()
        .map(|id| {
            let made = emitter.name(*id);
            let name = format!("output/{}", graph.value(*id).name);
            let attributes = [("T", nodes::AttrValue::Kind(graph.value(*id).dtype))];
            emitter.nodes.named(&name, "Identity", &[&made], &attributes)
        })
        .collect();
    let inputs: Vec<NodeName> = graph.inputs().iter().map(|id| emitter.name(*id)).collect();
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

/// Builds the entries of a map from a port's name to `TensorInfo`.
fn ports(graph: &Graph, ids: &[Id], names: &[NodeName]) -> Vec<Message> {
    let entry = |(id, name): (&Id, &NodeName)| {
        let value = graph.value(*id);
        let info = Message::new()
            .text(1, &format!("{name}:0"))
            .uint(2, numbers(value.dtype).tensorflow)
            .message(3, &sizes(value.shape.iter().map(|dim| signed(*dim))));
        Message::new().text(1, &value.name).message(2, &info)
    };
    ids.iter().zip(names).map(entry).collect()
}

fn fits(model: &Model<'_>, found: usize) -> Result<(), ExportError> {
    if found <= BYTES_MAX {
        return Ok(());
    }
    let why = format!("the graph has {found} bytes, and a protocol buffer holds {BYTES_MAX}");
    Err(ExportError::unsupported(TARGET, "weights", model.name, &why, ANY_SIZE))
}

#[cfg(test)]
mod tests;
