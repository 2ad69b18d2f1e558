//! Optimizer updates: no gradient, written in place.

use super::Op;
use super::infer::{Inferred, Metas, mismatch};
use super::row::{Export, Launch, Launched, OpRow};
use super::value::Meta;
use crate::backend::torch::safe::{Arg, AtenOp};
use smallvec::SmallVec;

/// AdamW.
///
/// Operands: parameter, gradient (comes back scaled if `scaled`), first moment, second moment, step count (0 axes, already counting this step),
/// learning rate (0 axes), then the gradient factor if `scaled`, then the skip flag if `gated` (1 = skip).
/// Everything stays on the device.
pub static ROWS: [OpRow; 1] =
    [OpRow { export: Export::No("the optimizer is not part of the model"), ..OpRow::backward("adamw", shape, launch) }];

fn shape(_: &Op, ins: &[&Meta]) -> Inferred {
    for other in &ins[1..4] {
        if other.shape != ins[0].shape {
            return Err(mismatch(&ins[0].shape, &other.shape, "parameter, gradient and moments of one shape"));
        }
    }
    Ok(Metas::new())
}

static FUSED_ADAMW: AtenOp = AtenOp::new(c"aten::_fused_adamw_", c"tensor_lr");

/// libtorch's fused kernel: one pass over the four arrays.
fn launch(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::AdamW { beta1, beta2, eps, decay, scaled, gated } = op else { unreachable!("row of another operation") };
    // The kernel divides by its scale, and stores the scaled gradient.
    let divisor = if *scaled { Some(l.at(6).f_reciprocal()?) } else { None };
    FUSED_ADAMW.call(&[
        Arg::Tensors(&[l.at(0)]),
        Arg::Tensors(&[l.at(1)]),
        Arg::Tensors(&[l.at(2)]),
        Arg::Tensors(&[l.at(3)]),
        Arg::Tensors(&[]),
        Arg::Tensors(&[l.at(4)]),
        Arg::Tensor(l.at(5)),
        Arg::Real(beta1.get()),
        Arg::Real(beta2.get()),
        Arg::Real(decay.get()),
        Arg::Real(eps.get()),
        Arg::Bool(false),
        Arg::Bool(false),
        divisor.as_ref().map_or(Arg::None, Arg::Tensor),
        if *gated { Arg::Tensor(l.at(l.ins.len() - 1)) } else { Arg::None },
    ])?;
    Ok(SmallVec::new())
}
