//! The policy table: how autocast treats the operands of each operation. Pure functions only.
//!
//! Only the forward pass is cast. A cast's reverse rule returns the gradient in the kind of its operand, so every
//! value's gradient has the value's own kind and the backward pass needs no policy.

use crate::op::Op;
use crate::op::attr::Unary;
use tch::Kind;

/// How autocast treats the floating-point operands of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Operands are cast to the low-precision kind: products, which accumulate in f32 internally.
    Low,
    /// Operands are not cast: the operation computes in f32 internally for every kind, and its sums are f32.
    Inside,
    /// The first operand and the weights are cast as with `Full`. Results of products (the added branch, the factors of a gate) and the
    /// norm stay in the low kind.
    Stream,
    /// Operands below f32 are cast to f32: statistics, long sums, exponentials and logarithms, losses, scans with decays near 1.
    Full,
    /// Operands are cast to the widest kind among them: arithmetic of two operands, concatenations.
    Widest,
    /// Operands are not cast: views, copies, selections, functions of one operand with results of similar magnitude.
    Pass,
}

/// Returns the class of an operation. Operations emitted by reverse rules, autocast or the optimizer are of class `Pass`.
pub fn class(op: &Op) -> Class {
    match op {
        Op::MatMul { .. } | Op::Linear { .. } | Op::Sdpa { .. } => Class::Low,
        Op::Unary(unary) => of_unary(*unary),
        Op::Sum { .. } | Op::Mean { .. } | Op::SumTo { .. } | Op::LayerNorm { .. } => Class::Full,
        Op::RmsNorm { .. } | Op::Softmax { .. } | Op::LogSoftmax { .. } => Class::Full,
        Op::Retention { .. } | Op::RetentionDecay { .. } | Op::MaskedHuber { .. } | Op::MaskedMse => Class::Full,
        Op::AddNorm { .. } | Op::GatedNorm { .. } => Class::Stream,
        Op::CrossEntropy { .. } => Class::Inside,
        Op::Binary(_) | Op::SiluMul | Op::Where | Op::Cat { .. } | Op::Stack { .. } => Class::Widest,
        Op::Scale { .. } | Op::AddScalar { .. } | Op::Clamp { .. } | Op::Cast { .. } | Op::SwiGlu => Class::Pass,
        Op::MaxDim { .. } | Op::Reshape { .. } | Op::Permute { .. } | Op::Expand { .. } => Class::Pass,
        Op::Narrow { .. } | Op::Split { .. } | Op::Zeros { .. } | Op::Ones { .. } | Op::Embedding => Class::Pass,
        Op::Dropout { .. } | Op::DropPath { .. } | Op::Detach | Op::Aten(_) | Op::Test(_) | Op::And => Class::Pass,
        Op::Not | Op::IndexSelect { .. } | Op::IndexSelectBackward { .. } | Op::Flip { .. } => Class::Pass,
        Op::Dilate { .. } | Op::Undilate { .. } => Class::Pass,
        Op::UnaryBackward(_) | Op::ClampBackward { .. } | Op::SiluMulBackward | Op::SwiGluBackward => Class::Pass,
        Op::Keep { .. } | Op::MaxDimBackward { .. } | Op::LinearBackward { .. } => Class::Pass,
        Op::NarrowBackward { .. } | Op::GradAdd | Op::LayerNormBackward { .. } => Class::Pass,
        Op::AddNormBackward { .. }
        | Op::GatedNormBackward { .. }
        | Op::RmsNormBackward { .. }
        | Op::SoftmaxBackward { .. } => Class::Pass,
        Op::LogSoftmaxBackward { .. } | Op::EmbeddingBackward { .. } | Op::RetentionBackward { .. } => Class::Pass,
        Op::RetentionDecayBackward { .. } => Class::Pass,
        Op::SdpaBackward { .. } | Op::MaskedHuberBackward { .. } | Op::MaskedMseBackward => Class::Pass,
        Op::AtenBackward(_)
        | Op::CrossEntropyBackward { .. }
        | Op::GlobalNorm
        | Op::StepScalars { .. }
        | Op::AdamW { .. } => Class::Pass,
        Op::Average { .. }
        | Op::Zero
        | Op::AllReduce
        | Op::AllReduceWait
        | Op::ReduceScatter
        | Op::AllGather
        | Op::Order
        | Op::AllReduceShares
        | Op::AllReduceCopies
        | Op::Allocate
        | Op::Release
        | Op::Place
        | Op::CastInto => Class::Pass,
        Op::ScaleUpdate { .. } | Op::Quantize { .. } | Op::ScaledMm { .. } | Op::Fp8Linear { .. } => Class::Pass,
    }
}

fn of_unary(unary: Unary) -> Class {
    match unary {
        Unary::Exp | Unary::Log | Unary::Sqrt | Unary::Square | Unary::Reciprocal | Unary::Softplus => Class::Full,
        Unary::Neg
        | Unary::Abs
        | Unary::Relu
        | Unary::Silu
        | Unary::Gelu
        | Unary::GeluTanh
        | Unary::Sigmoid
        | Unary::Tanh => Class::Pass,
    }
}

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
        let low: Vec<&str> = forward().filter(|op| class(op) == Class::Low).map(|op| op.name()).collect();
        assert_eq!(dedup(low), ["matmul", "linear", "sdpa"]);
        for op in forward() {
            let sums = ["sum", "mean", "norm", "softmax", "masked", "entropy"];
            if sums.iter().any(|part| op.name().contains(part)) || ["exp", "log"].contains(&op.name()) {
                let wide = matches!(class(&op), Class::Full | Class::Inside | Class::Stream);
                assert!(wide, "{} sums or exponentiates", op.name());
            }
        }
    }

    fn forward() -> impl Iterator<Item = Op> {
        let mut draw = crate::op::sample::Draw::new(1);
        crate::op::rows().flat_map(move |row| (row.samples)(&mut draw)).map(|sample| sample.op)
    }

    fn dedup(mut names: Vec<&str>) -> Vec<&str> {
        names.dedup();
        names
    }
}
