//! What `train.profile` leaves in `<run>/profile`: `trace-<rank>.json`, a Chrome trace of a few steps, and `roofline.json`, the
//! cost of each operation beside what the machine can do.
//!
//! **Invariant:** times are seconds, sizes bytes, a multiply-add is two operations.

use serde::{Deserialize, Serialize};

/// Folder in the run directory.
pub const FOLDER: &str = "profile";
/// The table, written by rank 0.
pub const ROOFLINE_JSON: &str = "roofline.json";
/// The traces of all ranks in one.
pub const TRACE_JSON: &str = "trace.json";
/// Version of roofline.json.
pub const ROOFLINE_VERSION: u32 = 1;

/// Name of a rank's trace.
pub fn trace_name(rank: u32) -> String {
    format!("trace-{rank}.json")
}

/// roofline.json.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Roofline {
    /// 1.
    pub version: u32,
    /// Where the operations ran.
    pub device: String,
    /// Optimizer steps that were timed.
    pub steps: u64,
    /// What the machine can do.
    pub ceiling: Ceiling,
    /// Operations, the most expensive first.
    pub ops: Vec<OpCost>,
}

/// What this device did best when the profile was made.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// Floating-point operations per second of a large f32 matrix product.
    pub flops_per_s: f64,
    /// Bytes read and written per second by a large copy.
    pub bytes_per_s: f64,
}

/// All calls of one operation with one kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpCost {
    /// Name of the operation.
    pub op: String,
    /// Kernel that ran it.
    pub kernel: String,
    /// Number of calls.
    pub calls: u64,
    /// Time of all calls.
    pub seconds: f64,
    /// Floating-point operations of all calls.
    pub flops: u64,
    /// Bytes of operands and results of all calls; views move none.
    pub bytes: u64,
}

impl OpCost {
    /// Time these calls would take at the ceiling: the longer of computing and moving.
    pub fn seconds_at(&self, ceiling: &Ceiling) -> f64 {
        (self.flops as f64 / ceiling.flops_per_s).max(self.bytes as f64 / ceiling.bytes_per_s)
    }

    /// Part of the ceiling that was reached; 0 when nothing was to be done.
    pub fn reached(&self, ceiling: &Ceiling) -> f64 {
        if self.seconds > 0.0 { self.seconds_at(ceiling) / self.seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_of_computing_and_moving_is_the_limit() {
        let ceiling = Ceiling { flops_per_s: 1e9, bytes_per_s: 1e8 };
        let cost =
            |flops, bytes| OpCost { op: "a".into(), kernel: "plain".into(), calls: 1, seconds: 2.0, flops, bytes };
        assert_eq!(cost(1_000_000_000, 1).reached(&ceiling), 0.5);
        assert_eq!(cost(1, 100_000_000).reached(&ceiling), 0.5);
        assert_eq!(OpCost { seconds: 0.0, ..cost(0, 0) }.reached(&ceiling), 0.0);
    }
}
