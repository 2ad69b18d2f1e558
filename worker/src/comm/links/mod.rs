//! Sums over the GPUs of one host that take none of their processors: copy engines move, and what has come is added up.
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
//! It works on memory that all ranks map: that of [`shared_like`](super::ProcessGroup::shared_like). All else, and every array where one
//! rank cannot take part, is NCCL's.

mod group;
mod mmap;
mod region;
mod safe;
mod unix;
mod work;

pub use group::Linked;
pub use work::LinkWork;
