//! A set of row numbers, one bit each.

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// Creates an empty set for numbers below `count`.
    pub(crate) fn new(count: u64) -> Self {
        Self { words: vec![0; usize::try_from(count.div_ceil(64)).unwrap_or(0)] }
    }

    pub(crate) fn get(&self, index: u64) -> bool {
        self.words.get((index / 64) as usize).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    /// Inserts a number; returns whether it was in the set before.
    pub(crate) fn set(&mut self, index: u64) -> bool {
        let bit = 1 << (index % 64);
        let word = &mut self.words[(index / 64) as usize];
        let before = *word & bit != 0;
        *word |= bit;
        before
    }

    pub(crate) fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}
