//! The operators of LiteRT that are written: numbers of the schema (tflite/schema/schema.fbs), versions as its converter counts them.

/// An operator: its number, and the number of its options' table, 0 without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Builtin(pub(super) i32, pub(super) u8);

pub(crate) const ABS: Builtin = Builtin(101, 78);
pub(crate) const ADD: Builtin = Builtin(0, 11);
pub(crate) const BATCH_MATMUL: Builtin = Builtin(126, 101);
pub(crate) const CAST: Builtin = Builtin(53, 37);
pub(crate) const CONCATENATION: Builtin = Builtin(2, 10);
pub(crate) const DEQUANTIZE: Builtin = Builtin(6, 38);
pub(crate) const DIV: Builtin = Builtin(42, 29);
pub(crate) const EXP: Builtin = Builtin(47, 33);
pub(crate) const FULLY_CONNECTED: Builtin = Builtin(9, 8);
pub(crate) const GATHER: Builtin = Builtin(36, 23);
pub(crate) const GELU: Builtin = Builtin(150, 116);
pub(crate) const GREATER: Builtin = Builtin(61, 44);
pub(crate) const GREATER_EQUAL: Builtin = Builtin(62, 45);
pub(crate) const LESS: Builtin = Builtin(58, 41);
pub(crate) const LESS_EQUAL: Builtin = Builtin(63, 46);
pub(crate) const LOG: Builtin = Builtin(73, 0);
pub(crate) const LOGICAL_AND: Builtin = Builtin(86, 62);
pub(crate) const LOGICAL_NOT: Builtin = Builtin(87, 63);
pub(crate) const LOGISTIC: Builtin = Builtin(14, 0);
pub(crate) const MAXIMUM: Builtin = Builtin(55, 39);
pub(crate) const MEAN: Builtin = Builtin(40, 27);
pub(crate) const MINIMUM: Builtin = Builtin(57, 39);
pub(crate) const MUL: Builtin = Builtin(18, 21);
pub(crate) const NEG: Builtin = Builtin(59, 42);
pub(crate) const REDUCE_MAX: Builtin = Builtin(82, 27);
pub(crate) const RESHAPE: Builtin = Builtin(22, 17);
pub(crate) const RSQRT: Builtin = Builtin(76, 0);
pub(crate) const SELECT_V2: Builtin = Builtin(123, 98);
pub(crate) const SOFTMAX: Builtin = Builtin(25, 9);
pub(crate) const SQRT: Builtin = Builtin(75, 0);
pub(crate) const STRIDED_SLICE: Builtin = Builtin(45, 32);
pub(crate) const SUB: Builtin = Builtin(41, 28);
pub(crate) const SUM: Builtin = Builtin(74, 27);
pub(crate) const TANH: Builtin = Builtin(28, 0);
pub(crate) const TRANSPOSE: Builtin = Builtin(39, 26);

/// Properties on which an operator's version depends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    pub(super) operands: usize,
    /// Largest number of axes of an operand.
    pub(super) rank: usize,
    /// Whether an operand is broadcast to another one's shape.
    pub(super) stretched: bool,
    /// Whether the first operand is boolean.
    pub(super) truth: bool,
}

/// Returns the oldest version with these properties.
pub(super) fn version(op: Builtin, of: Use) -> i32 {
    match op {
        // Two operands mean that there is no bias; otherwise axes are kept.
        FULLY_CONNECTED if of.operands == 2 => 6,
        FULLY_CONNECTED => 5,
        // Half precision needs version 3.
        DEQUANTIZE => 3,
        TRANSPOSE if of.rank > 6 => 8,
        TRANSPOSE if of.rank > 5 => 6,
        TRANSPOSE if of.rank > 4 => 4,
        TRANSPOSE | GATHER | STRIDED_SLICE if of.truth => 3,
        SUB | MAXIMUM | MINIMUM if of.stretched && of.rank > 4 => 3,
        DIV if of.stretched && of.rank > 4 => 2,
        _ => 1,
    }
}
