//! Elementwise reductions over slices of numbers, as plain loops that the compiler vectorises.

use super::super::Reduce;
use enn_common::fs::mmap::Plain;

/// A kind of number that the group reduces. Minimum and maximum propagate NaN, so that every rank sees it;
/// sums of integers wrap, as in c10d.
pub(super) trait Reducible: Plain + Default {
    fn plus(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
}

macro_rules! float_lane {
    ($number:ty) => {
        impl Reducible for $number {
            #[inline]
            fn plus(self, other: Self) -> Self {
                self + other
            }

            #[inline]
            fn smaller(self, other: Self) -> Self {
                if self < other || self.is_nan() { self } else { other }
            }

            #[inline]
            fn larger(self, other: Self) -> Self {
                if self > other || self.is_nan() { self } else { other }
            }
        }
    };
}
float_lane!(f32);
float_lane!(f64);

impl Reducible for i64 {
    #[inline]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    #[inline]
    fn smaller(self, other: Self) -> Self {
        self.min(other)
    }

    #[inline]
    fn larger(self, other: Self) -> Self {
        self.max(other)
    }
}

/// `out = out ∘ other`.
pub(super) fn fold<T: Reducible>(reduce: Reduce, out: &mut [T], other: &[T]) {
    match reduce {
        Reduce::Sum => each(out, other, T::plus),
        Reduce::Min => each(out, other, T::smaller),
        Reduce::Max => each(out, other, T::larger),
    }
}

/// `out = other ∘ out`.
pub(super) fn fold_under<T: Reducible>(reduce: Reduce, out: &mut [T], other: &[T]) {
    match reduce {
        Reduce::Sum => each(out, other, |a, b| b.plus(a)),
        Reduce::Min => each(out, other, |a, b| b.smaller(a)),
        Reduce::Max => each(out, other, |a, b| b.larger(a)),
    }
}

/// `out = one ∘ other`.
pub(super) fn join<T: Reducible>(reduce: Reduce, out: &mut [T], one: &[T], other: &[T]) {
    match reduce {
        Reduce::Sum => pairs(out, one, other, T::plus),
        Reduce::Min => pairs(out, one, other, T::smaller),
        Reduce::Max => pairs(out, one, other, T::larger),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_a_number_is_never_lost() {
        for reduce in [Reduce::Sum, Reduce::Min, Reduce::Max] {
            let mut out = [f32::NAN, 1.0, 1.0];
            fold(reduce, &mut out, &[1.0, f32::NAN, 2.0]);
            assert!(out[0].is_nan() && out[1].is_nan() && !out[2].is_nan(), "{reduce:?} {out:?}");
        }
    }

    #[test]
    fn integers_wrap() {
        let mut out = [0i64];
        join(Reduce::Sum, &mut out, &[i64::MAX], &[1]);
        assert_eq!(out, [i64::MIN]);
        fold(Reduce::Max, &mut out, &[5]);
        assert_eq!(out, [5]);
    }
}
