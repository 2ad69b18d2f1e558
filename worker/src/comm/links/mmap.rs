//! Whose turn it is: for every pair of ranks, words in the host's memory that one writes and the other's device waits for.
//!
//! **Invariant:** a word counts up, with the number of the sum it stands for. Two sums of one array are never under way at once. A rank
//! that ends its waits says so to all before: what it tells afterwards may be wrong.

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
/// Where in the header, behind the segment's own words, the first rank that cut the group says so: its number and 1.
const CUT_AT: usize = 64;

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
    /// This rank cut the group.
    cut: AtomicBool,
}

/// Tells all ranks that this one cut the group, if none did before.
fn say_cut(segment: &Segment, rank: usize) {
    let word = segment.word32(CUT_AT);
    let _another_was_first = word.compare_exchange(0, rank as u32 + 1, Ordering::AcqRel, Ordering::Acquire);
}

/// The first rank that did.
fn cut_by(segment: &Segment) -> Option<u32> {
    segment.word32(CUT_AT).load(Ordering::Acquire).checked_sub(1)
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
        let issued = AtomicU32::new(0);
        let cut = AtomicBool::new(false);
        Ok(Self { words, segment, rank: rank as usize, size: size as usize, issued, cut })
    }

    fn place(&self, reader: usize, writer: usize, told: Told) -> usize {
        HEADER_BYTES + ((reader * self.size + writer) * 2 + told as usize) * WORD_BYTES
    }

    /// Address, for this rank's device, of the word that `writer` tells `reader` something with.
    pub(super) fn word(&self, reader: usize, writer: usize, told: Told) -> u64 {
        self.words.word(self.place(reader, writer, told))
    }

    /// Address, for this rank's device, of the word that is not 0 once any rank cut the group.
    pub(super) fn cut_word(&self) -> u64 {
        self.words.word(CUT_AT)
    }

    /// The next turn's number.
    pub(super) fn next(&self) -> u32 {
        self.issued.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Whether this rank cut the group.
    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    /// The first rank that cut the group, this one among them.
    pub(super) fn cut_by(&self) -> Option<u32> {
        cut_by(&self.segment)
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
        // Before the waits end: whoever sees what this device tells after a wait that ended so sees this word, too.
        say_cut(&self.segment, self.rank);
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ranks_see_who_cut_first() {
        let bytes = Turns::bytes(3);
        let (segment, _file, holder) = Segment::create(bytes).unwrap();
        let other = Segment::open(bytes, holder).unwrap();
        assert_eq!([&segment, &other].map(cut_by), [None; 2]);
        say_cut(&other, 2);
        say_cut(&segment, 0);
        assert_eq!([&segment, &other].map(cut_by), [Some(2); 2]);
        // What a segment is known by is left as it was.
        assert_eq!(cut_by(&Segment::open(bytes, holder).unwrap()), Some(2));
    }
}
