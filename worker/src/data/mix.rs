//! Weighted mixing of sources: an epoch draws sources by weight, and the rows of a source in passes that contain each
//! row once.
//!
//! **Invariant:** the draws of a source continue where the previous epoch ended, so that no row is drawn a second time
//! before all are drawn once. The draws depend on (seed, epoch, position) only.

use super::permutation::Permutation;
use enn_common::mix::mix;
use enn_common::staged::mix::draws;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mix {
    parts: Vec<MixSource>,
}

/// Training rows of one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MixSource {
    /// First ordinal among all training rows, and number of rows.
    rows: (u64, u64),
    /// First position in an epoch before it is permuted, and number of draws per epoch.
    draws: (u64, u64),
}

impl Mix {
    /// Creates a mix of sources with these numbers of training rows, which are stored one after the other.
    pub fn new(rows: &[u64], weights: &[f64]) -> Self {
        let mut first_row = 0;
        let mut first_draw = 0;
        let parts = rows.iter().zip(draws(rows, weights)).map(|(&rows, draws)| {
            let part = MixSource { rows: (first_row, rows), draws: (first_draw, draws) };
            first_row += rows;
            first_draw += draws;
            part
        });
        Self { parts: parts.collect() }
    }

    /// Returns the training row drawn at a position of an epoch, before the epoch's own permutation.
    pub fn ordinal(&self, place: u64, seed: u64, epoch: u64) -> u64 {
        let index = self.parts.partition_point(|part| part.draws.0 <= place).saturating_sub(1);
        let MixSource { rows: (first, rows), draws: (start, draws) } = self.parts[index];
        // Draws wrap around at 2⁶⁴; beyond that the passes would restart.
        let draw = epoch.wrapping_mul(draws).wrapping_add(place - start);
        let order = Permutation::new(rows, mix(seed ^ mix(index as u64 + 1)), draw / rows);
        first + order.at(draw % rows)
    }

    /// Returns the numbers that determine the order: rows and draws of each source.
    pub fn numbers(&self) -> Vec<i64> {
        self.parts.iter().flat_map(|part| [part.rows.1, part.draws.1]).map(u64::cast_signed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_a_source_comes_once_in_a_pass_over_any_number_of_epochs() {
        // The sources have 12 and 5 rows; an epoch of 17 draws takes 5 and 12 of them.
        let mix = Mix::new(&[12, 5], &[5.0, 12.0]);
        assert_eq!(mix.numbers(), [12, 5, 5, 12]);
        let mut seen = [0u64; 17];
        for epoch in 0..60 {
            (0..17).for_each(|place| seen[mix.ordinal(place, 9, epoch) as usize] += 1);
        }
        // There are 300 draws of 12 rows, and 720 of 5.
        assert_eq!(seen[..12], [25; 12]);
        assert_eq!(seen[12..], [144; 5]);
        let row = |epoch| (0..5).map(|place| mix.ordinal(place, 9, epoch)).collect::<Vec<u64>>();
        assert_ne!(row(0), row(1));
    }

    #[test]
    fn a_source_that_gives_nothing_is_passed_over() {
        let mix = Mix::new(&[0, 4, 0, 2], &[3.0, 1.0, 1.0, 2.0]);
        let mut drawn: Vec<u64> = (0..6).map(|place| mix.ordinal(place, 1, 0)).collect();
        drawn.sort_unstable();
        assert_eq!(drawn.iter().filter(|row| **row >= 4).count(), 4);
        assert!(drawn.iter().all(|row| *row < 6));
    }
}
