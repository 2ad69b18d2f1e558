//! The mean of every cell, which is a baseline, and the level from which regressions start.

use enn_common::staged::Staged;

/// Returns the mean of every cell over valid training rows; a cell without valid rows gets the mean of the other cells' means.
pub(super) fn cell_means(staged: &Staged, train: &[usize]) -> Vec<f64> {
    let mut sums = vec![(0.0, 0u64); staged.outputs()];
    for row in train {
        for ((sum, n), (value, valid)) in sums.iter_mut().zip(staged.y_row(*row).iter().zip(staged.y_mask_row(*row))) {
            if *valid != 0 {
                *sum += f64::from(*value);
                *n += 1;
            }
        }
    }
    let seen: Vec<f64> = sums.iter().filter(|(_, n)| *n > 0).map(|(sum, n)| sum / *n as f64).collect();
    let overall = seen.iter().sum::<f64>() / seen.len().max(1) as f64;
    sums.iter().map(|(sum, n)| if *n > 0 { sum / *n as f64 } else { overall }).collect()
}
