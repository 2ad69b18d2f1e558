//! Sharded arrays: a rank keeps only its share, and the memory of whole arrays is allocated at times.

use crate::autograd::ShardedBuffer;
use tch::{TchError, Tensor};

/// Sharded arrays of one tree; empty where everything is kept whole.
#[derive(Debug, Default)]
pub(super) struct ShardedStorage {
    buffers: Vec<ShardedBuffer>,
    /// Whether whole arrays are allocated, independent of steps.
    filled: bool,
}

impl ShardedStorage {
    /// Takes over arrays whose memory was freed.
    pub(super) fn new(buffers: Vec<ShardedBuffer>) -> Self {
        Self { buffers, filled: false }
    }

    /// Allocates whole arrays: this rank's share is in its place, and the rest is zero.
    pub(super) fn fill(&mut self) -> Result<(), TchError> {
        self.filled = true;
        self.buffers.iter().try_for_each(ShardedBuffer::fill)
    }

    /// Frees the memory of whole arrays.
    pub(super) fn empty(&mut self) -> Result<(), TchError> {
        self.filled = false;
        self.buffers.iter().try_for_each(|buffer| buffer.set_allocated(false))
    }

    /// Returns the arrays whose memory is allocated only during a step.
    pub(super) fn unallocated(&self) -> &[ShardedBuffer] {
        if self.filled { &[] } else { &self.buffers }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    /// Returns this rank's shards of at most `count` arrays from array `first` on.
    pub(super) fn kept(&self, first: usize, count: usize) -> Vec<&Tensor> {
        self.buffers.iter().skip(first).take(count).flat_map(ShardedBuffer::shards).collect()
    }
}
