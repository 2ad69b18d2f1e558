//! Which checkpoints stay: a pure policy. `prune` applies it.

use std::fmt;

/// A committed checkpoint as the policy sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Step.
    pub step: u64,
    /// Validation error, smaller is better; `None` when unknown.
    pub metric: Option<f64>,
}

/// Why a checkpoint stays or goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It is the newest.
    Newest,
    /// It is the best by its metric.
    Best,
    /// It is one of those kept besides the newest.
    Recent,
    /// It is none of these.
    Superseded,
}

impl Reason {
    /// Whether the checkpoint stays.
    pub fn keeps(self) -> bool {
        self != Self::Superseded
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Newest => "it is the newest",
            Self::Best => "it is the best so far",
            Self::Recent => "it is one of those kept besides the newest",
            Self::Superseded => "it is neither the newest, nor the best, nor among those kept besides",
        })
    }
}

/// Decides for every checkpoint, in order of steps. `keep` is the number kept besides the newest and the best.
pub fn decide(candidates: &[Candidate], keep: usize) -> Vec<(u64, Reason)> {
    let mut sorted: Vec<&Candidate> = candidates.iter().collect();
    sorted.sort_by_key(|candidate| std::cmp::Reverse(candidate.step));
    // The older of two equal ones is the better one: it got there first.
    let judged = sorted.iter().rev().filter_map(|c| c.metric.filter(|m| !m.is_nan()).map(|metric| (metric, c.step)));
    let best = judged.min_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, step)| step);
    let mut recent = 0;
    let reason = |(index, candidate): (usize, &&Candidate)| {
        let reason = if index == 0 {
            Reason::Newest
        } else if best == Some(candidate.step) {
            Reason::Best
        } else if recent < keep {
            recent += 1;
            Reason::Recent
        } else {
            Reason::Superseded
        };
        (candidate.step, reason)
    };
    let mut decided: Vec<_> = sorted.iter().enumerate().map(reason).collect();
    decided.reverse();
    decided
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(metrics: &[(u64, Option<f64>)], keep: usize) -> Vec<u64> {
        let candidates: Vec<_> = metrics.iter().map(|&(step, metric)| Candidate { step, metric }).collect();
        decide(&candidates, keep).into_iter().filter(|(_, reason)| reason.keeps()).map(|(step, _)| step).collect()
    }

    #[test]
    fn newest_best_and_recent_stay() {
        let all = [(1, Some(3.0)), (2, Some(1.0)), (3, Some(2.0)), (4, Some(2.5)), (5, Some(9.0))];
        assert_eq!(kept(&all, 0), [2, 5]);
        assert_eq!(kept(&all, 1), [2, 4, 5]);
        assert_eq!(kept(&all, 9), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn unknown_metrics_are_never_best() {
        assert_eq!(kept(&[(1, Some(f64::NAN)), (2, None), (3, None)], 0), [3]);
        assert_eq!(kept(&[], 0), Vec::<u64>::new());
    }

    proptest! {
        #[test]
        fn the_newest_and_the_best_always_stay(
            metrics in proptest::collection::vec(proptest::option::of(0.0f64..9.0), 1..20), keep in 0usize..5,
        ) {
            let all: Vec<_> = metrics.iter().enumerate().map(|(step, &metric)| (step as u64, metric)).collect();
            let kept = kept(&all, keep);
            prop_assert_eq!(kept.last(), Some(&(all.len() as u64 - 1)));
            prop_assert!(kept.len() <= keep + 2);
            if let Some(best) = metrics.iter().flatten().copied().reduce(f64::min) {
                prop_assert!(kept.iter().any(|&step| metrics[usize::try_from(step).unwrap()] == Some(best)));
            }
        }
    }
}
