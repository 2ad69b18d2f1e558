//! Collectives of the GPUs of one host that leave their multiprocessors to the computation: copy engines move the data, and short kernels
//! add it up.
//!
//! NCCL's kernels hold some of a GPU's processors while they wait and sum, and a product that fills all of them in whole waves then takes
//! another wave. Here each rank has the part of an array with its number:
//! ```text
//! rank 0   [ part 0 | part 1 ] ── part 1 ──► scratch of rank 1      rank 1 adds, in the ranks' order, and
//! rank 1   [ part 0 | part 1 ] ◄── sums ──── part 1                 copies the sums into the others' arrays
//! ```
//! After a copy the sender writes a word in host memory that the receiver's device waits for ([`mmap`]), without help of the hosts. To abort,
//! a host writes the words of its own device. It announces the abort to all ranks first, and from then on no sum counts as valid.
//!
//! This holds for arrays in memory that all ranks map, from [`shared_like`](super::ProcessGroup::shared_like). Results in other arrays go
//! through the scratch as well. Such a process does not use NCCL: if one rank cannot take part, NCCL is used for everything.
//!
//! All work runs on one copy stream, whose kernels are launched as graphs: kernels launched on a second stream delay each kernel of a
//! step's graph by 0.2 µs, for good (`backend/cuda/graph_stream.rs`). NCCL has streams of its own.

mod group;
mod handshake;
mod mmap;
mod region;
mod safe;
mod unix;
mod work;

pub use group::{Linked, LinkedFormed};
pub use work::LinkWork;
