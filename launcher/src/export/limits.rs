//! Limits on the time and memory of the tools that make and run artifacts.

use enn_common::fs::memory;
use enn_export::maker::Limits;
use std::time::Duration;

/// Longest time to load an artifact, and the default for an answer.
const RUNS_TIME_MAX: Duration = Duration::from_secs(600);
/// Memory that is always allowed, in bytes, however little is free: libraries ask for more than they use.
const MEMORY_BYTES_LEAST: u64 = 4 << 30;

/// Returns the limits of tools that make artifacts: no memory that other processes would have to give up.
pub(super) fn makes() -> Limits {
    let free = memory::available_bytes().unwrap_or(Limits::MAKES.memory_bytes);
    Limits { memory_bytes: free.max(MEMORY_BYTES_LEAST), ..Limits::MAKES }
}

pub(super) fn runs() -> Limits {
    Limits { time: RUNS_TIME_MAX, ..makes() }
}
