//! What the worker does on a CPU: operations, process groups, kernels that misbehave, whole sessions. Needs libtorch on the library path, as
//! `make test` sets it; `kernel_faults` needs `enn` as well. Tests named `on_a_gpu` say that they skip where there is no CUDA device.
//!
//! Ranks and whatever has to be alone in its process are this binary started again. Tests beside each other share a process under
//! `cargo test`, which sets one number of threads for libtorch's own library of products: `gradcheck` compares within tolerances, or bits
//! of operands too small for several threads.

#[path = "../again/mod.rs"]
mod again;
mod comm;
#[path = "../draws/mod.rs"]
mod draws;
mod gradcheck;
mod kernel_faults;
#[path = "../peer/mod.rs"]
mod peer;
mod rounds;
mod session;
mod shm;
