//! The context of a reverse rule: saved operands and results, incoming gradients, and the interface that emits
//! operations.
//!
//! **Invariant:** a rule computes nothing itself; it emits operations, so that the backward pass is recorded like the
//! forward pass.

use super::attr::{Axes, GradDest};
use super::value::{Meta, Shape, Tensor, Val};
use super::{Op, SumTo, Zeros};
use crate::error::{OpError, OpErrorKind};
use smallvec::{SmallVec, smallvec};

/// Results of one call.
pub type Results = SmallVec<[Tensor; 2]>;

/// One gradient per operand; `None` where none is asked for or it went straight into the parameter's storage.
pub type Grads = SmallVec<[Option<Tensor>; 4]>;

/// Interface through which a rule emits operations; implemented by the tape.
pub trait Emit {
    /// Records and runs an operation in the backward phase.
    fn emit(&self, op: Op, ins: &[&Tensor]) -> Result<Results, OpError>;
    /// Returns shape, kind and device of a value.
    fn meta(&self, val: Val) -> Meta;
    /// The gradient storage of a value that is a parameter, and whether it is added to or written.
    fn storage(&self, val: Val) -> Result<Option<(Tensor, GradDest)>, OpError>;
    /// An error at the place of the node.
    fn fail(&self, op: &Op, kind: OpErrorKind) -> OpError;
}

/// One saved tensor: operands have slots 0..16, results 16...
#[derive(Debug)]
pub struct Kept {
    pub(crate) slot: u8,
    pub(crate) version: i64,
    pub(crate) tensor: Tensor,
}

/// The reverse step of one record.
pub struct Vjp<'a> {
    pub(crate) emit: &'a dyn Emit,
    pub(crate) op: &'a Op,
    pub(crate) ins: &'a [Val],
    pub(crate) needs: &'a [bool],
    pub(crate) kept: &'a [Kept],
    pub(crate) gouts: &'a [Option<Tensor>],
}

/// First slot of a result.
pub(crate) const RESULT_SLOT: u8 = 16;

impl Vjp<'_> {
    /// An error at the place of the operation being reversed.
    pub fn fail(&self, kind: OpErrorKind) -> OpError {
        self.emit.fail(self.op, kind)
    }

    /// Returns the number of operands.
    pub fn arity(&self) -> usize {
        self.ins.len()
    }

    /// Whether operand `i` asks for a gradient.
    pub fn needs(&self, i: usize) -> bool {
        self.needs[i]
    }

    /// Returns saved operand `i`.
    pub fn input(&self, i: u8) -> Result<&Tensor, OpError> {
        self.slot(i)
    }

    /// Returns saved result `i`.
    pub fn output(&self, i: u8) -> Result<&Tensor, OpError> {
        self.slot(RESULT_SLOT + i)
    }

    fn slot(&self, slot: u8) -> Result<&Tensor, OpError> {
        self.kept
            .iter()
            .find(|k| k.slot == slot)
            .map(|k| &k.tensor)
            .ok_or_else(|| self.fail(OpErrorKind::Unsaved { slot }))
    }

    /// Meta of operand `i`.
    pub fn meta(&self, i: usize) -> Meta {
        self.emit.meta(self.ins[i])
    }

    /// Shape of operand `i`.
    pub fn shape(&self, i: usize) -> Shape {
        self.meta(i).shape
    }

    /// Gradient of result `i`, if anything depends on it.
    pub fn gout(&self, i: usize) -> Option<&Tensor> {
        self.gouts.get(i).and_then(Option::as_ref)
    }

    /// Gradient of the first result. A rule runs only when some result has one; operations with one result use this.
    pub fn g(&self) -> Result<&Tensor, OpError> {
        self.gout(0).ok_or_else(|| self.fail(OpErrorKind::NotDifferentiable))
    }

    /// Gradient storage of operand `i` if it is a parameter that asks for a gradient, and whether to add to it or write it.
    pub fn storage(&self, i: usize) -> Result<Option<(Tensor, GradDest)>, OpError> {
        if self.needs(i) { self.emit.storage(self.ins[i]) } else { Ok(None) }
    }

    /// Emits an operation with one result.
    pub fn call(&self, op: impl Into<Op>, ins: &[&Tensor]) -> Result<Tensor, OpError> {
        Ok(self.call_all(op, ins)?.swap_remove(0))
    }

    /// Emits an operation with any number of results.
    pub fn call_all(&self, op: impl Into<Op>, ins: &[&Tensor]) -> Result<Results, OpError> {
        self.emit.emit(op.into(), ins)
    }

    /// `g` reduced to `shape` by summing what broadcasting repeated.
    pub fn unbroadcast(&self, g: Tensor, shape: &[i64]) -> Result<Tensor, OpError> {
        if g.shape() == shape {
            return Ok(g);
        }
        self.call(SumTo { shape: Axes::from_slice(shape) }, &[&g])
    }

    /// The gradient of operand `i` from one of the shape that it was broadcast to.
    pub fn fit(&self, i: usize, g: Tensor) -> Result<Option<Tensor>, OpError> {
        self.unbroadcast(g, &self.shape(i)).map(Some)
    }

    /// Zeros like operand-shaped `meta`.
    pub fn zeros(&self, meta: &Meta) -> Result<Tensor, OpError> {
        self.call(Zeros { shape: meta.shape.clone(), kind: meta.kind, device: meta.device }, &[])
    }
}

/// One gradient, for the only operand.
pub fn grad(g: Tensor) -> Grads {
    smallvec![Some(g)]
}
