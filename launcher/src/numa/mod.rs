//! Which CPUs a worker may run on: torchrun's `--numa-binding`.
//!
//! `policy` decides, purely, on a `Topology`; `read` reads that from /sys. **Invariant:** nothing here binds anything; who
//! starts the workers does.

mod error;
mod policy;
mod read;
mod topology;

pub use error::NumaError;
pub use policy::{GpuPlace, Mode, bind};
pub use read::{allowed_cpus, read_gpus, read_topology};
pub use topology::{Cpu, Topology};
