//! Layout of the segment: a header, one line of words per rank, and for every slot one area per rank.
//!
//! Pure: no memory is touched here.

use std::ops::Range;

/// First word of a segment; changes with the layout.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"ennshm01");
/// Chunks in flight: one is added up, the next is being written, and a slow rank may still read the last.
pub(super) const SLOTS: u32 = 3;
/// Bytes of one rank's area in one slot, for two ranks; measured: smaller ones wait more often, larger ones leave the
/// second-level cache.
const CHUNK_BYTES: usize = 256 << 10;
/// Smallest area of a chunk in bytes, for many ranks.
const CHUNK_BYTES_MIN: usize = 64 << 10;
/// Most bytes of all areas of one slot; beyond that areas shrink.
const SLOT_BYTES_MAX: usize = 4 << 20;
/// Most ranks of one segment; beyond it Gloo's tree is the better shape.
pub(super) const RANKS_MAX: u32 = 256;
/// Most bytes of a collective, over all ranks, that every rank adds up itself, with one wait instead of two.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// Bytes of a cache line, in which shares begin.
const CACHE_LINE_BYTES: usize = 64;

/// Bytes of the header, also of a segment of tensors.
pub(crate) const HEADER_BYTES: usize = 4096;
const LINE_BYTES: usize = 512;

/// Position of [`MAGIC`] in the header.
pub(super) const MAGIC_AT: usize = 0;
/// Positions of two random words that identify the segment.
pub(super) const NONCE_AT: [usize; 2] = [8, 16];
/// Position of the segment's length, which its creator writes.
pub(super) const BYTES_AT: usize = 24;

/// The 32-bit words of one rank: counters, sleep and state, each in a cache line of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// Last chunk for which this rank has written its part.
    Arrived = 0,
    /// Last chunk for which this rank has added up its share.
    Added = 4,
    /// Last chunk that this rank has finished and reads no more.
    Done = 8,
    /// Counts up to wake the rank.
    Bell = 64,
    /// 1 while the rank sleeps, or is about to.
    Asleep = 68,
    /// State of the rank in the group; see `fault::RankState`.
    RankState = 128,
}

/// Layout of a segment for a number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentLayout {
    pub(super) ranks: usize,
    pub(super) chunk_bytes: usize,
}

impl SegmentLayout {
    pub(super) fn of(ranks: u32) -> Self {
        let ranks = ranks as usize;
        let fitting = SLOT_BYTES_MAX / ranks.max(1) / CHUNK_BYTES_MIN * CHUNK_BYTES_MIN;
        Self { ranks, chunk_bytes: fitting.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES) }
    }

    /// Returns the length of the segment in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.area(SLOTS, 0)
    }

    pub(super) fn word(&self, rank: u32, word: Word) -> usize {
        self.line(rank) + word as usize
    }

    /// Returns the positions of the three 64-bit words that describe `rank`'s call in the collective of a slot.
    pub(super) fn call(&self, rank: u32, slot: u32) -> [usize; 3] {
        let at = self.line(rank) + 192 + 24 * slot as usize;
        [at, at + 8, at + 16]
    }

    fn line(&self, rank: u32) -> usize {
        HEADER_BYTES + rank as usize * LINE_BYTES
    }

    /// Returns the position of `rank`'s area of a slot.
    pub(super) fn area(&self, slot: u32, rank: u32) -> usize {
        let areas = (HEADER_BYTES + self.ranks * LINE_BYTES).next_multiple_of(HEADER_BYTES);
        areas + (slot as usize * self.ranks + rank as usize) * self.chunk_bytes
    }

    /// Whether every rank adds up everything itself. That is faster for small collectives, and two ranks would
    /// otherwise send as many bytes and wait twice.
    pub(super) fn is_whole(&self, bytes: usize) -> bool {
        self.ranks <= 2 || bytes * self.ranks <= SMALL_BYTES_MAX
    }

    /// Returns the range of `count` numbers of `width` bytes that `rank` adds up.
    pub(super) fn share(&self, count: usize, width: usize, rank: u32) -> Range<usize> {
        let step = CACHE_LINE_BYTES / width;
        let each = count.div_ceil(self.ranks).next_multiple_of(step);
        let start = (rank as usize * each).min(count);
        start..(start + each).min(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once() {
        for ranks in [1, 2, 3, 7, 64, RANKS_MAX] {
            let layout = SegmentLayout::of(ranks);
            for (count, width) in [(0, 4), (1, 4), (15, 8), (16, 4), (17, 4), (1000, 8), (131_072, 4)] {
                let mut next = 0;
                for rank in 0..ranks {
                    let share = layout.share(count, width, rank);
                    assert_eq!(share.start, next.min(count), "{ranks} {count} {rank}");
                    next = share.end;
                }
                assert_eq!(next, count);
            }
        }
    }

    #[test]
    fn nothing_overlaps() {
        for ranks in [1, 2, 3, 16, RANKS_MAX] {
            let layout = SegmentLayout::of(ranks);
            assert!(
                layout.call(0, SLOTS - 1)[2] + 8 <= layout.word(1, Word::Arrived),
                "a call ends before the next line"
            );
            assert!(layout.call(ranks - 1, SLOTS - 1)[2] + 8 <= layout.area(0, 0));
            assert_eq!(layout.area(0, 0) % 4096, 0);
            assert_eq!(layout.area(0, ranks - 1) + layout.chunk_bytes, layout.area(1, 0));
            assert_eq!(layout.area(SLOTS - 1, ranks - 1) + layout.chunk_bytes, layout.bytes());
        }
    }
}
