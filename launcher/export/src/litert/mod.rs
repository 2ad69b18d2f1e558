//! LiteRT (TensorFlow Lite): a `.tflite` file for phones, browsers and single-board computers.
//!
//! The signature is `serving_default`; the metadata buffer `enn.json` describes the model. Integers are written with 32 bits, which all
//! runtimes and accelerators have; half precision is computed in single, where f16 weights are stored in half. [`changed`]
//! lists the affected ports.
//!
//! **Invariant:** the file is whole or absent, and equal models give equal bytes.

pub(crate) mod builtin;
mod emit;
mod flat;
pub mod runtime;

pub(crate) use emit::AXES_MAX;
pub use flat::SIGNATURE;

use crate::{ExportError, Model, model::ANY_SIZE};
use emit::{LiteRtEmitter, TARGET};
use enn_common::{
    fs::atomic,
    graph::{DType, Graph},
};
use std::path::Path;

/// Name of the metadata buffer that describes the model.
pub const ABOUT: &str = "enn.json";
/// Limit of a flatbuffer in bytes.
const BYTES_MAX: usize = i32::MAX as usize;
/// Upper bound on the bytes of an operator and its tensor, for the structure beside the weights.
const OPERATOR_BYTES_MAX: usize = 2048;

/// Writes the file `path`, replacing an existing one.
///
/// # Errors
/// The format cannot hold the model, or any error of the system.
pub fn write(model: &Model<'_>, path: &Path) -> Result<(), ExportError> {
    Ok(atomic::write(path, &bytes(model)?)?)
}

/// Returns the inputs and outputs whose element type differs between graph and file, with both types.
pub fn changed(graph: &Graph) -> Vec<(&str, &'static str, &'static str)> {
    let ports = graph.inputs().iter().chain(graph.outputs()).map(|id| graph.value(*id));
    ports
        .filter_map(|value| {
            let written = match value.dtype {
                DType::I64 => "i32",
                DType::F16 | DType::Bf16 => "f32",
                DType::F32 | DType::Bool => return None,
            };
            Some((value.name.as_str(), value.dtype.name(), written))
        })
        .collect()
}

fn bytes(model: &Model<'_>) -> Result<Vec<u8>, ExportError> {
    let mut emitter = LiteRtEmitter::new(model.graph);
    for node in model.graph.nodes() {
        emitter.node(node)?;
    }
    emitter.outputs()?;
    let draft = emitter.draft;
    let about = serde_json::to_vec_pretty(model.about).expect("text becomes JSON");
    let weights: usize = draft.tensors.iter().filter_map(|tensor| Some(tensor.data.as_ref()?.len())).sum();
    let most = weights + about.len() + (draft.operators.len() + draft.tensors.len()) * OPERATOR_BYTES_MAX;
    if most > BYTES_MAX {
        let why = format!("the file would have up to {most} bytes, and a flatbuffer holds {BYTES_MAX}");
        return Err(ExportError::unsupported(TARGET, "weights", model.name, &why, ANY_SIZE));
    }
    Ok(flat::bytes(&draft, model.name, &[(ABOUT, &about)]))
}

#[cfg(test)]
mod tests;
