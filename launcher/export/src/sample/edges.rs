//! Small graphs at the limits of formats: many axes, ports that are copies, integers, half precision, the batch
//! in unusual positions.

use super::{BINARY, Built, NodeResult, Sample, Samples, above, batched, float, one, parameter, weights};
use enn_common::graph::{Binary, Compare, DType, Dim, Fold, Graph, Id, Known, Op, Unary};

/// Returns all edge cases.
///
/// # Panics
/// A graph contradicts itself, which a test of this file would notice.
pub fn edges() -> Vec<Sample> {
    let mut all = Samples(Vec::new());
    for axes in [4, 5, 6, 7] {
        many_axes(axes, &mut all);
    }
    all.add("patches of 7 axes", patches());
    all.add("an input and a known number go out", copies());
    all.add("rows of a table by ids", ids());
    all.add("half precision", halves());
    all.add("twice the batch in front", doubled());
    all.add("the batch behind", behind());
    all.0
}

/// Adds a model's operations on values with this many axes.
fn many_axes(axes: usize, all: &mut Samples) {
    let sizes: Vec<u64> = [2, 3, 2, 1, 2, 2][..axes - 2].iter().copied().chain([3]).collect();
    // Every other axis of the operand is 1: nothing can be joined to fewer axes.
    let sparse: Vec<u64> = sizes.iter().enumerate().map(|(i, size)| if i % 2 == 0 { 1 } else { *size }).collect();
    let count: u64 = sparse.iter().product();
    let mut with = |what: &str, op: &dyn Fn(&mut Graph, Id) -> NodeResult| {
        all.one(format!("{what} of {axes} axes"), &sizes, op);
    };
    for f in BINARY {
        with(Op::Binary(f).name(), &|g, x| {
            let by = g.floats(&sparse, &weights(count).iter().map(|v| v + 1.5).collect::<Vec<_>>())?;
            g.node(Op::Binary(f), &[x, by], "m")
        });
    }
    with("compare and choose", &|g, x| {
        let by = g.floats(&sparse, &weights(count))?;
        let less = g.node(Op::Compare(Compare::Less), &[by, x], "m")?;
        let large = above(g, x, 1.0)?;
        let mask = g.known("mask", DType::Bool, &sparse, Known::Constant, vec![1; count as usize])?;
        let large = g.node(Op::And, &[mask, large], "m")?;
        let not = g.node(Op::Not, &[large], "m")?;
        let both = g.node(Op::And, &[less, not], "m")?;
        let n = g.number(3.0);
        let a = g.node(Op::Where, &[both, by, x], "m")?;
        g.node(Op::Where, &[large, n, a], "m")
    });
    with("move", &|g, x| {
        let order: Vec<usize> = [0].into_iter().chain((1..axes).rev()).collect();
        let x = g.node(Op::Permute { axes: order }, &[x], "m")?;
        let x = g.node(Op::Slice { axis: 1, start: 1, len: 2 }, &[x], "m")?;
        let x = g.node(Op::Concat { axis: 1 }, &[x, x], "m")?;
        let at = g.integers(&[2], &[3, 0])?;
        g.node(Op::Gather { axis: 1 }, &[x, at], "m")
    });
    with("stretch", &|g, x| {
        let by = g.floats(&sparse, &weights(count))?;
        let wide = g.node(Op::Expand { shape: batched(&sizes) }, &[by], "m")?;
        g.node(Op::Concat { axis: axes - 1 }, &[x, wide], "m")
    });
    with("fold", &|g, x| {
        let sum = g.node(Op::Reduce { fold: Fold::Sum, axes: vec![2], keep: true }, &[x], "m")?;
        let most = g.node(Op::Reduce { fold: Fold::Max, axes: vec![1, axes - 1], keep: false }, &[sum], "m")?;
        g.node(Op::Reduce { fold: Fold::Mean, axes: vec![1], keep: false }, &[most], "m")
    });
    with("normalise", &|g, x| {
        let w = parameter(g, "m.weight", &[3])?;
        let b = parameter(g, "m.bias", &[3])?;
        let x = g.node(Op::LayerNorm { eps: 1e-5 }, &[x, w, b], "m")?;
        let x = g.node(Op::Softmax, &[x], "m")?;
        g.node(Op::Unary(Unary::Gelu), &[x], "m")
    });
    with("multiply", &|g, x| {
        let mut order: Vec<usize> = (0..axes).collect();
        order.swap(axes - 1, axes - 2);
        let t = g.node(Op::Permute { axes: order }, &[x], "m")?;
        let square = g.node(Op::MatMul, &[t, x], "m")?;
        let some = g.node(Op::Slice { axis: 1, start: 1, len: 1 }, &[square], "m")?;
        let square = g.node(Op::MatMul, &[some, square], "m")?;
        let by = g.floats(&[3, 3], &weights(9))?;
        let made = g.node(Op::MatMul, &[square, by], "m")?;
        let w = parameter(g, "m.weight", &[2, 3])?;
        let b = parameter(g, "m.bias", &[2])?;
        g.node(Op::Linear, &[made, w, b], "m")
    });
}

/// Cuts a grid of three axes into patches, between ports of few axes.
fn patches() -> Built {
    one(&[24, 24], |g, x| {
        let cut = g.node(Op::Reshape { shape: batched(&[2, 3, 4, 2, 3, 4]) }, &[x], "m")?;
        let turned = g.node(Op::Permute { axes: vec![0, 1, 4, 2, 5, 3, 6] }, &[cut], "m")?;
        g.node(Op::Reshape { shape: batched(&[4, 9, 16]) }, &[turned], "m")
    })
}

fn copies() -> Built {
    let mut g = Graph::new();
    let x = g.input("x", DType::F32, batched(&[3]));
    g.output(x, "x");
    let n = g.floats(&[2], &[1.0, 2.0])?;
    g.output(n, "known");
    Ok(g)
}

fn ids() -> Built {
    let mut g = Graph::new();
    let ids = g.input("ids", DType::I64, batched(&[4]));
    let table = parameter(&mut g, "m.embedding.weight", &[3, 5])?;
    let one = g.integers(&[], &[1])?;
    let next = g.node(Op::Binary(Binary::Add), &[ids, one], "m")?;
    let rows = g.node(Op::Gather { axis: 0 }, &[table, next], "m")?;
    g.output(rows, "rows");
    Ok(g)
}

/// Adds half-precision values of whole numbers, which it represents exactly.
fn halves() -> Built {
    let mut g = Graph::new();
    let x = g.input("x", DType::F32, batched(&[6]));
    let ten = g.number(10.0);
    let x = g.node(Op::Binary(Binary::Mul), &[x, ten], "m")?;
    let x = g.node(Op::Cast { to: DType::I64 }, &[x], "m")?;
    let mut sums = Vec::new();
    for to in [DType::Bf16, DType::F16] {
        let x = g.node(Op::Cast { to }, &[x], "m")?;
        let sum = g.node(Op::Binary(Binary::Add), &[x, x], "m")?;
        sums.push(float(&mut g, sum)?);
    }
    let both = g.node(Op::Binary(Binary::Sub), &[sums[0], sums[1]], "m")?;
    let whole = g.node(Op::Concat { axis: 1 }, &[both, sums[0]], "m")?;
    g.output(whole, "y");
    Ok(g)
}

fn doubled() -> Built {
    let mut g = Graph::new();
    let x = g.input("x", DType::F32, vec![Dim::Batch(2), Dim::Fixed(3)]);
    let pairs = g.node(Op::Reshape { shape: batched(&[2, 3]) }, &[x], "m")?;
    let row = g.floats(&[2, 3], &weights(6))?;
    let wide = g.node(Op::Expand { shape: vec![Dim::Batch(4), Dim::Fixed(2), Dim::Fixed(3)] }, &[row], "m")?;
    let fours = g.node(Op::Reshape { shape: batched(&[8, 3]) }, &[wide], "m")?;
    let whole = g.node(Op::Concat { axis: 1 }, &[pairs, fours], "m")?;
    g.output(whole, "y");
    Ok(g)
}

fn behind() -> Built {
    let mut g = Graph::new();
    let x = g.input("x", DType::F32, vec![Dim::Fixed(3), Dim::BATCH]);
    let row = g.floats(&[3, 1], &weights(3))?;
    let wide = g.node(Op::Expand { shape: vec![Dim::Fixed(3), Dim::BATCH] }, &[row], "m")?;
    let sum = g.node(Op::Binary(Binary::Add), &[x, wide], "m")?;
    let sum = g.node(Op::Reduce { fold: Fold::Sum, axes: vec![0], keep: false }, &[sum], "m")?;
    g.output(sum, "y");
    Ok(g)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_edges_answer_finite_numbers() {
        for sample in edges() {
            for batch in [1, 2, 7] {
                let (_, outputs) = sample.case(batch);
                assert!(outputs.iter().all(|o| o.values.iter().all(|v| v.is_finite())), "{}", sample.name);
            }
        }
    }
}
