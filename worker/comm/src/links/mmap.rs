//! Synchronisation words: for every pair of ranks, words in host memory that one writes and the other's device waits for.
//!
//! **Invariant:** a word counts up and holds the number of a turn. Two sums of one array are never in flight at once. A rank that
//! ends its waits announces this to all ranks first, since words that it writes afterwards may be wrong.

use crate::{
    abort::AbortHandle,
    shm::{layout::HEADER_BYTES, mmap::SharedSegment},
};
use enn_core::backend::link::{Gpu, LinkError, Words};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Distance between two words, in bytes: each has a cache line of its own.
const WORD_BYTES: usize = 64;
/// Distance by which a rank that ends its waits moves the words beyond the current turn.
const BEYOND: u32 = 1 << 30;
/// Byte in the header, after the segment's own words, of the word with the number of the first rank that aborted the group, plus 1.
const ABORT_AT: usize = 64;

/// The event that a word announces.
#[derive(Debug, Clone, Copy)]
pub(super) enum WordKind {
    /// A part lies in the reader's scratch.
    Part = 0,
    /// The sums of a part lie in the reader's array, and its own part was read.
    Sums = 1,
}

/// The synchronisation words of all ranks.
#[derive(Debug)]
pub(super) struct TurnWords {
    words: Words,
    segment: SharedSegment,
    rank: usize,
    size: usize,
    issued: AtomicU32,
    /// Whether this rank aborted the group.
    aborted: AtomicBool,
}

/// Announces to all ranks that this one aborted the group, unless another did before.
fn announce_abort(segment: &SharedSegment, rank: usize) {
    let word = segment.word32(ABORT_AT);
    let _another_was_first = word.compare_exchange(0, rank as u32 + 1, Ordering::AcqRel, Ordering::Acquire);
}

/// Returns the first rank that aborted the group.
fn aborted_by(segment: &SharedSegment) -> Option<u32> {
    segment.word32(ABORT_AT).load(Ordering::Acquire).checked_sub(1)
}

impl TurnWords {
    /// Length of the segment for so many ranks.
    pub(super) fn bytes(size: u32) -> usize {
        let size = size as usize;
        HEADER_BYTES + size * size * 2 * WORD_BYTES
    }

    pub(super) fn new(gpu: Gpu, segment: SharedSegment, rank: u32, size: u32) -> Result<Self, LinkError> {
        // SAFETY: the segment is mapped as long as it lives, which is longer than the words do; all access is atomic.
        let words = unsafe { Words::new(gpu, segment.address(0), Self::bytes(size)) }?;
        let issued = AtomicU32::new(0);
        let aborted = AtomicBool::new(false);
        Ok(Self { words, segment, rank: rank as usize, size: size as usize, issued, aborted })
    }

    fn place(&self, reader: usize, writer: usize, event: WordKind) -> usize {
        HEADER_BYTES + ((reader * self.size + writer) * 2 + event as usize) * WORD_BYTES
    }

    /// Returns the address, for this rank's device, of the word that `writer` writes for `reader`.
    pub(super) fn word(&self, reader: usize, writer: usize, event: WordKind) -> u64 {
        self.words.word(self.place(reader, writer, event))
    }

    /// Returns the address, for this rank's device, of the word that is not 0 once any rank aborted the group.
    pub(super) fn abort_word(&self) -> u64 {
        self.words.word(ABORT_AT)
    }

    /// Returns the number of the next turn.
    pub(super) fn next(&self) -> u32 {
        self.issued.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Returns the first rank that aborted the group, which may be this one.
    pub(super) fn aborted_by(&self) -> Option<u32> {
        aborted_by(&self.segment)
    }

    /// Ends every wait of this rank's device, until another rank writes again.
    pub(super) fn release(&self) {
        let beyond = self.issued.load(Ordering::Relaxed).wrapping_add(BEYOND);
        for writer in 0..self.size {
            for event in [WordKind::Part, WordKind::Sums] {
                self.segment.word32(self.place(self.rank, writer, event)).store(beyond, Ordering::Release);
            }
        }
    }
}

impl AbortHandle for TurnWords {
    fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        // The announcement precedes the end of the waits: a rank that sees a word written after such a wait also sees the announcement.
        announce_abort(&self.segment, self.rank);
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ranks_see_who_cut_first() {
        let bytes = TurnWords::bytes(3);
        let (segment, _file, holder) = SharedSegment::create(bytes).unwrap();
        let other = SharedSegment::open(bytes, holder).unwrap();
        assert_eq!([&segment, &other].map(aborted_by), [None; 2]);
        announce_abort(&other, 2);
        announce_abort(&segment, 0);
        assert_eq!([&segment, &other].map(aborted_by), [Some(2); 2]);
        // What a segment is known by is left as it was.
        assert_eq!(aborted_by(&SharedSegment::open(bytes, holder).unwrap()), Some(2));
    }
}
