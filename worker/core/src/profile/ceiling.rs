//! The machine's peak rates, measured when the profile is made: a large matrix product of each kind and a large copy, the best of
//! a few runs.

use crate::backend::graph::synchronize;
use crate::error::OpErrorKind;
use crate::op::{Op, ScaledMm, low_precision::FORWARD, row::Launch};
use enn_common::profile::{Ceiling, NumberKind};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};
use tch::{Device, Kind, Tensor};

/// Side of the matrices of the products.
const SIDE_CPU: i64 = 1024;
const SIDE_CUDA: i64 = 8192;
/// Bytes of the copy: more than any cache of one core holds.
const COPY_BYTES_CPU: i64 = 64 << 20;
const COPY_BYTES_CUDA: i64 = 1 << 30;
/// Runs, the first of which only warms up.
const TRIES: u32 = 6;

/// Measures the ceiling of `device`: products in f32, and on CUDA in the lower ones of `kinds`.
pub(super) fn measure(device: Device, kinds: &BTreeSet<NumberKind>) -> Result<Ceiling, OpErrorKind> {
    let mut flops_per_s = BTreeMap::from([(NumberKind::F32, product(device, Kind::Float)?)]);
    // A CPU without products below f32 would take minutes for them.
    for kind in kinds.iter().filter(|_| device.is_cuda()) {
        let measured = match kind {
            NumberKind::F32 | NumberKind::F64 => continue,
            NumberKind::F16 => product(device, Kind::Half).map(Some),
            NumberKind::Bf16 => product(device, Kind::BFloat16).map(Some),
            NumberKind::Fp8 => product_of_8_bits(device),
        };
        match measured {
            Ok(measured) => flops_per_s.extend(measured.map(|measured| (*kind, measured))),
            Err(error) => tracing::warn!(%error, kind = kind.name(), "a kind's ceiling could not be measured"),
        }
    }
    Ok(Ceiling { flops_per_s, bytes_per_s: copy(device)? })
}

fn side(device: Device) -> i64 {
    if device.is_cuda() { SIDE_CUDA } else { SIDE_CPU }
}

/// Returns the floating-point operations of one product.
fn flops(device: Device) -> f64 {
    2.0 * (side(device) as f64).powi(3)
}

/// Returns the floating-point operations per second of a product.
fn product(device: Device, kind: Kind) -> Result<f64, OpErrorKind> {
    let matrix = || Tensor::f_ones([side(device), side(device)], (kind, device));
    let a = matrix()?;
    let b = matrix()?;
    let product = matrix()?;
    let seconds = best(device, || Ok(a.f_matmul_out(&product, &b).map(|_| ())?))?;
    Ok(flops(device) / seconds)
}

/// Measures a product of 8-bit matrices with the kernel that the training uses. Returns `None` where there is only the plain
/// reference, which computes in f32.
fn product_of_8_bits(device: Device) -> Result<Option<f64>, OpErrorKind> {
    let matrix = Tensor::f_ones([side(device), side(device)], (Kind::Float, device))?.f_to_kind(FORWARD)?;
    let scale = Tensor::from(1.0_f32).f_to_device(device)?;
    let launch = Launch { ins: &[&matrix, &matrix, &scale, &scale] };
    let op = Op::from(ScaledMm { out: Kind::BFloat16, bias: false, fast: true });
    let kernel = op.row().kernels.iter().find(|kernel| (kernel.fits)(&op, &launch).is_ok());
    let Some(kernel) = kernel else { return Ok(None) };
    let seconds = best(device, || (kernel.launch)(&op, &launch).map(|_| ()))?;
    Ok(Some(flops(device) / seconds))
}

/// Returns the bytes per second of a copy, reads and writes counted.
fn copy(device: Device) -> Result<f64, OpErrorKind> {
    let bytes = if device.is_cuda() { COPY_BYTES_CUDA } else { COPY_BYTES_CPU };
    let from = Tensor::f_ones([bytes / 4], (Kind::Float, device))?;
    let mut to = from.f_zeros_like()?;
    let seconds = best(device, || Ok(to.f_copy_(&from)?))?;
    Ok(2.0 * bytes as f64 / seconds)
}

/// Returns the seconds of the fastest run.
fn best(device: Device, mut run: impl FnMut() -> Result<(), OpErrorKind>) -> Result<f64, OpErrorKind> {
    let _no_grad = tch::no_grad_guard();
    let settle = || {
        if let Device::Cuda(index) = device {
            // A failed device reports its error at the next use.
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
