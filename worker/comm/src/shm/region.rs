//! Tensors in memory that all ranks share, such as gradients, which are reduced in place.
//!
//! A region holds the same tensor of every rank. It stays mapped as long as its group, a collective in it, or a tensor
//! on it is alive: each holds it by an [`Arc`].

use super::{
    layout::HEADER_BYTES,
    mmap::{Holder, SharedSegment},
};
use std::{fs::File, io, sync::Arc};
use tch::Tensor;

/// Most regions of a group.
pub(super) const REGIONS_MAX: usize = 1 << 16;

/// Shared memory with one tensor per rank.
#[derive(Debug)]
pub(super) struct SharedRegion {
    pub(super) segment: SharedSegment,
    /// Distance between the tensors of two ranks, in bytes.
    stride: usize,
    /// Number of the region in its group, from 1.
    number: usize,
}

impl SharedRegion {
    fn stride(tensor: &Tensor) -> usize {
        (tensor.numel() * tensor.kind().elt_size_in_bytes()).next_multiple_of(HEADER_BYTES)
    }

    /// Makes a region. Others can open it as long as the returned file is open.
    pub(super) fn create(tensor: &Tensor, size: u32, number: usize) -> io::Result<(Arc<Self>, File, Holder)> {
        let stride = Self::stride(tensor);
        let (segment, file, holder) = SharedSegment::create(HEADER_BYTES + size as usize * stride)?;
        Ok((Arc::new(Self { segment, stride, number }), file, holder))
    }

    pub(super) fn open(tensor: &Tensor, size: u32, number: usize, holder: Holder) -> io::Result<Arc<Self>> {
        let stride = Self::stride(tensor);
        let segment = SharedSegment::open(HEADER_BYTES + size as usize * stride, holder)?;
        Ok(Arc::new(Self { segment, stride, number }))
    }

    pub(super) fn at(&self, rank: u32) -> usize {
        HEADER_BYTES + rank as usize * self.stride
    }

    /// Returns the position of a tensor of `bytes` bytes at `address` within `rank`'s part, if it lies there.
    pub(super) fn find(&self, rank: u32, address: usize, bytes: usize) -> Option<usize> {
        let start = address.checked_sub(self.segment.address(self.at(rank)).addr())?;
        (start + bytes <= self.stride).then_some(start)
    }

    /// Returns a number that encodes the region and a position in it.
    pub(super) fn mark(&self, start: usize) -> u64 {
        (self.number as u64) << 40 | start as u64
    }
}
