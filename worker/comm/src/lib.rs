//! Process groups: collectives with which the workers of a round add up gradients and agree.
//!
//! One trait and five groups: [`Solo`] (a world of one), [`Shm`] (CPU ranks of one node), [`Gloo`] (CPU), [`Linked`] (GPUs of one node that
//! reach each other's memory, by their copy engines) and, with the feature `cuda`, `Nccl`. Gloo and NCCL are libtorch's own c10d, reached
//! through the C interface in `shim/c10d.cpp`. They meet in a [`Store`], libtorch's TCPStore client, that talks to the broker's store.
//!
//! Every rank must call the same collectives in the same order with the same shapes and kinds. Nothing here waits
//! without a limit, and nothing here retries: a failed collective ends the round, and the round's owner decides. A group is
//! formed with a [`Forming`], by which any thread can end it, from the beginning on; one process may form group after group,
//! and each gives back all it took.

mod abort;
mod c10d;
mod error;
mod links;
mod mesh;
mod shm;
mod solo;
mod wait_time;

pub use abort::{AbortHandle, Forming};
#[cfg(feature = "cuda")]
pub use c10d::group::Nccl;
pub use c10d::{
    group::Gloo,
    result::StoreClient,
    store::{Store, StoreAddr},
    work::C10dWork,
};
pub use enn_core::backend::link::RankReduction as Reduce;
pub use error::CommError;
pub use links::{LinkWork, Linked, LinkedFormed};
pub use mesh::{Former, Mesh, Meshed, sharing};
pub use shm::{
    group::{Shm, ShmFormed},
    work::ShmWork,
};
pub use solo::Solo;

use std::{cell::RefCell, time::Duration};
use tch::Tensor;

/// Identity and limits of a rank of [`Shm`] or [`Gloo`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupOptions {
    /// This process's rank, `0..size`.
    pub rank: u32,
    pub size: u32,
    /// Longest time that one collective may take before it fails; of [`Shm`] from its start.
    pub timeout: Duration,
}

pub type GlooOptions = GroupOptions;
pub type ShmOptions = GroupOptions;

/// Operations that an H200 does in bf16 while one byte is summed over NVLink: about 450 TFLOP/s at 230 GB/s of gradients.
const DEVICE_FLOPS_PER_BYTE: f64 = 2000.0;

/// The ranks of one round. A group belongs to one thread, as collectives must be issued in one order.
pub trait ProcessGroup: Send {
    /// This process's rank, `0..size()`.
    fn rank(&self) -> u32;

    fn size(&self) -> u32;

    /// "solo", "shm", "gloo", "copy engines" or "nccl".
    fn backend(&self) -> &'static str;

    /// Returns a sentence that says which slower fallback is used and why, if there is one.
    fn fell_back(&self) -> Option<String> {
        None
    }

    /// Floating-point operations that a device can do while this group sums one byte; 0 where sums use the computing processors.
    fn flops_per_byte(&self) -> f64 {
        0.0
    }

    /// Begins reducing `tensor` over all ranks, in place. Dense, same shape and kind on every rank.
    ///
    /// The values may be read once the work has been waited for. Errors when the collective cannot be begun.
    fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<Work, CommError>;

    /// Begins copying `root`'s values into every rank's `tensor`. Dense, same shape and kind on every rank. If that fails, each value is
    /// either the old or the sent one. After a failed sum or gather the values are undefined.
    fn broadcast(&self, tensor: &Tensor, root: u32) -> Result<Work, CommError>;

    /// Begins to sum `whole` over all ranks, in place: a flat array of as many equal parts as there are ranks. Afterwards the
    /// part with this rank's number holds the sums; the other parts are undefined.
    fn reduce_scatter_sum(&self, whole: &Tensor) -> Result<Work, CommError> {
        let _it_has_parts = own_part(whole, self.rank(), self.size())?;
        self.all_reduce_sum(whole)
    }

    /// Begins to give every rank all parts of `whole`, in place: a flat array of as many equal parts as there are ranks, of
    /// which each rank has the one with its number.
    fn all_gather(&self, whole: &Tensor) -> Result<Work, CommError> {
        let parts = (0..self.size()).map(|root| self.broadcast(&own_part(whole, root, self.size())?, root));
        Ok(Work::Several(parts.collect::<Result<_, _>>()?))
    }

    /// Zeros shaped like `tensor` in memory where this group sums fastest, or `None` when it knows no such memory. The
    /// memory is given back when the tensors on it and the group are gone. **The others can write there**: when the group
    /// ended before its time, a peer that was stopped in a collective may still do so when it goes on; use the tensor no
    /// more then. Every rank calls it in the same order for the same shape and kind, and reduces
    /// the same part of the tensor as the others.
    fn shared_like(&self, tensor: &Tensor) -> Result<Option<Tensor>, CommError> {
        let _private_is_best = tensor;
        Ok(None)
    }

    /// Returns the norms of the ranks' parts of a tensor from [`ProcessGroup::shared_like`], f32 by rank, as computed by the last
    /// [`ProcessGroup::all_reduce_sum`] of the whole tensor; their joint norm is the norm of the tensor. `None` where this group does not
    /// measure norms. The answer is the same on every rank.
    fn norms_of(&self, shared: &Tensor) -> Option<Tensor> {
        let _not_measured = shared;
        None
    }

    /// Waits until every rank has reached this call, or fails after `timeout`.
    fn barrier(&self, timeout: Duration) -> Result<(), CommError>;

    /// Fails once a rank has aborted this group: results that a device computed from sums which no host waited for may be wrong
    /// then. To be called after waiting for the device and before its results are used.
    fn intact(&self) -> Result<(), CommError> {
        Ok(())
    }

    /// Ends the group after its last collective. Every rank must call it. Fails when that takes longer than `timeout`.
    fn shutdown(self: Box<Self>, timeout: Duration) -> Result<(), CommError>;

    /// Ends the group at once, without the other ranks. Work in flight ends in an error.
    ///
    /// A shared-memory group ends at once, and the other ranks' collectives end in an error that names this rank.
    ///
    /// Gloo's connections are closed, and the others see them close. NCCL's communicators are aborted; when that takes
    /// longer than `timeout`, it is left to a thread of its own, and the call returns [`CommError::TimedOut`].
    fn abort(self: Box<Self>, timeout: Duration) -> Result<(), CommError>;

    /// Returns the groups by node, once [`ProcessGroup::by_node`] has formed them: the ranks that share the state with this one are on
    /// its node.
    fn mesh(&self) -> Option<&Mesh> {
        None
    }

    /// Forms the [`ProcessGroup::mesh`] of nodes with so many ranks each, which follow each other. Every rank calls it, at most
    /// once. The groups end with this one.
    fn by_node(&self, ranks: u32) -> Result<(), CommError> {
        Err(CommError::NoMesh { backend: self.backend(), size: self.size(), ranks })
    }

    /// Returns a handle that aborts the group from any thread, even while its owner waits in it.
    fn abort_handle(&self) -> Box<dyn AbortHandle>;

    /// Returns how long the owner has waited for collectives since the group was formed: in [`Work::wait`], [`Work::order`] and
    /// [`ProcessGroup::barrier`]. On a device, waiting begins when this rank has computed its operand.
    fn waited(&self) -> Duration;

    /// Begins to sum `tensor` over all ranks, in place; see [`ProcessGroup::all_reduce`].
    fn all_reduce_sum(&self, tensor: &Tensor) -> Result<Work, CommError> {
        self.all_reduce(tensor, Reduce::Sum)
    }
}

/// Collectives read a tensor's raw storage: a view with gaps would be reduced wrongly or refused deep inside.
fn check(tensor: &Tensor, operation: &'static str) -> Result<(), CommError> {
    let found = match tensor {
        _ if !tensor.defined() => "an undefined one",
        _ if tensor.is_sparse() => "a sparse one",
        _ if !tensor.is_contiguous() => "a view with gaps",
        _ => return Ok(()),
    };
    Err(CommError::Tensor { operation, found })
}

fn check_root(root: u32, size: u32) -> Result<(), CommError> {
    if root < size { Ok(()) } else { Err(CommError::RootOutside { root, size }) }
}

/// Returns the part of a flat array that belongs to `rank` of `size`.
fn own_part(whole: &Tensor, rank: u32, size: u32) -> Result<Tensor, CommError> {
    let length = whole.numel() as i64;
    let size = i64::from(size);
    if whole.dim() != 1 || length % size != 0 {
        return Err(CommError::Tensor { operation: "a collective over equal parts", found: "one that has none" });
    }
    let part = length / size;
    let part_of = whole.f_narrow(0, i64::from(rank) * part, part);
    part_of
        .map_err(|_undefined| CommError::Tensor { operation: "a collective over equal parts", found: "a broken one" })
}

/// A collective that was begun. Dropping it does not cancel it: its tensor is kept alive until it ends.
#[must_use = "a collective has no result before it was waited for"]
#[derive(Debug)]
pub enum Work {
    /// The collective ended when it was begun (a world of one).
    Done,
    /// Several collectives that make up one.
    Several(Vec<Self>),
    C10d(C10dWork),
    /// A collective of the thread that shares memory with the other ranks.
    Shm(ShmWork),
    /// A collective of the device's copy engines.
    Linked(LinkWork),
}

impl Work {
    /// Blocks until the collective ended, at most `timeout`, and says how it ended.
    pub fn wait(&self, timeout: Duration) -> Result<(), CommError> {
        match self {
            Self::Done => Ok(()),
            Self::Several(works) => works.iter().try_for_each(|work| work.wait(timeout)),
            Self::C10d(work) => work.wait(timeout),
            Self::Shm(work) => work.wait(timeout),
            Self::Linked(work) => work.wait(timeout),
        }
    }

    /// Lets the device's current stream wait for the collective without blocking the host; a host collective is waited
    /// for, at most `timeout`. An error of a device collective shows only at [`Work::wait`] or at the next collective.
    pub fn order(&self, timeout: Duration) -> Result<(), CommError> {
        match self {
            Self::Done => Ok(()),
            Self::Several(works) => works.iter().try_for_each(|work| work.order(timeout)),
            Self::C10d(work) => work.order(timeout),
            Self::Shm(work) => work.wait(timeout),
            Self::Linked(work) => work.order(),
        }
    }

    /// Whether the collective ended, well or badly. Never blocks.
    pub fn is_done(&self) -> Result<bool, CommError> {
        match self {
            Self::Done => Ok(true),
            Self::Several(works) => works.iter().try_fold(true, |all, work| Ok(all && work.is_done()?)),
            Self::C10d(work) => work.is_done(),
            Self::Shm(work) => Ok(work.is_done()),
            Self::Linked(work) => work.is_done(),
        }
    }
}

/// Collectives that were begun and not yet waited for, in their order.
#[derive(Debug, Default)]
pub struct Pending(RefCell<Vec<Work>>);

impl Pending {
    pub fn keep(&self, work: Work) {
        self.0.borrow_mut().push(work);
    }

    /// Waits for all collectives, as [`Work::wait`]. Fails with the first one that failed.
    pub fn wait(&self, timeout: Duration) -> Result<(), CommError> {
        self.0.take().iter().try_for_each(|work| work.wait(timeout))
    }

    /// Orders the device's stream after all collectives, as [`Work::order`]. They still have to be waited for.
    pub fn order(&self, timeout: Duration) -> Result<(), CommError> {
        self.0.borrow().iter().try_for_each(|work| work.order(timeout))
    }

    pub fn forget(&self) {
        self.0.take();
    }
}
