//! A graph computed one node after the other in f64: slow, and free of every runtime. Constants are folded with it, and writers are
//! checked against it.

use super::{Binary, Compare, DType, Dim, Fold, Graph, GraphValue, Id, Node, Op, Unary};
use half::{bf16, f16};

/// Elements of a tensor, row-major, whatever their type.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    pub shape: Vec<usize>,
    /// Elements; truth values are 0 or 1.
    pub values: Vec<f64>,
}

impl Array {
    /// Elements of a shape.
    ///
    /// # Panics
    /// When there are more or fewer.
    pub fn new(shape: &[usize], values: Vec<f64>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "as many elements as the shape says");
        Self { shape: shape.to_vec(), values }
    }

    fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        Self { shape: self.shape.clone(), values: self.values.iter().map(|v| f(*v)).collect() }
    }

    /// Sizes of (outer, axis, inner) about an axis.
    fn about(&self, axis: usize) -> (usize, usize, usize) {
        let outer = &self.shape[..axis];
        let inner = &self.shape[axis + 1..];
        (outer.iter().product(), self.shape[axis], inner.iter().product())
    }

    /// Repeated to a larger shape.
    fn stretched(&self, to: &[usize]) -> Self {
        let new = to.len() - self.shape.len();
        let mut strides = vec![0; to.len()];
        let mut stride = 1;
        for axis in (0..self.shape.len()).rev() {
            strides[new + axis] = if self.shape[axis] == 1 { 0 } else { stride };
            stride *= self.shape[axis];
        }
        Self { shape: to.to_vec(), values: places(to, &strides).map(|at| self.values[at]).collect() }
    }
}

/// Where the elements of a shape lie, row-major, by the strides of its axes.
fn places<'a>(shape: &'a [usize], strides: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
    (0..shape.iter().product()).map(move |flat: usize| {
        let mut rest = flat;
        let mut at = 0;
        for axis in (0..shape.len()).rev() {
            at += rest % shape[axis] * strides[axis];
            rest /= shape[axis];
        }
        at
    })
}

pub fn known(value: &GraphValue) -> Option<Array> {
    let data = value.data.as_ref()?;
    let shape: Vec<usize> = value.shape.iter().map(|dim| dim.of(1) as usize).collect();
    let values = match value.dtype {
        DType::F32 => value.floats().into_iter().map(f64::from).collect(),
        DType::I64 => value.integers().into_iter().map(|v| v as f64).collect(),
        DType::Bool => data.bytes.iter().map(|b| f64::from(*b)).collect(),
        DType::F16 => halves(&data.bytes).map(|half| f64::from(f16::from_le_bytes(half))).collect(),
        DType::Bf16 => halves(&data.bytes).map(|half| f64::from(bf16::from_le_bytes(half))).collect(),
    };
    Some(Array { shape, values })
}

fn halves(bytes: &[u8]) -> impl Iterator<Item = [u8; 2]> + '_ {
    bytes.as_chunks().0.iter().copied()
}

/// A number as its element type holds it: of half precision rounded, of every other as it is.
pub fn rounded(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F16 => f16::from_f64(value).into(),
        DType::Bf16 => bf16::from_f64(value).into(),
        DType::F32 | DType::I64 | DType::Bool => value,
    }
}

/// The outputs for these inputs, in their order, of a batch of `batch` rows. What is in half precision is rounded to it after each
/// node.
///
/// # Panics
/// When the inputs do not have the shapes of the graph's, or an index is outside what it picks from.
pub fn run(graph: &Graph, inputs: &[Array], batch: usize) -> Vec<Array> {
    watched(graph, inputs, batch, &mut |_, _| ())
}

/// [`run`]; `seen` is shown what each node gives, before it is rounded.
///
/// # Panics
/// As [`run`].
pub fn watched(graph: &Graph, inputs: &[Array], batch: usize, seen: &mut dyn FnMut(&Node, &Array)) -> Vec<Array> {
    let mut made: Vec<Option<Array>> = graph.values().map(|(_, value)| known(value)).collect();
    for (id, input) in graph.inputs().iter().zip(inputs) {
        let expected: Vec<usize> = graph.value(*id).shape.iter().map(|dim| dim.of(batch as u64) as usize).collect();
        assert_eq!(input.shape, expected, "input {}", graph.value(*id).name);
        made[id.0] = Some(input.clone());
    }
    for node in graph.nodes() {
        let ins = node.ins.iter().map(|id| made[id.0].as_ref().expect("operands come before their use"));
        let kinds: Vec<DType> = node.ins.iter().map(|id| graph.value(*id).dtype).collect();
        let value = graph.value(node.out);
        let mut out = apply(&node.op, &ins.collect::<Vec<_>>(), &kinds, value, batch);
        seen(node, &out);
        if value.dtype.is_half() {
            out.values.iter_mut().for_each(|number| *number = rounded(value.dtype, *number));
        }
        made[node.out.0] = Some(out);
    }
    let answer = |Id(at): &Id| made[*at].clone().expect("an output is an input, known, or made");
    graph.outputs().iter().map(answer).collect()
}

pub fn apply(op: &Op, ins: &[&Array], kinds: &[DType], out: &GraphValue, batch: usize) -> Array {
    let shape: Vec<usize> = out.shape.iter().map(|dim: &Dim| dim.of(batch as u64) as usize).collect();
    let x = ins[0];
    match op {
        Op::Unary(f) => x.map(|v| unary(*f, v)),
        Op::Not => x.map(|v| 1.0 - v),
        Op::Binary(f) => two(ins, &shape, |a, b| binary(*f, a, b)),
        Op::And => two(ins, &shape, |a, b| a * b),
        Op::Compare(f) => two(ins, &shape, |a, b| f64::from(u8::from(compare(*f, a, b)))),
        Op::Where => {
            let [c, a, b] = [0, 1, 2].map(|i| ins[i].stretched(&shape));
            let picked = c.values.iter().zip(a.values.iter().zip(&b.values));
            Array { values: picked.map(|(c, (a, b))| if *c != 0.0 { *a } else { *b }).collect(), shape }
        }
        Op::Cast { to: DType::Bool } => x.map(|v| f64::from(u8::from(v != 0.0))),
        Op::Cast { to: DType::I64 } if kinds[0].is_float() => x.map(f64::trunc),
        Op::Cast { .. } => x.clone(),
        Op::MatMul => matmul(x, ins[1], shape),
        Op::Linear => linear(ins, shape),
        Op::LayerNorm { eps } => along_last(x, |row| {
            let n = row.len() as f64;
            let mean = row.iter().sum::<f64>() / n;
            let rest = (row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n + eps).sqrt();
            let scaled = ins[1].values.iter().zip(&ins[2].values);
            row.iter().zip(scaled).map(|(v, (w, b))| (v - mean) / rest * w + b).collect()
        }),
        Op::Softmax => along_last(x, |row| {
            let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let parts: Vec<f64> = row.iter().map(|v| (v - most).exp()).collect();
            let sum: f64 = parts.iter().sum();
            parts.into_iter().map(|part| part / sum).collect()
        }),
        Op::Reduce { fold, axes, .. } => Array { values: reduce(x, *fold, axes).values, shape },
        Op::Reshape { .. } => Array::new(&shape, x.values.clone()),
        Op::Permute { axes } => {
            let strides: Vec<usize> = (0..x.shape.len()).map(|axis| x.about(axis).2).collect();
            let strides: Vec<usize> = axes.iter().map(|axis| strides[*axis]).collect();
            Array { values: places(&shape, &strides).map(|at| x.values[at]).collect(), shape }
        }
        Op::Expand { .. } => x.stretched(&shape),
        Op::Slice { axis, start, len } => {
            pick(x, *axis, &(*start as usize..(start + len) as usize).collect::<Vec<_>>(), shape)
        }
        Op::Concat { axis } => concat(ins, *axis, shape),
        Op::Gather { axis } => pick(x, *axis, &ins[1].values.iter().map(|v| *v as usize).collect::<Vec<_>>(), shape),
    }
}

fn unary(f: Unary, v: f64) -> f64 {
    match f {
        Unary::Neg => -v,
        Unary::Exp => v.exp(),
        Unary::Log => v.ln(),
        Unary::Sqrt => v.sqrt(),
        Unary::Abs => v.abs(),
        Unary::Sigmoid => 1.0 / (1.0 + (-v).exp()),
        Unary::Tanh => v.tanh(),
        Unary::Gelu => 0.5 * v * (1.0 + erf(v * std::f64::consts::FRAC_1_SQRT_2)),
        Unary::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (v + 0.044_715 * v.powi(3));
            0.5 * v * (1.0 + inner.tanh())
        }
    }
}

/// The error function to 1e-15: its power series, and where that needs too many terms the continued fraction of its complement.
fn erf(x: f64) -> f64 {
    let size = x.abs();
    let value = if size < 2.5 {
        let mut term = size;
        let mut sum = size;
        for n in 1..80 {
            let n = f64::from(n);
            term *= -size * size / n;
            sum += term / (2.0 * n + 1.0);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else if size < 6.0 {
        let rest = (1..=60).rev().fold(0.0, |below, n| f64::from(n) / 2.0 / (size + below));
        1.0 - (-size * size).exp() / (size + rest) * std::f64::consts::FRAC_2_SQRT_PI / 2.0
    } else if size.is_nan() {
        size
    } else {
        1.0
    };
    value.copysign(x)
}

fn binary(f: Binary, a: f64, b: f64) -> f64 {
    match f {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Max => a.max(b),
        Binary::Min => a.min(b),
    }
}

fn compare(f: Compare, a: f64, b: f64) -> bool {
    match f {
        Compare::Less => a < b,
        Compare::LessEqual => a <= b,
        Compare::Greater => a > b,
        Compare::GreaterEqual => a >= b,
    }
}

fn two(ins: &[&Array], shape: &[usize], f: impl Fn(f64, f64) -> f64) -> Array {
    let a = ins[0].stretched(shape);
    let b = ins[1].stretched(shape);
    Array { shape: shape.to_vec(), values: a.values.iter().zip(&b.values).map(|(a, b)| f(*a, *b)).collect() }
}

fn along_last(x: &Array, f: impl Fn(&[f64]) -> Vec<f64>) -> Array {
    let last = x.shape.last().copied().unwrap_or(1).max(1);
    Array { shape: x.shape.clone(), values: x.values.chunks(last).flat_map(f).collect() }
}

fn matmul(a: &Array, b: &Array, shape: Vec<usize>) -> Array {
    let lead = &shape[..shape.len() - 2];
    let stretch = |t: &Array| t.stretched(&[lead, &t.shape[t.shape.len() - 2..]].concat());
    let m = shape[shape.len() - 2];
    let n = shape[shape.len() - 1];
    let k = a.shape[a.shape.len() - 1];
    let a = stretch(a);
    let b = stretch(b);
    let mut values = vec![0.0; shape.iter().product()];
    for batch in 0..lead.iter().product::<usize>() {
        for i in 0..m {
            let row = &mut values[(batch * m + i) * n..][..n];
            for l in 0..k {
                let by = a.values[(batch * m + i) * k + l];
                let other = &b.values[(batch * k + l) * n..][..n];
                row.iter_mut().zip(other).for_each(|(sum, v)| *sum += by * v);
            }
        }
    }
    Array { shape, values }
}

fn linear(ins: &[&Array], shape: Vec<usize>) -> Array {
    let outs = ins[1].shape[0];
    let width = ins[1].shape[1];
    let rows = if width == 0 {
        vec![&[][..]; shape.iter().product::<usize>() / outs.max(1)]
    } else {
        ins[0].values.chunks(width).collect()
    };
    let one = |(row, o): (&[f64], usize)| {
        let weights = &ins[1].values[o * width..(o + 1) * width];
        row.iter().zip(weights).map(|(v, w)| v * w).sum::<f64>() + ins.get(2).map_or(0.0, |bias| bias.values[o])
    };
    Array { values: rows.into_iter().flat_map(|row| (0..outs).map(move |o| (row, o))).map(one).collect(), shape }
}

fn reduce(x: &Array, fold: Fold, axes: &[usize]) -> Array {
    let mut whole = x.clone();
    for &axis in axes {
        let (outer, size, inner) = whole.about(axis);
        let along = |o: usize, i: usize| (0..size).map(move |a| (o * size + a) * inner + i);
        let start = if fold == Fold::Max { f64::NEG_INFINITY } else { 0.0 };
        let one = |o: usize, i: usize| {
            along(o, i).map(|at| whole.values[at]).fold(start, |sum, v| match fold {
                Fold::Max if v.is_nan() || sum.is_nan() => f64::NAN,
                Fold::Max => sum.max(v),
                Fold::Sum | Fold::Mean => sum + v,
            })
        };
        let by = if fold == Fold::Mean { size as f64 } else { 1.0 };
        let values = (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))).map(|(o, i)| one(o, i) / by).collect();
        whole.shape[axis] = 1;
        whole.values = values;
    }
    whole
}

fn pick(x: &Array, axis: usize, at: &[usize], shape: Vec<usize>) -> Array {
    let (outer, size, inner) = x.about(axis);
    let mut values = Vec::with_capacity(shape.iter().product());
    for o in 0..outer {
        for &at in at {
            assert!(at < size, "index {at} of an axis of size {size}");
            values.extend_from_slice(&x.values[(o * size + at) * inner..][..inner]);
        }
    }
    Array { shape, values }
}

fn concat(ins: &[&Array], axis: usize, shape: Vec<usize>) -> Array {
    let outer: usize = shape[..axis].iter().product();
    let mut values = Vec::with_capacity(shape.iter().product());
    for o in 0..outer {
        for one in ins {
            let (_, size, inner) = one.about(axis);
            values.extend_from_slice(&one.values[o * size * inner..][..size * inner]);
        }
    }
    Array { shape, values }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_function_is_that_of_the_tables() {
        for (x, expected) in
            [(0.5, 0.520_499_877_813_046_5), (1.0, 0.842_700_792_949_714_9), (2.0, 0.995_322_265_018_952_7)]
        {
            assert!((erf(x) - expected).abs() < 1e-14 && (erf(-x) + expected).abs() < 1e-14, "{x}: {}", erf(x));
        }
        assert!((erf(3.0) - 0.999_977_909_503_001_4).abs() < 1e-14, "{}", erf(3.0));
        assert_eq!(erf(9.0), 1.0);
        assert!(erf(f64::NAN).is_nan());
    }

    #[test]
    fn the_largest_of_numbers_of_which_one_is_none_is_none() {
        for values in [[f64::NAN, 1.0, 2.0], [1.0, f64::NAN, 2.0], [1.0, 2.0, f64::NAN]] {
            assert!(reduce(&Array::new(&[3], values.to_vec()), Fold::Max, &[0]).values[0].is_nan());
        }
    }

    #[test]
    fn a_graph_is_computed_for_any_batch() {
        let mut g = Graph::new();
        let x = g.input("x", DType::F32, vec![Dim::BATCH, Dim::Fixed(3)]);
        let w = g.floats(&[2, 3], &[1.0, 2.0, 3.0, 0.0, 1.0, 0.0]).unwrap();
        let b = g.floats(&[2], &[10.0, 20.0]).unwrap();
        let y = g.node(Op::Linear, &[x, w, b], "").unwrap();
        let t = g.node(Op::Permute { axes: vec![1, 0] }, &[y], "").unwrap();
        let square = g.node(Op::MatMul, &[y, t], "").unwrap();
        let mean = g.node(Op::Reduce { fold: Fold::Mean, axes: vec![1], keep: true }, &[y], "").unwrap();
        let at = g.integers(&[2], &[1, 0]).unwrap();
        let swapped = g.node(Op::Gather { axis: 1 }, &[y, at], "").unwrap();
        for id in [square, mean, swapped] {
            let name = format!("out{}", id.0);
            g.output(id, &name);
        }
        let x = Array::new(&[2, 3], vec![1.0, 1.0, 1.0, 2.0, 0.0, 0.0]);
        let made = run(&g, &[x], 2);
        // y = [[16, 21], [12, 20]].
        assert_eq!(made[0], Array::new(&[2, 2], vec![697.0, 612.0, 612.0, 544.0]));
        assert_eq!(made[1], Array::new(&[2, 1], vec![18.5, 16.0]));
        assert_eq!(made[2], Array::new(&[2, 2], vec![21.0, 16.0, 20.0, 12.0]));
    }

    #[test]
    fn half_precision_is_rounded_after_each_node_and_shown_before() {
        let mut g = Graph::new();
        let x = g.input("x", DType::F32, vec![Dim::BATCH]);
        let half = g.node(Op::Cast { to: DType::F16 }, &[x], "").unwrap();
        let sum = g.node(Op::Binary(Binary::Add), &[half, half], "").unwrap();
        let y = g.node(Op::Cast { to: DType::F32 }, &[sum], "").unwrap();
        g.output(y, "y");
        let mut shown = Vec::new();
        let given = Array::new(&[2], vec![1.0 + 1.0 / 4096.0, 40_000.0]);
        let made = watched(&g, &[given], 2, &mut |_, array| shown.push(array.values.clone()));
        // f16 has 11 digits: of 1 + 2⁻¹² remains 1; and its largest number is 65504.
        assert_eq!(made[0].values, [2.0, f64::INFINITY]);
        assert_eq!(shown, [[1.0 + 1.0 / 4096.0, 40_000.0], [2.0, 80_000.0], [2.0, f64::INFINITY]]);
        assert_eq!(rounded(DType::Bf16, 1.0 + 1.0 / 512.0), 1.0);
    }
}
