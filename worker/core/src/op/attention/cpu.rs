//! Attention of few tokens in narrow heads on the CPU, of `shim/cpu_attention.cpp`: one head's scores stay in the first cache, and no
//! library is called for each of them.

use super::AttentionCall;
use crate::backend::torch::safe::{attention, attention_backward, has_wide_kernel};
use crate::error::OpErrorKind;
use crate::op::row::{Fit, Kernel, Launch, Launched};
use crate::op::{Sdpa, SdpaBackward};
use tch::Tensor;

/// Scores of a head at most.
const SCORES_MAX: i64 = 2048;
/// Width of a head at most.
const WIDTH_MAX: i64 = 64;

pub(super) const FORWARD: Kernel<Sdpa> = Kernel::new("cpu.attention", |op, l| small(op.call(), l), launch);
pub(super) const BACKWARD: Kernel<SdpaBackward> =
    Kernel::new("cpu.attention", |op, l| small(op.call(), l), launch_backward);

fn small(call: AttentionCall, l: &Launch<'_>) -> Fit {
    call.fits_library(l)?;
    if !has_wide_kernel(l.ins) {
        return Err("not f32 on a CPU with AVX2");
    }
    let q = l.at(call.first).size();
    let k = l.at(call.first + 1).size();
    if q[2] * k[2] > SCORES_MAX || q[3] > WIDTH_MAX {
        return Err("takes up to 2048 scores of a head and a width up to 64");
    }
    Ok(())
}

/// The bias, where there is one, dense.
fn bias(l: &Launch<'_>, at: usize) -> Result<Option<Tensor>, OpErrorKind> {
    Ok(l.ins.get(at).map(|bias| bias.f_contiguous()).transpose()?)
}

fn launch(op: &Sdpa, l: &Launch<'_>) -> Launched {
    let made = attention([l.at(0), l.at(1), l.at(2)], bias(l, 3)?.as_ref(), op.call().causal())?;
    Ok(made.into_iter().collect())
}

fn launch_backward(op: &SdpaBackward, l: &Launch<'_>) -> Launched {
    let ins = [l.at(0), l.at(1), l.at(2), l.at(3), l.at(4), l.at(5)];
    let made = attention_backward(ins, bias(l, 6)?.as_ref(), op.call().causal())?;
    Ok(made.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::attr::{Score, Structural};
    use crate::op::row::Operation;
    use tch::{Device, Kind};

    fn near(found: &Tensor, expected: &Tensor) {
        assert_eq!(found.size(), expected.size());
        let off = (found - expected).abs().max().double_value(&[]);
        assert!(off < 1e-5 * (1.0 + expected.abs().max().double_value(&[])), "off by {off}");
    }

    /// Both directions, against the plain reference, on heads that lie as a model's do and on one query that all rows share.
    #[test]
    fn answers_and_gradients_are_those_of_the_plain_reference() {
        tch::manual_seed(1);
        let _none = tch::no_grad_guard();
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu)) * 2.0;
        for (queries, keys, width) in [(8, 16, 8), (1, 5, 3), (17, 33, 64), (20, 20, 16)] {
            let batch = 3;
            let heads = 2;
            let split = |tokens: i64| {
                random(&[batch, tokens, heads * width]).view([batch, tokens, heads, width]).transpose(1, 2)
            };
            let shared = split(queries).narrow(0, 0, 1).expand([batch, heads, queries, width], false);
            let k = split(keys);
            let v = split(keys);
            let g = split(queries);
            for q in [split(queries), shared] {
                let biases = [None, Some(random(&[keys])), Some(random(&[batch, keys]))];
                let same = queries == keys;
                let masks = biases.into_iter().map(|bias| (Structural::None, bias));
                for (mask, bias) in masks.chain(same.then_some((Structural::Causal, None))) {
                    let op = Sdpa { mask, bias: bias.is_some(), score: Score::PLAIN };
                    let ins: Vec<&Tensor> = [&q, &k, &v].into_iter().chain(&bias).collect();
                    let l = Launch { ins: &ins };
                    (FORWARD.fits)(&op, &l).unwrap();
                    let found = launch(&op, &l).unwrap();
                    let expected = (Sdpa::ROW.launch)(&op, &l).unwrap();
                    found.iter().zip(&expected).for_each(|(found, expected)| near(found, expected));

                    let op = SdpaBackward { mask, bias: bias.is_some(), dbias: false, score: Score::PLAIN };
                    let ins: Vec<&Tensor> =
                        [&g, &q, &k, &v, &expected[0], &expected[1]].into_iter().chain(&bias).collect();
                    let l = Launch { ins: &ins };
                    (BACKWARD.fits)(&op, &l).unwrap();
                    let found = launch_backward(&op, &l).unwrap();
                    let expected = (SdpaBackward::ROW.launch)(&op, &l).unwrap();
                    assert_eq!(found.len(), 3);
                    found.iter().zip(&expected).for_each(|(found, expected)| near(found, expected));
                }
            }
        }
    }

    #[test]
    fn large_scores_neither_overflow_nor_hide_a_number_that_is_none() {
        let _none = tch::no_grad_guard();
        let full = |value: f64| Tensor::full([1, 1, 4, 8], value, (Kind::Float, Device::Cpu));
        let [out, lse] = attention([&full(100.0), &full(100.0), &full(3.0)], None, false).unwrap();
        assert!((out - 3.0).abs().max().double_value(&[]) < 1e-6 && lse.isfinite().all().int64_value(&[]) == 1);
        let k = full(1.0);
        let _ = k.narrow(2, 1, 1).fill_(f64::NAN);
        let [out, _] = attention([&full(1.0), &k, &full(3.0)], None, false).unwrap();
        assert_eq!(out.isnan().all().int64_value(&[]), 1);
    }
}
