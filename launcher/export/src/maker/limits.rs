//! Limits of a job.

use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest time for one job.
    pub time: Duration,
    /// Memory of each process in bytes.
    pub memory_bytes: u64,
}

impl Limits {
    /// Default limits of tools that make artifacts.
    pub const MAKES: Self = Self { time: Duration::from_secs(1800), memory_bytes: 64 << 30 };
}
