//! The prediction guard: a model whose answers hardly differ is asked once more in full precision before it is believed.
//!
//! ```text
//! rows from all over the data ─► forward in the wanted precision ─► spread of each cell against the precision's last place
//!   spread: keep it   no spread: forward in fp32 ─► spread: fp32 from the first row on   no spread: keep it, and warn
//! ```
//! **Invariant:** every rank looks at the same rows, so that all rows of a prediction are computed alike by any worker and
//! after every interruption; no prediction is altered to look different.

use crate::data::Batch;
use crate::session::SessionError;
use enn_common::staged::meta::Stats;
use enn_core::precision::Format;
use tch::{Kind, Tensor};

/// A cell is flat when its largest and smallest answer differ by fewer units in the last place than this.
const LAST_PLACES: f64 = 4.0;
/// A model is flat when this share of its cells is.
const FLAT_SHARE: f64 = 0.9;

/// Unit in the last place of 1 in the products of a format.
pub(crate) fn unit(format: Format) -> f64 {
    match format {
        Format::Fp32 => 2f64.powi(-23),
        Format::Tf32 | Format::Fp16 => 2f64.powi(-10),
        Format::Bf16 => 2f64.powi(-7),
        Format::Fp8 => 2f64.powi(-3),
    }
}

/// Whether answers z (B, O) to rows that differ are the same but for `unit`, in the cells whose targets varied in training. Where none
/// did there is nothing to tell. `None`: the rows do not differ, so that others must be asked about.
pub(crate) fn is_flat(batch: &Batch, z: &Tensor, targets: &[Stats], unit: f64) -> Result<Option<bool>, SessionError> {
    let varying: Vec<i64> = (0i64..).zip(targets).filter(|(_, one)| one.max > one.min).map(|(at, _)| at).collect();
    if varying.is_empty() {
        return Ok(Some(false));
    }
    if !differs(batch)? {
        return Ok(None);
    }
    let z = z.f_index_select(1, &Tensor::f_from_slice(&varying)?.f_to_device(z.device())?)?.f_to_kind(Kind::Double)?;
    let spread = z.f_amax(0i64, false)?.f_sub(&z.f_amin(0i64, false)?)?;
    // Standardised answers are sums of terms of size 1, also where they are near 0.
    let limit = z.f_abs()?.f_amax(0i64, false)?.f_clamp_min(1.0)?.f_mul_scalar(LAST_PLACES * unit)?;
    let flat = spread.f_le_tensor(&limit)?.f_to_kind(Kind::Double)?.f_mean(None)?;
    Ok(Some(flat.f_double_value(&[])? >= FLAT_SHARE))
}

fn differs(batch: &Batch) -> Result<bool, SessionError> {
    if batch.x.size()[0] < 2 {
        return Ok(false);
    }
    let x = batch.x.f_where_scalarother(&batch.x_mask, 0.0)?;
    let other = |t: &Tensor| -> Result<bool, tch::TchError> {
        Ok(t.f_ne_tensor(&t.f_narrow(0, 0, 1)?)?.f_any()?.f_int64_value(&[])? != 0)
    };
    Ok(other(&x)? || other(&batch.x_mask)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    const VARYING: [Stats; 2] = [Stats { n: 3, mean: 0.0, std: 1.0, min: -1.0, max: 1.0 }; 2];
    const CONSTANT: Stats = Stats { n: 3, mean: 1.0, std: 0.0, min: 1.0, max: 1.0 };

    fn batch(x: &[f32]) -> Batch {
        let x = Tensor::from_slice(x).view([-1, 2]);
        let y = Tensor::zeros([x.size()[0], 0], (Kind::Float, Device::Cpu));
        let rows = x.size()[0] as usize;
        Batch {
            x_mask: x.isfinite(),
            x,
            y_mask: y.shallow_clone(),
            y,
            whole: None,
            rows: (0..rows as u64).collect(),
            real: rows,
        }
    }

    #[test]
    fn answers_that_differ_by_rounding_only_are_flat() {
        let rows = batch(&[1.0, 2.0, 3.0, 4.0, f32::NAN, 2.0]);
        let z = |by: f32| Tensor::from_slice(&[1.0, -3.0, 1.0 + by, -3.0, 1.0, -3.0 - 3.0 * by]).view([3, 2]);
        for format in [Format::Fp32, Format::Tf32, Format::Bf16, Format::Fp16, Format::Fp8] {
            let last_place = unit(format);
            assert_eq!(
                is_flat(&rows, &z(2.0 * last_place as f32), &VARYING, last_place).unwrap(),
                Some(true),
                "{format:?}"
            );
            assert_eq!(
                is_flat(&rows, &z(16.0 * last_place as f32), &VARYING, last_place).unwrap(),
                Some(false),
                "{format:?}"
            );
        }
    }

    #[test]
    fn equal_rows_tell_nothing() {
        let z = Tensor::ones([3, 2], (Kind::Float, Device::Cpu));
        assert_eq!(is_flat(&batch(&[1.0, 2.0, 1.0, 2.0, 1.0, 2.0]), &z, &VARYING, 1e-3).unwrap(), None);
        assert_eq!(is_flat(&batch(&[1.0, 2.0]), &z.narrow(0, 0, 1), &VARYING, 1e-3).unwrap(), None);
        let missing = batch(&[1.0, 2.0, f32::NAN, 2.0, 1.0, 2.0]);
        assert_eq!(is_flat(&missing, &z, &VARYING, 1e-3).unwrap(), Some(true), "a missing input differs");
    }

    #[test]
    fn targets_that_are_constant_may_have_the_same_answer() {
        let rows = batch(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let z = Tensor::from_slice(&[1.0, 0.0, 1.0, 1.0, 1.0, 2.0]).view([3, 2]);
        assert_eq!(is_flat(&rows, &z, &[CONSTANT, VARYING[1]], 1e-3).unwrap(), Some(false));
        assert_eq!(is_flat(&rows, &z, &[VARYING[0], CONSTANT], 1e-3).unwrap(), Some(true));
        assert_eq!(is_flat(&rows, &z, &[CONSTANT; 2], 1e-3).unwrap(), Some(false));
    }
}
