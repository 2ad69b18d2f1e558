//! Signatures: a hash of everything that a kernel's applicability may depend on.
//!
//! **Invariant:** a signature does not depend on values of tensors, and nothing here waits for a device.

use crate::backend::torch::safe::layouts;
use crate::op::Op;
use std::fmt::Write;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use tch::{Kind, Tensor};

/// Largest alignment, in bytes, that kernels distinguish.
const ALIGNMENT_MAX: usize = 16;
/// Most operands that are described in a text.
const DESCRIBED_MAX: usize = 6;

/// Hash of the operation with its attributes, and per operand of shape, stride class, kind, alignment class (16, 8, 4 or 2
/// bytes and less) and device class. Equal in every process of one build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperandSignature(pub u64);

impl OperandSignature {
    /// Returns the signature of a call. It is computed at every call, with one call of libtorch for all operands and no allocation.
    pub fn of(op: &Op, ins: &[&Tensor]) -> Self {
        let mut mixed = SignatureHasher::default();
        op.hash(&mut mixed);
        Self(layouts(ins, ALIGNMENT_MAX as u64, mixed.finish()))
    }
}

/// A fast hasher without a random key, which agrees between processes of one build. Each word is multiplied in, and the
/// two halves of the product are combined by exclusive or.
#[derive(Default)]
struct SignatureHasher(u64);

/// 2⁶⁴ divided by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for SignatureHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        // Adding 1 makes a zero word change a zero state.
        let product = u128::from((self.0 ^ word).wrapping_add(1)) * u128::from(FACTOR);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}

/// Hasher builder for maps by [`OperandSignature`], which is a hash already.
pub(super) type BySignature = BuildHasherDefault<IdentityHasher>;

/// A hasher that returns the number it is given.
#[derive(Default)]
pub(super) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// Largest power of two up to 16 that divides the tensor's address.
fn alignment(tensor: &Tensor) -> usize {
    let address = tensor.data_ptr() as usize;
    if address == 0 { ALIGNMENT_MAX } else { 1 << address.trailing_zeros().min(ALIGNMENT_MAX.trailing_zeros()) }
}

/// Describes operands, e.g. `f32[2,3] f32[3]/strided@4`.
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
    use crate::op::{Reshape, Unary};
    use tch::Device;

    #[test]
    fn what_a_kernel_may_depend_on_changes_it_and_values_do_not() {
        let op = Op::Unary(Unary::Exp);
        let zeros = |size: &[i64]| Tensor::zeros(size, (Kind::Float, Device::Cpu));
        let base = OperandSignature::of(&op, &[&zeros(&[4, 8])]);
        assert_eq!(base, OperandSignature::of(&op, &[&zeros(&[4, 8]).ones_like()]));
        let wide = zeros(&[4, 16]);
        let others = [
            OperandSignature::of(&Op::Unary(Unary::Log), &[&zeros(&[4, 8])]),
            OperandSignature::of(&op, &[&zeros(&[8, 4])]),
            OperandSignature::of(&op, &[&zeros(&[4, 8]).to_kind(Kind::Double)]),
            OperandSignature::of(&op, &[&wide.narrow(1, 0, 8)]),
            OperandSignature::of(&op, &[&zeros(&[33]).narrow(0, 1, 32).view([4, 8])]),
        ];
        for (i, other) in others.iter().enumerate() {
            assert_ne!(base, *other, "variant {i}");
        }
        assert_eq!(others[3], OperandSignature::of(&op, &[&wide.narrow(1, 4, 8)]), "16 bytes further is as aligned");
        assert_ne!(others[3], OperandSignature::of(&op, &[&wide.narrow(1, 1, 8)]), "4 bytes further is not");
    }

    #[test]
    fn attributes_of_any_length_take_part() {
        let of = |shape: &[i64]| OperandSignature::of(&Reshape { shape: shape.into() }.into(), &[]);
        let all = [of(&[]), of(&[0]), of(&[0, 0]), of(&[1]), of(&[1, 0]), of(&[0, 1])];
        for (i, one) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|other| other != one), "variant {i}");
        }
    }

    #[test]
    fn words_say_what_matters() {
        let flat = Tensor::zeros([33], (Kind::Float, Device::Cpu));
        let odd = flat.narrow(0, 1, 32).view([4, 8]);
        let turned = flat.narrow(0, 0, 32).view([4, 8]).tr();
        assert_eq!(words(&[&flat, &odd, &turned]), "f32[33] f32[4,8]@4 f32[8,4]/strided");
    }
}
