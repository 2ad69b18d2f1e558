//! The process groups of c10d behind [`ProcessGroup`].

use super::{
    result::{RawForm, RawGroup, RawWork, ShimFault},
    store::{Store, c_string},
    work::{C10dMember, C10dWork},
};
use crate::{AbortHandle, CommError, Forming, ProcessGroup, Reduce, Work, check, own_part, wait_time::WaitTime};
use std::{
    net::{IpAddr, ToSocketAddrs, UdpSocket},
    sync::Arc,
    time::Duration,
};
use tch::Tensor;

/// Threads on which Gloo runs collectives: two, so that a bucket is reduced while the next one is being copied.
const GLOO_THREADS: i32 = 2;

/// Identity and limits of a [`Gloo`] rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlooOptions {
    /// This process's rank, `0..size`.
    pub rank: u32,
    pub size: u32,
    /// Longest time one collective may take before it fails.
    pub timeout: Duration,
}

/// The CPU group over Gloo.
#[derive(Debug)]
pub struct Gloo {
    group: C10dGroup,
    /// Why the ranks do not share memory, if they were meant to.
    instead: Option<String>,
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
        let form = RawForm { rank, size, abort: &forming.line().raw, form: forming.left(), timeout };
        let group = C10dGroup::new(RawGroup::gloo(&store.raw, form, &bind, GLOO_THREADS), "gloo", rank, size, forming)?;
        Ok(Self { group, instead: None })
    }

    /// Sets the reason why the ranks do not share memory, if they were meant to.
    #[must_use]
    pub fn instead(self, reason: Option<String>) -> Self {
        Self { instead: reason, ..self }
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
#[derive(Debug)]
pub struct Nccl {
    group: C10dGroup,
    /// Why copy engines are not used, if they were meant to be.
    instead: Option<String>,
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
        let form = RawForm { rank, size, abort: &forming.line().raw, form: forming.left(), timeout };
        let raw = RawGroup::nccl(&store.raw, form, device.cast_signed());
        Ok(Self { group: C10dGroup::new(raw, "nccl", rank, size, forming)?, instead: None })
    }

    /// Sets the reason why copy engines are not used, if they were meant to be.
    #[must_use]
    pub fn instead(self, reason: Option<String>) -> Self {
        Self { instead: reason, ..self }
    }
}

/// Common part of both groups.
#[derive(Debug)]
struct C10dGroup {
    raw: RawGroup,
    member: Arc<C10dMember>,
}

impl C10dGroup {
    fn new(
        raw: Result<RawGroup, ShimFault>,
        backend: &'static str,
        rank: u32,
        size: u32,
        forming: &Forming,
    ) -> Result<Self, CommError> {
        let raw = raw.map_err(|fault| forming.failed(rank, size, backend, fault.message))?;
        let line = Arc::clone(forming.line());
        Ok(Self { raw, member: Arc::new(C10dMember { rank, size, line, waited: WaitTime::default() }) })
    }

    fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<Work, CommError> {
        check(tensor, "all_reduce")?;
        self.work("all_reduce", self.raw.all_reduce(tensor, reduce)).map(Work::C10d)
    }

    fn broadcast(&self, tensor: &Tensor, root: u32) -> Result<Work, CommError> {
        check(tensor, "broadcast")?;
        if root >= self.member.size {
            return Err(CommError::RootOutside { root, size: self.member.size });
        }
        self.work("broadcast", self.raw.broadcast(tensor, root.cast_signed())).map(Work::C10d)
    }

    fn all_gather(&self, whole: &Tensor) -> Result<Work, CommError> {
        check(whole, "all_gather")?;
        let own = own_part(whole, self.member.rank, self.member.size)?;
        self.work("all_gather", self.raw.all_gather(whole, &own)).map(Work::C10d)
    }

    #[cfg(feature = "cuda")]
    fn reduce_scatter(&self, whole: &Tensor) -> Result<Work, CommError> {
        check(whole, "reduce_scatter")?;
        let own = own_part(whole, self.member.rank, self.member.size)?;
        self.work("reduce_scatter", self.raw.reduce_scatter(whole, &own)).map(Work::C10d)
    }

    fn barrier(&self, timeout: Duration) -> Result<(), CommError> {
        self.work("barrier", self.raw.barrier(timeout))?.wait(timeout)
    }

    fn work(&self, operation: &'static str, begun: Result<RawWork, ShimFault>) -> Result<C10dWork, CommError> {
        let raw = begun.map_err(|fault| self.member.error(operation, fault, Duration::ZERO))?;
        Ok(C10dWork::new(raw, operation, &self.member))
    }

    fn end(self, abort: bool, timeout: Duration) -> Result<(), CommError> {
        let operation = if abort { "abort" } else { "shutdown" };
        let Self { raw, member } = self;
        raw.end(abort, timeout).map_err(|fault| {
            let C10dMember { rank, size, .. } = *member;
            match fault {
                ShimFault { timed_out: true, .. } => CommError::TimedOut { operation, rank, size, timeout },
                ShimFault { message, .. } => CommError::Collective { operation, rank, size, message },
            }
        })
    }
}

macro_rules! process_group {
    ($group:ty, $name:literal $(, $own:item)*) => {
        impl ProcessGroup for $group {
            fn rank(&self) -> u32 {
                self.group.member.rank
            }

            fn size(&self) -> u32 {
                self.group.member.size
            }

            fn backend(&self) -> &'static str {
                $name
            }

            fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<Work, CommError> {
                self.group.all_reduce(tensor, reduce)
            }

            fn broadcast(&self, tensor: &Tensor, root: u32) -> Result<Work, CommError> {
                self.group.broadcast(tensor, root)
            }

            fn all_gather(&self, whole: &Tensor) -> Result<Work, CommError> {
                self.group.all_gather(whole)
            }

            $($own)*

            fn intact(&self) -> Result<(), CommError> {
                self.group.member.intact()
            }

            fn barrier(&self, timeout: Duration) -> Result<(), CommError> {
                self.group.barrier(timeout)
            }

            fn abort_handle(&self) -> Box<dyn AbortHandle> {
                self.group.member.line.abort_handle()
            }

            fn waited(&self) -> Duration {
                self.group.member.waited.total()
            }

            fn shutdown(self: Box<Self>, timeout: Duration) -> Result<(), CommError> {
                self.group.end(false, timeout)
            }

            fn abort(self: Box<Self>, timeout: Duration) -> Result<(), CommError> {
                self.group.end(true, timeout)
            }
        }
    };
}

process_group!(
    Gloo,
    "gloo",
    fn fell_back(&self) -> Option<String> {
        self.instead
            .as_ref()
            .map(|reason| format!("Gloo sums tensors on the host, as memory is not shared by the ranks: {reason}"))
    }
);
#[cfg(feature = "cuda")]
process_group!(
    Nccl,
    "nccl",
    fn reduce_scatter_sum(&self, whole: &Tensor) -> Result<Work, CommError> {
        self.group.reduce_scatter(whole)
    },
    fn flops_per_byte(&self) -> f64 {
        crate::DEVICE_FLOPS_PER_BYTE
    },
    fn fell_back(&self) -> Option<String> {
        self.instead.as_ref().map(|reason| format!("NCCL's kernels sum gradients, not copy engines: {reason}"))
    }
);
