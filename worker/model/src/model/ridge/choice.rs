//! Chooses the strengths of a regression by five-fold cross-validation.
//!
//! **Invariant:** a fold is scored on rows that have no part in its fit, its scales, or the directions of the score.

use super::basis::Basis;
use super::centred::{Centred, column_mean};
use crate::model::components::directions;
use enn_common::mix::spread;
use tch::{Kind, TchError, Tensor as Raw};

const FOLDS: i64 = 5;
/// Maximum number of rows; λ depends on signal and noise, not on the number of rows.
const ROWS_MAX: i64 = 512;
/// Maximum number of leading components of the targets with a choice of their own.
const COMPONENTS_MAX: i64 = 16;
/// Values of λ, in mean squared lengths of a row: `STRENGTHS` values from 10^`STRENGTH_FIRST`, each 10^`STRENGTH_STEP`
/// times the previous one.
const STRENGTHS: usize = 21;
const STRENGTH_FIRST: f64 = -4.0;
const STRENGTH_STEP: f64 = 0.4;
/// Candidate powers of a column's correlation by which the column is scaled.
const POWERS: [f64; 3] = [0.0, 1.0, 2.0];
const CROSSES: [f64; 4] = [0.0, 0.3, 1.0, 3.0];
/// Number of standard errors by which a component's own choice must be better than the common one.
const BETTER_BY: f64 = 1.0;

/// Share of the error below which a part is rounding noise: the remainder, where the components span the targets.
const ROUNDING: f64 = 1e-12;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    /// Power of the correlation.
    power: f64,
    /// Factor of crosses.
    crosses: f64,
}

impl Candidate {
    fn all(crosses: i64) -> Vec<Self> {
        let factors: &[f64] = if crosses > 0 { &CROSSES } else { &[0.0] };
        factors.iter().flat_map(|&crosses| POWERS.map(|power| Self { power, crosses })).collect()
    }

    /// Returns the factor of each column (F) of these rows; the last `crosses` columns are crosses.
    pub(super) fn scales(self, rows: &Centred, crosses: i64) -> Result<Raw, TchError> {
        let (along, lengths) = rows.along();
        let columns = lengths.size()[0];
        let scales = Raw::f_ones([columns], (Kind::Double, lengths.device()))?;
        let _ = scales.f_narrow(0, columns - crosses, crosses)?.f_fill_(self.crosses)?;
        if self.power == 0.0 {
            return Ok(scales);
        }
        // Root of the sum over cells of (x · y)², divided by the column's length.
        let along = along.f_square()?.f_sum_dim_intlist(Some([1].as_slice()), false, Kind::Double)?.f_sqrt()?;
        let share = along.f_div(&lengths.f_sqrt()?.f_clamp_min(f64::MIN_POSITIVE)?)?.f_nan_to_num(0.0, 0.0, 0.0)?;
        let largest = share.f_max()?.f_double_value(&[])?;
        if largest <= 0.0 {
            return Ok(scales);
        }
        scales.f_mul(&share.f_div_scalar(largest)?.f_pow_tensor_scalar(self.power)?)
    }
}

/// Settings of the fit for one part of the targets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pick {
    pub(super) candidate: Candidate,
    /// λ, in mean squared lengths of a scaled row.
    pub(super) strength: f64,
}

/// Settings for each leading component; the last entry is for the remainder.
#[derive(Debug)]
pub(super) struct StrengthChoice {
    pub(super) picks: Vec<Pick>,
}

impl StrengthChoice {
    /// Chooses from rows x (n, F) and y (n, O), n ≥ 3.
    pub(super) fn by_cross_validation(x: &Raw, y: &Raw, crosses: i64) -> Result<Self, TchError> {
        let rows = x.size()[0];
        let kept = rows.min(ROWS_MAX);
        let spread =
            Raw::from_slice(&(0..kept).map(|i| i * rows / kept).collect::<Vec<_>>()).f_to_device(x.device())?;
        let x = x.f_index_select(0, &spread)?.f_to_kind(Kind::Double)?;
        let y = y.f_index_select(0, &spread)?;
        let fold = folds(kept);
        let smallest = kept - (kept + FOLDS - 1) / FOLDS;
        let components = COMPONENTS_MAX.min(smallest - 1).min(y.size()[1]).max(0);
        let candidates = Candidate::all(crosses);
        let mut parts = Vec::new();
        for out in 0..FOLDS.min(kept) {
            let rows =
                |judged: bool| -> Vec<i64> { (0..kept).filter(|&i| (fold[i as usize] == out) == judged).collect() };
            let cut = |t: &Raw, judged| t.f_index_select(0, &Raw::from_slice(&rows(judged)).f_to_device(t.device())?);
            let seen = Fold::new(&cut(&x, false)?, &cut(&y, false)?, &cut(&x, true)?, &cut(&y, true)?, components)?;
            let errors = candidates.iter().map(|candidate| seen.errors(*candidate, crosses));
            parts.push(Raw::f_cat(&errors.collect::<Result<Vec<_>, _>>()?, 0)?);
        }
        // The shape is (candidates × strengths, rows, components + 1).
        let errors = Raw::f_cat(&parts, 1)?;
        let picks = pick(&errors)?
            .into_iter()
            .map(|at| Pick { candidate: candidates[at / STRENGTHS], strength: strength(at % STRENGTHS) });
        Ok(Self { picks: picks.collect() })
    }

    /// Returns the number of components with a choice of their own.
    pub(super) fn components(&self) -> i64 {
        self.picks.len() as i64 - 1
    }

    pub(super) fn candidates(&self) -> Vec<Candidate> {
        let mut all: Vec<Candidate> = Vec::new();
        for pick in &self.picks {
            if !all.contains(&pick.candidate) {
                all.push(pick.candidate);
            }
        }
        all
    }
}

/// Returns for each part the choice with the smallest error where it is significantly better than the best common
/// choice.
fn pick(errors: &Raw) -> Result<Vec<usize>, TchError> {
    let totals = errors.f_sum_dim_intlist(Some([1].as_slice()), false, Kind::Double)?;
    let together = totals.f_sum_dim_intlist(Some([1].as_slice()), false, Kind::Double)?;
    let shared = together.f_argmin(None, false)?.f_int64_value(&[])?;
    let best = Vec::<i64>::try_from(totals.f_argmin(0, false)?)?;
    let rows = errors.size()[1] as f64;
    let lowest = Vec::<f64>::try_from(totals.f_amin([0].as_slice(), false)?)?;
    let floor = lowest.iter().sum::<f64>() * ROUNDING;
    let judge = |(part, best): (usize, i64)| {
        if lowest[part] <= floor {
            return Ok(shared as usize);
        }
        let of = |choice| errors.f_get(choice)?.f_select(1, part as i64);
        let gain = of(shared)?.f_sub(&of(best)?)?;
        let sum = gain.f_sum(Kind::Double)?.f_double_value(&[])?;
        let spread = gain.f_std(false)?.f_double_value(&[])? * rows.sqrt();
        Ok(if sum > BETTER_BY * spread { best } else { shared } as usize)
    };
    best.into_iter().enumerate().map(judge).collect()
}

/// Data of one fold: the rows of the fit, and the rows of the score.
struct Fold {
    seen: Centred,
    /// Held-out rows, centred by the means of the fitted rows, (m, F) and (m, O).
    unseen: [Raw; 2],
    /// Leading directions of the fitted rows (O, K).
    leading: Raw,
    components: i64,
}

impl Fold {
    fn new(x: &Raw, y: &Raw, x_unseen: &Raw, y_unseen: &Raw, components: i64) -> Result<Self, TchError> {
        let x_mean = column_mean(x)?;
        let y_mean = column_mean(y)?;
        let y = y.f_sub(&y_mean)?;
        let (leading, _) = directions(&y, components)?;
        let unseen = [x_unseen.f_sub(&x_mean)?, y_unseen.f_sub(&y_mean)?];
        Ok(Self { unseen, seen: Centred::of(x, &x_mean, &y)?, leading, components })
    }

    /// Returns the squared errors of the held-out rows for each strength, along each component and in the remainder:
    /// (strengths, m, K + 1).
    fn errors(&self, candidate: Candidate, crosses: i64) -> Result<Raw, TchError> {
        let basis = Basis::new(&self.seen, &candidate.scales(&self.seen, crosses)?)?;
        let [x, y] = &self.unseen;
        let scores = x.f_matmul(&basis.back)?;
        let sum = |t: Raw| t.f_square()?.f_sum_dim_intlist(Some([1].as_slice()), true, Kind::Double);
        // Directions without variance have no error along them.
        let missing = self.components - self.leading.size()[1];
        let none = Raw::f_zeros([y.size()[0], missing], (Kind::Double, y.device()))?;
        let each = (0..STRENGTHS).map(|i| {
            let lambda = strength(i) * basis.unit;
            let shrunk = scores.f_div(&basis.eigen.f_add_scalar(lambda)?)?;
            let left = y.f_sub(&shrunk.f_matmul(&basis.against)?)?;
            let along = left.f_matmul(&self.leading)?.f_square()?;
            let rest = sum(left)?.f_sub(&along.f_sum_dim_intlist(Some([1].as_slice()), true, Kind::Double)?)?;
            Raw::f_cat(&[&along, &none, &rest], 1)
        });
        Raw::f_stack(&each.collect::<Result<Vec<_>, TchError>>()?, 0)
    }
}

fn strength(index: usize) -> f64 {
    10f64.powf(STRENGTH_FIRST + STRENGTH_STEP * index as f64)
}

/// Returns the fold of each row. Folds are equal in size and do not follow the order of the rows, which may be
/// chronological.
pub(in crate::model) fn folds(rows: i64) -> Vec<i64> {
    let mut order: Vec<i64> = (0..rows).collect();
    order.sort_by_key(|row| spread(row.cast_unsigned()));
    let mut fold = vec![0; order.len()];
    for (place, row) in (0_i64..).zip(order) {
        fold[row as usize] = place % FOLDS;
    }
    fold
}
