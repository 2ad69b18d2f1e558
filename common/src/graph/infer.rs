//! What a node gives: element type and shape of its result from those of its operands.

use super::{Binary, DType, Dim, GraphValue, Op, shape_text};

#[derive(Debug, thiserror::Error, PartialEq)]
pub enum GraphError {
    #[error("{place}: {op} of {operands}: expected {expected}")]
    Operands { place: String, op: &'static str, operands: String, expected: &'static str },
    #[error("tensor {name} has {found} bytes, expected {expected}")]
    Bytes { name: String, found: usize, expected: usize },
    #[error("the graph's {what} {found}: expected {expected}")]
    Structure { what: &'static str, found: String, expected: &'static str },
}

/// Operands that an operation takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected(pub &'static str);

impl Expected {
    pub fn at(self, op: &Op, ins: &[&GraphValue], place: &str) -> GraphError {
        let operands: Vec<String> =
            ins.iter().map(|v| format!("{} {}", v.dtype.name(), shape_text(&v.shape))).collect();
        GraphError::Operands {
            place: if place.is_empty() { "graph".to_owned() } else { place.to_owned() },
            op: op.name(),
            operands: operands.join(", "),
            expected: self.0,
        }
    }
}

type Inferred = Result<(DType, Vec<Dim>), Expected>;

/// Element type and shape of the result of `op`.
///
/// # Errors
/// What it takes, when these operands are something else.
pub fn infer(op: &Op, ins: &[&GraphValue]) -> Inferred {
    let arity = match op {
        Op::Unary(_) | Op::Not | Op::Cast { .. } | Op::Softmax | Op::Reduce { .. } => 1..=1,
        Op::Reshape { .. } | Op::Permute { .. } | Op::Expand { .. } | Op::Slice { .. } => 1..=1,
        Op::Binary(_) | Op::Compare(_) | Op::And | Op::MatMul | Op::Gather { .. } => 2..=2,
        Op::Where | Op::LayerNorm { .. } => 3..=3,
        Op::Linear => 2..=3,
        Op::Concat { .. } => 1..=usize::MAX,
    };
    if !arity.contains(&ins.len()) {
        return Err(Expected("another number of operands"));
    }
    let first = ins[0].dtype;
    let shape = &ins[0].shape;
    let rank = shape.len();
    let same = |is: fn(DType) -> bool, expected| {
        if ins.iter().all(|v| v.dtype == first) && is(first) { Ok(()) } else { Err(Expected(expected)) }
    };
    match op {
        Op::Unary(_) => same(DType::is_float, "a float").map(|()| (first, shape.clone())),
        Op::Binary(Binary::Div) => same(DType::is_float, "two floats of one kind").and(Ok((first, broadcast(ins)?))),
        Op::Binary(_) => same(|t| t != DType::Bool, "two numbers of one kind").and(Ok((first, broadcast(ins)?))),
        Op::Compare(_) => same(DType::is_float, "two floats of one kind").and(Ok((DType::Bool, broadcast(ins)?))),
        Op::And | Op::Not => same(|t| t == DType::Bool, "truth values").and(Ok((DType::Bool, broadcast(ins)?))),
        Op::Where => {
            if first != DType::Bool || ins[1].dtype != ins[2].dtype {
                return Err(Expected("a truth value and two values of one kind"));
            }
            Ok((ins[1].dtype, broadcast(ins)?))
        }
        Op::Cast { to } => Ok((*to, shape.clone())),
        Op::MatMul => same(DType::is_float, "two floats of one kind").and(Ok((first, product(ins[0], ins[1])?))),
        Op::Linear => same(DType::is_float, "floats of one kind").and(Ok((first, linear(ins)?))),
        Op::LayerNorm { .. } => {
            same(DType::is_float, "floats of one kind")?;
            let last = shape.last().ok_or(Expected("at least one axis"))?;
            if ins[1..].iter().any(|v| v.shape != [*last]) {
                return Err(Expected("weight and bias of the last axis's size"));
            }
            Ok((first, shape.clone()))
        }
        Op::Softmax if rank == 0 => Err(Expected("at least one axis")),
        Op::Softmax => same(DType::is_float, "a float").map(|()| (first, shape.clone())),
        _ => layout(op, ins),
    }
}

/// [`infer`] of what moves elements, or folds them along axes.
fn layout(op: &Op, ins: &[&GraphValue]) -> Inferred {
    let first = ins[0].dtype;
    let shape = &ins[0].shape;
    let rank = shape.len();
    match op {
        Op::Reduce { axes, keep, .. } => {
            if !first.is_float() {
                return Err(Expected("a float"));
            }
            if axes.windows(2).any(|pair| pair[0] >= pair[1]) || axes.iter().any(|&a| a >= rank || shape[a].is_open()) {
                return Err(Expected("rising axes of the operand that are not the batch"));
            }
            let kept = shape.iter().enumerate().filter(|(i, _)| *keep || !axes.contains(i));
            Ok((first, kept.map(|(i, dim)| if axes.contains(&i) { Dim::ONE } else { *dim }).collect()))
        }
        Op::Reshape { shape: to } => {
            let size = |shape: &[Dim]| {
                let open = shape.iter().filter(|dim| dim.is_open()).count();
                (open, shape.iter().map(|dim| dim.of(1)).product::<u64>())
            };
            if size(shape) != size(to) || size(to).0 > 1 {
                return Err(Expected("a shape of as many elements, with the batch in one axis"));
            }
            Ok((first, to.clone()))
        }
        Op::Permute { axes } => {
            let mut sorted = axes.clone();
            sorted.sort_unstable();
            if !sorted.into_iter().eq(0..rank) {
                return Err(Expected("every axis once"));
            }
            Ok((first, axes.iter().map(|&axis| shape[axis]).collect()))
        }
        Op::Expand { shape: to } => {
            let new = to.len().checked_sub(rank).ok_or(Expected("no fewer axes"))?;
            if shape.iter().zip(&to[new..]).any(|(from, to)| from != to && *from != Dim::ONE) {
                return Err(Expected("axes of size 1 where it grows"));
            }
            Ok((first, to.clone()))
        }
        Op::Slice { axis, start, len } => {
            let size = shape.get(*axis).and_then(|dim| dim.fixed()).ok_or(Expected("an axis that is not the batch"))?;
            if start.checked_add(*len).is_none_or(|end| end > size) {
                return Err(Expected("positions that are there"));
            }
            Ok((first, replaced(shape, *axis, &[Dim::Fixed(*len)])))
        }
        Op::Concat { axis } => concat(ins, *axis),
        Op::Gather { axis } => {
            if ins[1].dtype != DType::I64 {
                return Err(Expected("an index of i64"));
            }
            shape.get(*axis).and_then(|dim| dim.fixed()).ok_or(Expected("an axis that is not the batch"))?;
            Ok((first, replaced(shape, *axis, &ins[1].shape)))
        }
        _ => unreachable!("an operation of infer"),
    }
}

/// `shape` with other axes in place of one.
fn replaced(shape: &[Dim], axis: usize, by: &[Dim]) -> Vec<Dim> {
    [&shape[..axis], by, &shape[axis + 1..]].concat()
}

/// The shape that operands stretch to.
fn broadcast(ins: &[&GraphValue]) -> Result<Vec<Dim>, Expected> {
    let shapes: Vec<&[Dim]> = ins.iter().map(|v| v.shape.as_slice()).collect();
    stretched(&shapes)
}

fn stretched(shapes: &[&[Dim]]) -> Result<Vec<Dim>, Expected> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut whole = vec![Dim::ONE; rank];
    for shape in shapes {
        for (size, dim) in whole[rank - shape.len()..].iter_mut().zip(*shape) {
            match (*size == Dim::ONE, *dim == Dim::ONE) {
                (true, _) => *size = *dim,
                (false, true) => {}
                (false, false) if size == dim => {}
                _ => return Err(Expected("shapes that broadcast")),
            }
        }
    }
    Ok(whole)
}

fn product(a: &GraphValue, b: &GraphValue) -> Result<Vec<Dim>, Expected> {
    let wrong = Expected("(…, M, K) and (…, K, N)");
    let ([lead_a @ .., m, k], [lead_b @ .., rows, n]) = (a.shape.as_slice(), b.shape.as_slice()) else {
        return Err(wrong);
    };
    if k != rows {
        return Err(wrong);
    }
    let mut shape = stretched(&[lead_a, lead_b])?;
    shape.extend([*m, *n]);
    Ok(shape)
}

fn linear(ins: &[&GraphValue]) -> Result<Vec<Dim>, Expected> {
    let wrong = Expected("(…, in), a known weight (out, in), and a bias (out)");
    let [Dim::Fixed(out), Dim::Fixed(width)] = ins[1].shape.as_slice() else { return Err(wrong) };
    let Some((last, lead)) = ins[0].shape.split_last() else { return Err(wrong) };
    if *last != Dim::Fixed(*width) || ins.get(2).is_some_and(|bias| bias.shape != [Dim::Fixed(*out)]) {
        return Err(wrong);
    }
    Ok(lead.iter().copied().chain([Dim::Fixed(*out)]).collect())
}

fn concat(ins: &[&GraphValue], axis: usize) -> Inferred {
    let wrong = Expected("values of one kind, and of one shape but for an axis that is not the batch");
    let first = ins[0].dtype;
    let shape = &ins[0].shape;
    let mut sum = 0;
    for v in ins {
        let size = v.shape.get(axis).and_then(|dim| dim.fixed()).ok_or(wrong)?;
        if v.dtype != first || replaced(&v.shape, axis, &[]) != replaced(shape, axis, &[]) {
            return Err(wrong);
        }
        sum += size;
    }
    Ok((first, replaced(shape, axis, &[Dim::Fixed(sum)])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, Id};

    fn graph() -> (Graph, Id, Id) {
        let mut g = Graph::new();
        let x = g.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(6)]);
        let w = g.floats(&[4, 6], &[0.5; 24]).unwrap();
        (g, x, w)
    }

    #[test]
    fn shapes_follow_the_batch() {
        let (mut g, x, w) = graph();
        let y = g.node(Op::Linear, &[x, w], "a").unwrap();
        assert_eq!(shape_text(&g.value(y).shape), "[batch, 4]");
        let flat = g.node(Op::Reshape { shape: vec![Dim::Batch(2), Dim::Fixed(2)] }, &[y], "a").unwrap();
        let back = g.node(Op::Permute { axes: vec![1, 0] }, &[flat], "a").unwrap();
        let both = g.node(Op::MatMul, &[flat, back], "a").unwrap();
        assert_eq!(shape_text(&g.value(both).shape), "[2*batch, 2*batch]");
        let one = g.number(1.0);
        let wide = g.node(Op::Expand { shape: vec![Dim::BATCH, Dim::Fixed(3)] }, &[one], "a").unwrap();
        let all = g.node(Op::Concat { axis: 1 }, &[wide, x], "a").unwrap();
        assert_eq!(shape_text(&g.value(all).shape), "[batch, 9]");
        let index = g.integers(&[2, 2], &[0, 1, 2, 3]).unwrap();
        let some = g.node(Op::Gather { axis: 1 }, &[all, index], "a").unwrap();
        assert_eq!(shape_text(&g.value(some).shape), "[batch, 2, 2]");
    }

    #[test]
    fn what_does_not_fit_is_told_with_its_place() {
        let (mut g, x, w) = graph();
        let error = g.node(Op::MatMul, &[x, w], "fuser.a").unwrap_err();
        let said = "fuser.a: matmul of f32 [batch, 6], f32 [4, 6]: expected (…, M, K) and (…, K, N)";
        assert_eq!(error.to_string(), said);
        assert!(g.node(Op::Concat { axis: 0 }, &[x, x], "").unwrap_err().to_string().starts_with("graph: concat"));
        assert!(g.node(Op::Reshape { shape: vec![Dim::Fixed(6)] }, &[x], "").is_err());
        assert!(g.node(Op::Slice { axis: 1, start: 4, len: 3 }, &[x], "").is_err());
        assert!(g.node(Op::Unary(crate::graph::Unary::Exp), &[], "").is_err());
    }
}
