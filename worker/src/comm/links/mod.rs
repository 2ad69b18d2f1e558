//! Collectives of the GPUs of one host that take none of their processors: copy engines move, and what has come is added up.
//!
//! NCCL's kernels hold some of a GPU's processors while they wait and sum, and a product that fills all of them in whole waves then takes
//! another wave. Here each rank has the part of an array with its number:
//! ```text
//! rank 0   [ part 0 | part 1 ] ── part 1 ──► scratch of rank 1      rank 1 adds, in the ranks' order, and
//! rank 1   [ part 0 | part 1 ] ◄── sums ──── part 1                 copies the sums into the others' arrays
//! ```
//! Who copied says so in a word of the host's memory that the other's device waits for ([`mmap`]): no host is asked in between, and a
//! host ends all waits of its device by writing the words itself. It says so to all ranks first: from then on no sum is taken as good.
//!
//! So it goes in memory that all ranks map: that of [`shared_like`](super::ProcessGroup::shared_like). What lies elsewhere goes through the
//! scratch as well. There is no NCCL in such a process: where one rank cannot take part, NCCL does all.
//!
//! All this is on one stream beside the one that computes, which is given its kernels as graphs: kernels on a second
//! stream make each kernel of a step's graph 0.2 µs later, for good (`backend/cuda/lane.rs`). NCCL has streams of its own.

mod group;
mod meet;
mod mmap;
mod region;
mod safe;
mod unix;
mod work;

pub use group::{Linked, LinkedFormed};
pub use work::LinkWork;
