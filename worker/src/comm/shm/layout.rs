//! Where what lies in the segment: a header, one line of words per rank, and for every slot one area per rank.
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
/// A chunk of many ranks is not cut smaller than this per area.
const CHUNK_BYTES_MIN: usize = 64 << 10;
/// Bytes of all areas of one slot beyond which areas shrink.
const SLOT_BYTES_MAX: usize = 4 << 20;
/// Most ranks of one segment; beyond it Gloo's tree is the better shape.
pub(super) const RANKS_MAX: u32 = 256;
/// Bytes of a collective, over all ranks, up to which every rank adds everything up itself: one wait instead of two.
const SMALL_BYTES_MAX: usize = 64 << 10;
/// Bytes of a cache line, in which shares begin.
const CACHE_LINE_BYTES: usize = 64;

/// Room for the header, also of a segment of tensors.
pub(in crate::comm) const HEADER_BYTES: usize = 4096;
const LINE_BYTES: usize = 512;

/// Words of the header.
pub(super) const MAGIC_AT: usize = 0;
/// Two words that no other segment has.
pub(super) const NONCE_AT: [usize; 2] = [8, 16];
/// Length of the whole, written by whoever made it.
pub(super) const BYTES_AT: usize = 24;

/// The 32-bit words of one rank: counters, sleep and state, each in a cache line of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// Last chunk this rank has brought its part of.
    Arrived = 0,
    /// Last chunk this rank has added up its share of.
    Added = 4,
    /// Last chunk this rank is done with: it reads nothing of it any more.
    Done = 8,
    /// Counts up to wake the rank.
    Bell = 64,
    /// 1 while the rank sleeps, or is about to.
    Asleep = 68,
    /// How the rank stands to the group; see `fault::State`.
    State = 128,
}

/// What a segment of so many ranks looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) ranks: usize,
    pub(super) chunk_bytes: usize,
}

impl Layout {
    pub(super) fn of(ranks: u32) -> Self {
        let ranks = ranks as usize;
        let fitting = SLOT_BYTES_MAX / ranks.max(1) / CHUNK_BYTES_MIN * CHUNK_BYTES_MIN;
        Self { ranks, chunk_bytes: fitting.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES) }
    }

    /// Length of the whole.
    pub(super) fn bytes(&self) -> usize {
        self.area(SLOTS, 0)
    }

    pub(super) fn word(&self, rank: u32, word: Word) -> usize {
        self.line(rank) + word as usize
    }

    /// What `rank` calls in the collective that uses this slot: three 64-bit words.
    pub(super) fn call(&self, rank: u32, slot: u32) -> [usize; 3] {
        let at = self.line(rank) + 192 + 24 * slot as usize;
        [at, at + 8, at + 16]
    }

    fn line(&self, rank: u32) -> usize {
        HEADER_BYTES + rank as usize * LINE_BYTES
    }

    /// Where `rank`'s part of a chunk lies.
    pub(super) fn area(&self, slot: u32, rank: u32) -> usize {
        let areas = (HEADER_BYTES + self.ranks * LINE_BYTES).next_multiple_of(HEADER_BYTES);
        areas + (slot as usize * self.ranks + rank as usize) * self.chunk_bytes
    }

    /// Whether every rank adds up everything itself: what is small is sooner done so than shared out, and two ranks would
    /// otherwise send as many bytes and wait twice.
    pub(super) fn is_whole(&self, bytes: usize) -> bool {
        self.ranks <= 2 || bytes * self.ranks <= SMALL_BYTES_MAX
    }

    /// The part of `count` numbers of `width` bytes that `rank` adds up.
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
            let layout = Layout::of(ranks);
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
            let layout = Layout::of(ranks);
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
