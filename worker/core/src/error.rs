//! Errors of operations: which operation, where in the model, what was found and what was expected.
//!
//! **Invariant:** nothing here reads a tensor; building an error must be cheap and must not fail.

use tch::{Kind, TchError};

/// An error a caller attaches to a gradient-ready hook.
pub type HookError = Box<dyn std::error::Error + Send + Sync>;

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

#[derive(Debug, thiserror::Error)]
pub enum OpErrorKind {
    #[error("operand {operand} has shape {found:?}, expected {expected}")]
    Shape {
        /// Position of the operand, from 0.
        operand: usize,
        found: Vec<i64>,
        expected: &'static str,
    },
    #[error("shapes {left:?} and {right:?} do not fit, expected {expected}")]
    Mismatch { left: Vec<i64>, right: Vec<i64>, expected: &'static str },
    #[error("axis {axis} does not exist in a tensor of {rank} axes")]
    Axis {
        /// The axis asked for; negative counts from the end.
        axis: i64,
        rank: usize,
    },
    #[error("operand {operand} has kind {found:?}, expected {expected}\nhint: cast() is explicit and recorded")]
    Kind {
        /// Position of the operand, from 0.
        operand: usize,
        found: Kind,
        expected: &'static str,
    },
    #[error(
        "{name} was called with {found} arguments, expected {expected}\nhint: every argument of the schema, in its order"
    )]
    Arguments { name: String, found: usize, expected: usize },
    #[error(
        "{name} was given {found} for its argument {argument:?}, expected {expected}\nhint: AtenArg has one variant per sort"
    )]
    Argument { name: String, argument: String, found: &'static str, expected: String },
    #[error("{name} is {found}, expected {expected}")]
    Attribute { name: &'static str, found: f64, expected: &'static str },
    #[error("libtorch: {0}")]
    Torch(#[from] TchError),
    #[error("libtorch dispatcher: {0}")]
    Shim(#[from] crate::backend::torch::ShimError),
    #[error(transparent)]
    Cuda(#[from] crate::backend::cuda::CudaError),
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
    #[error("its reverse rule reads operand {slot}, which was not saved: a bug of its row")]
    Unsaved {
        /// Operand (0..16) or output (16..) of the operation.
        slot: u8,
    },
    #[error(
        "runs in a part that is computed again, where a second run would change something\nhint: move it out of Cx::part, or compute out of place"
    )]
    Impure,
    #[error("has no gradient rule\nhint: detach() its input if no gradient is wanted")]
    NotDifferentiable,
    #[error("{name} has no gradient here: {why}\nhint: detach() its inputs if none is wanted")]
    NoGradient { name: String, why: &'static str },
    #[error(
        "the loss has shape {found:?}, expected a scalar that depends on a parameter or on an input that asks for a gradient"
    )]
    Loss { found: Vec<i64> },
    #[error("a value of the plan is gone, which is a bug")]
    Lost,
    #[error("there is no tape\nhint: backward() runs once per context, and only in Cx::train")]
    NoTape,
    #[error("a kernel could not be launched while the step was captured")]
    NotCaptured,
    #[error("{0}")]
    Hook(HookError),
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
