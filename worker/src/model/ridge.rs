//! Ridge regression in closed form, with a strength of its own for every principal component of the targets.
//!
//! Cells of a grid vary together. Their leading components carry signal and want little shrinking, the trailing ones are mostly
//! noise and want much; one strength for all is wrong for both. Each is chosen by generalised cross-validation. One
//! eigendecomposition serves every strength: of X Xᵀ when there are fewer rows than columns (dual), else of Xᵀ X.

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
    /// Chosen λ and effective degrees of freedom (without the intercept) per component, leading one first.
    pub(super) strengths: Vec<(f64, f64)>,
}

impl Ridge {
    /// Fits x (n, F) to y (n, O), both f64 without missing values, n ≥ 3.
    pub(super) fn fit(x: &Raw, y: &Raw) -> Result<Self, TchError> {
        let (rows, columns) = x.size2()?;
        let (x_mean, y_mean) = (column_mean(x)?, column_mean(y)?);
        let (x, y) = (x.f_sub(&x_mean)?, y.f_sub(&y_mean)?);
        let components = directions(&y)?;
        let y = y.f_matmul(&components)?;
        let dual = rows < columns;
        let gram = if dual { x.f_matmul(&x.f_tr()?)? } else { x.f_tr()?.f_matmul(&x)? };
        let (eigen, vectors) = gram.f_linalg_eigh("L")?;
        let eigen = eigen.f_clamp_min(0.0)?;
        // Right-hand side in the eigenbasis: (n or F, components).
        let against = if dual { y.shallow_clone() } else { x.f_tr()?.f_matmul(&y)? };
        let rotated = vectors.f_tr()?.f_matmul(&against)?;
        let strengths = Spectrum::new(&eigen, &rotated, &y, dual)?.choose(rows as f64);
        let lambda = Raw::f_from_slice(&strengths.iter().map(|s| s.0).collect::<Vec<_>>())?;
        let shrunk = rotated.f_div(&eigen.f_unsqueeze(1)?.f_add(&lambda)?)?;
        let solved = vectors.f_matmul(&shrunk)?;
        let solved = if dual { x.f_tr()?.f_matmul(&solved)? } else { solved };
        let weight = components.f_matmul(&solved.f_tr()?)?;
        let bias = y_mean.f_reshape([-1])?.f_sub(&weight.f_mv(&x_mean.f_reshape([-1])?)?)?;
        Ok(Self { weight: weight.f_contiguous()?, bias, strengths })
    }

    /// Fitted values (n, O) for x (n, F).
    pub(super) fn predict(&self, x: &Raw) -> Result<Raw, TchError> {
        x.f_matmul(&self.weight.f_tr()?)?.f_add(&self.bias)
    }
}

/// Orthonormal principal directions of centred y (n, O), leading one first: (O, r) with r = min(n, O).
fn directions(y: &Raw) -> Result<Raw, TchError> {
    let (rows, cells) = y.size2()?;
    if rows >= cells {
        return y.f_tr()?.f_matmul(y)?.f_linalg_eigh("L")?.1.f_flip([1]);
    }
    // y = U S Vᵀ: V from the smaller side; columns without spread stay zero and carry nothing.
    let (energy, left) = y.f_matmul(&y.f_tr()?)?.f_linalg_eigh("L")?;
    let floor = energy.f_max()?.f_double_value(&[])? * EIGEN_FLOOR;
    let inverse = energy.f_clamp_min(floor.max(f64::MIN_POSITIVE))?.f_rsqrt()?;
    let kept = energy.f_gt(floor)?.f_to_kind(Kind::Double)?;
    y.f_tr()?.f_matmul(&left.f_mul(&inverse.f_mul(&kept)?)?)?.f_flip([1])
}

/// What generalised cross-validation needs: per eigenvalue and component the energy of y along the left singular vector.
struct Spectrum {
    eigen: Vec<f64>,
    /// Component-major, as many per component as eigenvalues.
    energy: Vec<f64>,
    /// Energy per component.
    total: Vec<f64>,
    largest: f64,
}

impl Spectrum {
    fn new(eigen: &Raw, rotated: &Raw, y: &Raw, dual: bool) -> Result<Self, TchError> {
        let eigen = Vec::<f64>::try_from(eigen)?;
        let mut energy = Vec::<f64>::try_from(rotated.f_square()?.f_tr()?.f_contiguous()?.f_view([-1])?)?;
        let largest = eigen.iter().copied().fold(0.0, f64::max);
        if !dual {
            // Here the rotation gave Vᵀ Xᵀ y = s · (Uᵀ y).
            for (e, s2) in energy.iter_mut().zip(eigen.iter().cycle()) {
                *e = if *s2 > largest * EIGEN_FLOOR { *e / s2 } else { 0.0 };
            }
        }
        let total = y.f_square()?.f_sum_dim_intlist(Some([0].as_slice()), false, Kind::Double)?;
        Ok(Self { eigen, energy, total: Vec::try_from(total)?, largest })
    }

    /// Per component: λ with the smallest n·RSS / (n − 1 − tr H)², and tr H.
    fn choose(&self, rows: f64) -> Vec<(f64, f64)> {
        // Without any spread in x every strength gives W = 0.
        if self.largest <= 0.0 {
            return vec![(1.0, 0.0); self.total.len()];
        }
        let ratio = STRENGTH_SPAN.1 / STRENGTH_SPAN.0;
        let mut best = vec![(self.largest * STRENGTH_SPAN.1, 0.0, f64::INFINITY); self.total.len()];
        for i in (0..STRENGTHS).rev() {
            let lambda = self.largest * STRENGTH_SPAN.0 * ratio.powf(i as f64 / (STRENGTHS - 1) as f64);
            let kept: Vec<f64> = self.eigen.iter().map(|s2| s2 / (s2 + lambda)).collect();
            let freedom: f64 = kept.iter().sum();
            if freedom > FREEDOM_SHARE_MAX * (rows - 1.0) {
                break;
            }
            let explained: Vec<f64> = kept.iter().map(|k| k * (2.0 - k)).collect();
            for ((best, total), energy) in best.iter_mut().zip(&self.total).zip(self.energy.chunks(self.eigen.len())) {
                let rss = total - explained.iter().zip(energy).map(|(k, e)| k * e).sum::<f64>();
                let score = rows * rss.max(0.0) / (rows - 1.0 - freedom).powi(2);
                if score < best.2 {
                    *best = (lambda, freedom, score);
                }
            }
        }
        best.into_iter().map(|(lambda, freedom, _)| (lambda, freedom)).collect()
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

    /// The normal equations, solved directly for one strength.
    fn direct(x: &Raw, y: &Raw, lambda: f64) -> Raw {
        let xc = x - column_mean(x).unwrap();
        let yc = y - column_mean(y).unwrap();
        let eye = Raw::eye(x.size()[1], (Kind::Double, Device::Cpu));
        Raw::linalg_solve(&(xc.tr().matmul(&xc) + eye * lambda), &xc.tr().matmul(&yc), true).tr()
    }

    #[test]
    fn every_component_solves_its_normal_equations() {
        // More rows than columns, fewer rows than columns, and fewer rows than cells.
        for (n, f, o) in [(30, 7, 4), (9, 40, 4), (6, 3, 10)] {
            let (x, y) = (random(1, [n, f]) + 3.0, random(2, [n, o]) - 5.0);
            let ridge = Ridge::fit(&x, &y).unwrap();
            let components = directions(&(&y - column_mean(&y).unwrap())).unwrap();
            let rotated = y.matmul(&components);
            let found = components.tr().matmul(&ridge.weight);
            for (c, (lambda, _)) in (0..).zip(&ridge.strengths) {
                let expected = direct(&x, &rotated.narrow(1, c, 1), *lambda);
                assert!((found.narrow(0, c, 1) - expected).abs().max().double_value(&[]) < 1e-8, "{n} {f} {o} {c}");
            }
            // The intercept makes the residuals sum to zero.
            let residual = column_mean(&(&y - ridge.predict(&x).unwrap())).unwrap();
            assert!(residual.abs().max().double_value(&[]) < 1e-10);
        }
    }

    #[test]
    fn directions_are_orthonormal_and_span_the_targets() {
        for (n, o) in [(20, 5), (5, 20)] {
            let y = random(3, [n, o]);
            let y = &y - column_mean(&y).unwrap();
            let v = directions(&y).unwrap();
            assert!((y.matmul(&v).matmul(&v.tr()) - &y).abs().max().double_value(&[]) < 1e-10);
            let spread =
                Vec::<f64>::try_from(y.matmul(&v).square().sum_dim_intlist([0].as_slice(), false, Kind::Double))
                    .unwrap();
            assert!(spread.windows(2).all(|w| w[0] >= w[1] - 1e-9), "{spread:?}");
        }
    }

    #[test]
    fn criterion_equals_its_definition() {
        let x = random(3, [20, 5]);
        let y = x.matmul(&random(9, [5, 1])) * 0.5 + random(4, [20, 1]);
        let ridge = Ridge::fit(&x, &y).unwrap();
        let (lambda, freedom) = ridge.strengths[0];
        let score = |lambda: f64| {
            let xc = &x - column_mean(&x).unwrap();
            let yc = &y - column_mean(&y).unwrap();
            let eye = Raw::eye(5, (Kind::Double, Device::Cpu));
            let inverse = Raw::linalg_inv(&(xc.tr().matmul(&xc) + eye * lambda));
            let hat = xc.matmul(&inverse).matmul(&xc.tr());
            let trace = hat.trace().double_value(&[]);
            let rss = (&yc - hat.matmul(&yc)).square().sum(Kind::Double).double_value(&[]);
            (20.0 * rss / (19.0 - trace).powi(2), trace)
        };
        let (best, trace) = score(lambda);
        assert!((trace - freedom).abs() < 1e-8);
        for factor in [0.3, 0.7, 1.5, 4.0] {
            assert!(score(lambda * factor).0 >= best * (1.0 - 1e-3), "factor {factor}");
        }
    }

    #[test]
    fn signal_is_kept_and_noise_in_other_components_is_shrunk() {
        let x = random(5, [60, 20]);
        // One strong direction that x explains, and noise across all cells.
        let signal = x.matmul(&random(6, [20, 1])).matmul(&Raw::from_slice(&[3.0, 3.0, 3.0, 3.0]).reshape([1, 4]));
        let ridge = Ridge::fit(&x, &(signal + random(7, [60, 4]))).unwrap();
        let freedom: Vec<f64> = ridge.strengths.iter().map(|s| s.1).collect();
        assert!(freedom[0] > 15.0, "{freedom:?}");
        assert!(freedom[1..].iter().all(|f| *f < freedom[0] - 2.0), "{freedom:?}");
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
