//! Linear layers in 8 bits: which layers qualify, and a self-test of the device's products.

use super::autocast::Fp8;
use crate::error::OpErrorKind;
use crate::op::low_precision::{ALIGN, FORWARD, GRADIENT, as_matrix};
use crate::op::row::Launch;
use crate::op::value::Meta;
use crate::op::{Op, Quantize, ScaledMm};
use tch::{Device, Kind, Tensor};

/// Largest relative error (Frobenius norm) that the self-test accepts. Rounding to 2 mantissa bits alone gives about 0.06.
pub const ERROR_MAX: f64 = 0.12;
/// Rows, inputs and outputs of the test's matrices. They differ, so that a wrong transposition is found.
const TEST_SIZES: (i64, i64, i64) = (64, 128, 96);

/// Whether a linear layer with these operands runs in 8 bits.
pub fn takes(fp8: Fp8, x: &Meta, w: &Meta) -> bool {
    let fits = |size: i64| size >= fp8.side_min.max(ALIGN) && size % ALIGN == 0;
    if x.rank() == 0 || w.rank() != 2 {
        return false;
    }
    let (rows, inputs) = as_matrix(x);
    fits(rows) && fits(inputs) && fits(w.shape[0])
}

/// Compares 8-bit products on `device`, in the kinds of the forward and the backward pass, with f32 products. Returns the larger
/// relative error. Called once per run, before the first step, as it reads a number back from the device.
///
/// # Errors
/// When the device has no 8-bit products.
pub fn self_test(device: Device) -> Result<f64, OpErrorKind> {
    let (rows, inputs, outputs) = TEST_SIZES;
    let mut worst: f64 = 0.0;
    for (kind, bias) in [(FORWARD, true), (GRADIENT, false)] {
        let a = pattern(rows, inputs, 0.7, device)?;
        let b = pattern(outputs, inputs, 1.3, device)?;
        let bias = if bias { Some(pattern(1, outputs, 2.1, device)?.f_view([outputs])?) } else { None };
        let qa = quantise(&a, kind)?;
        let qb = quantise(&b, FORWARD)?;
        let op = Op::from(ScaledMm { out: Kind::BFloat16, bias: bias.is_some(), fast: false });
        let low = bias.as_ref().map(|bias| bias.f_to_kind(Kind::BFloat16)).transpose()?;
        let ins: Vec<&Tensor> = [&qa[0], &qb[0], &qa[2], &qb[2]].into_iter().chain(low.as_ref()).collect();
        let launch = Launch { ins: &ins };
        let kernel = op.row().kernels.iter().find(|kernel| (kernel.fits)(&op, &launch).is_ok());
        let made = kernel.map_or(op.row().launch, |kernel| kernel.launch)(&op, &launch)?;
        let mut expected = a.f_mm(&b.f_transpose(0, 1)?)?;
        if let Some(bias) = &bias {
            expected = expected.f_add(bias)?;
        }
        let off = made[0].f_to_kind(Kind::Float)?.f_sub(&expected)?.f_norm()?.f_div(&expected.f_norm()?)?;
        let off = off.f_double_value(&[])?;
        worst = if off.is_finite() { worst.max(off) } else { f64::INFINITY };
    }
    Ok(worst)
}

fn quantise(x: &Tensor, to: Kind) -> Result<crate::backend::Outs, OpErrorKind> {
    let op = Op::from(Quantize { to });
    (op.row().launch)(&op, &Launch { ins: &[x] })
}

/// Returns deterministic noise: the fractional part of a scaled sine.
fn pattern(rows: i64, columns: i64, phase: f64, device: Device) -> Result<Tensor, OpErrorKind> {
    let index = Tensor::f_arange(rows * columns, (Kind::Float, device))?;
    let noise = index.f_add_scalar(phase)?.f_mul_scalar(12.9898)?.f_sin()?.f_mul_scalar(437.585)?.f_frac()?;
    Ok(noise.f_view([rows, columns])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(shape: &[i64]) -> Meta {
        Meta { shape: shape.into(), kind: Kind::Float, device: Device::Cpu }
    }

    #[test]
    fn only_large_aligned_matrices_run_in_8_bits() {
        let fp8 = Fp8 { side_min: 64 };
        assert!(takes(fp8, &meta(&[4, 16, 64]), &meta(&[128, 64])));
        assert!(!takes(fp8, &meta(&[4, 15, 64]), &meta(&[128, 64])), "60 rows");
        assert!(!takes(fp8, &meta(&[65, 64]), &meta(&[128, 64])), "65 rows are no multiple of 16");
        assert!(!takes(fp8, &meta(&[64, 72]), &meta(&[128, 72])), "72 inputs");
        assert!(!takes(fp8, &meta(&[64, 64]), &meta(&[48, 64])), "48 outputs");
        assert!(!takes(Fp8 { side_min: 0 }, &meta(&[64]), &meta(&[128, 64])), "one row");
    }

    #[test]
    fn the_reference_passes_its_own_test() {
        let off = self_test(Device::Cpu).unwrap();
        assert!(off > 1e-3 && off < ERROR_MAX, "{off}");
    }
}
