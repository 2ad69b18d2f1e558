//! Training rows of an optimizer step, and the share of this rank.
//!
//! An epoch is a keyed permutation of the training rows, or of the draws from weighted sources, cut into global
//! batches; the last batch is smaller when the rows do not divide evenly. A rank takes a contiguous share of each
//! batch. Shares have the same number of slots on every rank and in every step: the slots beyond the batch repeat its
//! first row with weight 0, so that shapes, and with them the recorded program, never change.

use super::{mix::Mix, permutation::Permutation};
use std::sync::Arc;

/// Position in the training: the complete state of the sampler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// Number of completed epochs.
    pub epoch: u64,
    /// Number of completed steps in the epoch.
    pub step: u64,
}

/// Parameters of the order, and the position of this rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sampler {
    /// Training rows, at least 1.
    pub rows: u64,
    /// Samples per optimizer step over all ranks, at least 1.
    pub batch: u64,
    pub seed: u64,
    pub rank: u64,
    pub world: u64,
    /// Micro-batches per rank and step, at least 1.
    pub accumulation: u64,
    /// Weighted sources; `None` for every row once per epoch.
    pub mix: Option<Arc<Mix>>,
}

struct EpochOrder<'a> {
    permutation: Permutation,
    sampler: &'a Sampler,
    epoch: u64,
}

impl EpochOrder<'_> {
    /// Returns the ordinal of the training row at a position of the epoch.
    fn at(&self, place: u64) -> u64 {
        let place = self.permutation.at(place);
        let Sampler { mix, seed, .. } = self.sampler;
        mix.as_ref().map_or(place, |mix| mix.ordinal(place, *seed, self.epoch))
    }
}

/// Rows of one rank in one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankBatch {
    /// Ordinals among the training rows, `Sampler::slots` of them.
    pub ordinals: Vec<u64>,
    /// Number of leading rows that count; the rest repeat a row with weight 0.
    pub real: usize,
}

impl Sampler {
    pub fn steps_per_epoch(&self) -> u64 {
        self.rows.div_ceil(self.batch)
    }

    /// Returns the number of slots in a rank's share, equal in every step and on every rank.
    pub fn slots(&self) -> u64 {
        self.micro_slots() * self.accumulation
    }

    pub fn micro_slots(&self) -> u64 {
        self.batch.div_ceil(self.world).div_ceil(self.accumulation)
    }

    /// Returns the number of samples in the global batch at `position`, which must be inside an epoch.
    pub fn samples(&self, position: Position) -> u64 {
        self.batch.min(self.rows.saturating_sub(position.step * self.batch))
    }

    fn order(&self, epoch: u64) -> EpochOrder<'_> {
        EpochOrder { permutation: Permutation::new(self.rows, self.seed, epoch), sampler: self, epoch }
    }

    /// Returns the global batch: ordinals in `0..rows`, independent of the number of ranks.
    pub fn global(&self, position: Position) -> Vec<u64> {
        let order = self.order(position.epoch);
        let start = (position.step * self.batch).min(self.rows);
        let end = (start + self.batch).min(self.rows);
        (start..end).map(|i| order.at(i)).collect()
    }

    /// Returns this rank's share of the global batch at `position`, which must be inside an epoch.
    pub fn share(&self, position: Position) -> RankBatch {
        let order = self.order(position.epoch);
        let start = position.step * self.batch;
        let end = (start + self.batch).min(self.rows);
        let per_rank = self.batch.div_ceil(self.world);
        let mine = (start + self.rank * per_rank).min(end)..(start + (self.rank + 1) * per_rank).min(end);
        let mut ordinals: Vec<u64> = mine.map(|i| order.at(i)).collect();
        let real = ordinals.len();
        ordinals.resize(self.slots() as usize, order.at(start));
        RankBatch { ordinals, real }
    }

    pub fn after(&self, position: Position) -> Position {
        if position.step + 1 < self.steps_per_epoch() {
            Position { step: position.step + 1, ..position }
        } else {
            Position { epoch: position.epoch + 1, step: 0 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sampler(rows: u64, batch: u64, world: u64) -> Sampler {
        Sampler { rows, batch, seed: 11, rank: 0, world, accumulation: 1, mix: None }
    }

    proptest! {
        #[test]
        fn each_row_once_per_epoch_in_every_world(
            rows in 1u64..400, batch in 1u64..70, world in 1u64..9, accumulation in 1u64..4, epoch in 0u64..5,
        ) {
            let base = Sampler { accumulation, ..sampler(rows, batch.min(rows), world) };
            let mut seen = vec![0u32; rows as usize];
            let mut position = Position { epoch, step: 0 };
            let mut steps = 0;
            while position.epoch == epoch {
                let mut joined = Vec::new();
                for rank in 0..world {
                    let ranked = Sampler { rank, ..base.clone() };
                    let share = ranked.share(position);
                    prop_assert_eq!(share.ordinals.len() as u64, ranked.slots());
                    prop_assert!(share.ordinals.iter().all(|&o| o < rows));
                    joined.extend_from_slice(&share.ordinals[..share.real]);
                }
                // The concatenated shares of the ranks equal the global batch of one rank.
                prop_assert_eq!(&joined, &sampler(rows, base.batch, 1).global(position));
                prop_assert_eq!(joined.len() as u64, base.samples(position));
                for ordinal in joined {
                    seen[ordinal as usize] += 1;
                }
                position = base.after(position);
                steps += 1;
            }
            prop_assert_eq!(steps, base.steps_per_epoch());
            prop_assert!(seen.iter().all(|&n| n == 1));
            prop_assert_eq!(position, Position { epoch: epoch + 1, step: 0 });
        }
    }

    proptest! {
        #[test]
        fn weighted_sources_are_drawn_as_often_as_they_weigh_in_every_world(
            rows in proptest::collection::vec(1u64..60, 2..5), batch in 1u64..30, world in 1u64..6, epoch in 0u64..4,
        ) {
            let weights: Vec<f64> = (0..rows.len()).map(|source| 1.0 + source as f64).collect();
            let total = rows.iter().sum();
            let mix = Some(Arc::new(Mix::new(&rows, &weights)));
            let base = Sampler { mix, ..sampler(total, batch.min(total), world) };
            let mut seen = vec![0u64; rows.len()];
            let mut position = Position { epoch, step: 0 };
            while position.epoch == epoch {
                let share = |rank| Sampler { rank, ..base.clone() }.share(position);
                let joined: Vec<u64> =
                    (0..world).map(share).flat_map(|share| share.ordinals.into_iter().take(share.real)).collect();
                prop_assert_eq!(&joined, &Sampler { world: 1, ..base.clone() }.global(position));
                for ordinal in joined {
                    let mut end = 0;
                    let of = |rows: &u64| { end += rows; ordinal < end };
                    seen[rows.iter().position(of).unwrap()] += 1;
                }
                position = base.after(position);
            }
            prop_assert_eq!(seen, enn_common::staged::mix::draws(&rows, &weights));
        }
    }

    #[test]
    fn epochs_differ_and_seeds_differ() {
        let one = sampler(100, 100, 1);
        let first = one.global(Position { epoch: 0, step: 0 });
        assert_ne!(first, one.global(Position { epoch: 1, step: 0 }));
        assert_ne!(first, Sampler { seed: 12, ..one.clone() }.global(Position { epoch: 0, step: 0 }));
        assert_eq!(first, one.global(Position { epoch: 0, step: 0 }));
    }
}
