//! The process groups of c10d behind [`ProcessGroup`].

use super::{
    result::RawGroup,
    store::{Store, c_string},
    work::{C10dWork, Place},
};
use crate::comm::{CommError, ProcessGroup, Reduce, Work};
use std::{
    net::{IpAddr, ToSocketAddrs, UdpSocket},
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
    /// Number of ranks.
    pub size: u32,
    /// Longest time forming the group or one collective may take before it fails.
    pub timeout: Duration,
}

/// The CPU group.
#[derive(Debug)]
pub struct Gloo {
    group: C10dGroup,
}

impl Gloo {
    /// Meets the other ranks in `store` and connects to each. Blocks at most `options.timeout`.
    ///
    /// Peers reach this process on the address from which it reaches the store.
    pub fn form(store: &Store, options: &GlooOptions) -> Result<Self, CommError> {
        let bind = match local_address(&store.addr.host, store.addr.port) {
            Some(address) => address.to_string(),
            None => String::new(),
        };
        let bind = c_string("host", &bind)?;
        let GlooOptions { rank, size, timeout } = *options;
        let raw = RawGroup::gloo(&store.raw, (rank.cast_signed(), size.cast_signed()), &bind, GLOO_THREADS, timeout)
            .map_err(|fault| CommError::Form { backend: "gloo", rank, size, message: fault.message })?;
        Ok(Self { group: C10dGroup { raw, rank, size } })
    }
}

/// Address of this machine on the way to `host`; connecting a datagram socket asks the routing table and sends nothing.
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
}

#[cfg(feature = "cuda")]
impl Nccl {
    /// Makes the group of `(rank, size)` on CUDA device `device`; communicators are made at the first collective.
    pub fn form(store: &Store, (rank, size): (u32, u32), device: u32, timeout: Duration) -> Result<Self, CommError> {
        let raw = RawGroup::nccl(&store.raw, (rank.cast_signed(), size.cast_signed()), device.cast_signed(), timeout)
            .map_err(|fault| CommError::Form { backend: "nccl", rank, size, message: fault.message })?;
        Ok(Self { group: C10dGroup { raw, rank, size } })
    }
}

/// What both groups share.
#[derive(Debug)]
struct C10dGroup {
    raw: RawGroup,
    rank: u32,
    size: u32,
}

impl C10dGroup {
    fn at(&self, operation: &'static str) -> Place {
        Place { operation, rank: self.rank, size: self.size }
    }

    fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<Work, CommError> {
        let at = self.at("all_reduce");
        check(tensor, at)?;
        let raw = self.raw.all_reduce(tensor, reduce).map_err(|fault| at.fault(fault, Duration::ZERO))?;
        Ok(Work::C10d(C10dWork::new(raw, at)))
    }

    fn broadcast(&self, tensor: &Tensor, root: u32) -> Result<Work, CommError> {
        let at = self.at("broadcast");
        check(tensor, at)?;
        if root >= self.size {
            return Err(CommError::RootOutside { root, size: self.size });
        }
        let raw = self.raw.broadcast(tensor, root.cast_signed()).map_err(|fault| at.fault(fault, Duration::ZERO))?;
        Ok(Work::C10d(C10dWork::new(raw, at)))
    }

    fn barrier(&self, timeout: Duration) -> Result<(), CommError> {
        let at = self.at("barrier");
        let raw = self.raw.barrier(timeout).map_err(|fault| at.fault(fault, timeout))?;
        C10dWork::new(raw, at).wait(timeout)
    }

    fn end(self, abort: bool, timeout: Duration) -> Result<(), CommError> {
        let at = self.at(if abort { "abort" } else { "shutdown" });
        self.raw.end(abort, timeout).map_err(|fault| at.fault(fault, timeout))
    }
}

/// c10d reads the raw storage, so a view with gaps would be reduced wrongly or refused deep inside.
fn check(tensor: &Tensor, at: Place) -> Result<(), CommError> {
    let operation = at.operation;
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

macro_rules! process_group {
    ($group:ty, $name:literal) => {
        impl ProcessGroup for $group {
            fn rank(&self) -> u32 {
                self.group.rank
            }

            fn size(&self) -> u32 {
                self.group.size
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

            fn barrier(&self, timeout: Duration) -> Result<(), CommError> {
                self.group.barrier(timeout)
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

process_group!(Gloo, "gloo");
#[cfg(feature = "cuda")]
process_group!(Nccl, "nccl");
