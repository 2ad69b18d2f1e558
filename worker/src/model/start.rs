//! The start from data: before the first step the base head already is ridge regression (with the linear branch), and its
//! factors span the directions in which the targets vary most. Classes begin as a logistic regression, or, where that is too much, at the
//! logarithm of their share of the training rows beside ridge; scales and gaps between quantiles at the spread of what the regression leaves.
//!
//! **Invariant:** only the base head is touched, and only with training rows that the caller gives.

use super::{
    Head, Model, ModelError,
    components::Components,
    logistic::Logistic,
    ridge::{Ridge, blocks},
};
use crate::{
    autograd::Cx,
    functional,
    params::{ParamId, Params},
};
use tch::{Device, Kind, TchError, Tensor as Raw};

/// Widest side (features or cells) for which every given row is used.
const SIDE_MAX: i64 = 2048;
/// Rows used when the features or the cells are more than `SIDE_MAX`: the side of the dual problem.
const DUAL_ROWS_MAX: i64 = 2048;
/// Rows used at most: bounds the memory of the products.
const ROWS_MAX: i64 = 65_536;
/// Multiplications of a product of the features with themselves, about a second of two cores: with more features fewer rows are used, but
/// `ROWS_PER_SIDE` for each.
const PRODUCT_MAX: i64 = 1 << 34;
/// Rows for each feature that say enough of it.
const ROWS_PER_SIDE: i64 = 8;
/// Share of the degrees of freedom that is left to the residuals, at least.
const UNSEEN_MIN: f64 = 0.1;
/// With fewer rows than this nothing can be learned in closed form.
const ROWS_MIN: i64 = 3;

/// What the start found.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StartReport {
    /// Rows used.
    pub rows: i64,
    /// Strength λ and effective degrees of freedom of the regression, both for the leading component of the targets; `None`
    /// without the linear branch or with too few rows.
    pub ridge: Option<(f64, f64)>,
    /// Share of the targets' (with the branch: the residuals') variance in the span of the factors.
    pub explained: f64,
}

impl Model {
    /// Writes the base head's start into `params`: principal components of the standardised targets into the factors, and with the
    /// linear branch the ridge solution into its weight and the bias (the components are then of its residuals).
    ///
    /// `x` (n, F), `x_valid`, `y` (n, O) and `y_valid` are training rows in the user's units, as for [`Model::forward`] and
    /// [`Model::targets`]. Missing targets count as the cell's mean; rows without any do not count. Rows are thinned evenly to 65 536, where features or
    /// cells are many to fewer (see `thinned`). The result depends on the rows only; give all ranks rank 0's result.
    ///
    /// # Errors
    /// When shapes do not fit, or libtorch's eigensolver fails.
    pub fn initialise_from_data(
        &self,
        params: &mut Params,
        [x, x_valid]: [&Raw; 2],
        [y, y_valid]: [&Raw; 2],
    ) -> Result<StartReport, ModelError> {
        let known = y_valid.f_to_kind(Kind::Bool)?.f_flatten(1, -1)?.f_any_dim(1, false)?.f_nonzero()?.f_view([-1])?;
        let rows = thinned(known.size()[0], (self.embedding.width() + self.crosses.columns()).max(self.grid.cells()));
        let rows = known.f_index_select(0, &rows.f_to_device(known.device())?)?;
        let mut report = StartReport { rows: rows.size()[0], ..StartReport::default() };
        if report.rows < ROWS_MIN {
            return Ok(report);
        }
        let Regressed { features, mut z, .. } = self.regressed(params, ([x, x_valid], [y, y_valid]), Some(&rows))?;
        let is_classes = self.head == Head::Classes;
        let logistic = match self.base.linear().filter(|_| is_classes) {
            Some(_) => Logistic::fit(&features, &z, self.crosses.columns())?,
            None => None,
        };
        if let (Some(linear), Some(logistic)) = (self.base.linear(), &logistic) {
            write(params, linear, &logistic.weight.f_mul_scalar(self.embedding.width() as f64)?)?;
            write(params, self.base.bias(), &logistic.bias)?;
            // In the spread of the classes, as a regression leaves it.
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
            // What a fit of so many degrees of freedom leaves of the rows it has seen is too small for others.
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

/// Rows as a regression reads them, on the host.
pub(super) struct Regressed {
    /// Features and crosses (n, F' + C) f32.
    pub(super) features: Raw,
    /// Standardised targets (n, O) f64, 0 where missing.
    pub(super) z: Raw,
    /// Where they are not (n, O) bool.
    pub(super) valid: Raw,
}

impl Model {
    /// Rows in the user's units, and where they are valid, as a regression reads them: those of `rows`, or all. Worked through in
    /// blocks, whose intermediate values are many times as large.
    pub(super) fn regressed(
        &self,
        params: &Params,
        ([x, x_valid], [y, y_valid]): ([&Raw; 2], [&Raw; 2]),
        rows: Option<&Raw>,
    ) -> Result<Regressed, ModelError> {
        let count = rows.unwrap_or(x).size()[0];
        let cells = self.grid.cells();
        let host = |kind| (kind, Device::Cpu);
        let width = self.embedding.width() + self.crosses.columns();
        let features = Raw::f_empty([count, width], host(Kind::Float))?;
        let z = Raw::f_empty([count, cells], host(Kind::Double))?;
        let valid = Raw::f_empty([count, cells], host(Kind::Bool))?;
        for (start, len) in blocks(&features) {
            let cx = Cx::eval(params);
            let cut = |t: &Raw| match rows {
                Some(rows) => t.f_index_select(0, &rows.f_narrow(0, start, len)?),
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
        Ok(Regressed { features, z, valid })
    }
}

/// Indices of the rows used, evenly spread; `side`: features or cells, whichever are more.
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
