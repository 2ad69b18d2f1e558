//! Which samples a fold tests, which validate and which train. Pure.
//!
//! *Units* are dealt to folds whole: a sample each, or all samples of a group. They are taken in the order of a keyed hash of
//! their names and go to the fold that has the fewest samples so far, so that folds differ by no more than a unit. Of the
//! others, units in the order of another keyed hash validate until the wanted share is reached. *Blocks* are runs of samples in
//! the order of time, of each source for itself; the last part of every block that is not tested validates.

use enn_common::staged::Split;
use twox_hash::XxHash3_64;

/// How samples come to folds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// By units: for each sample its unit, and for each unit a number that names it.
    Units {
        /// Unit of each sample.
        of: Vec<u32>,
        /// Name of each unit.
        names: Vec<i64>,
    },
    /// Runs of samples as equal as can be, in sources of so many samples.
    Blocks(Vec<usize>),
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wanted {
    pub folds: usize,
    /// Share of the samples outside a fold that validate.
    pub val: f64,
    /// Seed of the hashes.
    pub seed: u64,
}

/// For every fold the splits of all samples.
pub fn divide(rule: &Rule, wanted: Wanted) -> Vec<Vec<u8>> {
    match rule {
        Rule::Blocks(sources) => {
            let fold = |fold| sources.iter().flat_map(|samples| blocks(*samples, fold, wanted)).collect();
            (0..wanted.folds).map(fold).collect()
        }
        Rule::Units { of, names } => {
            let mut sizes = vec![0u64; names.len()];
            of.iter().for_each(|unit| sizes[*unit as usize] += 1);
            let fold_of = deal(names, &sizes, wanted);
            (0..wanted.folds).map(|fold| units(of, names, (&sizes, &fold_of), (fold, wanted))).collect()
        }
    }
}

/// The fold of every unit.
fn deal(names: &[i64], sizes: &[u64], wanted: Wanted) -> Vec<usize> {
    let mut filled = vec![0u64; wanted.folds];
    let mut fold_of = vec![0; names.len()];
    for unit in ordered(names, wanted.seed) {
        let fold = (0..wanted.folds).min_by_key(|fold| filled[*fold]).unwrap_or(0);
        filled[fold] += sizes[unit];
        fold_of[unit] = fold;
    }
    fold_of
}

fn units(of: &[u32], names: &[i64], (sizes, fold_of): (&[u64], &[usize]), (fold, wanted): (usize, Wanted)) -> Vec<u8> {
    let mut split: Vec<Split> =
        fold_of.iter().map(|found| if *found == fold { Split::Test } else { Split::Train }).collect();
    let rest: u64 = sizes.iter().zip(fold_of).filter(|(_, found)| **found != fold).map(|(size, _)| size).sum();
    let mut left = part(rest as usize, wanted.val) as u64;
    for unit in ordered(names, wanted.seed.wrapping_add(1 + fold as u64)) {
        if split[unit] == Split::Train && sizes[unit] <= left {
            split[unit] = Split::Val;
            left -= sizes[unit];
        }
    }
    of.iter().map(|unit| split[*unit as usize] as u8).collect()
}

fn blocks(samples: usize, fold: usize, wanted: Wanted) -> Vec<u8> {
    let edge = |block: usize| (samples as u128 * block as u128 / wanted.folds.max(1) as u128) as usize;
    let mut split = vec![Split::Train as u8; samples];
    for block in 0..wanted.folds {
        let first = edge(block);
        let end = edge(block + 1);
        if block == fold {
            split[first..end].fill(Split::Test as u8);
        } else {
            split[end - part(end - first, wanted.val)..end].fill(Split::Val as u8);
        }
    }
    split
}

fn part(samples: usize, share: f64) -> usize {
    ((samples as f64 * share).round() as usize).min(samples)
}

/// Units by the keyed hash of their names.
fn ordered(names: &[i64], seed: u64) -> Vec<usize> {
    let mut keyed: Vec<(u64, usize)> = names
        .iter()
        .enumerate()
        .map(|(unit, name)| (XxHash3_64::oneshot_with_seed(seed, &name.to_le_bytes()), unit))
        .collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, unit)| unit).collect()
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
            let wanted = Wanted { folds, val, seed };
            let rule = match by_blocks {
                true => Rule::Blocks(vec![groups.len()]),
                false => Rule::Units { of: groups.clone(), names: (0..9).collect() },
            };
            let divided = divide(&rule, wanted);
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
        let divided = divide(&rule, Wanted { folds: 10, val: 0.1, seed: 1 });
        for split in &divided {
            let tested = count(split, Split::Test);
            assert!((16..=17).contains(&tested), "{tested}");
            assert_eq!(count(split, Split::Val), 15);
        }
        assert_ne!(divided[0], divide(&rule, Wanted { folds: 10, val: 0.1, seed: 2 })[0]);
        assert_eq!(divided, divide(&rule, Wanted { folds: 10, val: 0.1, seed: 1 }));
    }

    #[test]
    fn blocks_follow_time_and_validate_their_ends() {
        let wanted = Wanted { folds: 2, val: 0.4, seed: 0 };
        let divided = divide(&Rule::Blocks(vec![10]), wanted);
        assert_eq!(divided, [[2, 2, 2, 2, 2, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 2, 2, 2, 2, 2]]);
        // Every fold has its part of each source.
        let divided = divide(&Rule::Blocks(vec![4, 6]), wanted);
        assert_eq!(divided, [[2, 2, 0, 1, 2, 2, 2, 0, 0, 1], [0, 1, 2, 2, 0, 0, 1, 2, 2, 2]]);
    }
}
