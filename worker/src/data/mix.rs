//! Which row of which source an epoch draws: sources by weight, and the rows of a source in passes that have each of them once.
//!
//! **Invariant:** the draws of a source go on where the epoch before left them, so that no row of it is drawn a second time before
//! all are drawn once; nothing but (seed, epoch, place) says which.

use super::permutation::Permutation;
use enn_common::mix::mix;
use enn_common::staged::mix::draws;

/// Sources with weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mix {
    parts: Vec<Part>,
}

/// The training rows of one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    /// First ordinal among all training rows, and their number.
    rows: (u64, u64),
    /// First place in an epoch before it is mixed, and draws of an epoch.
    draws: (u64, u64),
}

impl Mix {
    /// Of sources with so many training rows, one below the other.
    pub fn new(rows: &[u64], weights: &[f64]) -> Self {
        let mut first_row = 0;
        let mut first_draw = 0;
        let parts = rows.iter().zip(draws(rows, weights)).map(|(&rows, draws)| {
            let part = Part { rows: (first_row, rows), draws: (first_draw, draws) };
            first_row = first_row + rows;
            first_draw = first_draw + draws;
            part
        });
        Self { parts: parts.collect() }
    }

    /// The training row drawn at a place of an epoch before the epoch's own permutation.
    pub fn ordinal(&self, place: u64, seed: u64, epoch: u64) -> u64 {
        let index = self.parts.partition_point(|part| part.draws.0 <= place).saturating_sub(1);
        let Part { rows: (first, rows), draws: (start, draws) } = self.parts[index];
        // An epoch has fewer draws than 2⁶⁴ has epochs: beyond it the passes would begin anew.
        let draw = epoch.wrapping_mul(draws).wrapping_add(place - start);
        let order = Permutation::new(rows, mix(seed ^ mix(index as u64 + 1)), draw / rows);
        first + order.at(draw % rows)
    }

    /// What the order depends on: rows and draws of each source.
    pub fn numbers(&self) -> Vec<i64> {
        self.parts.iter().flat_map(|part| [part.rows.1, part.draws.1]).map(u64::cast_signed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_a_source_comes_once_in_a_pass_over_any_number_of_epochs() {
        // 12 and 5 rows; an epoch of 17 draws 5 and 12 of them.
        let mix = Mix::new(&[12, 5], &[5.0, 12.0]);
        assert_eq!(mix.numbers(), [12, 5, 5, 12]);
        let mut seen = [0u64; 17];
        for epoch in 0..60 {
            (0..17).for_each(|place| seen[mix.ordinal(place, 9, epoch) as usize] += 1);
        }
        // 300 draws of 12 rows, 720 of 5.
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
