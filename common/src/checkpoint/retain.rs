//! Which checkpoints stay: a pure policy. `prune` applies it.

use std::{collections::HashSet, fmt};

/// Checkpoints that are kept besides the newest and the best.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rule {
    /// This number of others, the newest of them.
    pub last: usize,
    /// The first of every so many epochs; 0: none.
    pub epochs: u64,
    /// The first of every so many hours; 0: none.
    pub hours: f64,
}

impl Rule {
    /// The last few, and no older ones.
    pub fn last(last: usize) -> Self {
        Self { last, ..Self::default() }
    }
}

/// A committed checkpoint as the policy sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    pub step: u64,
    pub epoch: u64,
    /// Seconds since the Unix epoch.
    pub time: f64,
    /// Validation error, smaller is better; `None` when unknown.
    pub metric: Option<f64>,
}

/// Why a checkpoint stays or goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    Newest,
    Best,
    Recent,
    Epochs,
    Hours,
    Superseded,
}

impl Reason {
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
            Self::Epochs => "it is the first of every so many epochs",
            Self::Hours => "it is the first of every so many hours",
            Self::Superseded => "it is neither the newest, nor the best, nor among those kept besides",
        })
    }
}

/// Decides for every checkpoint, in order of steps. What stays as the first of its epochs or hours stays for good, however often
/// this is asked while newer ones come.
pub fn decide(candidates: &[Candidate], rule: Rule) -> Vec<(u64, Reason)> {
    let mut sorted: Vec<&Candidate> = candidates.iter().collect();
    sorted.sort_by_key(|candidate| candidate.step);
    // The older of two equal ones is the better one: it got there first.
    let judged = sorted.iter().filter_map(|c| c.metric.filter(|m| !m.is_nan()).map(|metric| (metric, c.step)));
    let best = judged.min_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, step)| step);
    let mut epochs = HashSet::new();
    let mut hours = HashSet::new();
    let mut decided: Vec<(u64, Reason)> = Vec::with_capacity(sorted.len());
    for candidate in sorted {
        let of_epochs = candidate.epoch.checked_div(rule.epochs).is_some_and(|part| part > 0 && epochs.insert(part));
        let part = (candidate.time / (rule.hours * 3600.0)).floor();
        let of_hours = rule.hours > 0.0 && part.is_finite() && hours.insert(part.to_bits());
        let reason = match best {
            Some(best) if best == candidate.step => Reason::Best,
            _ if of_epochs => Reason::Epochs,
            _ if of_hours => Reason::Hours,
            _ => Reason::Superseded,
        };
        decided.push((candidate.step, reason));
    }
    if let Some((_, newest)) = decided.last_mut() {
        *newest = Reason::Newest;
    }
    let others = decided.iter_mut().rev().filter(|(_, reason)| !matches!(reason, Reason::Newest | Reason::Best));
    others.take(rule.last).for_each(|(_, reason)| *reason = Reason::Recent);
    decided
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(metrics: &[(u64, Option<f64>)], last: usize) -> Vec<u64> {
        let candidate = |&(step, metric): &(u64, _)| Candidate { step, epoch: 0, time: 0.0, metric };
        staying(&metrics.iter().map(candidate).collect::<Vec<_>>(), Rule::last(last))
    }

    fn staying(candidates: &[Candidate], rule: Rule) -> Vec<u64> {
        decide(candidates, rule).into_iter().filter(|(_, reason)| reason.keeps()).map(|(step, _)| step).collect()
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

    /// One checkpoint an epoch, each of half an hour.
    fn halves(count: u64) -> Vec<Candidate> {
        let at = |step: u64| Candidate {
            step,
            epoch: step,
            time: 1_000_000.0 * 3600.0 + 1800.0 * step as f64,
            metric: None,
        };
        (1..=count).map(at).collect()
    }

    #[test]
    fn the_first_of_every_so_many_epochs_and_hours_stays() {
        let rule = |epochs, hours| Rule { last: 1, epochs, hours };
        assert_eq!(staying(&halves(12), rule(5, 0.0)), [5, 10, 11, 12]);
        assert_eq!(staying(&halves(12), rule(0, 2.0)), [1, 4, 8, 11, 12]);
        assert_eq!(staying(&halves(12), rule(0, 0.0)), [11, 12]);
        let skipped: Vec<_> = halves(14).into_iter().filter(|one| ![5, 10].contains(&one.epoch)).collect();
        assert_eq!(staying(&skipped, rule(5, 0.0)), [6, 11, 13, 14], "the first that there is");
        let lost = [Candidate { time: f64::NAN, ..halves(1)[0] }];
        assert_eq!(staying(&lost, rule(0, 2.0)), [1]);
    }

    proptest! {
        #[test]
        fn what_is_pruned_again_and_again_is_what_would_be_pruned_at_the_end(
            count in 1u64..40, last in 0usize..4, epochs in 0u64..9, half_hours in 0u32..9,
        ) {
            let rule = Rule { last, epochs, hours: f64::from(half_hours) / 2.0 };
            let mut there: Vec<Candidate> = Vec::new();
            for next in halves(count) {
                there.push(next);
                let stays = staying(&there, rule);
                prop_assert_eq!(stays.last(), Some(&next.step), "the newest");
                there.retain(|one| stays.contains(&one.step));
            }
            let left: Vec<u64> = there.iter().map(|one| one.step).collect();
            prop_assert_eq!(left, staying(&halves(count), rule));
        }

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
