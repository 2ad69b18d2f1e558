//! How an operation is exported: as the plain operations of [`enn_common::graph`] that compute the same. A row's lowering is a function
//! of this context.
//!
//! **Invariant:** sizes that follow the batch come from the results' shapes, never from an operation's attributes, which hold the
//! numbers of one recording.

use enn_common::graph::{Binary, Compare, DType, Dim, Fold, Graph, Id, Op as Plain, Unary, infer::GraphError};
use smallvec::{SmallVec, smallvec};
use std::collections::HashMap;

/// Results of lowering an operation: those that a reverse rule would see, in their order.
pub type Lowered = Result<SmallVec<[Id; 2]>, LowerError>;

/// Reason for which an operation cannot be exported, and the nearest operation that can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsupported {
    /// Reason, as part of a sentence.
    pub why: &'static str,
    /// Operation to use instead.
    pub instead: &'static str,
}

/// Errors of lowering an operation.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum LowerError {
    /// The plain operations do not fit together.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The operation cannot be exported.
    #[error("{}", .0.why)]
    No(Unsupported),
}

impl LowerError {
    /// Creates an error with the reason and the operation to use instead.
    pub const fn no(why: &'static str, instead: &'static str) -> Self {
        Self::No(Unsupported { why, instead })
    }

    /// Returns the operation to use instead.
    pub const fn instead(&self) -> &'static str {
        match self {
            Self::Graph(_) => {
                "operands of one element type and of shapes that fit: functional::cast, functional::expand"
            }
            Self::No(no) => no.instead,
        }
    }
}

/// Context of lowering one operation.
#[derive(Debug)]
pub struct Lower<'a> {
    /// Where the plain operations go.
    pub graph: &'a mut Graph,
    /// Operands in the graph.
    pub ins: &'a [Id],
    /// Remainders of rounding f64 constants to f32, by constant.
    pub rests: &'a HashMap<Id, Id>,
    /// Shapes of the results.
    pub outs: &'a [Vec<Dim>],
    /// Place in the model.
    pub place: &'a str,
}

impl Lower<'_> {
    /// Returns operand `i`.
    pub fn at(&self, i: usize) -> Id {
        self.ins[i]
    }

    pub fn shape(&self, id: Id) -> Vec<Dim> {
        self.graph.value(id).shape.clone()
    }

    /// Returns the number of axes.
    pub fn rank(&self, id: Id) -> usize {
        self.graph.value(id).shape.len()
    }

    /// An axis counted from the front.
    pub fn axis(&self, id: Id, axis: i64) -> usize {
        if axis < 0 { self.rank(id) - axis.unsigned_abs() as usize } else { axis as usize }
    }

    /// The size of an axis that is not the batch.
    ///
    /// # Errors
    /// When it is.
    pub fn size(&self, id: Id, axis: usize) -> Result<u64, LowerError> {
        self.graph.value(id).shape[axis].fixed().ok_or(LowerError::no(
            "it works along the batch",
            "the same along another axis: a row's answer must not depend on the rows beside it",
        ))
    }

    /// Any plain operation.
    ///
    /// # Errors
    /// When it does not take the operands.
    pub fn emit(&mut self, op: Plain, ins: &[Id]) -> Result<Id, LowerError> {
        Ok(self.graph.node(op, ins, self.place)?)
    }

    pub fn number(&mut self, value: f64) -> Id {
        self.graph.number(value as f32)
    }

    /// A constant tensor.
    ///
    /// # Errors
    /// Other than as many numbers as the shape says.
    pub fn floats(&mut self, shape: &[u64], values: &[f32]) -> Result<Id, LowerError> {
        Ok(self.graph.floats(shape, values)?)
    }

    /// A constant tensor of truth values.
    ///
    /// # Errors
    /// Other than as many as the shape says.
    pub fn truths(&mut self, shape: &[u64], values: Vec<u8>) -> Result<Id, LowerError> {
        Ok(self.graph.truths(shape, values)?)
    }

    /// f(x)
    pub fn unary(&mut self, f: Unary, x: Id) -> Result<Id, LowerError> {
        self.emit(Plain::Unary(f), &[x])
    }

    /// f(a, b)
    pub fn binary(&mut self, f: Binary, a: Id, b: Id) -> Result<Id, LowerError> {
        self.emit(Plain::Binary(f), &[a, b])
    }

    pub fn add(&mut self, a: Id, b: Id) -> Result<Id, LowerError> {
        self.binary(Binary::Add, a, b)
    }

    pub fn mul(&mut self, a: Id, b: Id) -> Result<Id, LowerError> {
        self.binary(Binary::Mul, a, b)
    }

    /// x · by
    pub fn scaled(&mut self, x: Id, by: f64) -> Result<Id, LowerError> {
        let by = self.number(by);
        self.mul(x, by)
    }

    /// x · sigmoid(x)
    pub fn silu(&mut self, x: Id) -> Result<Id, LowerError> {
        let share = self.unary(Unary::Sigmoid, x)?;
        self.mul(x, share)
    }

    /// Whether x is a number, and no infinite one.
    pub fn finite(&mut self, x: Id) -> Result<Id, LowerError> {
        let size = self.unary(Unary::Abs, x)?;
        let most = self.number(f64::from(f32::MAX));
        self.emit(Plain::Compare(Compare::LessEqual), &[size, most])
    }

    /// Reshapes `x`; the elements keep their order.
    pub fn reshape(&mut self, x: Id, shape: &[Dim]) -> Result<Id, LowerError> {
        if self.graph.value(x).shape == shape {
            return Ok(x);
        }
        self.emit(Plain::Reshape { shape: shape.to_vec() }, &[x])
    }

    pub fn permute(&mut self, x: Id, axes: &[usize]) -> Result<Id, LowerError> {
        self.emit(Plain::Permute { axes: axes.to_vec() }, &[x])
    }

    pub fn swapped(&mut self, x: Id, a: usize, b: usize) -> Result<Id, LowerError> {
        let mut axes: Vec<usize> = (0..self.rank(x)).collect();
        axes.swap(a, b);
        self.permute(x, &axes)
    }

    /// Repeated to a shape.
    pub fn expand(&mut self, x: Id, shape: &[Dim]) -> Result<Id, LowerError> {
        if self.graph.value(x).shape == shape {
            return Ok(x);
        }
        self.emit(Plain::Expand { shape: shape.to_vec() }, &[x])
    }

    /// `len` positions of an axis; the whole axis stays itself.
    pub fn slice(&mut self, x: Id, axis: usize, start: u64, len: u64) -> Result<Id, LowerError> {
        if self.graph.value(x).shape[axis] == Dim::Fixed(len) {
            return Ok(x);
        }
        self.emit(Plain::Slice { axis, start, len }, &[x])
    }

    /// Positions of an axis.
    pub fn picked(&mut self, x: Id, axis: usize, at: &[i64]) -> Result<Id, LowerError> {
        let at = self.graph.integers(&[at.len() as u64], at)?;
        self.emit(Plain::Gather { axis }, &[x, at])
    }

    pub fn flipped(&mut self, x: Id, axis: usize) -> Result<Id, LowerError> {
        let size = self.size(x, axis)?;
        self.picked(x, axis, &(0..size.cast_signed()).rev().collect::<Vec<_>>())
    }

    /// Concatenates `parts` along an axis.
    pub fn concat(&mut self, parts: &[Id], axis: usize) -> Result<Id, LowerError> {
        if let [only] = parts { Ok(*only) } else { self.emit(Plain::Concat { axis }, parts) }
    }

    /// Reduces the elements along axes with `fold`.
    pub fn reduced(&mut self, fold: Fold, x: Id, axes: &[i64], keep: bool) -> Result<Id, LowerError> {
        let mut axes: Vec<usize> = axes.iter().map(|axis| self.axis(x, *axis)).collect();
        axes.sort_unstable();
        if axes.is_empty() { Ok(x) } else { self.emit(Plain::Reduce { fold, axes, keep }, &[x]) }
    }

    /// Another element type; the value itself where it has it.
    pub fn cast(&mut self, x: Id, to: DType) -> Result<Id, LowerError> {
        if self.graph.value(x).dtype == to { Ok(x) } else { self.emit(Plain::Cast { to }, &[x]) }
    }
}

/// Wraps a single result.
pub fn only(id: Id) -> Lowered {
    Ok(smallvec![id])
}

/// Returns the operand unchanged.
pub fn itself<A>(_: &A, l: &mut Lower<'_>) -> Lowered {
    only(l.at(0))
}
