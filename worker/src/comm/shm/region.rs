//! Tensors that lie in memory of all ranks, such as gradients: reduced where they are, without a copy.
//!
//! A region holds the same tensor of every rank. It stays mapped as long as its group, the collectives in it, or a tensor
//! on it: each holds it by an [`Arc`].

use super::{
    layout::HEADER_BYTES,
    mmap::{Holder, Segment},
};
use std::{fs::File, io, sync::Arc};
use tch::Tensor;

/// Most regions of a group.
pub(super) const REGIONS_MAX: usize = 1 << 16;

/// One tensor per rank.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) segment: Segment,
    /// From one rank's tensor to the next one's.
    stride: usize,
    /// Number of the region in its group, from 1.
    number: usize,
}

impl Region {
    fn stride(tensor: &Tensor) -> usize {
        (tensor.numel() * tensor.kind().elt_size_in_bytes()).next_multiple_of(HEADER_BYTES)
    }

    /// Makes a region; the file gives others a way to it as long as it is open.
    pub(super) fn create(tensor: &Tensor, size: u32, number: usize) -> io::Result<(Arc<Self>, File, Holder)> {
        let stride = Self::stride(tensor);
        let (segment, file, holder) = Segment::create(HEADER_BYTES + size as usize * stride)?;
        Ok((Arc::new(Self { segment, stride, number }), file, holder))
    }

    /// Maps the region of `holder`.
    pub(super) fn open(tensor: &Tensor, size: u32, number: usize, holder: Holder) -> io::Result<Arc<Self>> {
        let stride = Self::stride(tensor);
        let segment = Segment::open(HEADER_BYTES + size as usize * stride, holder)?;
        Ok(Arc::new(Self { segment, stride, number }))
    }

    /// Where `rank`'s tensor begins.
    pub(super) fn at(&self, rank: u32) -> usize {
        HEADER_BYTES + rank as usize * self.stride
    }

    /// Where a tensor of so many bytes at `address` begins within `rank`'s part, if it lies there.
    pub(super) fn find(&self, rank: u32, address: usize, bytes: usize) -> Option<usize> {
        let start = address.checked_sub(self.segment.address(self.at(rank)).addr())?;
        (start + bytes <= self.stride).then_some(start)
    }

    /// A number that says which region, and where in it.
    pub(super) fn mark(&self, start: usize) -> u64 {
        (self.number as u64) << 40 | start as u64
    }
}
