//! Norms over the last axis on the CPU, of `shim/cpu_rows.cpp`: libtorch goes over memory several times for each.

use super::{Norm, stats};
use crate::backend::torch::safe::{CpuNorm, CpuNormBackward, norm as cpu_norm, norm_backward as cpu_norm_backward};
use crate::op::elementwise::gate::wide_fits;
use crate::op::prelude::*;

/// Creates the entry of an operation that contains a norm.
pub(super) const fn kernel<A>(launch: fn(&A, &Launch<'_>) -> Launched) -> Kernel<A> {
    Kernel::new("cpu.norm", |_, l| rows_fit(l.at(0), l), launch)
}

/// Creates the entry of the reverse of such an operation.
pub(super) const fn backward_kernel<A>(launch: fn(&A, &Launch<'_>) -> Launched) -> Kernel<A> {
    Kernel::new("cpu.norm", |_, l| rows_fit(l.at(1), l), launch)
}

fn rows_fit(x: &Raw, l: &Launch<'_>) -> Fit {
    wide_fits(l)?;
    match x.size().last() {
        Some(1..) => Ok(()),
        _ => Err("rows are empty"),
    }
}

/// Runs a norm. Operands: x, then a branch that is added to it if there is one, then the weights.
pub(super) fn norm(call: Norm, branch: bool, l: &Launch<'_>) -> Launched {
    let first = 1 + usize::from(branch);
    let n = CpuNorm {
        x: l.at(0),
        branch: branch.then(|| l.at(1)),
        weight: call.affine.then(|| l.at(first)),
        bias: (call.affine && call.layer).then(|| l.at(first + 1)),
        centred: call.layer,
        eps: call.eps,
    };
    Ok(cpu_norm(&n)?.collect())
}

/// Runs the reverse of a norm. Operands: gradient, x, statistics, the weight, then the gradient of a sum if there is one.
pub(super) fn norm_backward(layer: bool, affine: bool, gsum: bool, l: &Launch<'_>) -> Launched {
    let stats = stats(layer);
    let n = CpuNormBackward {
        g: l.at(0),
        x: l.at(1),
        mean: layer.then(|| l.at(2)),
        rstd: l.at(1 + stats),
        weight: affine.then(|| l.at(2 + stats)),
        gsum: gsum.then(|| l.at(3 + stats)),
    };
    Ok(cpu_norm_backward(&n)?.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::torch::safe::gate;
    use crate::op::{
        AddNorm, AddNormBackward, GatedNorm, GatedNormBackward, LayerNorm, LayerNormBackward, Op, RmsNorm,
        RmsNormBackward, SiluMul, SiluMulBackward, SwiGlu, SwiGluBackward,
    };
    use tch::Tensor;

    fn random(shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu))
    }

    /// Compares the kernel with the plain reference, and returns what the kernel made.
    fn same(op: impl Into<Op>, ins: &[&Tensor]) -> Vec<Tensor> {
        let op = &op.into();
        let l = Launch { ins };
        let kernel = op.row().kernels.iter().find(|kernel| kernel.id.starts_with("cpu.")).unwrap();
        (kernel.fits)(op, &l).unwrap();
        let found = (kernel.launch)(op, &l).unwrap();
        let expected = (op.row().launch)(op, &l).unwrap();
        assert_eq!(found.len(), expected.len(), "{op:?}");
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.size(), expected.size(), "{op:?}");
            if found.numel() > 0 {
                let off = (found - expected).abs().max().double_value(&[]);
                assert!(off < 1e-5 * (1.0 + expected.abs().max().double_value(&[])), "{op:?} is off by {off}");
            }
        }
        found.into_vec()
    }

    /// Widths that fill registers and others, more rows than are added in one go, rows that are not dense, and none.
    #[test]
    fn norms_and_their_gradients_are_those_of_the_plain_reference() {
        tch::manual_seed(1);
        let _none = tch::no_grad_guard();
        let eps = 1e-3.into();
        for (rows, width) in [(3, 16), (700, 32), (5, 7), (300, 33), (2, 400), (9, 1), (0, 5)] {
            let w = random(&[width]);
            let b = random(&[width]);
            let x = random(&[width, rows]).transpose(0, 1) * 3.0 + 2.0;
            let branch = random(&[rows, width]);
            let g = random(&[rows, width]);
            let gsum = random(&[rows, width]);
            for affine in [true, false] {
                let weights: &[&Tensor] = if affine { &[&w, &b] } else { &[] };
                let ins = [&[&x], weights].concat();
                let made = same(LayerNorm { affine, eps }, &ins);
                let ins = [&[&g, &x, &made[1], &made[2]], &weights[..weights.len() / 2]].concat();
                same(LayerNormBackward { affine }, &ins);
                let weights = &weights[..weights.len() / 2];
                let made = same(RmsNorm { affine, eps }, &[&[&x], weights].concat());
                same(RmsNormBackward { affine }, &[&[&g, &x, &made[1]], weights].concat());
            }
            for layer in [true, false] {
                let weights: &[&Tensor] = if layer { &[&w, &b] } else { &[&w] };
                let ins = [&[&x, &branch], weights].concat();
                let made = same(AddNorm { layer, eps, low: None }, &ins);
                for more in [&[] as &[&Tensor], &[&gsum]] {
                    let stats: Vec<&Tensor> = made[2..].iter().collect();
                    let ins = [&[&g, &made[0]], stats.as_slice(), &weights[..1], more].concat();
                    let op = AddNormBackward { layer, gsum: !more.is_empty(), low: None };
                    same(op, &ins);
                }
            }
        }
    }

    #[test]
    fn gated_norms_and_their_gradients_are_those_of_the_plain_reference() {
        tch::manual_seed(3);
        let _none = tch::no_grad_guard();
        for (rows, width) in [(3, 16), (700, 32), (5, 7), (2, 400), (0, 5)] {
            let all = random(&[rows, 3 * width]);
            let q = all.narrow(1, 0, width);
            let gate = all.narrow(1, 2 * width, width);
            let s = random(&[rows, width]) * 3.0;
            let g = random(&[rows, width]);
            let w = random(&[width]);
            let b = random(&[width]);
            for layer in [true, false] {
                let weights: &[&Tensor] = if layer { &[&w, &b] } else { &[&w] };
                let op = GatedNorm { layer, eps: 1e-3.into(), low: None };
                let made = same(op, &[&[&s, &q, &gate], weights].concat());
                let saved: Vec<&Tensor> = made[1..].iter().collect();
                let ins = [&[&g, &s, &q, &gate], saved.as_slice(), weights].concat();
                same(GatedNormBackward { layer, low: None }, &ins);
            }
        }
    }

    #[test]
    fn gates_and_their_gradients_are_those_of_the_plain_reference() {
        tch::manual_seed(2);
        let _none = tch::no_grad_guard();
        for (rows, width) in [(3, 16), (700, 64), (5, 7), (40_000, 1), (0, 5)] {
            let both = random(&[rows, 2 * width]) * 30.0;
            let a = both.narrow(1, 0, width);
            let b = random(&[width, rows]).transpose(0, 1);
            let g = random(&[rows, width]);
            same(SiluMul, &[&a, &b]);
            same(SiluMulBackward, &[&g, &a, &b]);
            same(SwiGlu, &[&both]);
            same(SwiGluBackward, &[&g, &both]);
        }
    }

    #[test]
    fn a_row_is_the_same_alone_among_others_and_on_more_threads() {
        tch::manual_seed(3);
        let _none = tch::no_grad_guard();
        let x = random(&[5000, 70]);
        let w = random(&[70]);
        let b = random(&[70]);
        let layer = Norm { layer: true, affine: true, eps: 1e-5 };
        let threads = tch::get_num_threads();
        let run = |x: &Tensor| {
            let made = norm(layer, false, &Launch { ins: &[x, &w, &b] }).unwrap();
            let ins = [x, x, &made[1], &made[2], &w];
            let mut all = norm_backward(true, true, false, &Launch { ins: &ins }).unwrap();
            all.extend(made);
            all.push(gate(x, None).unwrap());
            all
        };
        let whole = run(&x);
        tch::set_num_threads(if threads == 1 { 2 } else { 1 });
        assert_eq!(run(&x), whole);
        tch::set_num_threads(threads);
        for (start, len) in [(0, 1), (7, 40), (2000, 997)] {
            let part = run(&x.narrow(0, start, len));
            for of_rows in [0, 3, 4, 5, 6] {
                assert_eq!(part[of_rows], whole[of_rows].narrow(0, start, len));
            }
        }
    }

    #[test]
    fn large_numbers_stay_numbers_and_one_that_is_none_stays_in_its_row() {
        let _none = tch::no_grad_guard();
        let x = Tensor::full([4, 6], 1e30, (Kind::Float, Device::Cpu));
        let _ = x.narrow(0, 1, 1).fill_(-1e30);
        let _ = x.narrow(0, 3, 1).fill_(f64::NAN);
        let gated = gate(&x, Some(&x.ones_like())).unwrap();
        let expected = x.f_silu().unwrap();
        assert_eq!(gated.narrow(0, 0, 3), expected.narrow(0, 0, 3));
        assert_eq!(gated.isnan().sum(Kind::Int64).int64_value(&[]), 6);
        // Of numbers whose squares are none, there is no norm.
        let l = Launch { ins: &[&x] };
        let normed = norm(Norm { layer: false, affine: false, eps: 1e-5 }, false, &l).unwrap();
        assert_eq!(normed[0].isnan().sum(Kind::Int64).int64_value(&[]), 24);
    }
}
