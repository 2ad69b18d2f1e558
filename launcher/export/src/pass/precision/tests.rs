//! What becomes half, and what does not.

use super::*;
use crate::{precision::Precision, sample::samples};
use enn_common::graph::{Binary, Dim, eval};

fn halves(graph: &Graph) -> Vec<&'static str> {
    graph.nodes().iter().filter(|node| graph.value(node.out).dtype.is_half()).map(|node| node.op.name()).collect()
}

/// Tokens of the input, a norm, attention, a residual, a norm, an answer.
fn attention() -> Graph {
    let mut g = Graph::new();
    let batched = |sizes: &[u64]| [vec![Dim::BATCH], sizes.iter().map(|size| Dim::Fixed(*size)).collect()].concat();
    let weight = |g: &mut Graph, name: &str, shape: &[u64]| {
        let count = shape.iter().product::<u64>();
        let bytes = (0..count).flat_map(|i| ((i as f32 * 0.754_877_7).fract() - 0.5).to_le_bytes());
        g.known(name, DType::F32, shape, Known::Parameter, bytes.collect::<Vec<u8>>()).unwrap()
    };
    let norm = |g: &mut Graph, x, name: &str| {
        let w = weight(g, &format!("{name}.weight"), &[8]);
        let b = weight(g, &format!("{name}.bias"), &[8]);
        g.node(Op::LayerNorm { eps: 1e-5 }, &[x, w, b], name).unwrap()
    };
    let x = g.input("x", DType::F32, batched(&[6]));
    let w = weight(&mut g, "tokens.weight", &[24, 6]);
    let tokens = g.node(Op::Linear, &[x, w], "tokens").unwrap();
    let tokens = g.node(Op::Reshape { shape: batched(&[3, 8]) }, &[tokens], "tokens").unwrap();
    let normed = norm(&mut g, tokens, "norm");
    let [q, k, v] = ["q", "k", "v"].map(|name| {
        let w = weight(&mut g, &format!("{name}.weight"), &[8, 8]);
        g.node(Op::Linear, &[normed, w], "attention").unwrap()
    });
    let k = g.node(Op::Permute { axes: vec![0, 2, 1] }, &[k], "attention").unwrap();
    let scores = g.node(Op::MatMul, &[q, k], "attention").unwrap();
    let shares = g.node(Op::Softmax, &[scores], "attention").unwrap();
    let seen = g.node(Op::MatMul, &[shares, v], "attention").unwrap();
    let sum = g.node(Op::Binary(Binary::Add), &[tokens, seen], "residual").unwrap();
    let normed = norm(&mut g, sum, "last");
    let w = weight(&mut g, "head.weight", &[2, 8]);
    let said = g.node(Op::Linear, &[normed, w], "head").unwrap();
    let spread = g.number(3.0);
    let said = g.node(Op::Binary(Binary::Mul), &[said, spread], "denorm").unwrap();
    g.output(said, "y");
    g
}

#[test]
fn products_between_the_first_norm_and_the_answer_are_in_half() {
    let graph = attention();
    let made = reduced(&graph, Reduction::Computed(Precision::Fp16)).unwrap();
    let half = |place: &str| {
        let at = made.nodes().iter().filter(|node| node.place == place && !matches!(node.op, Op::Cast { .. }));
        at.map(|node| made.value(node.out).dtype.is_half()).collect::<Vec<_>>()
    };
    // Before the norm everything is as large as the input is; behind the head answers have their own units.
    assert_eq!(half("tokens"), [false, false]);
    assert_eq!(half("attention"), [true, true, true, true, true, false, true], "all but the softmax");
    assert_eq!([half("norm"), half("residual"), half("head"), half("denorm")], [[false], [false], [true], [false]]);
    let port = |id: &Id| made.value(*id).dtype;
    assert!(made.inputs().iter().chain(made.outputs()).map(port).all(|dtype| dtype == DType::F32));
    let weight = |name: &str| made.values().find(|(_, value)| value.name == name).unwrap().1.dtype;
    assert_eq!(["tokens.weight", "q.weight", "norm.weight"].map(weight), [DType::F16, DType::F16, DType::F32]);
    // A column that is a billion spreads away is no infinity.
    let values = (0..12).map(|i| if i == 3 { 1e9 } else { f64::from(i) / 7.0 }).collect();
    let given = [eval::Array::new(&[2, 6], values)];
    let ours = eval::run(&made, &given, 2);
    let theirs = eval::run(&graph, &given, 2);
    let off = ours[0].values.iter().zip(&theirs[0].values).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(off > 0.0 && off < 1e-2, "{off}");
}

#[test]
fn weights_that_are_only_stored_in_half_are_computed_with_in_single() {
    let sample = samples().into_iter().find(|sample| sample.name == "a small model").unwrap();
    let made = reduced(&sample.graph, Reduction::Stored(Precision::Fp16)).unwrap();
    assert!(halves(&made).is_empty());
    let half: Vec<&str> =
        made.values().filter(|(_, value)| value.dtype == DType::F16).map(|(_, value)| value.name.as_str()).collect();
    assert!(half.contains(&"head.in.weight") && !half.contains(&"head.bias"), "{half:?}");
}

#[test]
fn a_table_that_nobody_trained_is_stored_in_half_where_nothing_is_lost() {
    let made = |off: f32, precision| {
        let mut g = Graph::new();
        let x = g.input("x", DType::I64, vec![Dim::BATCH]);
        let ones = |at: usize| if at.is_multiple_of(6) { 1.0 } else { off };
        let eye = (0..30).flat_map(|at| f32::to_le_bytes(ones(at))).collect::<Vec<u8>>();
        let eye = g.known("eye", DType::F32, &[6, 5], Known::Constant, eye).unwrap();
        let y = g.node(Op::Gather { axis: 0 }, &[eye, x], "one_hot").unwrap();
        g.output(y, "y");
        let made = reduced(&g, Reduction::Computed(precision)).unwrap();
        let known = made.values().find(|(_, value)| value.data.is_some()).unwrap().1.dtype;
        let given = [eval::Array::new(&[3], vec![4.0, 0.0, 1.0])];
        assert_eq!(eval::run(&made, &given, 3)[0].values, eval::run(&g, &given, 3)[0].values, "{off} in {precision}");
        known
    };
    for (off, half, brain) in [
        (0.0, DType::F16, DType::Bf16),
        (-0.5, DType::F16, DType::Bf16),
        (257.0, DType::F16, DType::F32),
        (1e6, DType::F32, DType::F32),
        (0.1, DType::F32, DType::F32),
    ] {
        assert_eq!((made(off, Precision::Fp16), made(off, Precision::Bf16)), (half, brain), "{off}");
    }
    assert_eq!(made(f32::NEG_INFINITY, Precision::Fp16), DType::F16);
}

#[test]
fn every_sample_bears_both_precisions() {
    for sample in samples() {
        for precision in [Precision::Fp16, Precision::Bf16] {
            let made = reduced(&sample.graph, Reduction::Computed(precision)).unwrap();
            let (inputs, outputs) = sample.case(3);
            for (a, b) in eval::run(&made, &inputs, 3).iter().zip(&outputs) {
                assert_eq!(a.shape, b.shape);
                let off =
                    a.values.iter().zip(&b.values).map(|(a, b)| (a - b).abs() / (1.0 + b.abs())).fold(0.0, f64::max);
                assert!(off < 2e-2, "{} in {precision}: {off}", sample.name);
            }
        }
    }
}

#[test]
fn a_weight_beyond_the_range_is_refused_with_its_name() {
    let model = |by: f32| {
        let mut g = Graph::new();
        let x = g.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(4)]);
        let bytes: Vec<u8> = (0..16).flat_map(|i| (by * i as f32).to_le_bytes()).collect();
        let w = g.known("head.weight", DType::F32, &[4, 4], Known::Parameter, bytes).unwrap();
        let y = g.node(Op::Linear, &[x, w], "head").unwrap();
        g.output(y, "y");
        reduced(&g, Reduction::Computed(Precision::Fp16)).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(model(1.0), Ok(()));
    assert!(model(1e4).unwrap_err().starts_with("head.weight in fp16: it holds 1.500e5, the largest number is 65504"));
    assert!(model(1e-6).unwrap_err().contains("no number above 1.500e-5"));
}
