//! Optimizer updates: no gradient, written in place.

use super::Op;
use super::infer::{Inferred, Metas, mismatch};
use super::row::{Export, Launch, Launched, OpRow};
use super::value::Meta;
use crate::error::OpErrorKind;
use smallvec::SmallVec;

/// AdamW.
///
/// Operands: parameter, gradient, first moment, second moment, step count (0 axes, already counting this step),
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

fn launch(op: &Op, l: &Launch<'_>) -> Launched {
    let Op::AdamW { beta1, beta2, eps, decay, scaled, gated } = op else { unreachable!("row of another operation") };
    let (beta1, beta2) = (beta1.get(), beta2.get());
    let (step, rate) = (l.at(4), l.at(5));
    let mut g = l.at(1).shallow_clone();
    if *scaled {
        g = g.f_mul(l.at(6))?;
    }
    let fresh = |i: usize| -> Result<tch::Tensor, OpErrorKind> { Ok(l.at(i).shallow_clone()) };
    let (mut p, mut m, mut v) = (fresh(0)?, fresh(2)?, fresh(3)?);
    let m_new = m.f_mul_scalar(beta1)?.f_add_(&g.f_mul_scalar(1.0 - beta1)?)?;
    let v_new = v.f_mul_scalar(beta2)?.f_add_(&g.f_mul(&g)?.f_mul_scalar_(1.0 - beta2)?)?;
    let one_minus_power = |beta: f64| -> Result<tch::Tensor, OpErrorKind> {
        Ok(step.f_mul_scalar(beta.ln())?.f_exp()?.f_neg()?.f_add_scalar(1.0)?)
    };
    let denominator = v_new.f_sqrt()?.f_div_(&one_minus_power(beta2)?.f_sqrt()?)?.f_add_scalar_(eps.get())?;
    let update = m_new.f_div(&denominator)?.f_mul_(&rate.f_div(&one_minus_power(beta1)?)?)?;
    let shrink = rate.f_mul_scalar(-decay.get())?.f_add_scalar(1.0)?;
    let p_new = p.f_mul(&shrink)?.f_sub_(&update)?;
    for (old, new) in [(&mut p, p_new), (&mut m, m_new), (&mut v, v_new)] {
        if *gated {
            let skip = l.ins[l.ins.len() - 1].f_gt(0.5)?;
            let kept = old.f_where_self(&skip, &new)?;
            old.f_copy_(&kept)?;
        } else {
            old.f_copy_(&new)?;
        }
    }
    Ok(SmallVec::new())
}
