//! The precision in which a model's weights are stored and its products computed.

use enn_common::graph::DType;
use std::{fmt, str::FromStr};

/// Floating-point type of an exported model. Inputs and outputs are f32 in each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Precision {
    /// IEEE single precision: 24 binary digits.
    #[default]
    Fp32,
    /// IEEE half precision: 11 digits, numbers up to 65504.
    Fp16,
    /// The upper half of a single: 8 digits, numbers as large as a single's.
    Bf16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reduction {
    None,
    /// Weights are stored and products computed in this precision.
    Computed(Precision),
    /// Weights are stored in this precision, and products computed in single precision.
    Stored(Precision),
}

impl Precision {
    pub const ALL: [Self; 3] = [Self::Fp32, Self::Fp16, Self::Bf16];

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
        }
    }

    pub const fn dtype(self) -> DType {
        match self {
            Self::Fp32 => DType::F32,
            Self::Fp16 => DType::F16,
            Self::Bf16 => DType::Bf16,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|precision| precision.name() == name);
        found.ok_or_else(|| format!("{name} is no precision, expected fp32, fp16 or bf16"))
    }
}
