//! Norms over the last axis and gated units on the CPU, of `shim/cpu_rows.cpp`: libtorch goes over memory several times for each.

use super::norm::stats;
use super::row::{Kernel, Launch, Launched, Tolerance};
use super::{Op, gated_norm};
use crate::backend::torch::safe::{
    CpuNorm, CpuNormBackward, gate, gate_backward, has_wide_kernel, norm, norm_backward,
};
use smallvec::smallvec;
use tch::Tensor;

/// For LayerNorm, RmsNorm and AddNorm.
pub(super) const NORM: Kernel = Kernel {
    id: "cpu.norm",
    fits: |_, l| rows_fit(l.at(0), l),
    launch: launch_norm,
    tolerance: Tolerance::Reduction,
    deterministic: true,
};

/// For their reverses.
pub(super) const NORM_BACKWARD: Kernel =
    Kernel { fits: |_, l| rows_fit(l.at(1), l), launch: launch_norm_backward, ..NORM };

pub(super) const GATED_NORM: Kernel = Kernel { launch: |op, l| gated_norm::forward(op, l, run), ..NORM };

/// For its reverse.
pub(super) const GATED_NORM_BACKWARD: Kernel =
    Kernel { launch: |op, l| gated_norm::backward(op, l, run), ..NORM_BACKWARD };

/// For SiluMul and SwiGlu.
pub(super) const GATE: Kernel = Kernel {
    id: "cpu.gate",
    fits: |_, l| wide(l),
    launch: |_, l| Ok(smallvec![gate(l.at(0), l.ins.get(1).copied())?]),
    ..NORM
};

/// For their reverses.
pub(super) const GATE_BACKWARD: Kernel =
    Kernel { launch: |_, l| Ok(gate_backward(l.at(0), l.at(1), l.ins.get(2).copied())?.collect()), ..GATE };

fn wide(l: &Launch<'_>) -> Result<(), &'static str> {
    if has_wide_kernel(l.ins) { Ok(()) } else { Err("not f32 on a CPU with AVX2") }
}

fn rows_fit(x: &Tensor, l: &Launch<'_>) -> Result<(), &'static str> {
    wide(l)?;
    match x.size().last() {
        Some(1..) => Ok(()),
        _ => Err("rows are empty"),
    }
}

fn launch_norm(op: &Op, l: &Launch<'_>) -> Launched {
    let (branch, affine, centred, eps) = match *op {
        Op::LayerNorm { affine, eps } => (false, affine, true, eps),
        Op::RmsNorm { affine, eps } => (false, affine, false, eps),
        Op::AddNorm { layer, eps, .. } => (true, true, layer, eps),
        _ => unreachable!("row of another operation"),
    };
    let first = 1 + usize::from(branch);
    let n = CpuNorm {
        x: l.at(0),
        branch: branch.then(|| l.at(1)),
        weight: affine.then(|| l.at(first)),
        bias: (affine && centred).then(|| l.at(first + 1)),
        centred,
        eps: eps.get(),
    };
    Ok(norm(&n)?.collect())
}

fn launch_norm_backward(op: &Op, l: &Launch<'_>) -> Launched {
    let (affine, centred, gsum) = match *op {
        Op::LayerNormBackward { affine } => (affine, true, false),
        Op::RmsNormBackward { affine } => (affine, false, false),
        Op::AddNormBackward { layer, gsum, .. } => (true, layer, gsum),
        _ => unreachable!("row of another operation"),
    };
    let stats = stats(centred);
    let n = CpuNormBackward {
        g: l.at(0),
        x: l.at(1),
        mean: centred.then(|| l.at(2)),
        rstd: l.at(1 + stats),
        weight: affine.then(|| l.at(2 + stats)),
        gsum: gsum.then(|| l.at(3 + stats)),
    };
    Ok(norm_backward(&n)?.collect())
}

/// The norm, the gate and their reverses.
fn run(op: &Op, l: &Launch<'_>) -> Launched {
    match op {
        Op::SiluMul => (GATE.launch)(op, l),
        Op::SiluMulBackward => (GATE_BACKWARD.launch)(op, l),
        Op::LayerNormBackward { .. } | Op::RmsNormBackward { .. } => launch_norm_backward(op, l),
        _ => launch_norm(op, l),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    fn random(shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu))
    }

    /// Kernel and plain reference agree; what the kernel made.
    fn same(kernel: &Kernel, op: &Op, ins: &[&Tensor]) -> Vec<Tensor> {
        let l = Launch { ins };
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
                let made = same(&NORM, &Op::LayerNorm { affine, eps }, &ins);
                let ins = [&[&g, &x, &made[1], &made[2]], &weights[..weights.len() / 2]].concat();
                same(&NORM_BACKWARD, &Op::LayerNormBackward { affine }, &ins);
                let weights = &weights[..weights.len() / 2];
                let made = same(&NORM, &Op::RmsNorm { affine, eps }, &[&[&x], weights].concat());
                same(&NORM_BACKWARD, &Op::RmsNormBackward { affine }, &[&[&g, &x, &made[1]], weights].concat());
            }
            for layer in [true, false] {
                let weights: &[&Tensor] = if layer { &[&w, &b] } else { &[&w] };
                let ins = [&[&x, &branch], weights].concat();
                let made = same(&NORM, &Op::AddNorm { layer, eps, low: None }, &ins);
                for more in [&[] as &[&Tensor], &[&gsum]] {
                    let stats: Vec<&Tensor> = made[2..].iter().collect();
                    let ins = [&[&g, &made[0]], stats.as_slice(), &weights[..1], more].concat();
                    let op = Op::AddNormBackward { layer, gsum: !more.is_empty(), low: None };
                    same(&NORM_BACKWARD, &op, &ins);
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
                let op = Op::GatedNorm { layer, eps: 1e-3.into(), low: None };
                let made = same(&GATED_NORM, &op, &[&[&s, &q, &gate], weights].concat());
                let saved: Vec<&Tensor> = made[1..].iter().collect();
                let ins = [&[&g, &s, &q, &gate], saved.as_slice(), weights].concat();
                same(&GATED_NORM_BACKWARD, &Op::GatedNormBackward { layer, low: None }, &ins);
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
            same(&GATE, &Op::SiluMul, &[&a, &b]);
            same(&GATE_BACKWARD, &Op::SiluMulBackward, &[&g, &a, &b]);
            same(&GATE, &Op::SwiGlu, &[&both]);
            same(&GATE_BACKWARD, &Op::SwiGluBackward, &[&g, &both]);
        }
    }

    #[test]
    fn a_row_is_the_same_alone_among_others_and_on_more_threads() {
        tch::manual_seed(3);
        let _none = tch::no_grad_guard();
        let x = random(&[5000, 70]);
        let w = random(&[70]);
        let b = random(&[70]);
        let op = Op::LayerNorm { affine: true, eps: 1e-5.into() };
        let threads = tch::get_num_threads();
        let run = |x: &Tensor| {
            let made = launch_norm(&op, &Launch { ins: &[x, &w, &b] }).unwrap();
            let grad = Op::LayerNormBackward { affine: true };
            let ins = [x, x, &made[1], &made[2], &w];
            let mut all = launch_norm_backward(&grad, &Launch { ins: &ins }).unwrap();
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
        let normed = launch_norm(&Op::RmsNorm { affine: false, eps: 1e-5.into() }, &l).unwrap();
        assert_eq!(normed[0].isnan().sum(Kind::Int64).int64_value(&[]), 24);
    }
}
