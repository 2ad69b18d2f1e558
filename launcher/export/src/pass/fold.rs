//! Constant folding: nodes with known operands become known tensors, computed in f64 from operand to operand and rounded once.

use enn_common::graph::{
    DType, Graph, GraphValue, Id, Known,
    eval::{Array, apply, known},
    infer::GraphError,
};
use std::collections::HashMap;

/// Limit on the elements of a folded tensor.
const ELEMENTS_MAX: usize = 1 << 24;
/// Number of elements that may always be folded, and the largest growth over the operands beyond that: a value that is
/// large by repetition stays a repetition.
const ELEMENTS_FREE: usize = 1 << 14;
const GROWTH_MAX: usize = 4;

/// Returns the graph with its known values computed.
pub(super) fn folded(graph: &Graph) -> Result<Graph, GraphError> {
    let mut arrays: HashMap<Id, Array> = HashMap::new();
    let mut out = Graph::new();
    let mut places: HashMap<Id, Id> = HashMap::new();
    for id in graph.inputs() {
        let value = graph.value(*id);
        places.insert(*id, out.input(&value.name, value.dtype, value.shape.clone()));
    }
    for (id, value) in graph.values() {
        if let Some(data) = &value.data {
            let shape: Vec<u64> = value.shape.iter().map(|dim| dim.of(1)).collect();
            places.insert(id, out.known(&value.name, value.dtype, &shape, data.known, data.bytes.clone())?);
        }
    }
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
        let made = match ins.filter(|ins| is_small(value, elements(ins))) {
            Some(ins) => {
                let kinds: Vec<DType> = node.ins.iter().map(|id| graph.value(*id).dtype).collect();
                let array = apply(&node.op, &ins.iter().collect::<Vec<_>>(), &kinds, value, 1);
                let shape: Vec<u64> = array.shape.iter().map(|size| *size as u64).collect();
                let bytes = bytes(&array, value.dtype);
                arrays.insert(node.out, array);
                out.known(&value.name, value.dtype, &shape, Known::Constant, bytes)?
            }
            None => {
                out.node(node.op.clone(), &node.ins.iter().map(|id| places[id]).collect::<Vec<_>>(), &node.place)?
            }
        };
        places.insert(node.out, made);
    }
    for id in graph.outputs() {
        out.output(places[id], &graph.value(*id).name);
    }
    Ok(out)
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
