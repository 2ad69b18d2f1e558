//! Ranks arranged by node: one group for the ranks of a node, and one across nodes for the ranks with the same place on their nodes.
//!
//! ```text
//!           node 0   node 1   node 2
//! place 0     0        2        4     ◄── a group across nodes
//! place 1     1        3        5
//!             ▲ a node's group
//! ```
//! State that is sharded over a node's group exists once per node. A group across nodes sums one shard of it.

use super::{AbortHandle, CommError, Forming, ProcessGroup, Reduce, Store, Work};
use std::{cell::OnceCell, time::Duration};
use tch::Tensor;

/// The two groups of a rank: its node's, and the one across nodes.
pub struct Mesh {
    /// The ranks of this node.
    pub node: Box<dyn ProcessGroup>,
    /// The ranks with this one's place on all nodes, in the order of the nodes.
    pub across: Box<dyn ProcessGroup>,
}

/// Forms a group in a store as (rank, size); the flag tells whether all ranks are on one node.
pub type Former = dyn Fn(&Store, (u32, u32), bool, &Forming) -> Result<Box<dyn ProcessGroup>, CommError> + Send;

/// A group whose ranks are divided by node on request, see [`ProcessGroup::by_node`].
pub struct Meshed {
    whole: Box<dyn ProcessGroup>,
    store: Store,
    former: Box<Former>,
    /// Limits of inner groups, aborted together with the whole group.
    forming: Forming,
    timeout: Duration,
    mesh: OnceCell<Mesh>,
}

/// Returns the ranks that share sharded state with this one: those of its node, or all.
pub fn sharing(group: &dyn ProcessGroup) -> &dyn ProcessGroup {
    group.mesh().map_or(group, |mesh| &*mesh.node)
}

impl Meshed {
    /// `whole` was formed in `store` with `forming`; groups within it are formed by `former` in at most `timeout` each.
    pub fn new(
        whole: Box<dyn ProcessGroup>,
        store: Store,
        former: Box<Former>,
        forming: &Forming,
        timeout: Duration,
    ) -> Self {
        Self { whole, store, former, forming: forming.beside(timeout), timeout, mesh: OnceCell::new() }
    }

    /// Ends the inner groups before the whole one, and the node's group before the one across nodes: ending NCCL waits for the device,
    /// which may wait for a rank of the node.
    fn end(self, end: impl Fn(Box<dyn ProcessGroup>) -> Result<(), CommError>) -> Result<(), CommError> {
        let inner = self.mesh.into_inner().map(|mesh| [mesh.node, mesh.across]);
        let ended: Vec<_> = inner.into_iter().flatten().chain([self.whole]).map(end).collect();
        ended.into_iter().collect()
    }
}

impl ProcessGroup for Meshed {
    fn rank(&self) -> u32 {
        self.whole.rank()
    }

    fn size(&self) -> u32 {
        self.whole.size()
    }

    fn backend(&self) -> &'static str {
        self.whole.backend()
    }

    fn intact(&self) -> Result<(), CommError> {
        let inner = self.mesh().into_iter().flat_map(|mesh| [&mesh.across, &mesh.node]);
        inner.chain([&self.whole]).try_for_each(|group| group.intact())
    }

    fn fell_back(&self) -> Option<String> {
        self.whole.fell_back()
    }

    fn flops_per_byte(&self) -> f64 {
        self.whole.flops_per_byte()
    }

    fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<Work, CommError> {
        self.whole.all_reduce(tensor, reduce)
    }

    fn broadcast(&self, tensor: &Tensor, root: u32) -> Result<Work, CommError> {
        self.whole.broadcast(tensor, root)
    }

    fn reduce_scatter_sum(&self, whole: &Tensor) -> Result<Work, CommError> {
        self.whole.reduce_scatter_sum(whole)
    }

    fn all_gather(&self, whole: &Tensor) -> Result<Work, CommError> {
        self.whole.all_gather(whole)
    }

    fn shared_like(&self, tensor: &Tensor) -> Result<Option<Tensor>, CommError> {
        self.whole.shared_like(tensor)
    }

    fn norms_of(&self, shared: &Tensor) -> Option<Tensor> {
        self.whole.norms_of(shared)
    }

    fn mesh(&self) -> Option<&Mesh> {
        self.mesh.get()
    }

    fn by_node(&self, ranks: u32) -> Result<(), CommError> {
        let rank = self.rank();
        let size = self.size();
        if ranks == 0 || !size.is_multiple_of(ranks) || self.mesh.get().is_some() {
            return Err(CommError::NoMesh { backend: self.backend(), size, ranks });
        }
        let node = rank / ranks;
        let place = rank % ranks;
        let form = |name: String, at: (u32, u32), together: bool| {
            (self.former)(&self.store.round(&name)?, at, together, &self.forming.beside(self.timeout))
        };
        let mesh = Mesh {
            node: form(format!("node-{node}"), (place, ranks), true)?,
            across: form(format!("place-{place}"), (node, size / ranks), false)?,
        };
        let _first = self.mesh.set(mesh);
        Ok(())
    }

    fn barrier(&self, timeout: Duration) -> Result<(), CommError> {
        self.whole.barrier(timeout)
    }

    fn shutdown(self: Box<Self>, timeout: Duration) -> Result<(), CommError> {
        self.end(|group| group.shutdown(timeout))
    }

    fn abort(self: Box<Self>, timeout: Duration) -> Result<(), CommError> {
        self.end(|group| group.abort(timeout))
    }

    fn abort_handle(&self) -> Box<dyn AbortHandle> {
        self.whole.abort_handle()
    }

    fn waited(&self) -> Duration {
        let inner = self.mesh.get().map_or(Duration::ZERO, |mesh| mesh.node.waited() + mesh.across.waited());
        self.whole.waited() + inner
    }
}
