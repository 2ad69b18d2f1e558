//! Sums into gradients.

use crate::backend::torch::safe::{Arg, AtenOp};
use crate::op::prelude::*;

attributes! {
    /// Operands in pairs: a gradient, which is written, and what is added to it. Each gradient is there once.
    GradAdd => GRAD_ADD;
}

const GRAD_ADD: OpRow<GradAdd> = OpRow::backward("grad_add", nothing, launch)
    .writes(|_, i| i.is_multiple_of(2))
    .flops(|_, ins, _| ins.iter().step_by(2).map(|meta| count(meta)).sum());

static ADD_ALL: AtenOp = AtenOp::new(c"aten::_foreach_add_", c"List");

fn launch(_: &GradAdd, l: &Launch<'_>) -> Launched {
    let [sums, more] = [0, 1].map(|of| l.ins.iter().skip(of).step_by(2).copied().collect::<Vec<_>>());
    if let ([sum], [more]) = (&*sums, &*more) {
        let _ = sum.shallow_clone().f_add_(more)?;
    } else {
        ADD_ALL.call(&[Arg::Tensors(&sums), Arg::Tensors(&more), Arg::Int(1)])?;
    }
    Ok(SmallVec::new())
}
