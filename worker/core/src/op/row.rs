//! One row of the table of operations: everything the rest of the worker asks about an operation.
//!
//! Tests loop over the rows, so that a new operation cannot forget its gradient check, shape rule or export answer.

use super::Op;
use super::infer::Inferred;
use super::lower::{Lower, Lowered, NoWay};
use super::sample::{Draw, Sample};
use super::value::Meta;
use super::vjp::{Grads, Vjp};
use crate::backend::Outs;
use crate::error::{OpError, OpErrorKind};

/// Operands of one launch.
pub struct Launch<'a> {
    /// Tensors in the operation's order.
    pub ins: &'a [&'a tch::Tensor],
}

impl Launch<'_> {
    /// Returns operand `i`.
    pub fn at(&self, i: usize) -> &tch::Tensor {
        self.ins[i]
    }
}

/// Results of a launch.
pub type Launched = Result<Outs, OpErrorKind>;

/// The plain operations of an operation.
pub type Way = fn(&Op, &mut Lower<'_>) -> Lowered;

/// How an operation is exported.
#[derive(Debug, Clone, Copy)]
pub enum Export {
    /// The operation is lowered to plain operations.
    As(Way),
    /// The operation cannot be exported.
    No(NoWay),
}

impl Export {
    /// Creates the answer for an operation that cannot be exported: the reason, and the nearest operation that can be.
    pub const fn no(why: &'static str, instead: &'static str) -> Self {
        Self::No(NoWay { why, instead })
    }
}

/// Bit sets of operands and results the reverse rule reads.
#[derive(Debug, Clone, Copy, Default)]
pub struct Save {
    /// Bit i: operand i.
    pub ins: u16,
    /// Bit i: result i.
    pub outs: u16,
}

impl Save {
    /// Whether operand `i` is kept; none behind the sixteenth is.
    pub fn operand(self, i: usize) -> bool {
        bit(self.ins, i)
    }

    /// Whether result `i` is kept; none behind the sixteenth is.
    pub fn result(self, i: usize) -> bool {
        bit(self.outs, i)
    }
}

fn bit(bits: u16, i: usize) -> bool {
    i < u16::BITS as usize && bits >> i & 1 == 1
}

/// A reverse rule: emits the operations of the backward pass and returns one gradient per operand.
pub type VjpRule = fn(&Vjp<'_>) -> Result<Grads, OpError>;

/// Floating-point operations of one call: arithmetic, comparisons, choices and functions such as exp count one each, of a product its
/// multiplications and additions only; moving, casting and filling count nothing, nor does arithmetic of integers.
pub type Flops = fn(&Op, &[&Meta], &[Meta]) -> u64;

/// How far a kernel's results may lie from the plain reference's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tolerance {
    /// Results are equal bit by bit.
    Exact,
    /// Rounding of the results' kind.
    Rounding,
    /// Results differ by the rounding of a long sum in their kind.
    Reduction,
    /// A long sum of products of 8-bit numbers, which the hardware keeps in about 14 bits whatever the results' kind.
    EightBits,
}

/// A faster way to run an operation than its row's plain reference.
pub struct Kernel {
    /// Stable name, e.g. `cuda.retention`; the reference is `plain`.
    pub id: &'static str,
    /// Whether it takes these operands, judged from what is known of them without looking at a device; if not, why.
    pub fits: fn(&Op, &Launch<'_>) -> Result<(), &'static str>,
    pub launch: fn(&Op, &Launch<'_>) -> Launched,
    /// How exact it is.
    pub tolerance: Tolerance,
    /// Whether equal operands give equal bits.
    pub deterministic: bool,
}

/// Name of the row's own launch.
pub const PLAIN: &str = "plain";

/// Row of one operation in the table.
pub struct OpRow {
    /// Stable name of the operation.
    pub name: &'static str,
    /// Metas of the results from those of the operands.
    pub shape: fn(&Op, &[&Meta]) -> Inferred,
    /// Runs it through libtorch: the plain reference, which takes everything the shape rule takes.
    pub launch: fn(&Op, &Launch<'_>) -> Launched,
    /// Faster ways, the preferred first.
    pub kernels: &'static [Kernel],
    /// Operands and results that the reverse rule reads.
    pub save: Save,
    /// The reverse rule; `None` for operations of the backward pass and the optimizer.
    pub vjp: Option<VjpRule>,
    /// Number of floating-point operations of a call.
    pub flops: Flops,
    /// How it is exported.
    pub export: Export,
    /// Example calls for the tests.
    pub samples: fn(&mut Draw) -> Vec<Sample>,
}

impl OpRow {
    /// A row without reverse rule or samples: an operation of the backward pass.
    pub const fn backward(
        name: &'static str,
        shape: fn(&Op, &[&Meta]) -> Inferred,
        launch: fn(&Op, &Launch<'_>) -> Launched,
    ) -> Self {
        Self {
            name,
            shape,
            launch,
            kernels: &[],
            save: Save { ins: 0, outs: 0 },
            vjp: None,
            flops: per_result::<1>,
            export: Export::no(
                "part of training, not of the forward pass",
                "a forward pass is made of functions that read no gradients; those are the tape's",
            ),
            samples: |_| Vec::new(),
        }
    }

    /// Creates the row of a differentiable operation.
    pub const fn forward(
        name: &'static str,
        shape: fn(&Op, &[&Meta]) -> Inferred,
        launch: fn(&Op, &Launch<'_>) -> Launched,
        vjp: VjpRule,
        samples: fn(&mut Draw) -> Vec<Sample>,
    ) -> Self {
        Self { vjp: Some(vjp), samples, ..Self::backward(name, shape, launch) }
    }

    /// Example calls, for a row without reverse rule.
    pub const fn samples(mut self, samples: fn(&mut Draw) -> Vec<Sample>) -> Self {
        self.samples = samples;
        self
    }

    /// Sets the operands and results that the reverse rule reads, as bit sets.
    pub const fn saves(mut self, ins: u16, outs: u16) -> Self {
        self.save = Save { ins, outs };
        self
    }

    /// Faster ways to run it, the preferred first.
    pub const fn kernels(mut self, kernels: &'static [Kernel]) -> Self {
        self.kernels = kernels;
        self
    }

    /// Sets the cost.
    pub const fn flops(mut self, flops: Flops) -> Self {
        self.flops = flops;
        self
    }

    /// Sets how the operation is exported.
    pub const fn export(mut self, export: Export) -> Self {
        self.export = export;
        self
    }

    /// Sets the function that lowers the operation to plain operations.
    pub const fn lowers(self, way: Way) -> Self {
        self.export(Export::As(way))
    }
}

/// `N` operations per element of the first result.
pub fn per_result<const N: u64>(_: &Op, _: &[&Meta], outs: &[Meta]) -> u64 {
    outs.first().map_or(0, |meta| N * meta.numel().max(0).cast_unsigned())
}

/// `N` operations per element of the first operand: what folds numbers, or comes with several results.
pub fn per_operand<const N: u64>(_: &Op, ins: &[&Meta], _: &[Meta]) -> u64 {
    N * elements(ins.get(..1).unwrap_or_default(), 1)
}

/// Elements of every `each`-th operand.
pub(super) fn elements(ins: &[&Meta], each: usize) -> u64 {
    ins.iter().step_by(each).map(|meta| meta.numel().max(0).cast_unsigned()).sum()
}

/// Costs nothing: for operations that move numbers or fill tensors.
pub fn free(_: &Op, _: &[&Meta], _: &[Meta]) -> u64 {
    0
}
