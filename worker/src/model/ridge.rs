//! Ridge regression in closed form, its strength chosen by generalised cross-validation.
//!
//! One eigendecomposition serves every strength: of X Xᵀ when there are fewer rows than columns (dual), else of Xᵀ X.

use tch::{Kind, TchError, Tensor as Raw};

/// Strengths tried, spread geometrically over `STRENGTH_SPAN` × the largest eigenvalue.
const STRENGTHS: usize = 81;
/// Smallest and largest strength, relative to the largest eigenvalue.
const STRENGTH_SPAN: (f64, f64) = (1e-7, 1e1);
/// Largest share of the rows' freedom that a fit may use: beyond it the criterion is 0/0.
const FREEDOM_SHARE_MAX: f64 = 0.98;
/// Eigenvalues below this share of the largest are rounding noise.
const EIGEN_FLOOR: f64 = 1e-12;

/// A fitted regression y = W x + b.
#[derive(Debug)]
pub(super) struct Ridge {
    /// W (O, F), f64.
    pub(super) weight: Raw,
    /// b (O), f64.
    pub(super) bias: Raw,
    /// Chosen λ.
    pub(super) lambda: f64,
    /// Effective degrees of freedom, without the intercept.
    pub(super) freedom: f64,
}

impl Ridge {
    /// Fits x (n, F) to y (n, O), both f64 without missing values, n ≥ 3.
    pub(super) fn fit(x: &Raw, y: &Raw) -> Result<Self, TchError> {
        let (rows, columns) = x.size2()?;
        let (x_mean, y_mean) = (column_mean(x)?, column_mean(y)?);
        let (x, y) = (x.f_sub(&x_mean)?, y.f_sub(&y_mean)?);
        let dual = rows < columns;
        let gram = if dual { x.f_matmul(&x.f_tr()?)? } else { x.f_tr()?.f_matmul(&x)? };
        let (eigen, vectors) = gram.f_linalg_eigh("L")?;
        let eigen = eigen.f_clamp_min(0.0)?;
        // Right-hand side in the eigenbasis: (n or F, O).
        let against = if dual { y.shallow_clone() } else { x.f_tr()?.f_matmul(&y)? };
        let rotated = vectors.f_tr()?.f_matmul(&against)?;
        let spectrum = Spectrum::new(&eigen, &rotated, &y, dual)?;
        let (lambda, freedom) = spectrum.choose(rows as f64);
        let shrunk = rotated.f_div(&eigen.f_add_scalar(lambda)?.f_unsqueeze(1)?)?;
        let solved = vectors.f_matmul(&shrunk)?;
        let weight = if dual { x.f_tr()?.f_matmul(&solved)? } else { solved }.f_tr()?;
        let bias = y_mean.f_reshape([-1])?.f_sub(&weight.f_mv(&x_mean.f_reshape([-1])?)?)?;
        Ok(Self { weight: weight.f_contiguous()?, bias, lambda, freedom })
    }

    /// Fitted values (n, O) for x (n, F).
    pub(super) fn predict(&self, x: &Raw) -> Result<Raw, TchError> {
        x.f_matmul(&self.weight.f_tr()?)?.f_add(&self.bias)
    }
}

/// What generalised cross-validation needs: per eigenvalue the energy of y along its left singular vector.
struct Spectrum {
    eigen: Vec<f64>,
    energy: Vec<f64>,
    total: f64,
    largest: f64,
}

impl Spectrum {
    fn new(eigen: &Raw, rotated: &Raw, y: &Raw, dual: bool) -> Result<Self, TchError> {
        let eigen = Vec::<f64>::try_from(eigen)?;
        let energy = rotated.f_square()?.f_sum_dim_intlist(Some([1].as_slice()), false, Kind::Double)?;
        let mut energy = Vec::<f64>::try_from(energy)?;
        let largest = eigen.iter().copied().fold(0.0, f64::max);
        if !dual {
            // Here the rotation gave Vᵀ Xᵀ y = s · (Uᵀ y).
            for (e, s2) in energy.iter_mut().zip(&eigen) {
                *e = if *s2 > largest * EIGEN_FLOOR { *e / s2 } else { 0.0 };
            }
        }
        Ok(Self { eigen, energy, total: y.f_square()?.f_sum(Kind::Double)?.f_double_value(&[])?, largest })
    }

    /// λ with the smallest n·RSS / (n − 1 − tr H)², and tr H.
    fn choose(&self, rows: f64) -> (f64, f64) {
        // Without any spread in x every strength gives W = 0.
        if self.largest <= 0.0 {
            return (1.0, 0.0);
        }
        let ratio = STRENGTH_SPAN.1 / STRENGTH_SPAN.0;
        let mut best = (self.largest * STRENGTH_SPAN.1, 0.0, f64::INFINITY);
        for i in (0..STRENGTHS).rev() {
            let lambda = self.largest * STRENGTH_SPAN.0 * ratio.powf(i as f64 / (STRENGTHS - 1) as f64);
            let (mut freedom, mut rss) = (0.0, self.total);
            for (s2, energy) in self.eigen.iter().zip(&self.energy) {
                let kept = s2 / (s2 + lambda);
                freedom += kept;
                rss -= kept * (2.0 - kept) * energy;
            }
            if freedom > FREEDOM_SHARE_MAX * (rows - 1.0) {
                break;
            }
            let score = rows * rss.max(0.0) / (rows - 1.0 - freedom).powi(2);
            if score < best.2 {
                best = (lambda, freedom, score);
            }
        }
        (best.0, best.1)
    }
}

fn column_mean(x: &Raw) -> Result<Raw, TchError> {
    x.f_mean_dim(Some([0].as_slice()), true, Kind::Double)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    fn random(seed: i64, shape: [i64; 2]) -> Raw {
        tch::manual_seed(seed);
        Raw::randn(shape, (Kind::Double, Device::Cpu))
    }

    /// The normal equations, solved directly.
    fn direct(x: &Raw, y: &Raw, lambda: f64) -> Raw {
        let xc = x - column_mean(x).unwrap();
        let yc = y - column_mean(y).unwrap();
        let eye = Raw::eye(x.size()[1], (Kind::Double, Device::Cpu));
        Raw::linalg_solve(&(xc.tr().matmul(&xc) + eye * lambda), &xc.tr().matmul(&yc), true).tr()
    }

    #[test]
    fn both_forms_solve_the_normal_equations() {
        for (n, f) in [(30, 7), (9, 40)] {
            let (x, y) = (random(1, [n, f]) + 3.0, random(2, [n, 4]) - 5.0);
            let ridge = Ridge::fit(&x, &y).unwrap();
            let expected = direct(&x, &y, ridge.lambda);
            assert!((&ridge.weight - expected).abs().max().double_value(&[]) < 1e-8, "n {n} f {f}");
            // The intercept makes the residuals sum to zero.
            let residual = column_mean(&(&y - ridge.predict(&x).unwrap())).unwrap();
            assert!(residual.abs().max().double_value(&[]) < 1e-10);
        }
    }

    #[test]
    fn criterion_equals_its_definition() {
        let (x, y) = (random(3, [20, 5]), random(4, [20, 3]));
        let ridge = Ridge::fit(&x, &y).unwrap();
        let score = |lambda: f64| {
            let xc = &x - column_mean(&x).unwrap();
            let eye = Raw::eye(5, (Kind::Double, Device::Cpu));
            let inverse = Raw::linalg_inv(&(xc.tr().matmul(&xc) + eye * lambda));
            let hat = xc.matmul(&inverse).matmul(&xc.tr());
            let residual = &y - column_mean(&y).unwrap() - hat.matmul(&(&y - column_mean(&y).unwrap()));
            let trace = hat.trace().double_value(&[]);
            (20.0 * residual.square().sum(Kind::Double).double_value(&[]) / (19.0 - trace).powi(2), trace)
        };
        let (best, trace) = score(ridge.lambda);
        assert!((trace - ridge.freedom).abs() < 1e-8);
        for factor in [0.3, 0.7, 1.5, 4.0] {
            assert!(score(ridge.lambda * factor).0 >= best * (1.0 - 1e-3), "factor {factor}");
        }
    }

    #[test]
    fn strong_signal_is_found_and_noise_is_shrunk() {
        let x = random(5, [40, 200]);
        let truth = random(6, [200, 3]) * 0.1;
        let signal = Ridge::fit(&x, &x.matmul(&truth)).unwrap();
        let noise = Ridge::fit(&x, &random(7, [40, 3])).unwrap();
        assert!(noise.freedom < signal.freedom);
        assert!(signal.freedom > 20.0, "freedom {}", signal.freedom);
    }

    #[test]
    fn constant_inputs_give_the_mean() {
        let x = Raw::ones([10, 3], (Kind::Double, Device::Cpu));
        let y = random(8, [10, 2]);
        let ridge = Ridge::fit(&x, &y).unwrap();
        assert_eq!(ridge.weight.abs().max().double_value(&[]), 0.0);
        let mean = y.mean_dim([0].as_slice(), false, Kind::Double);
        assert!((ridge.bias - mean).abs().max().double_value(&[]) < 1e-12);
    }
}
