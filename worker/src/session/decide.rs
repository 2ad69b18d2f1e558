//! Decisions of training, from reduced numbers only, so that every rank decides the same. Pure.

/// Validation rows that are looked at, at least, where not all are.
const JUDGED_ROWS_MIN: u64 = 10_000;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EarlyStopping {
    /// Smallest validation error so far; infinite before the first.
    pub best: f64,
    /// Number of validations since then.
    pub bad_validations: u64,
}

impl Default for EarlyStopping {
    fn default() -> Self {
        Self { best: f64::INFINITY, bad_validations: 0 }
    }
}

/// Decisions that follow from a validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The weights that were validated are kept as the best.
    pub best: bool,
    pub stop: bool,
}

/// Judges weights. `error` is the validation error, `None` when there are no validation rows: then the last weights are the
/// best ones. A non-finite error is never better. `patience` 0 never stops.
pub fn early_stopping(before: EarlyStopping, error: Option<f64>, patience: u64) -> (EarlyStopping, Verdict) {
    let Some(error) = error else {
        return (before, Verdict { best: true, stop: false });
    };
    if error < before.best {
        return (EarlyStopping { best: error, bad_validations: 0 }, Verdict { best: true, stop: false });
    }
    let before = EarlyStopping { bad_validations: before.bad_validations + 1, ..before };
    (before, Verdict { best: false, stop: patience > 0 && before.bad_validations >= patience })
}

/// Where an epoch is validated `parts` times, one in so many of `rows` validation rows is looked at, always the same ones: together no
/// more than once all of them, but enough to tell which weights are better.
pub fn thinning(parts: u64, rows: u64) -> u64 {
    parts.min(rows / JUDGED_ROWS_MIN).max(1)
}

/// Whether a checkpoint is due after so many steps or epochs (counted from 1), one `every` so many; 0 never.
pub fn save_due(done: u64, every: u64) -> bool {
    every > 0 && done.is_multiple_of(every)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_counts_validations_without_a_better_error() {
        let mut before = EarlyStopping::default();
        let mut verdicts = Vec::new();
        for error in [3.0, 2.0, 2.5, f64::NAN, 1.9, 2.0, 2.0, 2.0] {
            let verdict;
            (before, verdict) = early_stopping(before, Some(error), 3);
            verdicts.push((verdict.best, verdict.stop));
        }
        let expected = [
            (true, false),
            (true, false),
            (false, false),
            (false, false),
            (true, false),
            (false, false),
            (false, false),
            (false, true),
        ];
        assert_eq!(verdicts, expected);
    }

    #[test]
    fn without_validation_the_last_is_best_and_nothing_stops() {
        let (before, verdict) = early_stopping(EarlyStopping::default(), None, 1);
        assert_eq!((before, verdict), (EarlyStopping::default(), Verdict { best: true, stop: false }));
    }

    #[test]
    fn zero_patience_never_stops() {
        let (mut before, _) = early_stopping(EarlyStopping::default(), Some(1.0), 0);
        for _ in 0..100 {
            let verdict;
            (before, verdict) = early_stopping(before, Some(2.0), 0);
            assert!(!verdict.stop);
        }
    }

    #[test]
    fn validations_of_an_epoch_look_at_no_more_rows_than_there_are_and_at_enough() {
        let thinned = [(1, 1 << 40), (10, 1_000_000), (10, 35_000), (1000, 9_999), (1000, 0)];
        assert_eq!(thinned.map(|(parts, rows)| thinning(parts, rows)), [1, 10, 3, 1, 1]);
    }

    #[test]
    fn checkpoints_at_multiples() {
        assert!(save_due(5, 5) && save_due(10, 5) && !save_due(4, 5) && !save_due(11, 5) && !save_due(10, 0));
    }
}
