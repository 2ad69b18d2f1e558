//! The same piece of memory of every rank.

use crate::backend::link::{Gpu, LinkError, Memory};
use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};
use tch::{Device, Kind, Tensor};

/// The numbers begin at a multiple of so many bytes.
const ALIGN: usize = 16;

/// Memory of this rank, and its counterparts: an array, and behind it a number for each rank.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) own: Arc<Memory>,
    /// Where the numbers begin.
    numbers: usize,
    /// By rank; nothing at the own one's place.
    others: Vec<Option<Memory>>,
}

impl Region {
    /// Bytes of memory for an array of `array` bytes.
    pub(super) fn bytes(array: usize, ranks: usize) -> usize {
        array.next_multiple_of(ALIGN) + ranks * size_of::<f32>()
    }

    /// Own memory for an array of `array` bytes with that of the others, which is as long, by their descriptors.
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

    /// Byte where the number of a rank is.
    pub(super) fn number(&self, rank: usize) -> usize {
        self.numbers + rank * size_of::<f32>()
    }

    /// The numbers of all ranks, f32.
    pub(super) fn numbers(&self, device: Device) -> Result<Tensor, LinkError> {
        let like = Tensor::f_empty([self.others.len() as i64], (Kind::Float, device));
        self.own.tensor(self.numbers, &like.map_err(|error| LinkError::torch("make room for numbers", &error))?)
    }

    /// Where byte `at` of another rank's is.
    pub(super) fn of(&self, rank: usize, at: usize) -> Option<u64> {
        Some(self.others.get(rank)?.as_ref()?.at() + at as u64)
    }

    /// Where so many bytes from `address` on begin in the own memory, if they lie there.
    pub(super) fn find(&self, address: u64, bytes: usize) -> Option<usize> {
        let start = usize::try_from(address.checked_sub(self.own.at())?).ok()?;
        (start.checked_add(bytes)? <= self.numbers).then_some(start)
    }
}
