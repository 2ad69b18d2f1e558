//! Errors of predictions over a split: sums gathered on the device in f64, added over the ranks, and turned into metrics once.

use super::{SessionError, boot::COLLECTIVE_WAIT_MAX};
use crate::comm::ProcessGroup;
use enn_common::metrics::Metrics;
use tch::{Device, Kind, Tensor};

/// Sums over all cells, before the per-cell ones: |error|, error², gate, gate values.
const TOTALS: usize = 4;
/// Sums per cell: valid, prediction, prediction², target, target²; values less the cell's training mean.
const PER_CELL: usize = 5;

/// Sums in the making. One flat tensor, so that a split costs one collective.
#[derive(Debug)]
pub struct Sums {
    flat: Tensor,
    centre: Tensor,
}

/// What the sums say.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Errors in target units. NaN where there is no valid cell.
    pub metrics: Metrics,
    /// Mean gate over samples and tiles.
    pub gate_mean: f64,
    /// Predicted spread over target spread, median over the cells whose target varies.
    pub reactivity: f64,
}

impl Sums {
    /// Empty sums. `centre` (O) f64 holds a value near each cell's mean, so that spreads do not cancel.
    ///
    /// # Errors
    /// What libtorch says, usually that memory is exhausted.
    pub fn new(centre: &[f64], device: Device) -> Result<Self, SessionError> {
        let flat = Tensor::f_zeros([(TOTALS + PER_CELL * centre.len()) as i64], (Kind::Double, device))?;
        Ok(Self { flat, centre: Tensor::f_from_slice(centre)?.f_to_device(device)? })
    }

    /// Adds predictions (B, O) and targets (B, O) in target units; cells where `mask` is false are left out.
    ///
    /// # Errors
    /// What libtorch says of shapes or memory.
    pub fn add(&mut self, prediction: &Tensor, target: &Tensor, mask: &Tensor) -> Result<(), SessionError> {
        let zero = Tensor::f_zeros([1], (Kind::Double, self.flat.device()))?;
        let blank = |t: &Tensor| t.f_to_kind(Kind::Double)?.f_sub(&self.centre)?.f_where_self(mask, &zero);
        let (p, y) = (blank(prediction)?, blank(target)?);
        let error = p.f_sub(&y)?;
        let over_rows = |t: &Tensor| t.f_sum_dim_intlist(0i64, false, Kind::Double);
        let mut parts = vec![
            error.f_abs()?.f_sum(Kind::Double)?.f_view([1])?,
            error.f_square()?.f_sum(Kind::Double)?.f_view([1])?,
            Tensor::f_zeros([2], (Kind::Double, self.flat.device()))?,
        ];
        for cell in [&mask.f_to_kind(Kind::Double)?, &p, &p.f_square()?, &y, &y.f_square()?] {
            parts.push(over_rows(cell)?);
        }
        let added = Tensor::f_cat(&parts, 0)?;
        let _ = self.flat.f_add_(&added)?;
        Ok(())
    }

    /// Adds gate values (B, tiles); only the first `real` rows count.
    ///
    /// # Errors
    /// What libtorch says of shapes.
    pub fn add_gate(&mut self, gate: &Tensor, real: usize) -> Result<(), SessionError> {
        let rows = gate.f_narrow(0, 0, real as i64)?;
        let _ = self.flat.f_narrow(0, 2, 1)?.f_add_(&rows.f_sum(Kind::Double)?)?;
        let _ = self.flat.f_narrow(0, 3, 1)?.f_add_scalar_(rows.numel() as f64)?;
        Ok(())
    }

    /// Adds the ranks' sums and says what they mean; the same on every rank.
    ///
    /// # Errors
    /// The collective's.
    pub fn finish(self, group: &dyn ProcessGroup) -> Result<Measured, SessionError> {
        group.all_reduce_sum(&self.flat)?.wait(COLLECTIVE_WAIT_MAX)?;
        let flat = Vec::<f64>::try_from(self.flat.f_to_device(Device::Cpu)?)?;
        let centre = Vec::<f64>::try_from(self.centre.f_to_device(Device::Cpu)?)?;
        Ok(measure(&flat, &centre))
    }
}

fn measure(flat: &[f64], centre: &[f64]) -> Measured {
    let cells = centre.len();
    let (totals, per_cell) = flat.split_at(TOTALS);
    let sum = |which: usize, cell: usize| per_cell[which * cells + cell];
    let n: f64 = (0..cells).map(|c| sum(0, c)).sum();
    // Spread of the targets about their own mean over all cells: moments about one common value, from the per-cell ones.
    let common = centre.iter().sum::<f64>() / cells.max(1) as f64;
    let (mut first, mut second) = (0.0, 0.0);
    let mut ratios = Vec::new();
    for (cell, cell_centre) in centre.iter().enumerate() {
        let shift = cell_centre - common;
        let count = sum(0, cell);
        first += sum(3, cell) + count * shift;
        second += sum(4, cell) + 2.0 * shift * sum(3, cell) + count * shift * shift;
        let variance = |s: f64, ss: f64| (ss / count - (s / count).powi(2)).max(0.0);
        let target = variance(sum(3, cell), sum(4, cell));
        if count >= 2.0 && target > 0.0 {
            ratios.push((variance(sum(1, cell), sum(2, cell)) / target).sqrt());
        }
    }
    let metrics = Metrics {
        mae: totals[0] / n,
        rmse: (totals[1] / n).sqrt(),
        r2: 1.0 - totals[1] / (second - first * first / n),
        n: n as u64,
    };
    Measured { metrics, gate_mean: totals[2] / totals[3], reactivity: median(&mut ratios) }
}

/// NaN of nothing.
fn median(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Solo;

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() <= 1e-9 * b.abs().max(1.0), "{a} is not {b}");
    }

    #[test]
    fn metrics_follow_their_definitions_with_missing_cells_and_a_large_offset() {
        let offset = 1000.0;
        let y = [[1.0, 20.0], [3.0, 24.0], [5.0, f64::NAN], [7.0, 30.0]];
        let p = [[1.5, 21.0], [2.0, 24.0], [5.0, 99.0], [9.0, 27.0]];
        let valid = [[true, true], [true, true], [true, false], [true, true]];
        let mut sums = Sums::new(&[offset + 4.0, offset + 25.0], Device::Cpu).unwrap();
        let tensor = |v: &[[f64; 2]]| Tensor::from_slice2(v) + offset;
        let mask = |v: &[[bool; 2]]| Tensor::from_slice(&v.concat()).view([-1, 2]);
        // In two parts, as chunks come.
        sums.add(&tensor(&p[..3]), &tensor(&y[..3]), &mask(&valid[..3])).unwrap();
        sums.add(&tensor(&p[3..]), &tensor(&y[3..]), &mask(&valid[3..])).unwrap();
        sums.add_gate(&Tensor::from_slice(&[0.25f32, 0.75, 9.0]).view([3, 1]), 2).unwrap();
        let measured = sums.finish(&Solo).unwrap();

        let errors = [0.5, 1.0, 1.0, 0.0, 0.0, 2.0, 3.0];
        let targets = [1.0, 20.0, 3.0, 24.0, 5.0, 7.0, 30.0];
        let mean = targets.iter().sum::<f64>() / 7.0;
        let square: f64 = errors.iter().map(|e| e * e).sum();
        close(measured.metrics.mae, errors.iter().sum::<f64>() / 7.0);
        close(measured.metrics.rmse, (square / 7.0).sqrt());
        close(measured.metrics.r2, 1.0 - square / targets.iter().map(|y| (y - mean).powi(2)).sum::<f64>());
        assert_eq!(measured.metrics.n, 7);
        close(measured.gate_mean, 0.5);
        let std = |v: &[f64]| {
            let mean = v.iter().sum::<f64>() / v.len() as f64;
            (v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / v.len() as f64).sqrt()
        };
        let ratios = [
            std(&[1.5, 2.0, 5.0, 9.0]) / std(&[1.0, 3.0, 5.0, 7.0]),
            std(&[21.0, 24.0, 27.0]) / std(&[20.0, 24.0, 30.0]),
        ];
        close(measured.reactivity, f64::midpoint(ratios[0], ratios[1]));
    }

    #[test]
    fn nothing_measured_is_not_a_number() {
        let measured = Sums::new(&[0.0; 3], Device::Cpu).unwrap().finish(&Solo).unwrap();
        assert_eq!(measured.metrics.n, 0);
        assert!(measured.metrics.mae.is_nan() && measured.reactivity.is_nan() && measured.gate_mean.is_nan());
    }
}
