//! Whose turn it is: for every pair of ranks, words in the host's memory that one writes and the other's device waits for.
//!
//! **Invariant:** a word counts up, with the number of the sum it stands for. Two sums of one array are never under way at once.

use crate::backend::link::{Gpu, LinkError, Words};
use crate::comm::{
    cut::Cut,
    shm::{layout::HEADER_BYTES, mmap::Segment},
};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// From one word to the next: each in a cache line of its own.
const WORD_BYTES: usize = 64;
/// So far beyond the turn at hand is the word of who waits for nobody any more.
const BEYOND: u32 = 1 << 30;

/// What a word tells of.
#[derive(Debug, Clone, Copy)]
pub(super) enum Told {
    /// A part lies in the reader's scratch.
    Part = 0,
    /// The sums of a part lie in the reader's array, and its own part was read.
    Sums = 1,
}

/// The words of all ranks.
#[derive(Debug)]
pub(super) struct Turns {
    words: Words,
    segment: Segment,
    rank: usize,
    size: usize,
    issued: AtomicU32,
    cut: AtomicBool,
}

impl Turns {
    /// Length of the segment for so many ranks.
    pub(super) fn bytes(size: u32) -> usize {
        let size = size as usize;
        HEADER_BYTES + size * size * 2 * WORD_BYTES
    }

    /// In a segment of that length.
    pub(super) fn new(gpu: Gpu, segment: Segment, (rank, size): (u32, u32)) -> Result<Self, LinkError> {
        // SAFETY: the segment is mapped as long as it lives, which is longer than the words do; all access is atomic.
        let words = unsafe { Words::new(gpu, segment.address(0), Self::bytes(size)) }?;
        let (issued, cut) = (AtomicU32::new(0), AtomicBool::new(false));
        Ok(Self { words, segment, rank: rank as usize, size: size as usize, issued, cut })
    }

    fn place(&self, reader: usize, writer: usize, told: Told) -> usize {
        HEADER_BYTES + ((reader * self.size + writer) * 2 + told as usize) * WORD_BYTES
    }

    /// Address, for this rank's device, of the word that `writer` tells `reader` something with.
    pub(super) fn word(&self, reader: usize, writer: usize, told: Told) -> u64 {
        self.words.word(self.place(reader, writer, told))
    }

    /// The next turn's number.
    pub(super) fn next(&self) -> u32 {
        self.issued.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    /// Ends every wait of this rank's device, until another rank writes again.
    pub(super) fn release(&self) {
        let beyond = self.issued.load(Ordering::Relaxed).wrapping_add(BEYOND);
        for writer in 0..self.size {
            for told in [Told::Part, Told::Sums] {
                self.segment.word32(self.place(self.rank, writer, told)).store(beyond, Ordering::Release);
            }
        }
    }
}

impl Cut for Turns {
    fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        self.release();
    }
}
