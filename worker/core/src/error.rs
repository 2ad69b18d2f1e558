//! Errors of operations: which operation, where in the model, what was found and what was expected.
//!
//! **Invariant:** nothing here reads a tensor; building an error must be cheap and must not fail.

use tch::{Kind, TchError};

/// An error a caller attaches to a gradient-ready hook.
pub type HookError = Box<dyn std::error::Error + Send + Sync>;

/// An error of one operation.
#[derive(Debug, thiserror::Error)]
#[error("{op} at {place}: {kind}")]
pub struct OpError {
    /// Name of the operation, as in the table of operations.
    pub op: &'static str,
    /// Scope path in the model, e.g. `fuser.template.0.block.2`; `top` outside every scope.
    pub place: String,
    #[source]
    pub kind: Box<OpErrorKind>,
}

/// Reasons an operation is refused or fails.
#[derive(Debug, thiserror::Error)]
pub enum OpErrorKind {
    /// An operand has the wrong number of axes or a wrong size.
    #[error("operand {operand} has shape {found:?}, expected {expected}")]
    Shape {
        /// Position of the operand, from 0.
        operand: usize,
        found: Vec<i64>,
        /// Description of a valid operand.
        expected: &'static str,
    },
    /// Two operands do not fit together.
    #[error("shapes {left:?} and {right:?} do not fit, expected {expected}")]
    Mismatch {
        /// Shape of the first.
        left: Vec<i64>,
        /// Shape of the second.
        right: Vec<i64>,
        /// Description of a valid operand.
        expected: &'static str,
    },
    /// An axis outside the operand's rank.
    #[error("axis {axis} does not exist in a tensor of {rank} axes")]
    Axis {
        /// The axis asked for; negative counts from the end.
        axis: i64,
        /// Axes of the tensor.
        rank: usize,
    },
    /// An operand has the wrong element type.
    #[error("operand {operand} has kind {found:?}, expected {expected}\nhint: cast() is explicit and recorded")]
    Kind {
        /// Position of the operand, from 0.
        operand: usize,
        found: Kind,
        /// Description of a valid operand.
        expected: &'static str,
    },
    /// A call of an operator with too few or too many arguments.
    #[error(
        "{name} was called with {found} arguments, expected {expected}\nhint: every argument of the schema, in its order"
    )]
    Arguments {
        name: String,
        found: usize,
        /// Arguments of the schema.
        expected: usize,
    },
    /// An argument of an operator of another sort than its schema says.
    #[error(
        "{name} was given {found} for its argument {argument:?}, expected {expected}\nhint: AtenArg has one variant per sort"
    )]
    Argument {
        name: String,
        /// The argument's name in the schema.
        argument: String,
        /// The sort that was given.
        found: &'static str,
        /// The sorts that the schema takes.
        expected: String,
    },
    /// An attribute outside its range.
    #[error("{name} is {found}, expected {expected}")]
    Attribute {
        /// Name of the attribute.
        name: &'static str,
        found: f64,
        expected: &'static str,
    },
    /// An error of libtorch.
    #[error("libtorch: {0}")]
    Torch(#[from] TchError),
    /// An error of the C++ shim.
    #[error("libtorch dispatcher: {0}")]
    Shim(#[from] crate::backend::torch::ShimError),
    /// An own CUDA kernel did not run.
    #[error(transparent)]
    Cuda(#[from] crate::backend::cuda::CudaError),
    /// A tensor saved for the backward pass was written in between.
    #[error(
        "saved operand {slot} was written by {by} after it was saved (version {found}, expected {expected})\nhint: update parameters and buffers only after backward()"
    )]
    Version {
        /// Operand (0..16) or output (16..) of the operation.
        slot: u8,
        /// Description of the operation that wrote it last.
        by: String,
        found: i64,
        expected: i64,
    },
    /// A reverse rule reads an operand that its row does not save.
    #[error("its reverse rule reads operand {slot}, which was not saved: a bug of its row")]
    Unsaved {
        /// Operand (0..16) or output (16..) of the operation.
        slot: u8,
    },
    /// A recomputed part writes in place, or runs a collective.
    #[error(
        "runs in a part that is computed again, where a second run would change something\nhint: move it out of Cx::part, or compute out of place"
    )]
    Impure,
    /// The operation has no reverse rule but a gradient is asked for.
    #[error("has no gradient rule\nhint: detach() its input if no gradient is wanted")]
    NotDifferentiable,
    /// An operator of libtorch's dispatcher has no usable gradient.
    #[error("{name} has no gradient here: {why}\nhint: detach() its inputs if none is wanted")]
    NoGradient { name: String, why: &'static str },
    /// `backward` was called on something that is not a scalar of this step.
    #[error(
        "the loss has shape {found:?}, expected a scalar that depends on a parameter or on an input that asks for a gradient"
    )]
    Loss {
        /// Shape of what was given.
        found: Vec<i64>,
    },
    /// A value of a plan was dropped too early, which is a bug.
    #[error("a value of the plan is gone, which is a bug")]
    Lost,
    /// `backward` was called twice, or in an evaluation context.
    #[error("there is no tape\nhint: backward() runs once per context, and only in Cx::train")]
    NoTape,
    /// A kernel could not be launched while it was captured.
    #[error("a kernel could not be launched while the step was captured")]
    NotCaptured,
    /// The gradient-ready hook or a collective failed.
    #[error("{0}")]
    Hook(HookError),
    /// A collective without ranks to run it with.
    #[error("no collectives were given to this step\nhint: Cx::set_collectives")]
    NoCollectives,
}

impl OpErrorKind {
    /// Whether memory was exhausted, on the device or the host. libtorch reports this only in its message.
    pub fn is_out_of_memory(&self) -> bool {
        tells_of_short_memory(&self.to_string())
    }
}

/// Whether a message of libtorch says that memory was exhausted.
pub fn tells_of_short_memory(text: &str) -> bool {
    ["out of memory", "can't allocate memory", "bad_alloc"].iter().any(|words| text.contains(words))
}
