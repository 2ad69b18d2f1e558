//! Columns whose numbers are so large relative to their spread that the seven digits of an f32 lose most or all of it.

use enn_common::staged::Moments;

/// Maximum spacing of f32 numbers, in standard deviations of a column, without a note.
const STEP_MAX: f64 = 0.05;
/// Smallest number (2²⁴) above which f32 does not hold every integer.
const LARGE: f64 = (1u32 << 24) as f64;

/// Whether rounding to f32 changes a number that is at least `LARGE`.
pub(super) fn is_rounded(value: f64) -> bool {
    value.abs() >= LARGE && f64::from(value as f32) != value
}

/// Returns the largest magnitude of a column and the f32 spacing there.
fn step(moments: &Moments) -> (f64, f64) {
    let stats = moments.stats();
    let size = stats.max.abs().max(stats.min.abs());
    (size, size * f64::from(f32::EPSILON))
}

/// Whether f32 resolves the numbers of a column poorly, or perhaps not at all.
pub(super) fn is_imprecise(moments: &Moments) -> bool {
    let (size, step) = step(moments);
    let std = moments.stats().std;
    moments.n() > 1 && step > STEP_MAX * std && (std > 0.0 || size >= LARGE)
}

/// Returns the largest magnitude and the f32 spacing of a target that f32 does not resolve at all. `rounded` states whether rounding
/// changed any number.
pub(super) fn lost(moments: &Moments, rounded: bool) -> Option<(f64, f64)> {
    let (size, step) = step(moments);
    let std = moments.stats().std;
    (rounded && moments.n() > 1 && size >= LARGE && step >= std).then_some((size, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_far_from_zero_are_imprecise_and_lost_when_nothing_is_left() {
        let of =
            |values: &[f64]| values.iter().map(|value| f64::from(*value as f32)).collect::<Vec<f64>>().iter().collect();
        let wave = |offset: f64, size: f64| -> Moments {
            of(&(0..100).map(|i| offset + size * f64::from(i).sin()).collect::<Vec<f64>>())
        };
        let found = |moments: Moments| (is_imprecise(&moments), lost(&moments, true).is_some());
        assert_eq!(found(wave(0.0, 1.0)), (false, false));
        assert_eq!(found(wave(1e3, 1e-3)), (true, false));
        assert_eq!(found(wave(1e8, 1e3)), (false, false));
        assert_eq!(found(wave(1e8, 20.0)), (true, false));
        assert_eq!(found(wave(1e9, 10.0)), (true, true));
        let constant: Moments = of(&[-2e7; 9]);
        assert_eq!((is_imprecise(&constant), lost(&constant, false)), (true, None), "it is what it is");
        assert_eq!(found(of(&[3.5; 9])), (false, false));
        assert!(is_rounded(1e9 + 1.0) && !is_rounded(1e9) && !is_rounded(0.1) && !is_rounded(f64::NAN));
    }
}
