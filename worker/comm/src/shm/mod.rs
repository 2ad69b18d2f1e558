//! The process group of CPU ranks that all live on one node: collectives through memory that they share.
//!
//! The parts, lowest first: [`layout`] defines the positions in the segment, [`mmap`] maps it, [`sys`] wraps futexes and process
//! descriptors; [`ring`] waits and publishes, [`reducible`] adds numbers, [`exchange`] builds collectives from both; [`handshake`]
//! connects the ranks, [`watch`] detects dead ranks, [`engine`] runs collectives in the order of issue on a thread of its own,
//! [`check`] verifies the first sums, and [`group`] is the interface.
//!
//! **Invariant:** sums are formed in the order of the ranks, so that results are deterministic and equal on all ranks. Every
//! wait has a time limit and ends when the awaited peer dies.

mod check;
mod engine;
mod exchange;
mod fault;
pub(super) mod group;
mod handshake;
pub(super) mod layout;
pub(super) mod mmap;
mod reducible;
mod region;
mod ring;
mod safe;
mod sys;
mod watch;
pub(super) mod work;
