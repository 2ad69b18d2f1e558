//! The order of forecasters by their errors, and the best of the baselines among them.

use super::cv::MODEL;
use crate::metrics::Metrics;
use std::collections::BTreeMap;

/// A forecaster and its errors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankedForecaster<'a> {
    pub name: &'a str,
    pub metrics: &'a Metrics,
}

impl RankedForecaster<'_> {
    /// Returns the figure by which forecasters are compared.
    pub fn judged(&self) -> f64 {
        self.metrics.judged()
    }
}

/// Returns forecasters, best first; those whose error is no number come last.
pub fn ranked(errors: &BTreeMap<String, Metrics>) -> Vec<RankedForecaster<'_>> {
    let mut all: Vec<_> = errors.iter().map(|(name, metrics)| RankedForecaster { name, metrics }).collect();
    all.sort_by(|a, b| a.judged().is_nan().cmp(&b.judged().is_nan()).then(a.judged().total_cmp(&b.judged())));
    all
}

/// Returns the best of the forecasters that are not the model; `None` where none has a finite error.
pub fn best_baseline(errors: &BTreeMap<String, Metrics>) -> Option<RankedForecaster<'_>> {
    ranked(errors).into_iter().find(|one| one.name != MODEL && one.judged().is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_error_is_best_and_no_number_is_last() {
        let of = |errors: &[(&str, f64)]| -> BTreeMap<String, Metrics> {
            let metrics = |mae: f64| Metrics { mae, ..Metrics::default() };
            errors.iter().map(|(name, mae)| ((*name).to_owned(), metrics(*mae))).collect()
        };
        let errors =
            of(&[("a", f64::NAN), ("b", 2.0), ("c", f64::INFINITY), (MODEL, 1.0), ("d", 3.0), ("e", -f64::NAN)]);
        let names: Vec<&str> = ranked(&errors).iter().map(|one| one.name).collect();
        assert_eq!(names[..4], [MODEL, "b", "d", "c"]);
        assert_eq!(best_baseline(&errors).map(|best| (best.name, best.judged())), Some(("b", 2.0)));
        assert_eq!(best_baseline(&of(&[(MODEL, 1.0), ("a", f64::NAN)])), None);
    }
}
