//! Linear layers on the CPU: the products of many rows with a small weight, or of few with a large one, of `shim/cpu_linear.cpp`.
//! Libraries of matrix products are made for both large.

use crate::backend::Outs;
use crate::backend::torch::{
    ShimError,
    safe::{has_wide_kernel, linear, linear_backward},
};
use crate::op::attr::GradDest;
use crate::op::row::{Fit, Kernel, Launch, Launched};
use crate::op::{Linear, LinearBackward};
use smallvec::smallvec;
use tch::{Kind, Tensor};

/// Numbers of a small weight at most: 1 MiB stays in the second cache.
const WEIGHT_MAX: usize = 1 << 18;
/// Rows at least: a small weight is laid out anew at each call.
const ROWS_MIN: usize = 32;
/// Rows at most beside a large weight.
const ROWS_MAX: usize = 128;

pub(super) const FORWARD: Kernel<Linear> = Kernel::new("cpu.linear", fits, launch);
pub(super) const BACKWARD: Kernel<LinearBackward> = Kernel::new("cpu.linear", fits_backward, launch_backward);

enum Weight {
    Small,
    Large,
}

fn fits(_: &Linear, l: &Launch<'_>) -> Fit {
    match rows(l.at(0), l.at(1), l)? {
        (Weight::Large, rows) if rows > ROWS_MAX => Err("gains nothing with more than 2^18 weights and 128 rows"),
        _ => Ok(()),
    }
}

fn fits_backward(_: &LinearBackward, l: &Launch<'_>) -> Fit {
    match rows(l.at(1), l.at(2), l)? {
        (Weight::Large, _) => Err("gains nothing with more than 2^18 weights"),
        (Weight::Small, _) => Ok(()),
    }
}

/// The weight and the rows, unless there are too few or no kernel.
fn rows(x: &Tensor, w: &Tensor, l: &Launch<'_>) -> Result<(Weight, usize), &'static str> {
    if !has_wide_kernel(l.ins) {
        return Err("not f32 on a CPU with AVX2");
    }
    let width = x.size().last().map_or(0, |&width| width as usize);
    match (w.numel(), x.numel().checked_div(width)) {
        (0, _) | (_, None) => Err("takes no empty operands"),
        (_, Some(rows)) if rows < ROWS_MIN => Err("gains nothing with fewer than 32 rows"),
        (weight, Some(rows)) => Ok((if weight > WEIGHT_MAX { Weight::Large } else { Weight::Small }, rows)),
    }
}

fn launch(op: &Linear, l: &Launch<'_>) -> Launched {
    Ok(smallvec![product(l.at(0), l.at(1), op.bias.then(|| l.at(2)))?])
}

fn product(x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, ShimError> {
    linear(x, w, bias, w.numel() > WEIGHT_MAX)
}

fn launch_backward(op: &LinearBackward, l: &Launch<'_>) -> Launched {
    let LinearBackward { dx, dw, db } = *op;
    let mut storages = l.ins[3..].iter().map(|storage| storage.shallow_clone());
    let w = l.at(2);
    // What has no storage yet begins at zero.
    let mut place = |to: GradDest, shape: &[i64]| match to {
        GradDest::Skip => Ok(None),
        GradDest::New => Tensor::f_zeros(shape, (Kind::Float, w.device())).map(Some),
        GradDest::Add => Ok(storages.next()),
        GradDest::Write => storages.next().map(|mut storage| storage.f_zero_()).transpose(),
    };
    let sizes = w.size();
    let weight = place(dw, &sizes)?;
    let bias = place(db, &sizes[..1])?;
    let made = linear_backward([l.at(0), l.at(1), w], dx, weight.as_ref(), bias.as_ref())?;
    let mut outs: Outs = made.into_iter().collect();
    outs.extend(weight.filter(|_| dw == GradDest::New));
    outs.extend(bias.filter(|_| db == GradDest::New));
    Ok(outs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::row::Operation;
    use tch::Device;

    fn random(shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu))
    }

    fn near(found: &Tensor, expected: &Tensor) {
        assert_eq!(found.size(), expected.size());
        let off = (found - expected).abs().max().double_value(&[]);
        assert!(off < 1e-5 * (1.0 + expected.abs().max().double_value(&[])), "off by {off}");
    }

    /// Widths that fill registers and others, more rows than are added in one go, and rows that are not dense.
    #[test]
    fn products_are_those_of_the_plain_reference() {
        tch::manual_seed(1);
        let _none = tch::no_grad_guard();
        for (rows, inputs, outputs) in
            [(32, 16, 32), (45, 7, 5), (61, 33, 97), (700, 1, 17), (600, 300, 1), (40, 600, 3)]
        {
            let w = random(&[outputs, inputs]);
            let b = random(&[outputs]);
            let x = random(&[inputs, rows]).transpose(0, 1);
            for bias in [true, false] {
                let op = Linear { bias };
                let ins: &[&Tensor] = if bias { &[&x, &w, &b] } else { &[&x, &w] };
                let l = Launch { ins };
                fits(&op, &l).unwrap();
                near(&launch(&op, &l).unwrap()[0], &(Linear::ROW.launch)(&op, &l).unwrap()[0]);
            }
            let x = x.reshape([1, rows, inputs]);
            let g = random(&[1, rows, outputs]);
            for (dx, dw, db) in [
                (true, GradDest::Add, GradDest::Add),
                (false, GradDest::New, GradDest::Add),
                (true, GradDest::Skip, GradDest::New),
                (true, GradDest::Add, GradDest::Skip),
                (true, GradDest::Write, GradDest::Write),
            ] {
                let [found, expected] =
                    [(launch_backward as fn(&LinearBackward, &Launch<'_>) -> Launched), LinearBackward::ROW.launch]
                        .map(|launch| {
                            let storage = [(dw, w.ones_like()), (db, b.ones_like())];
                            let kept: Vec<&Tensor> =
                                storage.iter().filter(|(to, _)| to.is_storage()).map(|(_, t)| t).collect();
                            let ins: Vec<&Tensor> = [&g, &x, &w].into_iter().chain(kept.iter().copied()).collect();
                            let op = LinearBackward { dx, dw, db };
                            fits_backward(&op, &Launch { ins: &ins }).unwrap();
                            let made = launch(&op, &Launch { ins: &ins }).unwrap();
                            made.into_iter().chain(kept.into_iter().map(Tensor::shallow_clone)).collect::<Vec<_>>()
                        });
                assert_eq!(found.len(), expected.len());
                found.iter().zip(&expected).for_each(|(found, expected)| near(found, expected));
            }
        }
    }

    #[test]
    fn a_large_weight_is_read_as_it_lies() {
        tch::manual_seed(3);
        let _none = tch::no_grad_guard();
        for (rows, inputs, outputs) in [(32, 2048, 300), (33, 700, 450), (100, 515, 600)] {
            let x = random(&[rows, inputs]);
            let w = random(&[outputs, inputs]);
            let b = random(&[outputs]);
            for ins in [&[&x, &w, &b][..], &[&x, &w]] {
                let op = Linear { bias: ins.len() == 3 };
                let l = Launch { ins };
                fits(&op, &l).unwrap();
                near(&launch(&op, &l).unwrap()[0], &(Linear::ROW.launch)(&op, &l).unwrap()[0]);
            }
            assert_eq!(
                product(&x.narrow(0, 5, 2), &w, Some(&b)).unwrap(),
                product(&x, &w, Some(&b)).unwrap().narrow(0, 5, 2)
            );
        }
        let x = random(&[129, 1024]);
        let w = random(&[512, 1024]);
        assert!(fits(&Linear { bias: false }, &Launch { ins: &[&x, &w] }).is_err());
    }

    #[test]
    fn a_row_is_the_same_alone_among_others_and_on_more_threads() {
        tch::manual_seed(2);
        let _none = tch::no_grad_guard();
        let x = random(&[3000, 70]);
        let w = random(&[90, 70]);
        let whole = product(&x, &w, None).unwrap();
        let threads = tch::get_num_threads();
        tch::set_num_threads(if threads == 1 { 2 } else { 1 });
        assert_eq!(product(&x, &w, None).unwrap(), whole);
        tch::set_num_threads(threads);
        for (start, len) in [(0, 1), (7, 40), (2000, 997)] {
            assert_eq!(product(&x.narrow(0, start, len), &w, None).unwrap(), whole.narrow(0, start, len));
        }
    }

    #[test]
    fn numbers_that_are_none_stay_where_they_are() {
        let _none = tch::no_grad_guard();
        let x = Tensor::ones([40, 21], (Kind::Float, Device::Cpu));
        let w = Tensor::ones([5, 21], (Kind::Float, Device::Cpu));
        let _ = x.narrow(0, 39, 1).fill_(f64::NAN);
        let y = product(&x, &w, None).unwrap();
        assert_eq!(y.isnan().sum(Kind::Int64).int64_value(&[]), 5);
        assert_eq!(y.narrow(0, 0, 39), Tensor::full([39, 5], 21.0, (Kind::Float, Device::Cpu)));
    }
}
