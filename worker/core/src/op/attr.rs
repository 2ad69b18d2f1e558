//! Attributes of operations: everything that changes what an operation computes, hashable.

use smallvec::SmallVec;
use std::hash::{Hash, Hasher};

/// A float attribute that compares and hashes by its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct F64Bits(u64);

impl F64Bits {
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl From<f64> for F64Bits {
    fn from(value: f64) -> Self {
        Self(value.to_bits())
    }
}

/// A list of axes, sizes or a permutation.
pub type Axes = SmallVec<[i64; 5]>;

/// Direction of a retention scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dir {
    /// Each position sees itself and earlier ones.
    Causal,
    /// The causal scan plus the reversed one, the position itself counted once.
    Bidirectional,
}

/// Which keys a query sees. One convention everywhere: true = keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Structural {
    /// Every query sees all keys.
    None,
    /// Keys at or before the query; queries and keys must be equally many.
    Causal,
    /// Keys at a distance of at most w; queries and keys must be equally many.
    Window(i64),
    /// Keys at a distance of at most `window` that is a multiple of `dilation`, and not behind the query if `causal`; queries and
    /// keys must be equally many. With dilation 1 and `causal` a sliding window.
    Dilated {
        /// Largest distance, 0 for the query's own position only.
        window: i64,
        /// Step between the keys seen, at least 1.
        dilation: i64,
        /// Only keys at or before the query.
        causal: bool,
    },
}

/// Transformation of the scores s = q·k/√Dh before softmax: first `cap`, then the key bias is added, then the `alibi`
/// bias is subtracted, then the mask is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Score {
    /// Soft cap c: s → c·tanh(s/c), as in Gemma 2 (2024).
    pub cap: Option<F64Bits>,
    /// Linear bias by distance (ALiBi; Press et al. 2022): s − slopeₕ·|i − j| with the constant slopes of
    /// [`Score::slope`]; queries and keys must be equally many.
    pub alibi: bool,
}

impl Score {
    /// Leaves the scores unchanged.
    pub const PLAIN: Self = Self { cap: None, alibi: false };

    /// ALiBi's slope of a head: 2^(−8(head+1)/heads) where `heads` is a power of two. Else, as the authors have it, with P the
    /// largest power of two below: the first P heads as with P heads, the others every second slope of 2P heads,
    /// 2^(−8(2(head−P)+1)/2P).
    pub fn slope(head: i64, heads: i64) -> f64 {
        let whole = 1i64 << heads.max(1).ilog2();
        let powers = if head < whole { 2 * (head + 1) } else { 2 * (head - whole) + 1 };
        (-4.0 * powers as f64 / whole as f64).exp2()
    }
}

/// Destination of a weight's gradient in a reverse rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GradDest {
    /// The gradient is not requested.
    Skip,
    /// The gradient is a new tensor.
    New,
    /// The gradient is added to the parameter's gradient storage, which is an operand.
    Add,
    /// The gradient overwrites the parameter's gradient storage, which holds nothing yet.
    Write,
}

impl GradDest {
    /// Whether the storage is an operand.
    pub fn is_storage(self) -> bool {
        matches!(self, Self::Add | Self::Write)
    }
}

/// Feeds a `Hash` value into a byte buffer: the canonical bytes of a program.
#[derive(Debug, Default)]
pub struct CanonicalBytes(pub Vec<u8>);

impl CanonicalBytes {
    /// Appends the canonical bytes of `value`.
    pub fn put(&mut self, value: &impl Hash) {
        value.hash(self);
    }
}

impl Hasher for CanonicalBytes {
    fn finish(&self) -> u64 {
        self.0.len() as u64
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}
