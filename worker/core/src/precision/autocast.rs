//! The autocast policy of one step.

use super::cooldown::covers;
use super::decide::Format;
use tch::Kind;

/// Shortest side of a matrix for which 8-bit products pay off: below it quantising costs more than the product saves.
pub const FP8_SIDE_MIN: i64 = 1024;

/// Which linear layers run in 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fp8 {
    /// Rows, inputs and outputs must each be at least this many.
    pub side_min: i64,
}

/// The casts that a context applies to the operands of its operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Autocast {
    /// Kind of products: bf16 or half.
    pub low: Kind,
    /// 8-bit products of large linear layers; `None` for none.
    pub fp8: Option<Fp8>,
    /// Dotted paths of scopes that run in f32, with everything below them.
    pub full: Vec<String>,
}

impl Autocast {
    /// Returns a policy with products in bf16.
    pub fn bf16() -> Self {
        Self { low: Kind::BFloat16, fp8: None, full: Vec::new() }
    }

    /// Returns a policy with products in half precision; the backward pass needs a loss scale.
    pub fn fp16() -> Self {
        Self { low: Kind::Half, ..Self::bf16() }
    }

    /// Returns a policy with large linear layers in 8 bits and other products in bf16.
    pub fn fp8() -> Self {
        Self { fp8: Some(Fp8 { side_min: FP8_SIDE_MIN }), ..Self::bf16() }
    }

    /// Returns the policy of a format; `None` when it casts nothing.
    pub fn of(format: Format) -> Option<Self> {
        match format {
            Format::Fp32 | Format::Tf32 => None,
            Format::Bf16 => Some(Self::bf16()),
            Format::Fp16 => Some(Self::fp16()),
            Format::Fp8 => Some(Self::fp8()),
        }
    }

    pub fn is_full(&self, path: &str) -> bool {
        self.full.iter().any(|place| covers(place, path))
    }
}
