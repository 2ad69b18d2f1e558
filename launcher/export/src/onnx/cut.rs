//! Products whose results are read in slices, as queries, keys and gates are: each slice becomes a product of its own with its part of
//! the weight, so that no runtime computes them together to copy them apart (a tenth of a call's time in onnxruntime).

use enn_common::graph::{Graph, Id, Node, Op};
use std::collections::{HashMap, HashSet};

/// Returns the [`Op::Linear`]s that are written as their slices, by result. Nothing else reads their results or weights.
pub(super) fn cuts(graph: &Graph) -> HashMap<Id, &Node> {
    let mut readers: HashMap<Id, Vec<&Node>> = HashMap::new();
    for node in graph.nodes() {
        node.ins.iter().for_each(|id| readers.entry(*id).or_default().push(node));
    }
    let outputs: HashSet<&Id> = graph.outputs().iter().collect();
    let is_cut = |node: &&Node| {
        let known = |id: &Id| graph.value(*id).data.is_some();
        let axis = graph.value(node.out).shape.len() - 1;
        node.op == Op::Linear
            && node.ins[1..].iter().all(known)
            && !outputs.contains(&node.out)
            && readers.get(&node.out).is_some_and(|readers| are_disjoint(readers, axis))
    };
    let mut found: HashMap<Id, &Node> = graph.nodes().iter().filter(is_cut).map(|node| (node.out, node)).collect();
    // A weight that another reader needs whole would be stored twice.
    let shared = |node: &Node| {
        let whole = |reader: &&Node| !found.contains_key(&reader.out);
        outputs.contains(&node.ins[1]) || readers[&node.ins[1]].iter().any(whole)
    };
    let whole: Vec<Id> = found.values().filter(|node| shared(node)).map(|node| node.out).collect();
    whole.iter().for_each(|id| {
        found.remove(id);
    });
    found
}

/// Returns whether all readers take disjoint slices of an axis.
fn are_disjoint(readers: &[&Node], of: usize) -> bool {
    let range = |node: &&Node| match node.op {
        Op::Slice { axis, start, len } if axis == of => Some((start, start + len)),
        _ => None,
    };
    let Some(mut ranges) = readers.iter().map(range).collect::<Option<Vec<(u64, u64)>>>() else { return false };
    ranges.sort_unstable();
    ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0)
}
