//! Example calls of each operation for the tests over the table: shapes that are not square, broadcast, empty, and
//! memory layouts that are not contiguous.

use super::Op;

/// Values of an operand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fill {
    /// Numbers of the standard normal distribution.
    Normal,
    /// Numbers in [lo, hi), for functions with poles or kinks elsewhere.
    Between(f64, f64),
    /// Class ids below n, 64-bit.
    Ids(i64),
    Bool,
    /// A key of the random generator.
    Key,
}

/// Memory layout of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Dense, last axis fastest.
    Contiguous,
    /// First and last axis swapped in memory.
    Transposed,
    /// Every second element of a tensor twice as wide.
    Strided,
}

/// One operand of an example call.
#[derive(Debug, Clone, PartialEq)]
pub struct Operand {
    pub shape: Vec<i64>,
    pub fill: Fill,
    pub layout: Layout,
}

/// One example call of an operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The operation with its attributes.
    pub op: Op,
    pub ins: Vec<Operand>,
}

/// A small deterministic generator for sizes.
#[derive(Debug, Clone)]
pub struct SampleRng(u64);

impl SampleRng {
    /// Starts from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a size in 2..=4 and another one in 5..=7.
    pub fn sizes(&mut self) -> (i64, i64) {
        let small = self.size(2, 4);
        (small, self.size(5, 7))
    }

    pub fn size(&mut self, lo: i64, hi: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        lo + ((self.0 >> 33) % (hi - lo + 1).max(1) as u64) as i64
    }
}

/// An operand of normal numbers.
pub fn normal(shape: &[i64]) -> Operand {
    Operand { shape: shape.to_vec(), fill: Fill::Normal, layout: Layout::Contiguous }
}

/// An operand of numbers in [lo, hi).
pub fn between(shape: &[i64], lo: f64, hi: f64) -> Operand {
    Operand { fill: Fill::Between(lo, hi), ..normal(shape) }
}

/// An operand of booleans.
pub fn bools(shape: &[i64]) -> Operand {
    Operand { fill: Fill::Bool, ..normal(shape) }
}

/// The key of the random generator: seed 0, step 0, rows unknown unless the test says otherwise.
pub fn key() -> Operand {
    Operand { fill: Fill::Key, ..normal(&[4]) }
}

/// An operand of class ids.
pub fn ids(shape: &[i64], classes: i64) -> Operand {
    Operand { fill: Fill::Ids(classes), ..normal(shape) }
}

impl Operand {
    /// Swaps first and last axis in memory.
    pub fn transposed(self) -> Self {
        Self { layout: Layout::Transposed, ..self }
    }

    /// Takes the operand from every second element of a wider tensor.
    pub fn strided(self) -> Self {
        Self { layout: Layout::Strided, ..self }
    }
}

/// A call from its parts.
pub fn sample(op: impl Into<Op>, ins: impl IntoIterator<Item = Operand>) -> Sample {
    Sample { op: op.into(), ins: ins.into_iter().collect() }
}
