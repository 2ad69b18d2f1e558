//! Attention by our own CUDA kernels, which take every mask, bias and score.

use super::{AttentionCall, scale};
use crate::backend::cuda::attention::{self, AttentionInputs, AttentionMask};
use crate::op::attr::{F64Bits, Structural};
use crate::op::on_device::on_device;
use crate::op::row::{Fit, Kernel, Launch, Launched};
use crate::op::{Sdpa, SdpaBackward};
use smallvec::smallvec;

pub(super) const FORWARD: Kernel<Sdpa> = Kernel::new("cuda.attention", |op, l| fits(op.call(), l), launch);
pub(super) const BACKWARD: Kernel<SdpaBackward> =
    Kernel::new("cuda.attention_backward", |op, l| fits(op.call(), l), launch_backward);

fn fits(call: AttentionCall, l: &Launch<'_>) -> Fit {
    let q = l.at(call.first).size();
    let k = l.at(call.first + 1).size();
    let v = l.at(call.first + 2).size();
    if q[3] != v[3] || !(1..=attention::HEAD_MAX).contains(&q[3]) {
        return Err("takes heads of 1 to 128, of one width for keys and values");
    }
    if k[2] == 0 {
        return Err("takes at least one key");
    }
    on_device(l.at(call.first))
}

fn mask_of(mask: Structural) -> AttentionMask {
    match mask {
        Structural::None => AttentionMask::NONE,
        Structural::Causal => AttentionMask { causal: true, ..AttentionMask::NONE },
        Structural::Window(w) => AttentionMask { window: Some(w), ..AttentionMask::NONE },
        Structural::Dilated { window, dilation, causal } => AttentionMask { causal, window: Some(window), dilation },
    }
}

/// Puts together the operands of a call, whose bias is operand `bias`.
fn inputs<'a>(call: AttentionCall, l: &'a Launch<'_>, bias: usize) -> AttentionInputs<'a> {
    let q = l.at(call.first);
    let cap = call.score.cap.map(F64Bits::get);
    AttentionInputs {
        q,
        k: l.at(call.first + 1),
        v: l.at(call.first + 2),
        bias: call.bias.then(|| l.at(bias)),
        mask: mask_of(call.mask),
        scale: scale(q),
        cap,
        alibi: call.score.alibi,
    }
}

fn launch(op: &Sdpa, l: &Launch<'_>) -> Launched {
    let (out, lse) = attention::attention(&inputs(op.call(), l, 3))?;
    Ok(smallvec![out, lse])
}

fn launch_backward(op: &SdpaBackward, l: &Launch<'_>) -> Launched {
    let call = inputs(op.call(), l, 6);
    let made = attention::attention_backward(&call, l.at(0), l.at(4), l.at(5), op.dbias)?;
    Ok([made.dq, made.dk, made.dv].into_iter().chain(made.dbias).collect())
}
