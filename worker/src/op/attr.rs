//! Attributes of operations: everything that changes what an operation computes, hashable.

use smallvec::SmallVec;
use std::hash::{Hash, Hasher};

/// A float attribute that compares and hashes by its bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct F64Bits(u64);

impl F64Bits {
    /// The number.
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

/// One-operand functions with one result of the same shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Unary {
    /// −x
    Neg,
    /// eˣ
    Exp,
    /// ln x
    Log,
    /// √x
    Sqrt,
    /// x²
    Square,
    /// |x|, gradient 0 at 0
    Abs,
    /// 1/x
    Reciprocal,
    /// max(x, 0), gradient 0 at 0
    Relu,
    /// x · sigmoid(x)
    Silu,
    /// x · Φ(x)
    Gelu,
    /// GELU by the tanh formula
    GeluTanh,
    /// 1/(1+e⁻ˣ)
    Sigmoid,
    /// tanh x
    Tanh,
    /// ln(1+eˣ), linear above 20
    Softplus,
}

/// Two-operand functions with broadcasting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Binary {
    /// a + b
    Add,
    /// a − b
    Sub,
    /// a · b
    Mul,
    /// a / b
    Div,
}

/// Tests of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Test {
    /// Neither NaN nor infinite.
    Finite,
    /// x ≥ bound
    AtLeast(F64Bits),
    /// x < bound
    Below(F64Bits),
}

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
    /// All keys.
    None,
    /// Keys at or before the query; queries and keys must be equally many.
    Causal,
    /// Keys at a distance of at most w; queries and keys must be equally many.
    Window(i64),
}

/// Where a reverse rule puts a weight's gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Into {
    /// Not asked for.
    Skip,
    /// A new tensor.
    New,
    /// Added to the parameter's gradient storage, which is an operand.
    Add,
    /// All of that storage is written: it holds nothing yet.
    Write,
}

impl Into {
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
