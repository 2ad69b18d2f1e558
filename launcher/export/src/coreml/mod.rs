//! Core ML: an `.mlpackage` with a program in MIL, for macOS 14, iOS 17 and later (specification 8, opset CoreML7).
//!
//! ```text
//! NAME.mlpackage/  Manifest.json
//!                  Data/com.apple.CoreML/model.mlmodel             the program, the ports, the metadata
//!                  Data/com.apple.CoreML/weights/weight.bin        weights of ten elements and more
//! ```
//! Integers have 32 bits there: i64 ports are INT32, and so are booleans, which ports do not support; bf16 is computed in f32.
//! Limits of the runtime that are kept here: values have at most five axes, and at least one element.
//!
//! **Invariant:** equal models give equal bytes, including the identifiers of the manifest.

mod block;
mod check;
mod emit;
mod mil;
mod package;
mod weights;

pub use check::{CheckedPackage, check};
pub use package::write;

/// Name of this format in messages.
const TARGET: &str = "coreml";
const SPECIFICATION: u64 = 8;
const OPSET: &str = "CoreML7";
/// Path of the file of weights in the program.
const WEIGHTS: &str = "@model_path/weights/weight.bin";
/// Limit on the axes of a value.
pub(crate) const RANK_MAX: usize = 5;
/// Words that cannot be names in a program.
const RESERVED: [&str; 24] = [
    "any", "bool", "program", "func", "tensor", "list", "dict", "tuple", "true", "false", "string", "state", "bf16",
    "fp16", "fp32", "fp64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
];

/// Returns whether a text is a valid name in a program.
fn is_name(name: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'@';
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    first && name.bytes().all(word) && !RESERVED.contains(&name)
}

#[cfg(test)]
mod tests;
