//! What `train.profile` leaves in `<run>/profile`: `trace-<rank>.json`, a Chrome trace of a few steps, `roofline.json`, the cost of each
//! operation beside what the machine can do, and `program.json`, the record of a step.
//!
//! **Invariant:** times are seconds, sizes bytes, a multiply-add is two operations.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Folder in the run directory.
pub const FOLDER: &str = "profile";
/// The table, written by rank 0.
pub const ROOFLINE_JSON: &str = "roofline.json";
pub const TRACE_JSON: &str = "trace.json";
pub const ROOFLINE_VERSION: u32 = 2;
/// The record of a step, written by rank 0.
pub const PROGRAM_JSON: &str = "program.json";
pub const PROGRAM_VERSION: u32 = 1;

pub fn trace_name(rank: u32) -> String {
    format!("trace-{rank}.json")
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Roofline {
    pub version: u32,
    pub device: String,
    /// Optimizer steps that were timed.
    pub steps: u64,
    pub ceiling: Ceiling,
    /// Operations, the most expensive first.
    pub ops: Vec<OpCost>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedProgram {
    pub version: u32,
    /// Of everything below: equal for equal steps of the same build.
    pub hash: String,
    /// Digest without kernels: equal on all ranks.
    pub structure_hash: String,
    /// Floating-point operations of a step.
    pub flops: u64,
    /// Most bytes of results that are alive at one time.
    pub peak_bytes: u64,
    pub values: Vec<RecordedValue>,
    pub records: Vec<RecordedOp>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedValue {
    pub kind: String,
    pub shape: Vec<i64>,
    pub role: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedOp {
    pub op: String,
    pub kernel: String,
    pub phase: String,
    /// Place in the model; empty at the top.
    pub place: String,
    /// Numbers of the values it reads.
    pub operands: Vec<usize>,
    /// Numbers of the values it makes.
    pub results: Vec<usize>,
}

/// Floating-point numbers that are computed with; the order says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NumberKind {
    F64,
    /// IEEE single; products of 10-bit mantissas where the precision is tf32.
    F32,
    F16,
    Bf16,
    /// 8 bits, e4m3 or e5m2.
    Fp8,
}

impl NumberKind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
        }
    }

    /// Whose ceiling is taken where its own was not measured, the nearest first.
    const fn instead(self) -> &'static [Self] {
        match self {
            Self::Fp8 => &[Self::Bf16, Self::F32],
            Self::F64 | Self::F16 | Self::Bf16 => &[Self::F32],
            Self::F32 => &[],
        }
    }
}

/// Best throughput of this device when the profile was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// Floating-point operations per second of a large matrix product, by the kind of its operands: f32, and on a GPU what the
    /// profiled operations computed with.
    pub flops_per_s: BTreeMap<NumberKind, f64>,
    /// Bytes read and written per second by a large copy.
    pub bytes_per_s: f64,
}

impl Ceiling {
    /// Returns the peak with which operations on numbers of `kind` are compared: a kind, and floating-point operations per second of its products.
    pub fn products(&self, kind: NumberKind) -> Option<(NumberKind, f64)> {
        let mut kinds = std::iter::once(&kind).chain(kind.instead());
        kinds.find_map(|kind| self.flops_per_s.get(kind).map(|rate| (*kind, *rate)))
    }
}

/// All calls of one operation with one kernel on numbers of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpCost {
    pub op: String,
    pub kernel: String,
    /// Format of the computation: the kind of its operands.
    pub kind: NumberKind,
    pub calls: u64,
    /// Time of all calls.
    pub seconds: f64,
    /// Floating-point operations of all calls.
    pub flops: u64,
    /// Bytes of operands and results that all calls must move at least. Views move none; what ranks exchange is not counted, since
    /// a collective goes on beside other operations and its time here is not that of its bytes.
    pub bytes: u64,
}

/// Which part of the ceiling is the lower one for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Products of numbers of this kind.
    Products(NumberKind),
    /// Reading and writing memory.
    Memory,
}

impl OpCost {
    /// Seconds these calls would take at the ceiling, the longer of computing and moving, and which of the two that is; `None`
    /// when nothing was to be done.
    pub fn at_ceiling(&self, ceiling: &Ceiling) -> Option<(f64, Limit)> {
        let moving = self.bytes as f64 / ceiling.bytes_per_s;
        match ceiling.products(self.kind) {
            Some((kind, rate)) if self.flops as f64 / rate > moving => {
                Some((self.flops as f64 / rate, Limit::Products(kind)))
            }
            _ => (moving > 0.0).then_some((moving, Limit::Memory)),
        }
    }

    /// Part of the ceiling that was reached; 0 when nothing was to be done.
    pub fn reached(&self, ceiling: &Ceiling) -> f64 {
        match self.at_ceiling(ceiling) {
            Some((seconds, _)) if self.seconds > 0.0 => seconds / self.seconds,
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use NumberKind::{Bf16, F16, F32, F64, Fp8};

    fn cost(kind: NumberKind, flops: u64, bytes: u64) -> OpCost {
        OpCost { op: "a".into(), kernel: "plain".into(), kind, calls: 1, seconds: 2.0, flops, bytes }
    }

    fn ceiling<const N: usize>(products: [(NumberKind, f64); N]) -> Ceiling {
        Ceiling { flops_per_s: products.into(), bytes_per_s: 1e8 }
    }

    #[test]
    fn the_longer_of_computing_and_moving_is_the_limit() {
        let ceiling = ceiling([(F32, 1e9)]);
        let computing = cost(F32, 1_000_000_000, 1);
        assert_eq!(computing.reached(&ceiling), 0.5);
        assert_eq!(computing.at_ceiling(&ceiling), Some((1.0, Limit::Products(F32))));
        let moving = cost(F32, 1, 100_000_000);
        assert_eq!(moving.reached(&ceiling), 0.5);
        assert_eq!(moving.at_ceiling(&ceiling), Some((1.0, Limit::Memory)));
        assert_eq!(cost(F32, 0, 0).at_ceiling(&ceiling), None);
        assert_eq!(OpCost { seconds: 0.0, ..computing }.reached(&ceiling), 0.0);
    }

    #[test]
    fn a_kind_is_held_against_its_own_ceiling_or_the_nearest_that_was_measured() {
        let low = ceiling([(F32, 1e9), (Bf16, 8e9)]);
        assert_eq!(cost(Bf16, 8_000_000_000, 0).reached(&low), 0.5);
        assert_eq!(cost(F32, 1_000_000_000, 0).reached(&low), 0.5);
        let chosen = [F64, F32, F16, Bf16, Fp8].map(|kind| low.products(kind).unwrap().0);
        assert_eq!(chosen, [F32, F32, F32, Bf16, Bf16]);
        assert_eq!(ceiling([(F32, 1e9)]).products(Fp8), Some((F32, 1e9)));
        assert_eq!(ceiling([]).products(Fp8), None);
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let table = Roofline {
            version: ROOFLINE_VERSION,
            device: "Cuda(0)".into(),
            steps: 3,
            ceiling: ceiling([(F32, 1e9), (Bf16, 8e9)]),
            ops: vec![cost(Bf16, 7, 5)],
        };
        let json = serde_json::to_value(&table).unwrap();
        assert_eq!(json["ceiling"]["flops_per_s"]["bf16"], 8e9);
        assert_eq!(json["ops"][0]["kind"], "bf16");
        for kind in [F64, F32, F16, Bf16, Fp8] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        assert_eq!(serde_json::from_str::<Roofline>(&json.to_string()).unwrap(), table);
    }
}
