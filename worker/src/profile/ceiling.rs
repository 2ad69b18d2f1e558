//! What the machine can do, measured when the profile is made: a large matrix product and a large copy, the best of a few.

use crate::backend::graph::synchronize;
use enn_common::profile::Ceiling;
use std::time::Instant;
use tch::{Device, Kind, TchError, Tensor};

/// Side of the matrices.
const SIDE_CPU: i64 = 1024;
const SIDE_CUDA: i64 = 8192;
/// Bytes copied: more than any cache of one core holds.
const COPY_BYTES_CPU: i64 = 64 << 20;
const COPY_BYTES_CUDA: i64 = 1 << 30;
/// Tries, the first of which only warms up.
const TRIES: u32 = 6;

pub(super) fn measure(device: Device) -> Result<Ceiling, TchError> {
    let (side, bytes) = if device.is_cuda() { (SIDE_CUDA, COPY_BYTES_CUDA) } else { (SIDE_CPU, COPY_BYTES_CPU) };
    let matrix = |_| Tensor::f_ones([side, side], (Kind::Float, device));
    let (a, b, product) = (matrix(0)?, matrix(1)?, matrix(2)?);
    let seconds = best(device, || a.f_matmul_out(&product, &b).map(|_| ()))?;
    let flops_per_s = 2.0 * (side as f64).powi(3) / seconds;
    let from = Tensor::f_ones([bytes / 4], (Kind::Float, device))?;
    let mut to = from.f_zeros_like()?;
    let seconds = best(device, || to.f_copy_(&from))?;
    Ok(Ceiling { flops_per_s, bytes_per_s: 2.0 * bytes as f64 / seconds })
}

fn best(device: Device, mut run: impl FnMut() -> Result<(), TchError>) -> Result<f64, TchError> {
    let _no_grad = tch::no_grad_guard();
    let settle = || {
        if let Device::Cuda(index) = device {
            // A device that failed says so at its next use.
            drop(synchronize(index));
        }
    };
    let mut best = f64::INFINITY;
    for attempt in 0..TRIES {
        settle();
        let begun = Instant::now();
        run()?;
        settle();
        if attempt > 0 {
            best = best.min(begun.elapsed().as_secs_f64());
        }
    }
    Ok(best.max(f64::MIN_POSITIVE))
}
