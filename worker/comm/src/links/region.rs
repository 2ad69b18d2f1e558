//! A region: memory of the same size on every rank, mapped by all.

use enn_core::backend::link::{Gpu, LinkError, Memory};
use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};
use tch::{Device, Kind, Tensor};

/// Alignment of the numbers behind the array, in bytes.
const ALIGN: usize = 16;

/// Memory of this rank and that of the others: an array, followed by one number (f32) for each rank.
#[derive(Debug)]
pub(super) struct LinkRegion {
    pub(super) own: Arc<Memory>,
    /// Byte at which the numbers begin.
    numbers: usize,
    /// Memory of the other ranks, by rank; `None` for this rank.
    others: Vec<Option<Memory>>,
}

impl LinkRegion {
    /// Returns the size of a region for an array of `array` bytes.
    pub(super) fn bytes(array: usize, ranks: usize) -> usize {
        array.next_multiple_of(ALIGN) + ranks * size_of::<f32>()
    }

    /// Opens a region for an array of `array` bytes from this rank's memory and the descriptors of the others' memory, which has the same
    /// size.
    pub(super) fn open(
        gpu: Gpu,
        own: Arc<Memory>,
        array: usize,
        descriptors: &[Option<OwnedFd>],
    ) -> Result<Self, LinkError> {
        let bytes = own.bytes();
        let open = |fd: &Option<OwnedFd>| fd.as_ref().map(|fd| Memory::open(gpu, bytes, fd.as_fd())).transpose();
        let others = descriptors.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { own, numbers: array.next_multiple_of(ALIGN), others })
    }

    /// Returns the byte offset of the number of a rank.
    pub(super) fn number(&self, rank: usize) -> usize {
        self.numbers + rank * size_of::<f32>()
    }

    /// Returns the numbers of all ranks as a tensor, f32.
    pub(super) fn numbers(&self, device: Device) -> Result<Tensor, LinkError> {
        let like = Tensor::f_empty([self.others.len() as i64], (Kind::Float, device));
        self.own.tensor(self.numbers, &like.map_err(LinkError::of("make room for numbers"))?)
    }

    /// Returns the address of byte `at` of another rank's memory.
    pub(super) fn of(&self, rank: usize, at: usize) -> Option<u64> {
        Some(self.others.get(rank)?.as_ref()?.at() + at as u64)
    }

    /// Returns the offset of `bytes` bytes at `address` in this rank's array, if they lie there.
    pub(super) fn find(&self, address: u64, bytes: usize) -> Option<usize> {
        let start = usize::try_from(address.checked_sub(self.own.at())?).ok()?;
        (start.checked_add(bytes)? <= self.numbers).then_some(start)
    }
}
