//! Numbers that can be brought together element by element. Plain loops over slices: the compiler makes vectors of them.

use super::super::Reduce;
use enn_common::fs::mmap::Plain;

/// A kind of number the group adds up.
pub(super) trait Lane: Plain + Default {
    /// `out = out ∘ other`.
    fn fold(reduce: Reduce, out: &mut [Self], other: &[Self]);
    /// `out = one ∘ other`.
    fn join(reduce: Reduce, out: &mut [Self], one: &[Self], other: &[Self]);
}

macro_rules! lane {
    ($number:ty, $add:expr, $min:expr, $max:expr) => {
        impl Lane for $number {
            fn fold(reduce: Reduce, out: &mut [Self], other: &[Self]) {
                match reduce {
                    Reduce::Sum => each(out, other, $add),
                    Reduce::Min => each(out, other, $min),
                    Reduce::Max => each(out, other, $max),
                }
            }

            fn join(reduce: Reduce, out: &mut [Self], one: &[Self], other: &[Self]) {
                match reduce {
                    Reduce::Sum => pairs(out, one, other, $add),
                    Reduce::Min => pairs(out, one, other, $min),
                    Reduce::Max => pairs(out, one, other, $max),
                }
            }
        }
    };
}

#[inline]
fn each<T: Copy>(out: &mut [T], other: &[T], f: impl Fn(T, T) -> T) {
    for (a, b) in out.iter_mut().zip(other) {
        *a = f(*a, *b);
    }
}

#[inline]
fn pairs<T: Copy>(out: &mut [T], one: &[T], other: &[T], f: impl Fn(T, T) -> T) {
    for ((out, a), b) in out.iter_mut().zip(one).zip(other) {
        *out = f(*a, *b);
    }
}

// Not a number wins on either side, so that every rank learns of it. An integer sum wraps, as in c10d.
lane!(f32, |a, b| a + b, |a, b| if a < b || a.is_nan() { a } else { b }, |a, b| if a > b || a.is_nan() {
    a
} else {
    b
});
lane!(f64, |a, b| a + b, |a, b| if a < b || a.is_nan() { a } else { b }, |a, b| if a > b || a.is_nan() {
    a
} else {
    b
});
lane!(i64, i64::wrapping_add, i64::min, i64::max);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_a_number_is_never_lost() {
        for reduce in [Reduce::Sum, Reduce::Min, Reduce::Max] {
            let mut out = [f32::NAN, 1.0, 1.0];
            f32::fold(reduce, &mut out, &[1.0, f32::NAN, 2.0]);
            assert!(out[0].is_nan() && out[1].is_nan() && !out[2].is_nan(), "{reduce:?} {out:?}");
        }
    }

    #[test]
    fn integers_wrap() {
        let mut out = [0];
        i64::join(Reduce::Sum, &mut out, &[i64::MAX], &[1]);
        assert_eq!(out, [i64::MIN]);
        i64::fold(Reduce::Max, &mut out, &[5]);
        assert_eq!(out, [5]);
    }
}
