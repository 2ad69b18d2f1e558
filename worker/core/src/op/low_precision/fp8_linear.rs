//! The linear layer in 8 bits.

use super::product::{Product, Run, kernel};
use super::{GRADIENT, as_matrix, eight_bits};
use crate::op::prelude::*;
use crate::op::{Quantize, Reshape, ScaledMm, Sum};

attributes! {
    /// Operands: x (…, K), w (N,K), q of x and its s, q of w and its s, qᵀ of x, qᵀ of w, a bias (N) if `bias`. Result: (…, N).
    Fp8Linear { bias: bool, out: Kind } => FP8_LINEAR;
}

// Another operation makes the operands: the tests have calls of it in place of samples.
const FP8_LINEAR: OpRow<Fp8Linear> = OpRow::<Fp8Linear>::forward(
    "fp8_linear",
    shape,
    |op, l| launch(op, l, |product| product.plain()),
    vjp,
    |_| Vec::new(),
)
.saves(0b1110_1000, 0)
.kernels(&[kernel(|op, l| launch(op, l, |product| product.cublas()))])
.flops(|_, ins, outs| (2 * outs[0].numel() * ins[1].shape[1]).max(0) as u64)
.export(Export::no(
    "an exported model is built in f32",
    "functional::linear, of which training makes products of 8 bits itself where they pay",
));

fn shape(op: &Fp8Linear, ins: &[&Meta]) -> Inferred {
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
    if op.bias && ins[8].shape.as_slice() != [outputs] {
        return Err(wrong(8, ins[8], "a bias of shape (out)"));
    }
    one(Meta { kind: op.out, ..x.with_size(x.rank() - 1, outputs) })
}

fn launch(op: &Fp8Linear, l: &Launch<'_>, run: Run) -> Launched {
    let y = run(&Product {
        a: l.at(2),
        b: l.at(4),
        scales: [l.at(3), l.at(5)],
        bias: op.bias.then(|| l.at(8)),
        out: op.out,
        fast: true,
    })?;
    let mut shape = l.at(0).size();
    if let Some(last) = shape.last_mut() {
        *last = l.at(4).size()[0];
    }
    Ok(smallvec![y.f_view(shape.as_slice())?])
}

/// Emits dx = g w and dw = gᵀ x, both of quantised operands; each in its operand's own kind.
fn vjp(_: &Fp8Linear, v: &Vjp<'_>) -> Result<Grads, OpError> {
    let g = v.g()?;
    let quantised = v.call_all(Quantize { to: GRADIENT }, &[g])?;
    let [q, qt, scale] = quantised.as_slice() else { return Err(v.fail(OpErrorKind::NotDifferentiable)) };
    let mut grads: Grads = smallvec![None; v.arity()];
    let product = |out: Kind| ScaledMm { out, bias: false, fast: false };
    if v.needs(0) {
        let x = v.meta(0);
        let dx = v.call(product(x.kind), &[q, v.input(7)?, scale, v.input(5)?])?;
        grads[0] = Some(v.call(Reshape { shape: x.shape }, &[&dx])?);
    }
    if v.needs(1) {
        grads[1] = Some(v.call(product(v.meta(1).kind), &[qt, v.input(6)?, scale, v.input(3)?])?);
    }
    if v.arity() > 8 && v.needs(8) {
        let axes: Axes = (0..g.shape().len() as i64 - 1).collect();
        grads[8] = Some(v.call(Sum { axes, keepdim: false }, &[g])?);
    }
    Ok(grads)
}
