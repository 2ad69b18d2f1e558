//! Constant folding: nodes with known operands become known tensors, computed in f64 from operand to operand and rounded once.

use enn_common::graph::{
    DType, Data, Dim, Graph, GraphValue, Id, Known, Node,
    eval::{Array, apply, known},
};
use std::collections::HashMap;

const ELEMENTS_MAX: usize = 1 << 24;
/// Number of elements that may always be folded, and the largest growth over the operands beyond that: a value that is
/// large by repetition stays a repetition.
const ELEMENTS_FREE: usize = 1 << 14;
const GROWTH_MAX: usize = 4;

/// A graph with the results of its nodes that are known.
pub(super) struct Folded<'a> {
    pub(super) graph: &'a Graph,
    pub(super) known: HashMap<Id, GraphValue>,
}

impl<'a> Folded<'a> {
    pub(super) fn of(graph: &'a Graph) -> Self {
        let mut arrays: HashMap<Id, Array> = HashMap::new();
        let mut folded = Self { graph, known: HashMap::new() };
        for node in graph.nodes() {
            let value = graph.value(node.out);
            let given = |id: &Id| arrays.get(id).cloned().or_else(|| known(graph.value(*id)));
            // Weights that are stored in half precision stay so.
            let single = node.ins.iter().all(|id| !graph.value(*id).dtype.is_half());
            let ins = if single && is_small(value, 0) {
                node.ins.iter().map(given).collect::<Option<Vec<Array>>>()
            } else {
                None
            };
            let elements = |ins: &Vec<Array>| ins.iter().map(|array| array.values.len()).sum();
            let Some(ins) = ins.filter(|ins| is_small(value, elements(ins))) else { continue };
            let kinds: Vec<DType> = node.ins.iter().map(|id| graph.value(*id).dtype).collect();
            let array = apply(&node.op, &ins.iter().collect::<Vec<_>>(), &kinds, value, 1);
            let shape = array.shape.iter().map(|size| Dim::Fixed(*size as u64)).collect();
            let data = Data { known: Known::Constant, bytes: bytes(&array, value.dtype).into() };
            let result = GraphValue { name: value.name.clone(), dtype: value.dtype, shape, data: Some(data) };
            folded.known.insert(node.out, result);
            arrays.insert(node.out, array);
        }
        folded
    }

    pub(super) fn value(&self, id: Id) -> &GraphValue {
        self.known.get(&id).unwrap_or_else(|| self.graph.value(id))
    }

    /// Returns the nodes whose results are not known.
    pub(super) fn nodes(&self) -> impl DoubleEndedIterator<Item = &'a Node> {
        self.graph.nodes().iter().filter(|node| !self.known.contains_key(&node.out))
    }
}

/// Returns whether a result may be stored whole, given the number of elements of its operands.
fn is_small(value: &GraphValue, given: usize) -> bool {
    let Some(sizes) = value.fixed().filter(|_| !value.dtype.is_half()) else { return false };
    let size = sizes.iter().product::<u64>() as usize;
    size <= ELEMENTS_FREE || (size <= ELEMENTS_MAX && (given == 0 || size <= GROWTH_MAX * given))
}

fn bytes(array: &Array, dtype: DType) -> Vec<u8> {
    match dtype {
        DType::I64 => array.values.iter().flat_map(|v| (*v as i64).to_le_bytes()).collect(),
        DType::Bool => array.values.iter().map(|v| u8::from(*v != 0.0)).collect(),
        _ => array.values.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect(),
    }
}
