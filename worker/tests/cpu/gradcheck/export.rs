//! The lowering of every operation that can be exported, against its own launch.

use crate::gradcheck::operands::tensor;
use enn_common::graph::{
    DType, Dim, Graph, Id, Known,
    eval::{self, Array},
};
use enn_worker::op::{
    self, Op, Unary,
    lower::Lower,
    row::{Export, Launch},
    rows,
    sample::{Sample, SampleRng},
};
use std::collections::HashMap;
use tch::{Kind, Tensor};

const UNARY: [Unary; 14] = [
    Unary::Neg,
    Unary::Exp,
    Unary::Log,
    Unary::Sqrt,
    Unary::Square,
    Unary::Abs,
    Unary::Reciprocal,
    Unary::Relu,
    Unary::Silu,
    Unary::Gelu,
    Unary::GeluTanh,
    Unary::Sigmoid,
    Unary::Tanh,
    Unary::Softplus,
];

fn fixed(t: &Tensor) -> Vec<u64> {
    t.size().iter().map(|size| size.unsigned_abs()).collect()
}

fn array(t: &Tensor) -> Array {
    let shape: Vec<usize> = t.size().iter().map(|size| *size as usize).collect();
    Array::new(&shape, Vec::<f64>::try_from(t.to_kind(Kind::Double).contiguous().view([-1])).unwrap())
}

/// An operand as an input of fixed size, or, where it is no number that flows, as a known tensor.
fn operand(graph: &mut Graph, i: usize, t: &Tensor) -> Id {
    let name = format!("in{i}");
    let shape = fixed(t);
    match t.kind() {
        Kind::Int64 => graph.integers(&shape, &Vec::<i64>::try_from(t.contiguous().view([-1])).unwrap()).unwrap(),
        Kind::Bool => {
            let values: Vec<bool> = Vec::try_from(t.contiguous().view([-1])).unwrap();
            let bytes: Vec<u8> = values.into_iter().map(u8::from).collect();
            graph.known(&name, DType::Bool, &shape, Known::Constant, bytes).unwrap()
        }
        _ => graph.input(&name, DType::F32, shape.into_iter().map(Dim::Fixed).collect()),
    }
}

fn check(sample: &Sample, lowering: enn_worker::op::row::Lowering) {
    let ins: Vec<Tensor> = sample.ins.iter().map(|o| tensor(o, Kind::Float)).collect();
    let refs: Vec<&Tensor> = ins.iter().collect();
    let launched = (sample.op.row().launch)(&sample.op, &Launch { ins: &refs }).unwrap();
    let outs: Vec<Vec<Dim>> = launched.iter().map(|t| fixed(t).into_iter().map(Dim::Fixed).collect()).collect();
    let mut graph = Graph::new();
    let ids: Vec<Id> = ins.iter().enumerate().map(|(i, t)| operand(&mut graph, i, t)).collect();
    let rests = HashMap::new();
    let mut lower = Lower { graph: &mut graph, ins: &ids, rests: &rests, outs: &outs, place: "sample" };
    let made = lowering(&sample.op, &mut lower).unwrap_or_else(|error| panic!("{sample:?}: {error}"));
    assert_eq!(made.len(), sample.op.differentiable_outs(), "{sample:?}");
    for (i, id) in made.iter().enumerate() {
        graph.output(*id, &format!("out{i}"));
    }
    let given: Vec<Array> = ins.iter().filter(|t| t.kind() == Kind::Float).map(array).collect();
    let found = eval::run(&graph, &given, 1);
    for (one, expected) in found.iter().zip(&launched) {
        let expected = array(expected);
        assert_eq!(one.shape, expected.shape, "{sample:?}");
        for (a, b) in one.values.iter().zip(&expected.values) {
            assert!((a - b).abs() <= 1e-4 * (1.0 + b.abs()), "{sample:?}: {a}, launched {b}");
        }
    }
}

/// Of a number and what is none, runtimes take either for the larger, and the graph's own evaluation the number.
#[test]
fn what_is_no_number_leaves_as_it_comes_out_of_libtorch() {
    let ops = UNARY.into_iter().map(Op::Unary).chain([Op::Clamp(op::Clamp { lo: (-1.0).into(), hi: 2.0.into() })]);
    for op in ops {
        let Export::As(lowering) = op.row().export else { panic!("{op:?} has no lowering") };
        let mut graph = Graph::new();
        let x = graph.input("x", DType::F32, vec![Dim::Fixed(4)]);
        let rests = HashMap::new();
        let outs = [vec![Dim::Fixed(4)]];
        let mut lower = Lower { graph: &mut graph, ins: &[x], rests: &rests, outs: &outs, place: "sample" };
        let made = lowering(&op, &mut lower).unwrap();
        graph.output(made[0], "y");
        let given = [f64::NAN, -1.5, 0.5, 3.0];
        let found = eval::run(&graph, &[Array::new(&[4], given.to_vec())], 1).remove(0).values;
        let launched = (op.row().launch)(&op, &Launch { ins: &[&Tensor::from_slice(&given).to_kind(Kind::Float)] });
        let expected = array(&launched.unwrap()[0]).values;
        let same = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan() || (a - b).abs() < 1e-5;
        assert!(found.iter().zip(&expected).all(same), "{op:?} says {found:?}, libtorch {expected:?}");
        assert!(found[0].is_nan(), "{op:?}: {found:?}");
    }
}

#[test]
fn every_operation_leaves_as_plain_operations_that_compute_the_same() {
    let mut draw = SampleRng::new(21);
    let mut checked = 0;
    for row in rows() {
        // Drawing is left out of an exported model.
        let random = ["dropout", "drop_path"].contains(&row.name);
        if let (Export::As(lowering), false) = (row.export, random) {
            for sample in (row.samples)(&mut draw) {
                check(&sample, lowering);
                checked += 1;
            }
        }
    }
    assert!(checked > 80, "{checked} samples");
}
