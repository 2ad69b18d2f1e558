//! Decisions of training, from reduced numbers only, so that every rank decides the same. Pure.

/// How validation has gone so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Standing {
    /// Smallest validation error so far; infinite before the first.
    pub best: f64,
    /// Epochs since then.
    pub bad_epochs: u64,
}

impl Default for Standing {
    fn default() -> Self {
        Self { best: f64::INFINITY, bad_epochs: 0 }
    }
}

/// What follows from an epoch's validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// The weights of this epoch are kept as the best.
    pub best: bool,
    /// Training ends early.
    pub stop: bool,
}

/// Judges an epoch. `error` is the validation error, `None` when there are no validation rows: then the last weights are the
/// best ones. A non-finite error is never better. `patience` 0 never stops.
pub fn judge(standing: Standing, error: Option<f64>, patience: u64) -> (Standing, Verdict) {
    let Some(error) = error else {
        return (standing, Verdict { best: true, stop: false });
    };
    if error < standing.best {
        return (Standing { best: error, bad_epochs: 0 }, Verdict { best: true, stop: false });
    }
    let standing = Standing { bad_epochs: standing.bad_epochs + 1, ..standing };
    (standing, Verdict { best: false, stop: patience > 0 && standing.bad_epochs >= patience })
}

/// Whether a checkpoint is due after `epoch` epochs (counted from 1). `every` 0 saves only at the end.
pub fn save_due(epoch: u64, every: u64, last: bool) -> bool {
    last || (every > 0 && epoch.is_multiple_of(every))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_counts_epochs_without_a_better_error() {
        let mut standing = Standing::default();
        let mut verdicts = Vec::new();
        for error in [3.0, 2.0, 2.5, f64::NAN, 1.9, 2.0, 2.0, 2.0] {
            let verdict;
            (standing, verdict) = judge(standing, Some(error), 3);
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
        let (standing, verdict) = judge(Standing::default(), None, 1);
        assert_eq!((standing, verdict), (Standing::default(), Verdict { best: true, stop: false }));
    }

    #[test]
    fn zero_patience_never_stops() {
        let (mut standing, _) = judge(Standing::default(), Some(1.0), 0);
        for _ in 0..100 {
            let verdict;
            (standing, verdict) = judge(standing, Some(2.0), 0);
            assert!(!verdict.stop);
        }
    }

    #[test]
    fn checkpoints_at_multiples_and_at_the_end() {
        assert!(save_due(5, 5, false) && save_due(7, 5, true) && save_due(7, 0, true));
        assert!(!save_due(4, 5, false) && !save_due(4, 0, false));
    }
}
