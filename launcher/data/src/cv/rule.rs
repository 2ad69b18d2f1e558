//! Assignment of samples to test, validation and training, for every fold. Pure.
//!
//! A *unit*, a sample or all samples of a group, belongs to one fold as a whole. Units are assigned in the order of a keyed hash of
//! their names to the fold that has the fewest samples so far, so that fold sizes differ by at most one unit. Of the
//! other units, taken in the order of another keyed hash, validation gets as many as its share allows. *Blocks* are runs of samples in
//! the order of time, of each source separately; the last part of every block that is not tested is validation.

use crate::stage::hash_order;
use enn_common::staged::Split;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    Units {
        /// Index of each sample's unit.
        of: Vec<u32>,
        /// Number that names each unit, by index.
        names: Vec<i64>,
    },
    /// Contiguous blocks of nearly equal size within each source; the numbers are the sources' samples.
    Blocks(Vec<usize>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FoldSpec {
    pub folds: usize,
    /// Share of validation among the samples outside a fold, in [0, 1].
    pub val: f64,
    pub seed: u64,
}

pub fn divide(rule: &Rule, spec: FoldSpec) -> Vec<Vec<u8>> {
    match rule {
        Rule::Blocks(sources) => {
            let fold = |fold| sources.iter().flat_map(|samples| blocks(*samples, fold, spec)).collect();
            (0..spec.folds).map(fold).collect()
        }
        Rule::Units { of, names } => {
            let mut sizes = vec![0u64; names.len()];
            of.iter().for_each(|unit| sizes[*unit as usize] += 1);
            let fold_of = deal(names, &sizes, spec);
            (0..spec.folds).map(|fold| units(of, names, &sizes, &fold_of, fold, spec)).collect()
        }
    }
}

fn deal(names: &[i64], sizes: &[u64], spec: FoldSpec) -> Vec<usize> {
    let mut filled = vec![0u64; spec.folds];
    let mut fold_of = vec![0; names.len()];
    for unit in hash_order(names.iter().copied(), spec.seed) {
        let fold = (0..spec.folds).min_by_key(|fold| filled[*fold]).unwrap_or(0);
        filled[fold] += sizes[unit];
        fold_of[unit] = fold;
    }
    fold_of
}

fn units(of: &[u32], names: &[i64], sizes: &[u64], fold_of: &[usize], fold: usize, spec: FoldSpec) -> Vec<u8> {
    let mut split: Vec<Split> =
        fold_of.iter().map(|found| if *found == fold { Split::Test } else { Split::Train }).collect();
    let rest: u64 = sizes.iter().zip(fold_of).filter(|(_, found)| **found != fold).map(|(size, _)| size).sum();
    let mut left = part(rest as usize, spec.val) as u64;
    for unit in hash_order(names.iter().copied(), spec.seed.wrapping_add(1 + fold as u64)) {
        if split[unit] == Split::Train && sizes[unit] <= left {
            split[unit] = Split::Val;
            left -= sizes[unit];
        }
    }
    of.iter().map(|unit| split[*unit as usize] as u8).collect()
}

fn blocks(samples: usize, fold: usize, spec: FoldSpec) -> Vec<u8> {
    let edge = |block: usize| (samples as u128 * block as u128 / spec.folds.max(1) as u128) as usize;
    let mut split = vec![Split::Train as u8; samples];
    for block in 0..spec.folds {
        let first = edge(block);
        let end = edge(block + 1);
        if block == fold {
            split[first..end].fill(Split::Test as u8);
        } else {
            split[end - part(end - first, spec.val)..end].fill(Split::Val as u8);
        }
    }
    split
}

fn part(samples: usize, share: f64) -> usize {
    ((samples as f64 * share).round() as usize).min(samples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn count(split: &[u8], of: Split) -> usize {
        split.iter().filter(|code| **code == of as u8).count()
    }

    proptest! {
        #[test]
        fn every_sample_is_tested_once_and_groups_stay_together(
            groups in proptest::collection::vec(0u32..9, 9..120),
            folds in 2usize..6,
            val in 0.0f64..0.5,
            seed: u64,
            by_blocks: bool,
        ) {
            let spec = FoldSpec { folds, val, seed };
            let rule = match by_blocks {
                true => Rule::Blocks(vec![groups.len()]),
                false => Rule::Units { of: groups.clone(), names: (0..9).collect() },
            };
            let divided = divide(&rule, spec);
            for row in 0..groups.len() {
                prop_assert_eq!(divided.iter().filter(|split| split[row] == Split::Test as u8).count(), 1);
            }
            for split in &divided {
                let rest = groups.len() - count(split, Split::Test);
                // A block rounds on its own.
                let most = rest as f64 * val + 0.5 * folds as f64;
                prop_assert!(count(split, Split::Val) as f64 <= most, "{} of {rest}, {val}", count(split, Split::Val));
                if !by_blocks {
                    for (a, of_a) in groups.iter().zip(split) {
                        prop_assert!(groups.iter().zip(split).all(|(b, of_b)| a != b || of_a == of_b));
                    }
                }
            }
        }
    }

    #[test]
    fn folds_of_samples_are_equal_and_depend_on_the_seed() {
        let rule = Rule::Units { of: (0..168).collect(), names: (0..168).collect() };
        let divided = divide(&rule, FoldSpec { folds: 10, val: 0.1, seed: 1 });
        for split in &divided {
            let tested = count(split, Split::Test);
            assert!((16..=17).contains(&tested), "{tested}");
            assert_eq!(count(split, Split::Val), 15);
        }
        assert_ne!(divided[0], divide(&rule, FoldSpec { folds: 10, val: 0.1, seed: 2 })[0]);
        assert_eq!(divided, divide(&rule, FoldSpec { folds: 10, val: 0.1, seed: 1 }));
    }

    #[test]
    fn blocks_follow_time_and_validate_their_ends() {
        let spec = FoldSpec { folds: 2, val: 0.4, seed: 0 };
        let divided = divide(&Rule::Blocks(vec![10]), spec);
        assert_eq!(divided, [[2, 2, 2, 2, 2, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 2, 2, 2, 2, 2]]);
        // Every fold has its part of each source.
        let divided = divide(&Rule::Blocks(vec![4, 6]), spec);
        assert_eq!(divided, [[2, 2, 0, 1, 2, 2, 2, 0, 0, 1], [0, 1, 2, 2, 0, 0, 1, 2, 2, 2]]);
    }
}
