//! Leading principal components of the targets: the start of the base head's factors.

use tch::{Kind, TchError, Tensor as Raw};

/// Directions of the largest spread.
#[derive(Debug)]
pub(super) struct Components {
    /// Columns are directions (O, r), each scaled by the standard deviation of the data along it, so that unit scores give back
    /// the data's own spread. r may be smaller than asked: directions without spread are left out.
    pub(super) factors: Raw,
    /// Share of the total variance along them, 0..1.
    pub(super) explained: f64,
}

/// Spread below this share of the largest is rounding noise.
const SPREAD_FLOOR: f64 = 1e-10;

impl Components {
    /// At most `rank` components of y (n, O) f64 without missing values.
    pub(super) fn leading(y: &Raw, rank: i64) -> Result<Self, TchError> {
        let (rows, cells) = y.size2()?;
        let y = y.f_sub(&y.f_mean_dim(Some([0].as_slice()), true, Kind::Double)?)?;
        let dual = rows < cells;
        let gram = if dual { y.f_matmul(&y.f_tr()?)? } else { y.f_tr()?.f_matmul(&y)? };
        let (variance, vectors) = gram.f_div_scalar(rows.max(1) as f64)?.f_linalg_eigh("L")?;
        // eigh sorts upwards.
        let (variance, vectors) = (variance.f_flip([0])?.f_clamp_min(0.0)?, vectors.f_flip([1])?);
        let spread = Vec::<f64>::try_from(&variance)?;
        let total: f64 = spread.iter().sum();
        let floor = spread.first().copied().unwrap_or(0.0) * SPREAD_FLOOR;
        let kept = spread.iter().take(rank.max(0) as usize).take_while(|v| **v > floor).count();
        let vectors = vectors.f_narrow(1, 0, kept as i64)?;
        let factors = if dual {
            // Yᵀ u = s v, and s = √(n · variance): dividing by √n leaves v scaled by its standard deviation.
            y.f_tr()?.f_matmul(&vectors)?.f_div_scalar((rows.max(1) as f64).sqrt())?
        } else {
            vectors.f_mul(&variance.f_narrow(0, 0, kept as i64)?.f_sqrt()?)?
        };
        let explained = if total > 0.0 { spread[..kept].iter().sum::<f64>() / total } else { 0.0 };
        Ok(Self { factors, explained })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Device;

    #[test]
    fn both_forms_give_back_the_covariance() {
        tch::manual_seed(1);
        for (n, o) in [(50, 6), (5, 12)] {
            let y = Raw::randn([n, o], (Kind::Double, Device::Cpu)) + 2.0;
            let all = Components::leading(&y, 100).unwrap();
            let centred = &y - y.mean_dim([0].as_slice(), true, Kind::Double);
            let covariance = centred.tr().matmul(&centred) / n as f64;
            let rebuilt = all.factors.matmul(&all.factors.tr());
            assert!((covariance - rebuilt).abs().max().double_value(&[]) < 1e-10, "n {n} o {o}");
            assert!((all.explained - 1.0).abs() < 1e-9);
            assert_eq!(all.factors.size()[1], if n > o { o } else { n - 1 });
        }
    }

    #[test]
    fn leading_direction_comes_first() {
        let t = Raw::arange(20, (Kind::Double, Device::Cpu)).unsqueeze(1);
        let direction = Raw::from_slice(&[3.0, 0.0, 4.0]).reshape([1, 3]);
        let wobble = (&t * 7.0).sin() * 0.01;
        let y = t.matmul(&direction) + Raw::cat(&[&wobble * 0.0, wobble.shallow_clone(), &wobble * 0.0], 1);
        let one = Components::leading(&y, 1).unwrap();
        assert_eq!(one.factors.size(), [3, 1]);
        assert!(one.explained > 0.999);
        let ratio = one.factors.double_value(&[0, 0]) / one.factors.double_value(&[2, 0]);
        assert!((ratio - 0.75).abs() < 1e-4);
    }

    #[test]
    fn constant_targets_have_no_components() {
        let y = Raw::ones([8, 3], (Kind::Double, Device::Cpu));
        let none = Components::leading(&y, 3).unwrap();
        assert_eq!((none.factors.size(), none.explained), (vec![3, 0], 0.0));
    }
}
