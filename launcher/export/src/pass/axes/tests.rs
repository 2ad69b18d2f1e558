//! Graphs of many axes are the same with few.

use super::*;
use crate::sample::{edges, samples};
use enn_common::graph::{
    DType,
    eval::{self, Array},
};
use proptest::prelude::*;

/// Batches for which functions are compared.
const BATCHES: [usize; 3] = [1, 2, 7];

fn most_axes(graph: &Graph) -> usize {
    let reads = |node: &Node| match node.op {
        Op::Reshape { .. } => 0,
        _ => node.ins.iter().chain([&node.out]).map(|id| graph.value(*id).shape.len()).max().unwrap_or(0),
    };
    graph.nodes().iter().map(reads).max().unwrap_or(0)
}

#[test]
fn every_sample_is_the_same_with_five_axes() {
    for sample in samples().into_iter().chain(edges()).filter(|sample| !sample.name.contains("half")) {
        let made = within(&sample.graph, 5).unwrap();
        assert!(most_axes(&made) <= 5, "{}: {} axes", sample.name, most_axes(&made));
        if most_axes(&sample.graph) <= 5 && sample.graph.values().all(|(_, value)| value.shape.len() <= 5) {
            assert_eq!(made, sample.graph, "{}", sample.name);
        }
        for batch in BATCHES {
            let (inputs, outputs) = sample.case(batch);
            for (a, b) in eval::run(&made, &inputs, batch).iter().zip(&outputs) {
                assert_eq!(a.shape, b.shape, "{}", sample.name);
                let off = a.values.iter().zip(&b.values).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(off < 1e-6, "{}: {off}", sample.name);
            }
        }
    }
}

#[test]
fn a_permutation_between_reshapes_is_no_more_than_its_steps() {
    let mut g = Graph::new();
    let fixed = |sizes: &[u64]| [vec![Dim::BATCH], sizes.iter().map(|size| Dim::Fixed(*size)).collect()].concat();
    let x = g.input("x", DType::F32, fixed(&[24, 24]));
    let cut = g.node(Op::Reshape { shape: fixed(&[2, 3, 4, 2, 3, 4]) }, &[x], "m").unwrap();
    let turned = g.node(Op::Permute { axes: vec![0, 1, 4, 2, 5, 3, 6] }, &[cut], "m").unwrap();
    let y = g.node(Op::Reshape { shape: fixed(&[4, 9, 16]) }, &[turned], "m").unwrap();
    g.output(y, "y");
    let made = within(&g, 5).unwrap();
    let names: Vec<&str> = made.nodes().iter().map(|node| node.op.name()).collect();
    assert_eq!(names, ["reshape", "permute", "reshape", "permute", "reshape"]);
}

proptest! {
    #[test]
    fn any_permutation_of_any_shape_is_exact(
        (order, sizes) in (1_usize..9).prop_flat_map(|rank| {
            (Just((0..rank).collect::<Vec<_>>()).prop_shuffle(), prop::collection::vec(1_u64..4, rank))
        }),
        open in prop::option::of(0_usize..9),
        batch in 1_usize..4,
        axes_max in 5_usize..7,
    ) {
        let open = open.filter(|axis| *axis < sizes.len());
        let dim = |(axis, size): (usize, &u64)| if open == Some(axis) { Dim::Batch(*size) } else { Dim::Fixed(*size) };
        let shape: Vec<Dim> = sizes.iter().enumerate().map(dim).collect();
        let mut g = Graph::new();
        let flat = joined(&shape);
        let x = g.input("x", DType::F32, vec![flat]);
        let x = g.node(Op::Reshape { shape }, &[x], "m").unwrap();
        let y = g.node(Op::Permute { axes: order }, &[x], "m").unwrap();
        let y = g.node(Op::Reshape { shape: vec![flat] }, &[y], "m").unwrap();
        g.output(y, "y");
        let made = within(&g, axes_max).unwrap();
        prop_assert!(made.values().all(|(_, value)| value.shape.len() <= axes_max));
        let count = flat.of(batch as u64) as usize;
        let given = Array::new(&[count], (0..count).map(|i| i as f64).collect());
        let given = std::slice::from_ref(&given);
        prop_assert_eq!(eval::run(&made, given, batch), eval::run(&g, given, batch));
    }
}
