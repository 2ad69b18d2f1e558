//! What a manager reports to the other ranks: faults of kernels and recoveries.

use enn_common::kernels::KernelFault;

/// An event that all ranks must learn of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelEvent {
    /// A kernel was wrong, slow, or could not run.
    Faulted(KernelFault),
    /// A kernel was tried again after its cool-down and was right.
    Recovered { op: &'static str, kernel: &'static str, sig: u64, step: u64 },
}

impl KernelEvent {
    pub fn into_fault(self) -> Option<KernelFault> {
        match self {
            Self::Faulted(fault) => Some(fault),
            Self::Recovered { .. } => None,
        }
    }
}
