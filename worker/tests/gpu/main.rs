//! What only GPUs have: our own kernels, low precision, links between two GPUs. Each test says that it skips where it finds none; whether
//! kernels compile (`cuda::compile`) needs NVRTC and no GPU.
//!
//! `precision` changes how all of a process multiplies: `make test-gpu` gives each module a process of its own.

#[cfg(feature = "cuda")]
#[expect(dead_code, reason = "no test of a GPU has to be alone in its process")]
#[path = "../again/mod.rs"]
mod again;
mod cuda;
#[path = "../draws/mod.rs"]
mod draws;
#[cfg(feature = "cuda")]
mod links;
#[cfg(feature = "cuda")]
#[path = "../peer/mod.rs"]
mod peer;
mod precision;
