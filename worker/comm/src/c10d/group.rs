//! The process groups of c10d behind [`ProcessGroup`].

use super::{
    result::{RawForm, RawGroup, RawWork, ShimFault, c_string},
    store::Store,
    work::{C10dMember, C10dWork},
};
use crate::{
    AbortHandle, CommError, Forming, GlooOptions, ProcessGroup, Reduce, Work, check, check_root, own_part,
    wait_time::WaitTime,
};
use std::{
    marker::PhantomData,
    net::{IpAddr, ToSocketAddrs, UdpSocket},
    sync::Arc,
    time::Duration,
};
use tch::Tensor;

/// Threads on which Gloo runs collectives: two, so that a bucket is reduced while the next one is being copied.
const GLOO_THREADS: i32 = 2;

pub trait C10dBackend: Sized + Send {
    const NAME: &'static str;
    /// See [`ProcessGroup::flops_per_byte`].
    const FLOPS_PER_BYTE: f64 = 0.0;
    /// Beginning of the sentence that says why a faster group is not used.
    const FELL_BACK: &'static str;

    /// See [`ProcessGroup::reduce_scatter_sum`].
    fn reduce_scatter_sum(group: &C10dGroup<Self>, whole: &Tensor) -> Result<Work, CommError> {
        let _it_has_parts = own_part(whole, group.rank(), group.size())?;
        group.all_reduce_sum(whole)
    }
}

#[derive(Debug)]
pub struct C10dGroup<B> {
    raw: RawGroup,
    member: Arc<C10dMember>,
    /// Why a faster group is not used, if it was meant to be.
    instead: Option<String>,
    backend: PhantomData<B>,
}

pub type Gloo = C10dGroup<GlooBackend>;

#[derive(Debug)]
pub struct GlooBackend;

impl C10dBackend for GlooBackend {
    const NAME: &'static str = "gloo";
    const FELL_BACK: &'static str = "Gloo sums tensors on the host, as memory is not shared by the ranks";
}

impl Gloo {
    /// Meets the other ranks in `store` and connects to each, as long as `forming` allows.
    ///
    /// Peers reach this process on the address from which it reaches the store.
    pub fn form(store: &Store, options: &GlooOptions, forming: &Forming) -> Result<Self, CommError> {
        let bind = match local_address(&store.addr.host, store.addr.port) {
            Some(address) => address.to_string(),
            None => String::new(),
        };
        let bind = c_string("host", &bind)?;
        let GlooOptions { rank, size, timeout } = *options;
        let form = RawForm { rank, size, abort: &forming.line.raw, form: forming.left(), timeout };
        Self::new(RawGroup::gloo(&store.raw, form, &bind, GLOO_THREADS), rank, size, forming)
    }
}

/// Returns the address of this machine on the route to `host`. Connecting a datagram socket only asks the routing table and sends nothing.
fn local_address(host: &str, port: u16) -> Option<IpAddr> {
    let target = (host, port).to_socket_addrs().ok()?.next()?;
    let any: IpAddr = if target.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(target).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The GPU group: one rank per device.
#[cfg(feature = "cuda")]
pub type Nccl = C10dGroup<NcclBackend>;

#[cfg(feature = "cuda")]
#[derive(Debug)]
pub struct NcclBackend;

#[cfg(feature = "cuda")]
impl C10dBackend for NcclBackend {
    const NAME: &'static str = "nccl";
    const FLOPS_PER_BYTE: f64 = crate::DEVICE_FLOPS_PER_BYTE;
    const FELL_BACK: &'static str = "NCCL's kernels sum gradients, not copy engines";

    fn reduce_scatter_sum(group: &Nccl, whole: &Tensor) -> Result<Work, CommError> {
        check(whole, "reduce_scatter")?;
        let own = own_part(whole, group.rank(), group.size())?;
        group.work("reduce_scatter", group.raw.reduce_scatter(whole, &own)).map(Work::C10d)
    }
}

#[cfg(feature = "cuda")]
impl Nccl {
    /// Meets the other ranks in `store` and connects CUDA device `device` to theirs, as long as `forming` allows. One
    /// collective may take `timeout`.
    ///
    /// A peer that dies while the devices connect holds NCCL up: the call returns when `forming` is aborted or out of time, and
    /// leaves a thread behind that stays as long as NCCL waits.
    pub fn form(
        store: &Store,
        rank: u32,
        size: u32,
        device: u32,
        timeout: Duration,
        forming: &Forming,
    ) -> Result<Self, CommError> {
        let form = RawForm { rank, size, abort: &forming.line.raw, form: forming.left(), timeout };
        Self::new(RawGroup::nccl(&store.raw, form, device.cast_signed()), rank, size, forming)
    }
}

impl<B: C10dBackend> C10dGroup<B> {
    fn new(raw: Result<RawGroup, ShimFault>, rank: u32, size: u32, forming: &Forming) -> Result<Self, CommError> {
        let raw = raw.map_err(|fault| forming.failed(rank, size, B::NAME, fault.message))?;
        let line = Arc::clone(&forming.line);
        let member = Arc::new(C10dMember { rank, size, line, waited: WaitTime::default() });
        Ok(Self { raw, member, instead: None, backend: PhantomData })
    }

    /// Sets the reason why a faster group is not used, if it was meant to be.
    #[must_use]
    pub fn instead(self, reason: Option<String>) -> Self {
        Self { instead: reason, ..self }
    }

    fn work(&self, operation: &'static str, begun: Result<RawWork, ShimFault>) -> Result<C10dWork, CommError> {
        let raw = begun.map_err(|fault| self.member.error(operation, fault, Duration::ZERO))?;
        Ok(C10dWork::new(raw, operation, &self.member))
    }

    fn end(self, abort: bool, timeout: Duration) -> Result<(), CommError> {
        let operation = if abort { "abort" } else { "shutdown" };
        let Self { raw, member, .. } = self;
        raw.end(abort, timeout).map_err(|fault| {
            let C10dMember { rank, size, .. } = *member;
            match fault {
                ShimFault { timed_out: true, .. } => CommError::TimedOut { operation, rank, size, timeout },
                ShimFault { message, .. } => CommError::Collective { operation, rank, size, message },
            }
        })
    }
}

impl<B: C10dBackend> ProcessGroup for C10dGroup<B> {
    fn rank(&self) -> u32 {
        self.member.rank
    }

    fn size(&self) -> u32 {
        self.member.size
    }

    fn backend(&self) -> &'static str {
        B::NAME
    }

    fn fell_back(&self) -> Option<String> {
        self.instead.as_ref().map(|reason| format!("{}: {reason}", B::FELL_BACK))
    }

    fn flops_per_byte(&self) -> f64 {
        B::FLOPS_PER_BYTE
    }

    fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<Work, CommError> {
        check(tensor, "all_reduce")?;
        self.work("all_reduce", self.raw.all_reduce(tensor, reduce)).map(Work::C10d)
    }

    fn broadcast(&self, tensor: &Tensor, root: u32) -> Result<Work, CommError> {
        check(tensor, "broadcast")?;
        check_root(root, self.size())?;
        self.work("broadcast", self.raw.broadcast(tensor, root.cast_signed())).map(Work::C10d)
    }

    fn reduce_scatter_sum(&self, whole: &Tensor) -> Result<Work, CommError> {
        B::reduce_scatter_sum(self, whole)
    }

    fn all_gather(&self, whole: &Tensor) -> Result<Work, CommError> {
        check(whole, "all_gather")?;
        let own = own_part(whole, self.rank(), self.size())?;
        self.work("all_gather", self.raw.all_gather(whole, &own)).map(Work::C10d)
    }

    fn intact(&self) -> Result<(), CommError> {
        self.member.intact()
    }

    fn barrier(&self, timeout: Duration) -> Result<(), CommError> {
        self.work("barrier", self.raw.barrier(timeout))?.wait(timeout)
    }

    fn abort_handle(&self) -> Box<dyn AbortHandle> {
        self.member.line.abort_handle()
    }

    fn waited(&self) -> Duration {
        self.member.waited.total()
    }

    fn shutdown(self: Box<Self>, timeout: Duration) -> Result<(), CommError> {
        self.end(false, timeout)
    }

    fn abort(self: Box<Self>, timeout: Duration) -> Result<(), CommError> {
        self.end(true, timeout)
    }
}
