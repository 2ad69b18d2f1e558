//! How many samples of each source an epoch draws. Pure.

/// Samples drawn of sources with so many training rows: together as many as there are rows, by weight, rounded by the largest
/// remainders. A source without training rows gives nothing, whatever its weight.
pub fn draws(rows: &[u64], weights: &[f64]) -> Vec<u64> {
    let total: u64 = rows.iter().sum();
    let weights: Vec<f64> =
        rows.iter().zip(weights).map(|(rows, weight)| if *rows == 0 { 0.0 } else { *weight }).collect();
    let sum: f64 = weights.iter().sum();
    let exact: Vec<f64> = weights.iter().map(|weight| total as f64 * (weight / sum)).collect();
    let mut draws: Vec<u64> = exact.iter().map(|exact| exact.floor() as u64).collect();
    let mut order: Vec<usize> = (0..rows.len()).filter(|source| rows[*source] > 0).collect();
    // Sorting is stable: of equal remainders the first source's counts.
    order.sort_by(|a, b| (exact[*b] - exact[*b].floor()).total_cmp(&(exact[*a] - exact[*a].floor())));
    let missing = total.saturating_sub(draws.iter().sum());
    for source in order.into_iter().cycle().take(missing as usize) {
        draws[source] += 1;
    }
    draws
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn weights_are_shares_of_an_epoch() {
        assert_eq!(draws(&[900, 100], &[1.0, 1.0]), [500, 500]);
        assert_eq!(draws(&[900, 100], &[9.0, 1.0]), [900, 100]);
        assert_eq!(draws(&[5, 5, 0], &[1.0, 2.0, 7.0]), [3, 7, 0]);
        assert_eq!(draws(&[1, 1, 1], &[1.0, 1.0, 1.0]), [1, 1, 1]);
    }

    proptest! {
        #[test]
        fn an_epoch_is_as_long_as_without_weights(
            sources in proptest::collection::vec((0u64..1_000_000, 1e-6f64..1e6), 1..20),
        ) {
            let (rows, weights): (Vec<u64>, Vec<f64>) = sources.into_iter().unzip();
            let found = draws(&rows, &weights);
            prop_assert_eq!(found.iter().sum::<u64>(), rows.iter().sum::<u64>());
            for (found, rows) in found.iter().zip(&rows) {
                prop_assert!(*rows > 0 || *found == 0);
            }
        }
    }
}
