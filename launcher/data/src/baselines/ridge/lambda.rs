//! The candidate values of λ, and the search for the best.

use rayon::prelude::*;

/// Exponents of ten of λ relative to the mean eigenvalue: `GRID` values from `FIRST` in steps of 0.5.
const FIRST: f64 = -4.0;
const GRID: usize = 15;

pub(super) fn chosen(lambda: f64, place: usize, how: &str) -> String {
    let edge = if place == 0 || place + 1 == GRID { ", at the edge of what was tried" } else { "" };
    let decimals = (3.0 - lambda.abs().max(1e-9).log10().floor()).clamp(0.0, 9.0) as usize;
    format!("λ = {lambda:.decimals$} by {how}{edge}")
}

/// Returns the candidate values of λ, ascending, from the mean eigenvalue of the system.
pub(super) fn grid(mean_eigenvalue: f64) -> Vec<f64> {
    (0..GRID).map(|step| mean_eigenvalue * 10f64.powf(FIRST + 0.5 * step as f64)).collect()
}

/// Returns the grid index of the least error: every second index is tried, then the neighbours of the best.
pub(super) fn search(error: impl Fn(usize) -> Option<f64> + Sync) -> Option<usize> {
    let try_all = |places: Vec<usize>| -> Vec<(usize, f64)> {
        let tried = places.into_par_iter().map(|place| (place, error(place).unwrap_or(f64::NAN)));
        tried.collect::<Vec<_>>().into_iter().filter(|(_, error)| error.is_finite()).collect()
    };
    let least = |tried: &[(usize, f64)]| tried.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
    let mut tried = try_all((0..GRID).step_by(2).collect());
    let (best, _) = least(&tried)?;
    tried.extend(try_all([best.checked_sub(1), Some(best + 1)].into_iter().flatten().filter(|i| *i < GRID).collect()));
    least(&tried).map(|(place, _)| place)
}
