//! Errors of predictions over a split: sums gathered on the device in f64, added over the ranks, and turned into metrics once.

use crate::collective::COLLECTIVE_WAIT_MAX;
use crate::session::SessionError;
use enn_comm::ProcessGroup;
use enn_common::metrics::{Interval, Metrics};
use enn_model::loss::{BatchLoss, Head, Objective};
use tch::{Device, Kind, Tensor};

/// Sums over all cells, before the per-cell ones.
const TOTALS: usize = 13;
/// Places among them: |error|; error².
const ERRORS: i64 = 0;
/// Sum of gate values; their number.
const GATE: i64 = 2;
/// Loss; what it is divided by.
const LOSS: i64 = 4;
/// Number of valid cells.
const VALID: i64 = 6;
/// Targets within the interval; widths.
const INTERVAL: i64 = 7;
/// Rows whose likeliest class is the target's; rows with a class.
const CLASSES: i64 = 9;
/// |error| in the scales of the cells.
const SCALED: i64 = 11;
/// Log-loss if a row's class were drawn by the rates of the classes.
const DOUBT: i64 = 12;
/// Sums per cell: weight, prediction, prediction², target, target²; values less the cell's training mean.
const PER_CELL: usize = 5;

/// Sums in the making. One flat tensor, so that a split costs one collective.
#[derive(Debug)]
pub struct Sums {
    flat: Tensor,
    centre: Tensor,
    /// Factors of the errors of cells that have no unit in common.
    scales: Option<Tensor>,
}

/// Errors and other figures that follow from the sums.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Errors in target units. NaN where there is no valid cell.
    pub metrics: Metrics,
    pub gate_mean: f64,
    /// Predicted spread over target spread, median over the cells whose target varies.
    pub reactivity: f64,
    /// Of classes: the log-loss with one row more, whose class is drawn by their rates in training. Few rows that are all told right say
    /// no more than that mistakes are rare, so that weights must not look the better the surer they are.
    pub doubted: Option<f64>,
}

impl Sums {
    /// Empty sums. `centre` (O) f64 holds a value near each cell's mean, so that spreads do not cancel.
    pub fn new(centre: &[f64], device: Device) -> Result<Self, SessionError> {
        let flat = Tensor::f_zeros([(TOTALS + PER_CELL * centre.len()) as i64], (Kind::Double, device))?;
        Ok(Self { flat, centre: Tensor::f_from_slice(centre)?.f_to_device(device)?, scales: None })
    }

    /// With `StagedMeta::scales`.
    pub fn scaled(self, scales: Option<&[f64]>) -> Result<Self, SessionError> {
        let on_device = |scales: &[f64]| Tensor::f_from_slice(scales)?.f_to_device(self.flat.device());
        Ok(Self { scales: scales.map(on_device).transpose()?, ..self })
    }

    /// Empty sums around the same centre, with the same scales.
    pub fn another(&self) -> Result<Self, SessionError> {
        let scales = self.scales.as_ref().map(Tensor::shallow_clone);
        Ok(Self { flat: self.flat.f_zeros_like()?, centre: self.centre.shallow_clone(), scales })
    }

    /// Adds other sums around the same centre.
    pub fn merge(&mut self, other: &Self) -> Result<(), SessionError> {
        let _ = self.flat.f_add_(&other.flat)?;
        Ok(())
    }

    /// Adds predictions (B, O) and targets (B, O) in target units. `mask` (B, O) bool says where cells are valid, and `weight` (B, O) is 0
    /// where they are not; without weights all valid cells count the same.
    pub fn add(
        &mut self,
        prediction: &Tensor,
        target: &Tensor,
        mask: &Tensor,
        weight: Option<&Tensor>,
    ) -> Result<(), SessionError> {
        let zero = Tensor::f_zeros([1], (Kind::Double, self.flat.device()))?;
        let blank = |t: &Tensor| t.f_to_kind(Kind::Double)?.f_sub(&self.centre)?.f_where_self(mask, &zero);
        let p = blank(prediction)?;
        let y = blank(target)?;
        let count = weight.unwrap_or(mask).f_to_kind(Kind::Double)?;
        let by_weight = |t: Tensor| if weight.is_some() { t.f_mul(&count) } else { Ok(t) };
        let error = p.f_sub(&y)?;
        let sum = |t: Tensor| by_weight(t)?.f_sum(Kind::Double);
        self.add_at(ERRORS, &[sum(error.f_abs()?)?, sum(error.f_square()?)?])?;
        if let Some(scales) = &self.scales {
            self.add_at(SCALED, &[sum(error.f_abs()?.f_mul(scales)?)?])?;
        }
        self.add_at(VALID, &[mask.f_sum(Kind::Double)?])?;
        let mut cells = vec![count.f_sum_dim_intlist(0i64, false, Kind::Double)?];
        for cell in [p.shallow_clone(), p.f_square()?, y.shallow_clone(), y.f_square()?] {
            cells.push(by_weight(cell)?.f_sum_dim_intlist(0i64, false, Kind::Double)?);
        }
        let start = TOTALS as i64;
        let len = self.flat.numel() as i64 - TOTALS as i64;
        let _ = self.flat.f_narrow(0, start, len)?.f_add_(&Tensor::f_cat(&cells, 0)?)?;
        Ok(())
    }

    /// Adds to the totals from `place` on.
    fn add_at(&mut self, place: i64, values: &[Tensor]) -> Result<(), SessionError> {
        let added = Tensor::f_stack(values, 0)?.f_to_kind(Kind::Double)?;
        let _ = self.flat.f_narrow(0, place, values.len() as i64)?.f_add_(&added)?;
        Ok(())
    }

    pub fn add_loss(&mut self, loss: &BatchLoss) -> Result<(), SessionError> {
        self.add_at(LOSS, &[loss.sum.raw().f_to_kind(Kind::Double)?, loss.count.raw().shallow_clone()])
    }

    /// Adds intervals, low and high (B, O) in target units.
    pub fn add_interval(
        &mut self,
        low: &Tensor,
        high: &Tensor,
        target: &Tensor,
        mask: &Tensor,
        weight: Option<&Tensor>,
    ) -> Result<(), SessionError> {
        let count = weight.unwrap_or(mask).f_to_kind(Kind::Double)?;
        // A target that is not a number is in no interval.
        let held = target.f_ge_tensor(low)?.f_logical_and(&target.f_le_tensor(high)?)?;
        let width = high.f_to_kind(Kind::Double)?.f_sub(&low.f_to_kind(Kind::Double)?)?;
        let width = width.f_where_scalarother(mask, 0.0)?;
        let sum = |t: Tensor| t.f_mul(&count)?.f_sum(Kind::Double);
        let sums = [sum(held.f_to_kind(Kind::Double)?)?, sum(width)?];
        self.add_at(INTERVAL, &sums)
    }

    /// Adds rows of class probabilities (B, O) and their classes, 1 in one cell of each row (B, O).
    pub fn add_classes(
        &mut self,
        probability: &Tensor,
        target: &Tensor,
        mask: &Tensor,
        weight: Option<&Tensor>,
    ) -> Result<(), SessionError> {
        let count = weight.unwrap_or(mask).f_select(1, 0)?.f_to_kind(Kind::Double)?;
        let likeliest = |t: &Tensor| t.f_argmax(1, false);
        let right = likeliest(probability)?.f_eq_tensor(&likeliest(&target.f_nan_to_num(0.0, None, None)?)?)?;
        let right = right.f_to_kind(Kind::Double)?.f_mul(&count)?.f_sum(Kind::Double)?;
        self.add_at(CLASSES, &[right, count.f_sum(Kind::Double)?])
    }

    /// Adds the scores of classes (B, O), whose rates in training are the centre.
    pub fn add_doubt(&mut self, scores: &Tensor, mask: &Tensor, weight: Option<&Tensor>) -> Result<(), SessionError> {
        let count = weight.unwrap_or(mask).f_select(1, 0)?.f_to_kind(Kind::Double)?;
        let expected = scores.f_log_softmax(1, Kind::Double)?.f_mv(&self.centre)?;
        self.add_at(DOUBT, &[expected.f_neg()?.f_mul(&count)?.f_sum(Kind::Double)?])
    }

    /// Adds gate values (B, tiles); only the first `real` rows count.
    pub fn add_gate(&mut self, gate: &Tensor, real: usize) -> Result<(), SessionError> {
        let rows = gate.f_narrow(0, 0, real as i64)?;
        let _ = self.flat.f_narrow(0, GATE, 1)?.f_add_(&rows.f_sum(Kind::Double)?)?;
        let _ = self.flat.f_narrow(0, GATE + 1, 1)?.f_add_scalar_(rows.numel() as f64)?;
        Ok(())
    }

    /// Adds the ranks' sums and says what they mean; the same on every rank.
    pub fn finish(self, group: &dyn ProcessGroup, objective: &Objective) -> Result<Measured, SessionError> {
        group.all_reduce_sum(&self.flat)?.wait(COLLECTIVE_WAIT_MAX)?;
        let flat = Vec::<f64>::try_from(self.flat.f_to_device(Device::Cpu)?)?;
        let centre = Vec::<f64>::try_from(self.centre.f_to_device(Device::Cpu)?)?;
        Ok(measure(&flat, &centre, self.scales.is_some(), objective))
    }
}

fn measure(flat: &[f64], centre: &[f64], is_scaled: bool, objective: &Objective) -> Measured {
    let cells = centre.len();
    let (totals, per_cell) = flat.split_at(TOTALS);
    let sum = |which: usize, cell: usize| per_cell[which * cells + cell];
    let ratio = |place: i64, of: f64| totals[place as usize] / of;
    let n: f64 = (0..cells).map(|c| sum(0, c)).sum();
    // Spread of the targets about their own mean over all cells: moments about one common value, from the per-cell ones.
    let common = centre.iter().sum::<f64>() / cells.max(1) as f64;
    let mut first = 0.0;
    let mut second = 0.0;
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
        n: totals[VALID as usize] as u64,
        scaled: is_scaled.then(|| ratio(SCALED, n)),
        loss: ratio(LOSS, totals[LOSS as usize + 1]),
        interval: objective.nominal().map(|nominal| {
            let coverage = ratio(INTERVAL, n);
            let width = ratio(INTERVAL + 1, n);
            Interval { nominal, coverage, width }
        }),
        accuracy: (*objective.head() == Head::Classes).then(|| ratio(CLASSES, totals[CLASSES as usize + 1])),
    };
    let rows = totals[CLASSES as usize + 1];
    let doubted = metrics.accuracy.map(|_| (metrics.loss * rows + ratio(DOUBT, rows)) / (rows + 1.0));
    Measured { metrics, gate_mean: ratio(GATE, totals[GATE as usize + 1]), reactivity: median(&mut ratios), doubted }
}

/// The median; NaN if there are no values.
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
    use enn_comm::Solo;
    use enn_common::config::train::{Loss, TrainConfig};

    fn point() -> Objective {
        Objective::new(&TrainConfig::default())
    }

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() <= 1e-9 * b.abs().max(1.0), "{a} is not {b}");
    }

    #[test]
    fn of_weights_that_tell_few_rows_right_the_surer_ones_do_not_win() {
        let classes = Objective::new(&TrainConfig { loss: Loss::CrossEntropy, ..TrainConfig::default() });
        let measured = |rows: i64, logit: f64| {
            let mut sums = Sums::new(&[0.5, 0.5], Device::Cpu).unwrap();
            let y = Tensor::from_slice2(&[[1.0, 0.0], [0.0, 1.0]]).repeat([rows / 2, 1]);
            let mask = y.ones_like().to_kind(Kind::Bool);
            let scores = (&y * 2.0 - 1.0) * (logit / 2.0);
            sums.add(&scores.softmax(1, Kind::Double), &y, &mask, None).unwrap();
            let missed = -(scores.log_softmax(1, Kind::Double) * &y).sum(Kind::Double);
            sums.add_at(LOSS, &[missed, Tensor::from(rows as f64)]).unwrap();
            sums.add_classes(&scores, &y, &mask, None).unwrap();
            sums.add_doubt(&scores, &mask, None).unwrap();
            sums.finish(&Solo, &classes).unwrap()
        };
        let [careful, sure] = [3.0, 9.0].map(|logit| measured(10, logit));
        assert!(sure.metrics.loss < careful.metrics.loss && sure.doubted > careful.doubted);
        // −ln of both probabilities, half each, in one of eleven rows.
        let right = (1.0 + (-3.0f64).exp()).ln();
        let wrong = (1.0 + 3.0f64.exp()).ln();
        close(careful.doubted.unwrap(), (10.0 * right + 0.5 * (right + wrong)) / 11.0);
        // Many rows are believed.
        let [careful, sure] = [3.0, 9.0].map(|logit| measured(1000, logit));
        assert!(sure.doubted < careful.doubted);
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
        sums.add(&tensor(&p[..3]), &tensor(&y[..3]), &mask(&valid[..3]), None).unwrap();
        sums.add(&tensor(&p[3..]), &tensor(&y[3..]), &mask(&valid[3..]), None).unwrap();
        sums.add_gate(&Tensor::from_slice(&[0.25f32, 0.75, 9.0]).view([3, 1]), 2).unwrap();
        let measured = sums.finish(&Solo, &point()).unwrap();

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
    fn cells_without_a_common_unit_count_in_their_own() {
        let mut sums = Sums::new(&[0.0; 2], Device::Cpu).unwrap().scaled(Some(&[1e-6, 1.0])).unwrap();
        let row = |v: [f64; 2]| Tensor::from_slice(&v).view([1, 2]);
        let y = row([0.0, 0.0]);
        sums.add(&row([3e6, 1.0]), &y, &y.isfinite(), None).unwrap();
        close(sums.finish(&Solo, &point()).unwrap().metrics.scaled.unwrap(), 2.0);
        assert_eq!(Sums::new(&[0.0], Device::Cpu).unwrap().finish(&Solo, &point()).unwrap().metrics.scaled, None);
    }

    #[test]
    fn nothing_measured_is_not_a_number() {
        let measured = Sums::new(&[0.0; 3], Device::Cpu).unwrap().finish(&Solo, &point()).unwrap();
        assert_eq!(measured.metrics.n, 0);
        assert!(measured.metrics.mae.is_nan() && measured.reactivity.is_nan() && measured.gate_mean.is_nan());
    }

    #[test]
    fn intervals_and_weights_are_measured() {
        let column = |v: &[f64]| Tensor::from_slice(v).view([-1, 1]);
        let y = column(&[1.0, 2.0, 3.0, f64::NAN]);
        let low = column(&[0.0, 2.5, 3.0, 0.0]);
        let high = column(&[2.0, 4.0, 3.5, 9.0]);
        let weight = column(&[1.0, 2.0, 3.0, 0.0]);
        let valid = y.isfinite();
        let objective = Objective::new(&TrainConfig { loss: Loss::Quantile, ..TrainConfig::default() });
        let mut sums = Sums::new(&[2.0], Device::Cpu).unwrap();
        let p = column(&[1.5, 3.0, 3.0, 7.0]);
        sums.add(&p, &y, &valid, Some(&weight)).unwrap();
        sums.add_interval(&low, &high, &y, &valid, Some(&weight)).unwrap();
        let metrics = sums.finish(&Solo, &objective).unwrap().metrics;
        let interval = metrics.interval.unwrap();
        close(metrics.mae, (0.5 + 2.0) / 6.0);
        assert_eq!(metrics.n, 3);
        close(interval.nominal, 0.8);
        close(interval.coverage, 4.0 / 6.0);
        close(interval.width, (2.0 + 3.0 + 1.5) / 6.0);
    }

    #[test]
    fn the_likeliest_class_is_right_or_wrong() {
        let rows = |v: &[f64]| Tensor::from_slice(v).view([-1, 3]);
        let y = rows(&[0.0, 1.0, 0.0, 1.0, 0.0, 0.0, f64::NAN, f64::NAN, f64::NAN]);
        let p = rows(&[0.2, 0.5, 0.3, 0.2, 0.5, 0.3, 0.9, 0.05, 0.05]);
        let mut sums = Sums::new(&[0.0; 3], Device::Cpu).unwrap();
        sums.add_classes(&p, &y, &y.isfinite(), None).unwrap();
        let objective = Objective::new(&TrainConfig { loss: Loss::CrossEntropy, ..TrainConfig::default() });
        assert_eq!(sums.finish(&Solo, &objective).unwrap().metrics.accuracy, Some(0.5));
    }
}
