//! Signatures: what a kernel's fitness may depend on, as one number.
//!
//! **Invariant:** no value of a tensor takes part, and nothing here waits for a device.

use crate::op::Op;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use tch::{Device, Kind, Tensor};

/// Addresses that are multiples of this are all alike to a kernel, bytes.
const ALIGNMENT_MAX: usize = 16;
/// Operands described in words.
const DESCRIBED_MAX: usize = 6;

/// Hash of the operation with its attributes, and per operand of shape, stride class, kind, alignment class (16, 8, 4 or 2
/// bytes and less) and device class. Equal in every process of one build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sig(pub u64);

impl Sig {
    /// The signature of a call.
    pub fn of(op: &Op, ins: &[&Tensor]) -> Self {
        // Without a random key: two processes of one build must agree.
        let mut hasher = DefaultHasher::new();
        op.hash(&mut hasher);
        for tensor in ins {
            tensor.kind().hash(&mut hasher);
            matches!(tensor.device(), Device::Cuda(_)).hash(&mut hasher);
            tensor.size().hash(&mut hasher);
            if !tensor.is_contiguous() {
                tensor.stride().hash(&mut hasher);
            }
            alignment(tensor).hash(&mut hasher);
        }
        Self(hasher.finish())
    }
}

/// Largest power of two up to 16 that divides the tensor's address.
fn alignment(tensor: &Tensor) -> usize {
    let address = tensor.data_ptr() as usize;
    if address == 0 { ALIGNMENT_MAX } else { 1 << address.trailing_zeros().min(ALIGNMENT_MAX.trailing_zeros()) }
}

/// The operands in words, e.g. `f32[2,3] f32[3]/strided@4`.
pub fn words(ins: &[&Tensor]) -> String {
    let mut text = String::new();
    for tensor in ins.iter().take(DESCRIBED_MAX) {
        let sizes: Vec<String> = tensor.size().iter().map(ToString::to_string).collect();
        let strided = if tensor.is_contiguous() { "" } else { "/strided" };
        let space = if text.is_empty() { "" } else { " " };
        // Writing to a String does not fail.
        let _ = write!(text, "{space}{}[{}]{strided}", kind_name(tensor.kind()), sizes.join(","));
        let alignment = alignment(tensor);
        if alignment < ALIGNMENT_MAX {
            let _ = write!(text, "@{alignment}");
        }
    }
    if ins.len() > DESCRIBED_MAX {
        let _ = write!(text, " and {} more", ins.len() - DESCRIBED_MAX);
    }
    text
}

/// Short name of an element type.
fn kind_name(kind: Kind) -> String {
    match kind {
        Kind::Float => "f32".to_owned(),
        Kind::Double => "f64".to_owned(),
        Kind::Half => "f16".to_owned(),
        Kind::BFloat16 => "bf16".to_owned(),
        Kind::Int64 => "i64".to_owned(),
        Kind::Bool => "bool".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::attr::Unary;

    #[test]
    fn what_a_kernel_may_depend_on_changes_it_and_values_do_not() {
        let op = Op::Unary(Unary::Exp);
        let zeros = |size: &[i64]| Tensor::zeros(size, (Kind::Float, Device::Cpu));
        let base = Sig::of(&op, &[&zeros(&[4, 8])]);
        assert_eq!(base, Sig::of(&op, &[&zeros(&[4, 8]).ones_like()]));
        let wide = zeros(&[4, 16]);
        let others = [
            Sig::of(&Op::Unary(Unary::Log), &[&zeros(&[4, 8])]),
            Sig::of(&op, &[&zeros(&[8, 4])]),
            Sig::of(&op, &[&zeros(&[4, 8]).to_kind(Kind::Double)]),
            Sig::of(&op, &[&wide.narrow(1, 0, 8)]),
            Sig::of(&op, &[&zeros(&[33]).narrow(0, 1, 32).view([4, 8])]),
        ];
        for (i, other) in others.iter().enumerate() {
            assert_ne!(base, *other, "variant {i}");
        }
        assert_eq!(others[3], Sig::of(&op, &[&wide.narrow(1, 4, 8)]), "16 bytes further is as aligned");
        assert_ne!(others[3], Sig::of(&op, &[&wide.narrow(1, 1, 8)]), "4 bytes further is not");
    }

    #[test]
    fn words_say_what_matters() {
        let flat = Tensor::zeros([33], (Kind::Float, Device::Cpu));
        let (odd, turned) = (flat.narrow(0, 1, 32).view([4, 8]), flat.narrow(0, 0, 32).view([4, 8]).tr());
        assert_eq!(words(&[&flat, &odd, &turned]), "f32[33] f32[4,8]@4 f32[8,4]/strided");
    }
}
