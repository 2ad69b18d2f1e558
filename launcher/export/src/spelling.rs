//! The operation of each format that computes one of the graph's, from the same operands in the same order; and the numbers of element
//! types.

use crate::litert::builtin::{self as lite, Builtin};
use enn_common::graph::{Binary, Compare, DType, Fold, Unary};

/// Names of one operation. ONNX and TensorFlow have none for GELU: it is several operations there.
pub(crate) struct Spelling {
    pub(crate) onnx: &'static str,
    pub(crate) tensorflow: &'static str,
    pub(crate) coreml: &'static str,
    /// Operator and overload of PyTorch.
    pub(crate) aten: &'static str,
    pub(crate) litert: Builtin,
}

const fn row(
    onnx: &'static str,
    tensorflow: &'static str,
    coreml: &'static str,
    aten: &'static str,
    litert: Builtin,
) -> Spelling {
    Spelling { onnx, tensorflow, coreml, aten, litert }
}

pub(crate) const fn unary(f: Unary) -> Spelling {
    match f {
        // Core ML has no negation: it multiplies by −1.
        Unary::Neg => row("Neg", "Neg", "mul", "neg.default", lite::NEG),
        Unary::Exp => row("Exp", "Exp", "exp", "exp.default", lite::EXP),
        Unary::Log => row("Log", "Log", "log", "log.default", lite::LOG),
        Unary::Sqrt => row("Sqrt", "Sqrt", "sqrt", "sqrt.default", lite::SQRT),
        Unary::Abs => row("Abs", "Abs", "abs", "abs.default", lite::ABS),
        Unary::Sigmoid => row("Sigmoid", "Sigmoid", "sigmoid", "sigmoid.default", lite::LOGISTIC),
        Unary::Tanh => row("Tanh", "Tanh", "tanh", "tanh.default", lite::TANH),
        Unary::Gelu | Unary::GeluTanh => row("", "", "gelu", "gelu.default", lite::GELU),
    }
}

pub(crate) const fn binary(f: Binary) -> Spelling {
    match f {
        Binary::Add => row("Add", "AddV2", "add", "add.Tensor", lite::ADD),
        Binary::Sub => row("Sub", "Sub", "sub", "sub.Tensor", lite::SUB),
        Binary::Mul => row("Mul", "Mul", "mul", "mul.Tensor", lite::MUL),
        Binary::Div => row("Div", "RealDiv", "real_div", "div.Tensor", lite::DIV),
        Binary::Max => row("Max", "Maximum", "maximum", "maximum.default", lite::MAXIMUM),
        Binary::Min => row("Min", "Minimum", "minimum", "minimum.default", lite::MINIMUM),
    }
}

pub(crate) const fn compare(f: Compare) -> Spelling {
    match f {
        Compare::Less => row("Less", "Less", "less", "lt.Tensor", lite::LESS),
        Compare::LessEqual => row("LessOrEqual", "LessEqual", "less_equal", "le.Tensor", lite::LESS_EQUAL),
        Compare::Greater => row("Greater", "Greater", "greater", "gt.Tensor", lite::GREATER),
        Compare::GreaterEqual => {
            row("GreaterOrEqual", "GreaterEqual", "greater_equal", "ge.Tensor", lite::GREATER_EQUAL)
        }
    }
}

pub(crate) const fn reduction(fold: Fold) -> Spelling {
    match fold {
        Fold::Sum => row("ReduceSum", "Sum", "reduce_sum", "sum.dim_IntList", lite::SUM),
        Fold::Mean => row("ReduceMean", "Mean", "reduce_mean", "mean.dim", lite::MEAN),
        Fold::Max => row("ReduceMax", "Max", "reduce_max", "amax.default", lite::REDUCE_MAX),
    }
}

/// Numbers of an element type.
pub(crate) struct TypeNumbers {
    pub(crate) onnx: u64,
    /// `DataType` of types.proto.
    pub(crate) tensorflow: u64,
    pub(crate) torch: u8,
}

pub(crate) const fn numbers(dtype: DType) -> TypeNumbers {
    match dtype {
        DType::F32 => TypeNumbers { onnx: 1, tensorflow: 1, torch: 7 },
        DType::F16 => TypeNumbers { onnx: 10, tensorflow: 19, torch: 6 },
        DType::Bf16 => TypeNumbers { onnx: 16, tensorflow: 14, torch: 13 },
        DType::I64 => TypeNumbers { onnx: 7, tensorflow: 9, torch: 5 },
        DType::Bool => TypeNumbers { onnx: 9, tensorflow: 10, torch: 12 },
    }
}
