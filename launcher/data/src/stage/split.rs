//! Assignment of samples to training, validation and test. Pure.

use super::timestamp;
use enn_common::{config::data::SplitConfig, staged::Split};
use std::ops::Range;
use twox_hash::XxHash3_64;

/// Number of blocks of the blocked split for rows without a time.
const BLOCKS: u64 = 12;

/// Returns the split of a sample or a group by a keyed hash of its name, independent of other samples.
pub(crate) fn by_hash(config: &SplitConfig, name: &[u8]) -> Split {
    let hash = XxHash3_64::oneshot_with_seed(config.seed, name);
    // The upper 53 bits give a uniform number in [0, 1).
    let place = (hash >> 11) as f64 / (1u64 << 53) as f64;
    if place < config.test {
        Split::Test
    } else if place < config.test + config.val {
        Split::Val
    } else {
        Split::Train
    }
}

pub(crate) fn by_name(name: &str) -> Split {
    Split::ALL.into_iter().find(|split| split.name() == name).unwrap_or(Split::Train)
}

/// Returns the indices of `names` in the order of the names' keyed hashes.
pub(crate) fn hash_order(names: impl Iterator<Item = i64>, seed: u64) -> Vec<usize> {
    let hash = |name: i64| XxHash3_64::oneshot_with_seed(seed, &name.to_le_bytes());
    let mut keyed: Vec<(u64, usize)> = names.map(hash).zip(0..).collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, index)| index).collect()
}

/// Assigns training first, then validation, then test; sizes are rounded to the nearest sample.
pub(crate) fn chronological(config: &SplitConfig, samples: Range<u64>) -> [(Range<u64>, Split); 3] {
    let count = samples.end - samples.start;
    let part = |fraction: f64| ((fraction * count as f64).round() as u64).min(count);
    let test = part(config.test);
    let val = part(config.val).min(count - test);
    let to_val = samples.end - test - val;
    let to_test = samples.end - test;
    [(samples.start..to_val, Split::Train), (to_val..to_test, Split::Val), (to_test..samples.end, Split::Test)]
}

/// Splits each of twelve equal parts chronologically.
pub(crate) fn blocked_rows(config: &SplitConfig, samples: Range<u64>) -> Vec<(Range<u64>, Split)> {
    let count = u128::from(samples.end - samples.start);
    let edge = |block: u64| samples.start + (count * u128::from(block) / u128::from(BLOCKS)) as u64;
    (0..BLOCKS).flat_map(|block| chronological(config, edge(block)..edge(block + 1))).collect()
}

/// Splits each calendar month chronologically; `starts` are the times of the samples from `first` on, Unix seconds, ascending.
pub(crate) fn blocked_months(config: &SplitConfig, mut first: u64, starts: &[i64]) -> Vec<(Range<u64>, Split)> {
    let month = |start: &i64| {
        let day = timestamp::civil(*start);
        (day.year, day.month)
    };
    let mut parts = Vec::new();
    for block in starts.chunk_by(|a, b| month(a) == month(b)) {
        let end = first + block.len() as u64;
        parts.extend(chronological(config, first..end));
        first = end;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::config::data::SplitKind;
    use proptest::prelude::*;

    fn config(val: f64, test: f64) -> SplitConfig {
        SplitConfig { kind: SplitKind::Random, val, test, seed: 7, column: None }
    }

    #[test]
    fn a_hash_keeps_its_answer_and_its_fractions() {
        let config = config(0.2, 0.1);
        let splits: Vec<Split> = (0..10_000i64).map(|id| by_hash(&config, &id.to_le_bytes())).collect();
        let share = |split| splits.iter().filter(|other| **other == split).count();
        assert!((1850..2150).contains(&share(Split::Val)) && (900..1100).contains(&share(Split::Test)));
        // Pinned: another answer would move samples between splits of data sets staged before.
        assert_eq!(splits[..8].iter().map(|split| *split as u8).collect::<Vec<u8>>(), PINNED);
    }

    const PINNED: [u8; 8] = [1, 0, 0, 1, 0, 1, 0, 0];

    #[test]
    fn months_are_blocks() {
        let day = |text: &str| timestamp::parse(text.as_bytes()).unwrap();
        let starts: Vec<i64> = (0..59).map(|i| day("2013-01-01") + i * timestamp::DAY_S).collect();
        let parts = blocked_months(&config(0.15, 0.15), 0, &starts);
        // 0.15 × 31 = 4.65 → 5; 0.15 × 28 = 4.2 → 4.
        let sizes: Vec<u64> = parts.iter().map(|(range, _)| range.end - range.start).collect();
        assert_eq!(sizes, [21, 5, 5, 20, 4, 4]);
        assert_eq!(parts[3], (31..51, Split::Train));
    }

    proptest! {
        #[test]
        fn every_sample_is_in_exactly_one_part(samples in 0u64..500, val in 0.0f64..0.9, test in 0.0f64..0.9) {
            let config = config(val, test);
            for parts in [chronological(&config, 0..samples).to_vec(), blocked_rows(&config, 0..samples)] {
                let mut next = 0;
                for (range, _) in parts {
                    prop_assert_eq!(range.start, next);
                    prop_assert!(range.end >= range.start);
                    next = range.end;
                }
                prop_assert_eq!(next, samples);
            }
        }
    }
}
