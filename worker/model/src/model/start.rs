//! Initialisation from data: before the first step the base head is a ridge regression (with the linear branch), and
//! its factors span the directions in which the targets vary most. Classes begin as a logistic regression or, where
//! that is too much work, at the logarithm of their share of the training rows beside ridge. Scales and gaps between
//! quantiles begin at the standard deviation of the residuals.
//!
//! **Invariant:** only the base head is changed, and only the given rows are read.

use super::{
    Head, Model, ModelError,
    components::Components,
    logistic::Logistic,
    ridge::{Ridge, blocks},
};
use enn_core::{
    autograd::Cx,
    functional,
    params::{ParamId, Params},
};
use tch::{Device, Kind, TchError, Tensor as Raw};

/// Maximum number of features or cells with which every given row is used.
const SIDE_MAX: i64 = 2048;
/// Maximum number of rows with more features or cells than `SIDE_MAX`: the size of the dual problem.
const DUAL_ROWS_MAX: i64 = 2048;
/// Maximum number of rows in any case, which bounds the memory of the products.
const ROWS_MAX: i64 = 65_536;
/// Maximum number of multiplications in the Gram matrix of the features, about a second of two cores. With more
/// features fewer rows are used, but at least `ROWS_PER_SIDE` per feature.
const PRODUCT_MAX: i64 = 1 << 34;
/// Minimum number of rows per feature.
const ROWS_PER_SIDE: i64 = 8;
/// Minimum share of the degrees of freedom that is attributed to the residuals.
const UNSEEN_MIN: f64 = 0.1;
/// Minimum number of rows for a fit in closed form.
const ROWS_MIN: i64 = 3;

/// Rows of the data in the user's units, as tensors on any device.
#[derive(Debug, Clone, Copy)]
pub struct RowTensors<'a> {
    /// Inputs (n, F).
    pub x: &'a Raw,
    /// Where inputs are valid (n, F).
    pub x_valid: &'a Raw,
    /// Targets (n, O).
    pub y: &'a Raw,
    /// Where targets are valid (n, O).
    pub y_valid: &'a Raw,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StartReport {
    /// Number of rows that were used.
    pub rows: i64,
    /// Strength λ and effective degrees of freedom of the regression, both for the leading component of the targets; `None`
    /// without the linear branch or with too few rows.
    pub ridge: Option<(f64, f64)>,
    /// Share of the targets' (with the branch: the residuals') variance in the span of the factors.
    pub explained: f64,
}

impl Model {
    /// Initialises the base head in `params`: principal components of the standardised targets become the factors, and
    /// with the linear branch the ridge solution becomes its weight and the bias (the components are then those of the
    /// residuals).
    ///
    /// The rows are training rows, as for [`Model::forward`] and [`Model::targets`]. Missing targets count as the
    /// cell's mean; rows without any target are ignored. At most 65 536 evenly spread rows are used, fewer with many
    /// features or cells (see `thinned`). The result depends on the rows only; all ranks must use the result of rank 0.
    ///
    /// # Errors
    /// When shapes do not fit, or libtorch's eigensolver fails.
    pub fn initialise_from_data(&self, params: &mut Params, rows: RowTensors<'_>) -> Result<StartReport, ModelError> {
        let known =
            rows.y_valid.f_to_kind(Kind::Bool)?.f_flatten(1, -1)?.f_any_dim(1, false)?.f_nonzero()?.f_view([-1])?;
        let kept = thinned(known.size()[0], (self.embedding.width() + self.crosses.columns()).max(self.grid.cells()));
        let kept = known.f_index_select(0, &kept.f_to_device(known.device())?)?;
        let mut report = StartReport { rows: kept.size()[0], ..StartReport::default() };
        if report.rows < ROWS_MIN {
            return Ok(report);
        }
        let RegressionData { features, mut z, .. } = self.regression_data(params, rows, Some(&kept))?;
        let is_classes = self.head == Head::Classes;
        let logistic = match self.base.linear().filter(|_| is_classes) {
            Some(_) => Logistic::fit(&features, &z, self.crosses.columns())?,
            None => None,
        };
        if let (Some(linear), Some(logistic)) = (self.base.linear(), &logistic) {
            write(params, linear, &logistic.weight.f_mul_scalar(self.embedding.width() as f64)?)?;
            write(params, self.base.bias(), &logistic.bias)?;
            // Scaled to the spread of the classes, like the residuals of a regression.
            let spread = z.f_amax([0].as_slice(), true)?.f_sub(&z.f_amin([0].as_slice(), true)?)?;
            z = logistic.left(&features, &z)?.f_mul(&spread)?;
            report.ridge = Some((logistic.strength, features.size()[1] as f64));
        } else if let Some(linear) = self.base.linear() {
            let ridge = Ridge::fit(&features, &z, self.crosses.columns())?;
            write(params, linear, &ridge.weight.f_mul_scalar(self.embedding.width() as f64)?)?;
            write(params, self.base.bias(), &ridge.bias)?;
            ridge.take_from(&z, &features)?;
            report.ridge = ridge.strengths.first().copied();
        }
        if is_classes && logistic.is_none() {
            let bias = params.get(self.base.bias()).shallow_clone();
            write(params, self.base.bias(), &bias.f_add(&self.scaler.log_rates()?)?)?;
        }
        if let Some(bias) = self.base.channel_bias() {
            // A fit's residuals on its own rows underestimate those on other rows, in proportion to its degrees of
            // freedom.
            let freedom = 1.0 + report.ridge.map_or(0.0, |(_, freedom)| freedom);
            let unseen = 1.0 / (1.0 - freedom / report.rows as f64).max(UNSEEN_MIN);
            let spread = Vec::<f64>::try_from(z.f_square()?.f_mean_dim(Some([0].as_slice()), false, Kind::Double)?)?;
            let start: Vec<f64> = spread.iter().flat_map(|square| self.head.start(unseen * square.sqrt())).collect();
            let start = Raw::f_from_slice(&start)?.f_view([spread.len() as i64, -1])?;
            write(params, bias, &start.f_tr()?)?;
        }
        let factors = params.get(self.base.factors()).shallow_clone();
        let found = Components::leading(&z, factors.size()[1])?;
        tch::no_grad(|| factors.f_narrow(1, 0, found.factors.size()[1])?.f_copy_(&found.factors))?;
        report.explained = found.explained;
        Ok(report)
    }
}

pub(super) struct RegressionData {
    /// Features and crosses (n, F' + C) f32.
    pub(super) features: Raw,
    /// Standardised targets (n, O) f64, 0 where missing.
    pub(super) z: Raw,
    /// Where targets are valid (n, O) bool.
    pub(super) valid: Raw,
}

impl Model {
    /// Prepares rows in the user's units for a regression: the rows `kept`, or all. The work is done in blocks, because
    /// intermediate values are many times as large.
    pub(super) fn regression_data(
        &self,
        params: &Params,
        rows: RowTensors<'_>,
        kept: Option<&Raw>,
    ) -> Result<RegressionData, ModelError> {
        let RowTensors { x, x_valid, y, y_valid } = rows;
        let count = kept.unwrap_or(x).size()[0];
        let cells = self.grid.cells();
        let host = |kind| (kind, Device::Cpu);
        let width = self.embedding.width() + self.crosses.columns();
        let features = Raw::f_empty([count, width], host(Kind::Float))?;
        let z = Raw::f_empty([count, cells], host(Kind::Double))?;
        let valid = Raw::f_empty([count, cells], host(Kind::Bool))?;
        for (start, len) in blocks(&features) {
            let cx = Cx::eval(params);
            let cut = |t: &Raw| match kept {
                Some(kept) => t.f_index_select(0, &kept.f_narrow(0, start, len)?),
                None => t.f_narrow(0, start, len),
            };
            let input = |t: &Raw| Ok::<_, TchError>(cx.input(cut(t)?));
            let (mut block, crosses) = self.read(&cx, &input(x)?, &input(x_valid)?)?;
            if let Some(crosses) = crosses {
                block = functional::cat(&cx, &[&block, &crosses], 1)?;
            }
            let targets = self.standardised(&cx, &input(y)?, &input(y_valid)?)?;
            let filled = functional::zero_where_not(&cx, &targets.z, &targets.valid)?;
            let made = [(&features, &block), (&z, &filled), (&valid, &targets.valid)];
            tch::no_grad(|| made.iter().try_for_each(|(all, part)| all.f_narrow(0, start, len)?.f_copy_(part.raw())))?;
        }
        Ok(RegressionData { features, z, valid })
    }
}

/// Returns the indices of the rows to use, evenly spread; `side` is the larger of the numbers of features and cells.
fn thinned(rows: i64, side: i64) -> Raw {
    let side = side.max(1);
    let cap = if side > SIDE_MAX {
        DUAL_ROWS_MAX
    } else {
        (PRODUCT_MAX / (side * side)).max(ROWS_PER_SIDE * side).min(ROWS_MAX)
    };
    let kept = rows.min(cap);
    Raw::from_slice(&(0..kept).map(|i| i * rows / kept).collect::<Vec<i64>>())
}

fn write(params: &mut Params, id: ParamId, value: &Raw) -> Result<(), TchError> {
    tch::no_grad(|| params.get(id).shallow_clone().f_copy_(value))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_is_even_and_bounded() {
        assert_eq!(Vec::<i64>::try_from(thinned(5, 10)).unwrap(), [0, 1, 2, 3, 4]);
        let many = Vec::<i64>::try_from(thinned(1_000_000, 5000)).unwrap();
        assert_eq!(many.len() as i64, DUAL_ROWS_MAX);
        assert!(many.windows(2).all(|w| (w[1] - w[0] - 488).abs() <= 1));
        assert_eq!(thinned(1_000_000, 5).size(), [ROWS_MAX]);
        assert_eq!([500, 1000, 2048].map(|side| thinned(1_000_000, side).size()[0]), [ROWS_MAX, 17_179, 16_384]);
        assert!((1..=SIDE_MAX).all(|side| thinned(4096, side).size()[0] == 4096), "small tables are used whole");
        assert_eq!(thinned(0, 5).size(), [0]);
    }
}
