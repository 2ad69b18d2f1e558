//! The CPUs on which a worker may run: torchrun's `--numa-binding`.
//!
//! `policy` decides, purely, on a `Topology`; `read` reads it from /sys. **Invariant:** nothing here binds anything; the code that
//! starts the workers does.

mod error;
mod policy;
mod read;
mod topology;

pub use error::NumaError;
pub use policy::{GpuLocation, Mode, bind};
pub use read::{allowed_cpus, read_gpus, read_topology};
pub use topology::{Cpu, Topology};
