//! Process groups: how the workers of a round add up gradients and agree.
//!
//! One trait and five groups: [`Solo`] (a world of one), [`Shm`] (CPU ranks of one node), [`Gloo`] (CPU), [`Linked`] (GPUs of one node that
//! reach each other's memory, by their copy engines) and, with the feature `cuda`, `Nccl`. Gloo and NCCL are libtorch's own c10d, reached
//! through the C face in `shim/c10d.cpp`. They meet in a [`Store`], libtorch's TCPStore client, that talks to the broker's store.
//!
//! Every rank must call the same collectives in the same order with the same shapes and kinds. Nothing here waits
//! without a limit, and nothing here retries: a failed collective ends the round, and the round's owner decides. A group is
//! formed with a [`Forming`], by which any thread can end it, from the beginning on; one process may form group after group,
//! and each gives back all it took.

mod c10d;
mod cut;
mod error;
mod links;
mod mesh;
mod shm;
mod solo;
mod waited;

#[cfg(feature = "cuda")]
pub use c10d::group::Nccl;
pub use c10d::{
    group::{Gloo, GlooOptions},
    store::{Store, StoreAddr},
    work::C10dWork,
};
pub use cut::{Cut, Forming};
pub use error::CommError;
pub use links::{LinkWork, Linked, LinkedFormed};
pub use mesh::{Former, Mesh, Meshed, sharing};
pub use shm::{
    group::{Shm, ShmFormed, ShmOptions},
    work::ShmWork,
};
pub use solo::Solo;

use std::{cell::RefCell, time::Duration};
use tch::Tensor;

/// How values of the ranks are brought together, element by element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum.
    Sum,
    /// The smallest.
    Min,
    /// The largest.
    Max,
}

/// What an H200 computes in bf16 while one byte is summed over NVLink: about 450 TFLOP/s beside 230 GB/s of gradients.
const DEVICE_FLOPS_PER_BYTE: f64 = 2000.0;

/// The ranks of one round. Not shared between threads: collectives must be issued in one order.
pub trait ProcessGroup: Send {
    /// This process's rank, `0..size()`.
    fn rank(&self) -> u32;

    /// Number of ranks.
    fn size(&self) -> u32;

    /// "solo", "shm", "gloo", "copy engines" or "nccl".
    fn backend(&self) -> &'static str;

    /// What is done in another way than it could be, and why, once that is known: a sentence.
    fn fell_back(&self) -> Option<String> {
        None
    }

    /// Floating-point operations that a device can do while this group sums one byte; 0 where it sums with the hands that compute.
    fn flops_per_byte(&self) -> f64 {
        0.0
    }

    /// Begins reducing `tensor` over all ranks, in place. Dense, same shape and kind on every rank.
    ///
    /// The values may be read once the work has been waited for. Errors when the collective cannot be begun.
    fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<Work, CommError>;

    /// Begins copying `root`'s values into every rank's `tensor`. Dense, same shape and kind on every rank. Where that fails, each value is
    /// the one that was there or the one that was sent; what a sum or gather leaves that fails may be anything.
    fn broadcast(&self, tensor: &Tensor, root: u32) -> Result<Work, CommError>;

    /// Begins to sum `whole` over all ranks, in place: a flat array of as many equal parts as there are ranks. Afterwards the
    /// part with this rank's number holds the sums; what the others hold is not said.
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

    /// Of a tensor that [`ProcessGroup::shared_like`] gave, where this group measures what it sums: the norms of the ranks' parts of the
    /// sums, f32 by rank, as the last [`ProcessGroup::all_reduce_sum`] of the whole tensor leaves them. Together they are the norm of the
    /// tensor. The same answer on every rank.
    fn norms_of(&self, shared: &Tensor) -> Option<Tensor> {
        let _not_measured = shared;
        None
    }

    /// Returns when every rank has come here, or fails after `timeout`.
    fn barrier(&self, timeout: Duration) -> Result<(), CommError>;

    /// Fails once a rank has ended this group before its time: what a device computed of sums that no host waited for may be wrong
    /// then. For whoever has waited for the device, before what it computed is kept.
    fn intact(&self) -> Result<(), CommError> {
        Ok(())
    }

    /// Ends the group after its last collective; every rank does. Fails when that takes longer than `timeout`.
    fn shutdown(self: Box<Self>, timeout: Duration) -> Result<(), CommError>;

    /// Ends the group whatever is in flight, without the other ranks. Work that was begun ends in an error.
    ///
    /// Shared memory is cut at once, and the other ranks' collectives end in an error that names this one.
    ///
    /// Gloo's connections are closed, and the others see them close. NCCL's communicators are aborted; when that takes
    /// longer than `timeout`, it is left to a thread of its own, and the call returns [`CommError::TimedOut`].
    fn abort(self: Box<Self>, timeout: Duration) -> Result<(), CommError>;

    /// The same ranks by node, once [`ProcessGroup::by_node`] has formed them: those that share the state with this one are on
    /// its node.
    fn mesh(&self) -> Option<&Mesh> {
        None
    }

    /// Forms the [`ProcessGroup::mesh`] of nodes with so many ranks each, which follow each other. Every rank calls it, at most
    /// once. The groups end with this one.
    fn by_node(&self, ranks: u32) -> Result<(), CommError> {
        Err(CommError::NoMesh { backend: self.backend(), size: self.size(), ranks })
    }

    /// What ends the group from any thread, while its owner waits in it, too.
    fn cutter(&self) -> Box<dyn Cut>;

    /// How long the owner has waited for collectives since the group was formed: in [`Work::wait`], [`Work::order`] and
    /// [`ProcessGroup::barrier`]. On a device: from when this rank had computed what it was to.
    fn waited(&self) -> Duration;

    /// [`ProcessGroup::all_reduce`] with [`Reduce::Sum`].
    fn all_reduce_sum(&self, tensor: &Tensor) -> Result<Work, CommError> {
        self.all_reduce(tensor, Reduce::Sum)
    }
}

/// Collectives read a tensor's raw storage: a view with gaps would be reduced wrongly or refused deep inside.
fn check(tensor: &Tensor, operation: &'static str) -> Result<(), CommError> {
    if !tensor.defined() {
        Err(CommError::Tensor { operation, found: "an undefined one" })
    } else if tensor.is_sparse() {
        Err(CommError::Tensor { operation, found: "a sparse one" })
    } else if !tensor.is_contiguous() {
        Err(CommError::Tensor { operation, found: "a view with gaps" })
    } else {
        Ok(())
    }
}

/// The part of a flat array that belongs to `rank` of `size`.
fn own_part(whole: &Tensor, rank: u32, size: u32) -> Result<Tensor, CommError> {
    let length = whole.numel() as i64;
    let size = i64::from(size);
    if whole.dim() != 1 || length % size != 0 {
        return Err(CommError::Tensor { operation: "a collective over equal parts", found: "one that has none" });
    }
    let part = length / size;
    let cut = whole.f_narrow(0, i64::from(rank) * part, part);
    cut.map_err(|_undefined| CommError::Tensor { operation: "a collective over equal parts", found: "a broken one" })
}

/// A collective that was begun. Dropping it does not cancel it: its tensor is kept alive until it ends.
#[must_use = "a collective has no result before it was waited for"]
#[derive(Debug)]
pub enum Work {
    /// Ended when it was begun (a world of one).
    Done,
    /// These.
    Several(Vec<Self>),
    /// In c10d's hands.
    C10d(C10dWork),
    /// In the hands of the thread that shares memory with the other ranks.
    Shm(ShmWork),
    /// In the hands of the device's copy engines.
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
    /// Keeps what was begun.
    pub fn keep(&self, work: Work) {
        self.0.borrow_mut().push(work);
    }

    /// [`Work::wait`] for everything begun.
    ///
    /// # Errors
    /// That of the first collective that failed.
    pub fn wait(&self, timeout: Duration) -> Result<(), CommError> {
        self.0.take().iter().try_for_each(|work| work.wait(timeout))
    }

    /// [`Work::order`] for everything begun, which is still to be waited for.
    ///
    /// # Errors
    /// That of the first collective that failed.
    pub fn order(&self, timeout: Duration) -> Result<(), CommError> {
        self.0.borrow().iter().try_for_each(|work| work.order(timeout))
    }

    /// Waits for nothing begun so far.
    pub fn forget(&self) {
        self.0.take();
    }
}
