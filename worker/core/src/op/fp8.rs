//! Products of 8-bit matrices with one scale each: quantising, the scaled product, and the linear layer made of them.
//!
//! A matrix is kept as numbers q of 8 bits and a multiplier s, x ≈ q·s, with s = largest |x| / largest q, taken anew at
//! each call and never read by the host. Every product is a bᵀ over rows, the one layout the hardware has; what is needed
//! the other way round is therefore written transposed while it is quantised. Forward operands are e4m3 (3 mantissa
//! bits), gradients e5m2 (2 mantissa bits, a wider range).

use super::Op;
use super::attr::Axes;
use super::cuda;
use super::infer::{Inferred, float, mismatch, one, wrong};
use super::row::{Export, Kernel, Launch, Launched, OpRow, Save, Tolerance, per_operand};
use super::value::{Meta, Shape};
use super::vjp::{Grads, Vjp};
use crate::backend::torch::safe::{Arg, AtenOp, kind_code};
use crate::error::{OpError, OpErrorKind};
use smallvec::smallvec;
use tch::{Device, Kind};

/// Kind of forward operands.
pub const FORWARD: Kind = Kind::Float8e4m3fn;
/// Kind of gradients.
pub const GRADIENT: Kind = Kind::Float8e5m2;
/// Sizes of 8-bit matrices are multiples of this.
pub const ALIGN: i64 = 16;
/// Smallest multiplier: keeps 0/0 away when a matrix is all zero.
const SCALE_MIN: f64 = 1e-30;

/// Quantize, ScaledMm, Fp8Linear.
///
/// Quantize: x (…, C) of R rows → q (R,C), qᵀ (C,R) in its own memory, s (0 axes, f32).
/// ScaledMm: a (M,K), b (N,K), their multipliers, a bias (N) if `bias` → a bᵀ (M,N).
/// Fp8Linear: x (…, K), w (N,K), q of x and its s, q of w and its s, qᵀ of x, qᵀ of w, a bias (N) if `bias` → (…, N).
pub static ROWS: [OpRow; 3] = [
    OpRow::backward("quantize", shape_quantize, launch_quantize).kernels(&[cuda::QUANTIZE]).flops(per_operand::<5>),
    OpRow::backward("scaled_mm", shape_mm, launch_mm).kernels(&[CUBLAS]).flops(flops_mm),
    OpRow {
        vjp: Some(vjp_linear),
        save: Save { ins: 0b1110_1000, outs: 0 },
        flops: |_, ins, outs| (2 * outs[0].numel() * ins[1].shape[1]).max(0) as u64,
        export: Export::no(
            "an exported model is built in f32",
            "functional::linear, of which training makes products of 8 bits itself where they pay",
        ),
        ..OpRow::backward("fp8_linear", shape_linear, launch_linear)
    }
    .kernels(&[CUBLAS_LINEAR]),
];

/// The row of an operation of this family.
pub(super) fn row(op: &Op) -> &'static OpRow {
    match op {
        Op::Quantize { .. } => &ROWS[0],
        Op::ScaledMm { .. } => &ROWS[1],
        Op::Fp8Linear { .. } => &ROWS[2],
        _ => unreachable!("an operation of another family"),
    }
}

/// Largest finite number of a kind.
fn largest(kind: Kind) -> Result<f64, OpErrorKind> {
    match kind {
        FORWARD => Ok(448.0),
        GRADIENT => Ok(57344.0),
        found => Err(OpErrorKind::Kind { operand: 0, found, expected: "e4m3 or e5m2" }),
    }
}

fn eight_bits(operand: usize, meta: &Meta) -> Result<(), OpErrorKind> {
    largest(meta.kind).map(|_| ()).map_err(|_| OpErrorKind::Kind {
        operand,
        found: meta.kind,
        expected: "e4m3 or e5m2",
    })?;
    if meta.rank() != 2 || meta.shape.iter().any(|size| *size < ALIGN || size % ALIGN != 0) {
        return Err(wrong(operand, meta, "a matrix whose sizes are positive multiples of 16"));
    }
    Ok(())
}

/// Rows and columns of a tensor seen as a matrix over its last axis.
pub fn as_matrix(meta: &Meta) -> (i64, i64) {
    let columns = meta.shape.last().copied().unwrap_or(1);
    (meta.shape[..meta.rank().saturating_sub(1)].iter().product(), columns)
}

fn shape_quantize(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::Quantize { to } = op else { unreachable!("row of another operation") };
    float(0, ins[0])?;
    let (rows, columns) = as_matrix(ins[0]);
    let made = |shape: [i64; 2]| Meta { kind: *to, ..ins[0].with_shape(shape.as_slice()) };
    let q = made([rows, columns]);
    let qt = made([columns, rows]);
    eight_bits(0, &q)?;
    Ok(smallvec![q, qt, Meta { kind: Kind::Float, ..ins[0].with_shape([].as_slice()) }])
}

static VECTOR_NORM: AtenOp = AtenOp::new(c"aten::linalg_vector_norm", c"");

fn launch_quantize(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::Quantize { to } = op else { unreachable!("row of another operation") };
    let largest = largest(*to)?;
    let columns = l.at(0).size().last().copied().unwrap_or(1);
    let x = l.at(0).f_reshape([-1, columns])?;
    let in_f32 = Arg::Int(kind_code(Kind::Float));
    let mut size = VECTOR_NORM.call(&[
        Arg::Tensor(&x),
        Arg::Real(f64::INFINITY),
        Arg::None,
        Arg::Bool(false),
        if x.kind() == Kind::Double { Arg::None } else { in_f32 },
    ])?;
    let scale = size.swap_remove(0).f_to_kind(Kind::Float)?.f_mul_scalar_(1.0 / largest)?.f_clamp_min_(SCALE_MIN)?;
    // In f32 at least: x in 16 bits would round the multiplier to 16 bits too.
    let wide = if x.kind() == Kind::Double { x } else { x.f_to_kind(Kind::Float)? };
    // The cast to 8 bits does not saturate: what rounding puts above the largest number would become NaN.
    let q = wide.f_mul(&scale.f_reciprocal()?)?.f_clamp_(-largest, largest)?.f_to_kind(*to)?;
    let qt = q.f_transpose(0, 1)?.f_contiguous()?;
    Ok(smallvec![q, qt, scale])
}

fn shape_mm(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::ScaledMm { out, bias, .. } = op else { unreachable!("row of another operation") };
    let a = ins[0];
    let b = ins[1];
    eight_bits(0, a)?;
    eight_bits(1, b)?;
    if a.shape[1] != b.shape[1] {
        return Err(mismatch(&a.shape, &b.shape, "equal last axes"));
    }
    for operand in [2, 3] {
        if ins[operand].rank() != 0 || ins[operand].kind != Kind::Float {
            return Err(wrong(operand, ins[operand], "an f32 multiplier of 0 axes"));
        }
    }
    if *bias && ins[4].shape.as_slice() != [b.shape[0]] {
        return Err(wrong(4, ins[4], "a bias of shape (out)"));
    }
    one(Meta { kind: *out, ..a.with_shape([a.shape[0], b.shape[0]].as_slice()) })
}

/// The parts of one scaled product.
struct Product<'a> {
    a: &'a tch::Tensor,
    b: &'a tch::Tensor,
    scales: [&'a tch::Tensor; 2],
    bias: Option<&'a tch::Tensor>,
    out: Kind,
    fast: bool,
}

/// A way to compute one.
type Run = fn(&Product<'_>) -> Result<tch::Tensor, OpErrorKind>;

impl Product<'_> {
    /// In f32, anywhere.
    fn plain(&self) -> Result<tch::Tensor, OpErrorKind> {
        let wide = |t: &tch::Tensor| t.f_to_kind(Kind::Float);
        let scale = self.scales[0].f_mul(self.scales[1])?;
        let mut y = wide(self.a)?.f_mm(&wide(self.b)?.f_transpose(0, 1)?)?.f_mul_(&scale)?;
        if let Some(bias) = self.bias {
            y = y.f_add_(&wide(bias)?)?;
        }
        Ok(y.f_to_kind(self.out)?)
    }

    /// In 8 bits, by cuBLAS.
    fn cublas(&self) -> Result<tch::Tensor, OpErrorKind> {
        let mut outs = SCALED_MM.call(&[
            Arg::Tensor(self.a),
            Arg::Tensor(&self.b.f_transpose(0, 1)?),
            Arg::Tensor(self.scales[0]),
            Arg::Tensor(self.scales[1]),
            self.bias.map_or(Arg::None, Arg::Tensor),
            Arg::None,
            Arg::Int(kind_code(self.out)),
            Arg::Bool(self.fast),
        ])?;
        Ok(outs.swap_remove(0))
    }
}

static SCALED_MM: AtenOp = AtenOp::new(c"aten::_scaled_mm", c"");

fn product<'a>(op: &Op, l: &Launch<'a>) -> Product<'a> {
    let Op::ScaledMm { out, bias, fast } = op else { unreachable!("row of another operation") };
    let ins = l.ins;
    Product {
        a: ins[0],
        b: ins[1],
        scales: [ins[2], ins[3]],
        bias: if *bias { Some(ins[4]) } else { None },
        out: *out,
        fast: *fast,
    }
}

fn launch_mm(op: &Op, l: &Launch<'_>) -> Launched {
    Ok(smallvec![product(op, l).plain()?])
}

/// cuBLASLt's 8-bit product. Gradients are summed exactly, forward products with the hardware's short accumulator.
const CUBLAS: Kernel = Kernel {
    id: "cublas.scaled_mm",
    fits: on_cuda,
    launch: |op, l| Ok(smallvec![product(op, l).cublas()?]),
    tolerance: Tolerance::EightBits,
    deterministic: true,
};

/// The linear layer through it.
const CUBLAS_LINEAR: Kernel = Kernel { launch: |op, l| linear_by(op, l, |p| p.cublas()), ..CUBLAS };

fn on_cuda(_: &Op, l: &Launch<'_>) -> Result<(), &'static str> {
    if matches!(l.at(0).device(), Device::Cuda(_)) { Ok(()) } else { Err("not on CUDA") }
}

fn flops_mm(_: &Op, ins: &[&Meta], outs: &[Meta]) -> u64 {
    (2 * outs[0].numel() * ins[0].shape[1]).max(0) as u64
}

fn shape_linear(op: &Op, ins: &[&Meta]) -> Inferred {
    let Op::Fp8Linear { bias, out } = op else { unreachable!("row of another operation") };
    let x = ins[0];
    let w = ins[1];
    let (rows, inner) = as_matrix(x);
    let (outputs, inner_w) = as_matrix(w);
    if w.rank() != 2 || inner != inner_w {
        return Err(mismatch(&x.shape, &w.shape, "rows (…, in) and a weight (out, in)"));
    }
    let quantised: [(usize, [i64; 2]); 4] =
        [(2, [rows, inner]), (4, [outputs, inner]), (6, [inner, rows]), (7, [inner, outputs])];
    for (operand, shape) in quantised {
        eight_bits(operand, ins[operand])?;
        if ins[operand].shape.as_slice() != shape {
            return Err(wrong(operand, ins[operand], "the quantised rows or weight, or their transposed"));
        }
    }
    if *bias && ins[8].shape.as_slice() != [outputs] {
        return Err(wrong(8, ins[8], "a bias of shape (out)"));
    }
    let mut shape: Shape = x.shape.clone();
    if let Some(last) = shape.last_mut() {
        *last = outputs;
    }
    one(Meta { kind: *out, ..x.with_shape(shape) })
}

fn linear_by(op: &Op, l: &Launch<'_>, run: Run) -> Launched {
    let Op::Fp8Linear { bias, out } = op else { unreachable!("row of another operation") };
    let y = run(&Product {
        a: l.at(2),
        b: l.at(4),
        scales: [l.at(3), l.at(5)],
        bias: bias.then(|| l.at(8)),
        out: *out,
        fast: true,
    })?;
    let mut shape = l.at(0).size();
    if let Some(last) = shape.last_mut() {
        *last = l.at(4).size()[0];
    }
    Ok(smallvec![y.f_view(shape.as_slice())?])
}

fn launch_linear(op: &Op, l: &Launch<'_>) -> Launched {
    linear_by(op, l, |p| p.plain())
}

/// dx = g w and dw = gᵀ x, both of quantised operands; each in its operand's own kind.
fn vjp_linear(v: &Vjp<'_>) -> Result<Grads, OpError> {
    let g = v.g()?;
    let quantised = v.call_all(Op::Quantize { to: GRADIENT }, &[g])?;
    let [q, qt, scale] = quantised.as_slice() else { return Err(v.emit.fail(v.op(), OpErrorKind::NotDifferentiable)) };
    let mut grads: Grads = smallvec![None; v.arity()];
    let product = |out: Kind| Op::ScaledMm { out, bias: false, fast: false };
    if v.needs(0) {
        let x = v.meta(0);
        let dx = v.call(product(x.kind), &[q, v.input(7)?, scale, v.input(5)?])?;
        grads[0] = Some(v.call(Op::Reshape { shape: x.shape }, &[&dx])?);
    }
    if v.needs(1) {
        grads[1] = Some(v.call(product(v.meta(1).kind), &[qt, v.input(6)?, scale, v.input(3)?])?);
    }
    if v.arity() > 8 && v.needs(8) {
        let axes: Axes = (0..g.shape().len() as i64 - 1).collect();
        grads[8] = Some(v.call(Op::Sum { axes, keepdim: false }, &[g])?);
    }
    Ok(grads)
}
