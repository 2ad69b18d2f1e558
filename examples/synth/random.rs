//! Seeded random numbers: SplitMix64, and distributions from its bits.

use enn_common::mix::{STEP, mix};

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    /// Makes the stream of a seed; `stream` distinguishes several streams of one seed.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self { state: seed };
        random.state = random.bits() ^ stream.wrapping_mul(0xD134_2543_DE82_EF95);
        random
    }

    fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// Draws uniformly from (0, 1).
    pub(super) fn uniform(&mut self) -> f64 {
        ((self.bits() >> 12) as f64 + 0.5) / (1u64 << 52) as f64
    }

    /// Draws a standard normal number (Box and Muller).
    pub(super) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Draws from Student's t with `freedom` degrees of freedom.
    pub(super) fn student(&mut self, freedom: u32) -> f64 {
        let squares: f64 = (0..freedom).map(|_| self.normal().powi(2)).sum();
        self.normal() / (squares / f64::from(freedom)).sqrt()
    }
}

/// Returns the mean of |T| of Student's t with `freedom` > 1 degrees of freedom.
pub(super) fn student_mean_abs(freedom: u32) -> f64 {
    let nu = f64::from(freedom);
    // Γ((ν+1)/2) / Γ(ν/2) from its value at ν = 1 by Γ(x+1) = x Γ(x): the ratio r(ν) satisfies r(ν+1) = ν / (2 r(ν)).
    let mut ratio = 1.0 / std::f64::consts::PI.sqrt();
    for below in 1..freedom {
        ratio = f64::from(below) / 2.0 / ratio;
    }
    2.0 * nu.sqrt() * ratio / (std::f64::consts::PI.sqrt() * (nu - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_agree_with_their_distributions() {
        let mut random = Random::new(1, 0);
        let n = 200_000;
        let draws: Vec<f64> = (0..n).map(|_| random.normal()).collect();
        let mean = draws.iter().sum::<f64>() / f64::from(n);
        let square = draws.iter().map(|x| x * x).sum::<f64>() / f64::from(n);
        assert!(mean.abs() < 0.01 && (square - 1.0).abs() < 0.02, "{mean} {square}");
        // ν = 3: 2√3 · Γ(2)/Γ(1.5) / (√π · 2) = 1.10266.
        assert!((student_mean_abs(3) - 1.102_657_8).abs() < 1e-6, "{}", student_mean_abs(3));
        assert!((student_mean_abs(2) - std::f64::consts::SQRT_2).abs() < 1e-12);
        let found = (0..n).map(|_| random.student(5).abs()).sum::<f64>() / f64::from(n);
        assert!((found / student_mean_abs(5) - 1.0).abs() < 0.01, "{found} {}", student_mean_abs(5));
        assert_ne!(Random::new(1, 0).uniform(), Random::new(1, 1).uniform());
    }
}
