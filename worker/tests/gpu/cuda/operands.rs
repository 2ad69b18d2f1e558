//! Operands for the kernels, laid out in every way they must bear, and the comparison with f64 on the CPU.

use crate::draws;
use enn_worker::backend::cuda;
use tch::{Device, Kind, Tensor};

pub(crate) const KINDS: [Kind; 3] = [Kind::Float, Kind::BFloat16, Kind::Half];

/// The device to test on; says why there is none.
pub(crate) fn device() -> Option<Device> {
    if tch::Cuda::device_count() == 0 {
        eprintln!("skipped: no CUDA device");
        return None;
    }
    if !cuda::is_present() {
        // With a device, a missing compiler is a failure of the set-up, not a reason to pass.
        panic!("there is a CUDA device, but the driver or NVRTC cannot be opened: see LD_LIBRARY_PATH");
    }
    Some(Device::Cuda(0))
}

/// How a tensor lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    Dense,
    /// One element after an aligned address.
    Misaligned,
    /// Every other element of the last axis.
    Strided,
    /// Rows with room for 6 more elements between them.
    Apart,
}

pub(crate) const LAYOUTS: [Layout; 4] = [Layout::Dense, Layout::Misaligned, Layout::Strided, Layout::Apart];

/// `x` on `device` with `layout`.
pub(crate) fn lay(x: &Tensor, layout: Layout, device: Device) -> Tensor {
    let x = x.to_device(device);
    match layout {
        Layout::Misaligned => {
            let mut room = Tensor::empty([x.numel() as i64 + 1], (x.kind(), device)).narrow(0, 1, x.numel() as i64);
            room = room.view(x.size().as_slice());
            room.copy_(&x);
            room
        }
        Layout::Strided if x.dim() > 0 => {
            let wide = Tensor::stack(&[&x, &x.zeros_like()], -1);
            let mut shape = x.size();
            let last = shape.len() - 1;
            shape[last] *= 2;
            wide.view(shape.as_slice()).slice(-1, 0, None, 2)
        }
        Layout::Apart if x.dim() > 0 => {
            let mut shape = x.size();
            let last = x.dim() - 1;
            let width = shape[last];
            shape[last] += 6;
            let mut room = Tensor::empty(shape, (x.kind(), device)).narrow(-1, 0, width);
            room.copy_(&x);
            room
        }
        _ => x.contiguous(),
    }
}

/// Standard normal numbers of `kind` on the CPU.
pub(crate) fn normal(shape: &[i64], kind: Kind) -> Tensor {
    draws::normal(shape).to_kind(kind)
}

/// Numbers between `lo` and `hi`.
pub(crate) fn between(shape: &[i64], lo: f64, hi: f64, kind: Kind) -> Tensor {
    (draws::uniform(shape) * (hi - lo) + lo).to_kind(kind)
}

/// Distance allowed for results of `kind`, relative to the largest expected number.
fn allowed(kind: Kind) -> f64 {
    match kind {
        Kind::BFloat16 => 1.6e-2,
        Kind::Half => 2e-3,
        _ => 2e-5,
    }
}

/// Fails unless `found` is `expected` up to rounding in `kind`.
#[track_caller]
pub(crate) fn near(what: &str, found: &Tensor, expected: &Tensor, kind: Kind) {
    assert_eq!(found.size(), expected.size(), "{what}");
    if found.numel() == 0 {
        return;
    }
    let found = found.to_device(Device::Cpu).to_kind(Kind::Double);
    let expected = expected.to_kind(Kind::Double);
    let largest = expected.abs().max().double_value(&[]);
    let distance = (&found - &expected).abs().max().double_value(&[]);
    // NaN is not near.
    assert!(distance <= allowed(kind) * largest.max(1.0), "{what}, {kind:?}: off by {distance:e} of {largest:e}");
}

/// Fails unless both have the same bits.
#[track_caller]
pub(crate) fn same(what: &str, a: &Tensor, b: &Tensor) {
    assert_eq!((a.size(), a.kind()), (b.size(), b.kind()), "{what}");
    let a = a.to_device(Device::Cpu);
    let b = b.to_device(Device::Cpu);
    assert!(a == b, "{what}: other bits");
}
