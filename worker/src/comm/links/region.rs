//! The same piece of memory of every rank.

use crate::backend::link::{Gpu, LinkError, Memory};
use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

/// Memory of this rank, and its counterparts.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) own: Arc<Memory>,
    /// By rank; nothing at the own one's place.
    others: Vec<Option<Memory>>,
}

impl Region {
    /// Own memory with that of the others, which is as long, by their descriptors.
    pub(super) fn open(gpu: Gpu, own: Arc<Memory>, descriptors: &[Option<OwnedFd>]) -> Result<Self, LinkError> {
        let bytes = own.bytes();
        let open = |fd: &Option<OwnedFd>| fd.as_ref().map(|fd| Memory::open(gpu, bytes, fd.as_fd())).transpose();
        let others = descriptors.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { own, others })
    }

    /// Where byte `at` of another rank's is.
    pub(super) fn of(&self, rank: usize, at: usize) -> Option<u64> {
        Some(self.others.get(rank)?.as_ref()?.at() + at as u64)
    }

    /// Where so many bytes from `address` on begin in the own memory, if they lie there.
    pub(super) fn find(&self, address: u64, bytes: usize) -> Option<usize> {
        let start = usize::try_from(address.checked_sub(self.own.at())?).ok()?;
        (start.checked_add(bytes)? <= self.own.bytes()).then_some(start)
    }
}
