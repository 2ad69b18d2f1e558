//! Random numbers that depend on nothing but the seed.

use std::time::Duration;

/// A generator of the xorshift64* family.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    /// Makes the generator of a seed. Neighbouring seeds have nothing in common.
    pub(super) fn new(seed: u64) -> Self {
        let mixed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        Self((mixed ^ (mixed >> 31)) | 1)
    }

    /// Returns a number below `limit`; 0 where that is 0.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit.max(1)
    }

    /// Returns a number from `low` to `high`, both included.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true once in `chances` times.
    pub(super) fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    /// Returns a time from `low` to `high`, with a resolution of a microsecond.
    pub(super) fn time(&mut self, low: Duration, high: Duration) -> Duration {
        let span = u64::try_from(high.saturating_sub(low).as_micros()).unwrap_or(u64::MAX);
        low + Duration::from_micros(self.below(span + 1))
    }

    /// Returns a time up to so many milliseconds.
    pub(super) fn up_to_ms(&mut self, high: u64) -> Duration {
        self.time(Duration::ZERO, Duration::from_millis(high))
    }

    /// Returns one of `list`, which is not empty.
    pub(super) fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        let index = self.below(list.len() as u64);
        list[usize::try_from(index).unwrap_or(0)].clone()
    }
}
