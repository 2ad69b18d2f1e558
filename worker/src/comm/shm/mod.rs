//! The process group of CPU ranks that all live on one node: collectives through memory that they share.
//!
//! The parts, lowest first: [`layout`] says where what lies in the segment, [`mmap`] maps it, [`sys`] asks the kernel for
//! sleeping and for news of a death; [`ring`] waits and publishes, [`lane`] adds, [`exchange`] makes collectives of both;
//! [`meet`] brings the ranks together, [`watch`] notices who dies, [`engine`] runs collectives in the order of issue on a
//! thread of its own, [`check`] looks at the first sums, and [`group`] is the face.
//!
//! **Invariant:** sums are formed in the order of the ranks, so that every rank holds the same bits, today and tomorrow. No
//! wait is without a limit, and none outlives the peer it waits for.

mod check;
mod engine;
mod exchange;
mod fault;
pub(super) mod group;
mod lane;
pub(super) mod layout;
mod meet;
pub(super) mod mmap;
mod region;
mod ring;
mod safe;
mod sys;
mod watch;
pub(super) mod work;
