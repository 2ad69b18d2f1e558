//! Leading principal components of the targets: the initial factors of the base head, and the directions that a
//! regression shrinks separately.

use tch::{Kind, TchError, Tensor as Raw};

/// Directions of the largest variance.
#[derive(Debug)]
pub(super) struct Components {
    /// Directions in columns (O, r), each scaled by the standard deviation of the data along it, so that unit scores
    /// reproduce the variance of the data. r may be smaller than requested: directions without variance are left out.
    pub(super) factors: Raw,
    /// Share of the total variance along the directions, 0..1.
    pub(super) explained: f64,
}

/// Energy below this share of the largest is rounding noise.
const ENERGY_FLOOR: f64 = 1e-12;

impl Components {
    /// Returns at most `rank` components of y (n, O) f64 without missing values.
    pub(super) fn leading(y: &Raw, rank: i64) -> Result<Self, TchError> {
        let y = y.f_sub(&y.f_mean_dim(Some([0].as_slice()), true, Kind::Double)?)?;
        let (vectors, energies) = directions(&y, rank)?;
        let kept = vectors.size()[1];
        let rows = y.size()[0].max(1);
        let total: f64 = energies.iter().sum();
        let explained = if total > 0.0 { energies[..kept as usize].iter().sum::<f64>() / total } else { 0.0 };
        let along: Vec<f64> = energies[..kept as usize].iter().map(|energy| (energy / rows as f64).sqrt()).collect();
        Ok(Self { factors: vectors.f_mul(&Raw::f_from_slice(&along)?.f_to_device(vectors.device())?)?, explained })
    }
}

/// Returns orthonormal directions of centred y (n, O) with the largest variance, in descending order: (O, r), r ≤
/// `most`. The second value is the energy along all directions, in descending order.
pub(super) fn directions(y: &Raw, most: i64) -> Result<(Raw, Vec<f64>), TchError> {
    let (rows, cells) = y.size2()?;
    let dual = rows < cells;
    let gram = if dual { y.f_matmul(&y.f_tr()?)? } else { y.f_tr()?.f_matmul(y)? };
    let (energy, vectors) = gram.f_linalg_eigh("L")?;
    // `eigh` sorts in ascending order.
    let energy = energy.f_flip([0])?.f_clamp_min(0.0)?;
    let vectors = vectors.f_flip([1])?;
    let energies = Vec::<f64>::try_from(&energy)?;
    let floor = energies.first().copied().unwrap_or(0.0) * ENERGY_FLOOR;
    let kept = energies.iter().take(most.max(0) as usize).take_while(|e| **e > floor).count() as i64;
    let vectors = vectors.f_narrow(1, 0, kept)?;
    if !dual {
        return Ok((vectors, energies));
    }
    // From y = U S Vᵀ follows V.
    Ok((y.f_tr()?.f_matmul(&vectors.f_div(&energy.f_narrow(0, 0, kept)?.f_sqrt()?)?)?, energies))
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
