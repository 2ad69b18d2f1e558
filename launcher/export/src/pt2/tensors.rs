//! The tensors of an archive: tables of names, and the storages.

use super::{names::attributes, size::Sizes};
use enn_common::{
    checkpoint::{self, Element},
    graph::{DType, Graph, GraphValue as Tensor, Known},
};
use serde_json::{Map, Value, json};
use std::{collections::HashMap, sync::Arc};

pub(super) fn is_parameter(value: &Tensor) -> bool {
    value.data.as_ref().is_some_and(|data| data.known == Known::Parameter)
}

/// One folder of tensors.
pub(super) struct TensorTable<'a> {
    /// Tensors with the names of their storages.
    tensors: Vec<(&'a Tensor, String)>,
    /// Every storage once, by name.
    pub(super) storages: Vec<(String, &'a [u8])>,
}

impl<'a> TensorTable<'a> {
    /// Collects tensors; those that share their memory share a storage.
    fn of(graph: &'a Graph, prefix: &str, belongs: impl Fn(Known) -> bool) -> Self {
        let mut table = Self { tensors: Vec::new(), storages: Vec::new() };
        let mut places = HashMap::new();
        for (_, value) in graph.values() {
            let Some(data) = value.data.as_ref().filter(|data| belongs(data.known)) else { continue };
            let next = table.storages.len();
            let place = *places.entry((Arc::as_ptr(&data.bytes), value.dtype)).or_insert(next);
            let name = format!("{prefix}_{place}");
            if place == next {
                table.storages.push((name.clone(), &data.bytes));
            }
            table.tensors.push((value, name));
        }
        table
    }

    /// Returns the table as JSON.
    pub(super) fn config(&self, sizes: &Sizes) -> Value {
        let row = |(value, storage): &(&Tensor, String)| {
            let is_param = is_parameter(value);
            let meta = sizes.meta(value, is_param);
            let entry = json!({ "path_name": storage, "is_param": is_param, "use_pickle": false, "tensor_meta": meta });
            (attributes(&value.name), entry)
        };
        json!({ "config": self.tensors.iter().map(row).collect::<Map<_, _>>() })
    }
}

/// Returns the table of parameters and buffers.
pub(super) fn weights(graph: &Graph) -> TensorTable<'_> {
    TensorTable::of(graph, "weight", |known| known != Known::Constant)
}

pub(super) fn constants(graph: &Graph) -> TensorTable<'_> {
    TensorTable::of(graph, "tensor", |known| known == Known::Constant)
}

/// Returns sample inputs of zeros.
pub(super) fn zeros(graph: &Graph, sizes: &Sizes) -> Vec<(Element, Vec<u64>, Vec<u8>)> {
    let zero = |value: &Tensor| {
        let shape: Vec<u64> = value.shape.iter().map(|dim| dim.of(sizes.hint)).collect();
        let bytes = vec![0; shape.iter().product::<u64>() as usize * value.dtype.bytes()];
        (element(value.dtype), shape, bytes)
    };
    graph.inputs().iter().map(|id| zero(graph.value(*id))).collect()
}

fn element(dtype: DType) -> Element {
    match dtype {
        DType::F32 => checkpoint::TensorDType::F32,
        DType::F16 => checkpoint::TensorDType::F16,
        DType::Bf16 => checkpoint::TensorDType::Bf16,
        DType::I64 => checkpoint::TensorDType::I64,
        DType::Bool => checkpoint::TensorDType::Bool,
    }
    .into()
}
