//! The kind to which autocast casts the operands of a class of operations. Pure functions only. The class is in an operation's row.
//!
//! Only the forward pass is cast. A cast's reverse rule returns the gradient in the kind of its operand, so every
//! value's gradient has the value's own kind and the backward pass needs no policy.

use crate::op::row::Class;
use tch::Kind;

/// Orders kinds by precision: a kind of higher rank represents a lower one better than the reverse. `None` for kinds that
/// autocast does not cast.
fn rank(kind: Kind) -> Option<u8> {
    match kind {
        Kind::Half => Some(0),
        Kind::BFloat16 => Some(1),
        Kind::Float => Some(2),
        Kind::Double => Some(3),
        _ => None,
    }
}

/// Whether autocast may cast a value of this kind.
pub fn castable(kind: Kind) -> bool {
    rank(kind).is_some()
}

/// Returns the kind that all floating-point operands of a call are cast to; `None` for no cast. Values are never cast
/// down from f64, nor to a kind other than f32, `low` and the operands' own ones.
pub fn target(class: Class, kinds: impl Iterator<Item = Kind>, low: Kind) -> Option<Kind> {
    let mut floats = kinds.filter(|kind| castable(*kind));
    let first = floats.next()?;
    let mut widest = first;
    let mut equal = true;
    for kind in floats {
        equal &= kind == first;
        if rank(kind) > rank(widest) {
            widest = kind;
        }
    }
    // Neither of half and bfloat16 holds the other, so both are cast to f32.
    let joint = if equal || rank(widest) > rank(Kind::BFloat16) { widest } else { Kind::Float };
    let wanted = match class {
        Class::Pass | Class::Inside => return None,
        Class::Widest => joint,
        Class::Full | Class::Stream if rank(widest) < rank(Kind::Float) => Kind::Float,
        Class::Full | Class::Stream => widest,
        Class::Low if widest == Kind::Double => Kind::Double,
        Class::Low => low,
    };
    (!equal || wanted != first).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Op, rows, sample::SampleRng};
    use Kind::{BFloat16, Bool, Double, Float, Half, Int64};

    fn to(class: Class, kinds: &[Kind]) -> Option<Kind> {
        target(class, kinds.iter().copied(), BFloat16)
    }

    #[test]
    fn products_go_low_unless_a_double_takes_part() {
        assert_eq!(to(Class::Low, &[Float, Float]), Some(BFloat16));
        assert_eq!(to(Class::Low, &[BFloat16, Float]), Some(BFloat16));
        assert_eq!(to(Class::Low, &[BFloat16, BFloat16]), None);
        assert_eq!(to(Class::Low, &[Double, Double]), None);
        assert_eq!(to(Class::Low, &[Double, Float]), Some(Double));
    }

    #[test]
    fn statistics_are_at_least_f32() {
        assert_eq!(to(Class::Full, &[BFloat16, Float, Float]), Some(Float));
        assert_eq!(to(Class::Full, &[Half]), Some(Float));
        assert_eq!(to(Class::Full, &[Float]), None);
        assert_eq!(to(Class::Full, &[Double]), None);
    }

    #[test]
    fn joins_take_the_widest_and_leave_masks_alone() {
        assert_eq!(to(Class::Widest, &[Bool, BFloat16, Float]), Some(Float));
        assert_eq!(to(Class::Widest, &[BFloat16, BFloat16]), None);
        assert_eq!(to(Class::Widest, &[Half, BFloat16]), Some(Float));
        assert_eq!(to(Class::Widest, &[Int64, Bool]), None);
        assert_eq!(to(Class::Pass, &[BFloat16, Float]), None);
    }

    #[test]
    fn every_differentiable_row_is_decided_by_what_it_computes() {
        let low: Vec<&str> = forward().filter(|op| op.row().class == Class::Low).map(|op| op.name()).collect();
        assert_eq!(dedup(low), ["matmul", "linear", "sdpa"]);
        for op in forward() {
            let sums = ["sum", "mean", "norm", "softmax", "masked", "entropy"];
            if sums.iter().any(|part| op.name().contains(part)) || ["exp", "log"].contains(&op.name()) {
                let wide = matches!(op.row().class, Class::Full | Class::Inside | Class::Stream);
                assert!(wide, "{} sums or exponentiates", op.name());
            }
        }
    }

    fn forward() -> impl Iterator<Item = Op> {
        let mut draw = SampleRng::new(1);
        rows().flat_map(move |row| (row.samples)(&mut draw)).map(|sample| sample.op)
    }

    fn dedup(mut names: Vec<&str>) -> Vec<&str> {
        names.dedup();
        names
    }
}
