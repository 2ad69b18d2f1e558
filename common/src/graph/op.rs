//! The operations of a graph: few and plain, so that every format has each of them. What the worker computes with richer ones is
//! lowered to these before a graph is written.

use super::{DType, Dim};
use serde::{Deserialize, Serialize};

/// Functions of one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unary {
    Neg,
    Exp,
    Log,
    Sqrt,
    Abs,
    /// 1/(1+e⁻ˣ)
    Sigmoid,
    Tanh,
    /// x·Φ(x), Φ the normal distribution's.
    Gelu,
    /// [`Unary::Gelu`] by the tanh formula.
    GeluTanh,
}

/// Functions of two numbers; operands broadcast as NumPy's do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// The larger one; of NaN there is no promise.
    Max,
    /// The smaller one; of NaN there is no promise.
    Min,
}

/// Tests of two numbers, false where one is NaN; operands broadcast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compare {
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

/// Reduction of the elements along axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fold {
    Sum,
    Mean,
    Max,
}

/// Every operation. Axes count from the front; operands are in the order given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Of a float.
    Unary(Unary),
    /// Of two floats of one kind, or two integers of one kind.
    Binary(Binary),
    /// Of two floats of one kind.
    Compare(Compare),
    /// Where both are true; operands broadcast.
    And,
    /// Where it is false.
    Not,
    /// condition, a, b: a where the condition is true, else b, whatever the other holds; all three broadcast.
    Where,
    /// Another element type; a float becomes the integer towards zero, a truth value 0 or 1.
    Cast { to: DType },
    /// (…, M, K) × (…, K, N); leading axes broadcast.
    MatMul,
    /// x (…, in), weight (out, in), and bias (out) if there are three → (…, out).
    Linear,
    /// x, weight, bias: (x − mean)/√(variance + eps)·weight + bias over the last axis.
    LayerNorm {
        /// Is added to the variance.
        eps: f64,
    },
    /// Along the last axis.
    Softmax,
    /// Along axes, in rising order.
    Reduce {
        fold: Fold,
        axes: Vec<usize>,
        /// Whether they stay, with size 1.
        keep: bool,
    },
    /// Reshape: the elements stay, row-major.
    Reshape { shape: Vec<Dim> },
    /// Axis i of the result is axis `axes[i]` of the operand.
    Permute {
        /// All axes, each once.
        axes: Vec<usize>,
    },
    /// Repeated along axes of size 1, and along new ones in front.
    Expand { shape: Vec<Dim> },
    /// `len` positions along an axis, which is not the batch.
    Slice { axis: usize, start: u64, len: u64 },
    /// Operands behind each other along an axis, which is not the batch.
    Concat { axis: usize },
    /// data, index (i64): the positions `index` of an axis of data, in whose place the index's axes stand.
    Gather { axis: usize },
}

impl Op {
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Unary(Unary::Neg) => "neg",
            Self::Unary(Unary::Exp) => "exp",
            Self::Unary(Unary::Log) => "log",
            Self::Unary(Unary::Sqrt) => "sqrt",
            Self::Unary(Unary::Abs) => "abs",
            Self::Unary(Unary::Sigmoid) => "sigmoid",
            Self::Unary(Unary::Tanh) => "tanh",
            Self::Unary(Unary::Gelu) => "gelu",
            Self::Unary(Unary::GeluTanh) => "gelu_tanh",
            Self::Binary(Binary::Add) => "add",
            Self::Binary(Binary::Sub) => "sub",
            Self::Binary(Binary::Mul) => "mul",
            Self::Binary(Binary::Div) => "div",
            Self::Binary(Binary::Max) => "max",
            Self::Binary(Binary::Min) => "min",
            Self::Compare(Compare::Less) => "less",
            Self::Compare(Compare::LessEqual) => "less_equal",
            Self::Compare(Compare::Greater) => "greater",
            Self::Compare(Compare::GreaterEqual) => "greater_equal",
            Self::And => "and",
            Self::Not => "not",
            Self::Where => "where",
            Self::Cast { .. } => "cast",
            Self::MatMul => "matmul",
            Self::Linear => "linear",
            Self::LayerNorm { .. } => "layer_norm",
            Self::Softmax => "softmax",
            Self::Reduce { fold: Fold::Sum, .. } => "sum",
            Self::Reduce { fold: Fold::Mean, .. } => "mean",
            Self::Reduce { fold: Fold::Max, .. } => "amax",
            Self::Reshape { .. } => "reshape",
            Self::Permute { .. } => "permute",
            Self::Expand { .. } => "expand",
            Self::Slice { .. } => "slice",
            Self::Concat { .. } => "concat",
            Self::Gather { .. } => "gather",
        }
    }
}
