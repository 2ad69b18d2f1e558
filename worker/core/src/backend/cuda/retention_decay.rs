//! λ = 1 − 2^(−β) and its gradient, with one number per head.

use super::call::{KernelCall, grid};
use super::check::{Check, blocks};
use super::error::CudaError;
use super::source::{Source, Variant};
use tch::Tensor;

pub(super) static SOURCE: Source =
    Source { name: "retention_decay", text: include_str!("src/retention_decay.cu"), numbers: &[], shared_bytes_max: 0 };

const THREADS: u32 = 128;

/// Computes λ of β, which is clamped to `bounds`.
pub fn forward(beta: &Tensor, bounds: (f64, f64)) -> Result<Tensor, CudaError> {
    let check = Check { kernel: "retention_decay" };
    let beta = beta.f_contiguous()?;
    let lambda = beta.f_empty_like()?;
    launch(check, "retention_decay", &[&beta, &lambda], bounds)?;
    Ok(lambda)
}

pub fn backward(g: &Tensor, beta: &Tensor, bounds: (f64, f64)) -> Result<Tensor, CudaError> {
    let check = Check { kernel: "retention_decay_backward" };
    let g = g.f_contiguous()?;
    let beta = beta.f_contiguous()?;
    check.same("g", &g, &beta)?;
    let to = beta.f_empty_like()?;
    launch(check, "retention_decay_back", &[&g, &beta, &to], bounds)?;
    Ok(to)
}

/// Launches a kernel on `tensors`, of which the last is written.
fn launch(check: Check, entry: &'static str, tensors: &[&Tensor], bounds: (f64, f64)) -> Result<(), CudaError> {
    let Some(to) = tensors.last().filter(|to| to.numel() > 0) else { return Ok(()) };
    let element = check.element("beta", to)?;
    check.device("beta", to)?;
    let variant = Variant::new(&SOURCE, element, &[]);
    let count = to.numel() as i64;
    let call = tensors.iter().fold(KernelCall::new(&variant, entry), |call, tensor| call.tensor(tensor));
    call.int(count).float(bounds.0).float(bounds.1).launch(to, grid(blocks(count, i64::from(THREADS)), THREADS))
}
