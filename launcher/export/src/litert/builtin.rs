//! The operators of LiteRT that are written: numbers of the schema (tflite/schema/schema.fbs), versions as its converter counts them.

/// An operator: its number, and the number of its options' table, 0 without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Builtin(pub(super) i32, pub(super) u8);

pub(super) const ABS: Builtin = Builtin(101, 78);
pub(super) const ADD: Builtin = Builtin(0, 11);
pub(super) const BATCH_MATMUL: Builtin = Builtin(126, 101);
pub(super) const CAST: Builtin = Builtin(53, 37);
pub(super) const CONCATENATION: Builtin = Builtin(2, 10);
pub(super) const DEQUANTIZE: Builtin = Builtin(6, 38);
pub(super) const DIV: Builtin = Builtin(42, 29);
pub(super) const EXP: Builtin = Builtin(47, 33);
pub(super) const FULLY_CONNECTED: Builtin = Builtin(9, 8);
pub(super) const GATHER: Builtin = Builtin(36, 23);
pub(super) const GELU: Builtin = Builtin(150, 116);
pub(super) const GREATER: Builtin = Builtin(61, 44);
pub(super) const GREATER_EQUAL: Builtin = Builtin(62, 45);
pub(super) const LESS: Builtin = Builtin(58, 41);
pub(super) const LESS_EQUAL: Builtin = Builtin(63, 46);
pub(super) const LOG: Builtin = Builtin(73, 0);
pub(super) const LOGICAL_AND: Builtin = Builtin(86, 62);
pub(super) const LOGICAL_NOT: Builtin = Builtin(87, 63);
pub(super) const LOGISTIC: Builtin = Builtin(14, 0);
pub(super) const MAXIMUM: Builtin = Builtin(55, 39);
pub(super) const MEAN: Builtin = Builtin(40, 27);
pub(super) const MINIMUM: Builtin = Builtin(57, 39);
pub(super) const MUL: Builtin = Builtin(18, 21);
pub(super) const NEG: Builtin = Builtin(59, 42);
pub(super) const REDUCE_MAX: Builtin = Builtin(82, 27);
pub(super) const RESHAPE: Builtin = Builtin(22, 17);
pub(super) const RSQRT: Builtin = Builtin(76, 0);
pub(super) const SELECT_V2: Builtin = Builtin(123, 98);
pub(super) const SOFTMAX: Builtin = Builtin(25, 9);
pub(super) const SQRT: Builtin = Builtin(75, 0);
pub(super) const STRIDED_SLICE: Builtin = Builtin(45, 32);
pub(super) const SUB: Builtin = Builtin(41, 28);
pub(super) const SUM: Builtin = Builtin(74, 27);
pub(super) const TANH: Builtin = Builtin(28, 0);
pub(super) const TRANSPOSE: Builtin = Builtin(39, 26);

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
        FULLY_CONNECTED => {
            if of.operands == 2 {
                6
            } else {
                5
            }
        }
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
