//! What follows a failed round. Pure; every decision has its reason.

use enn_common::config::train::Recovery;
use std::{fmt, time::Duration};

/// Restarts of a round in which no worker became ready: something in the start-up is wrong, and trying again and again
/// would only hide it.
const EARLY_RESTARTS_MAX: u32 = 1;

/// Wait before a spare is started after one died, doubled with each that dies.
const SPARE_BACKOFF: Duration = Duration::from_secs(1);
/// Longest such wait.
const SPARE_BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Spares that may die in a row before no more are started.
pub(super) const SPARE_DEATHS_MAX: u32 = 12;

/// What the run allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Failures that are recovered from.
    pub max_restarts: u32,
    /// How.
    pub policy: Recovery,
}

/// What happened so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct History {
    /// Failures that were recovered from; those since the last step under `Recovery::Reform`.
    pub restarts: u32,
    /// Rounds in a row that failed before any worker was ready and had no state to go on with, the last one included.
    pub early_failures: u32,
    /// Whether any worker was ever ready: the start-up is right.
    pub proven: bool,
    /// Whether a signal asked to stop.
    pub stopping: bool,
    /// Whether a worker says that starting again would end the same way.
    pub lasting: bool,
}

/// How a round was when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed {
    /// Any worker was ready for its first step.
    pub ready: bool,
    /// A step was done since the round began.
    pub progress: bool,
    /// Somebody keeps the state of training.
    pub survivors: bool,
}

impl History {
    /// The history with one more failed round; the recovery from it is not yet counted.
    #[must_use]
    pub fn with(self, failed: Failed, policy: Recovery) -> Self {
        let forgiven = policy == Recovery::Reform && failed.progress;
        let proven = self.proven || failed.ready;
        // Under `Restart` a start-up that stopped working is not tried again and again either.
        let harmless = failed.ready || failed.survivors || (policy == Recovery::Reform && proven);
        Self {
            restarts: if forgiven { 0 } else { self.restarts },
            early_failures: if harmless { 0 } else { self.early_failures + 1 },
            proven,
            ..self
        }
    }
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Begin another round: with the state of the survivors, or from the newest checkpoint when there are none.
    Restart,
    /// End the run as failed.
    GiveUp,
}

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Restarts are left; so many after this one.
    RestartsLeft(u32),
    /// All restarts allowed were used.
    RestartsUsedUp(u32),
    /// So many failures in a row had no step between them.
    NoProgress(u32),
    /// No worker became ready, now for the second time.
    NeverReady,
    /// The user asked to stop.
    Stopping,
    /// What is wrong lies in what the run was given.
    Lasting,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RestartsLeft(left) => write!(f, "{left} restarts are left after this one"),
            Self::RestartsUsedUp(0) => write!(f, "no restarts are allowed (--max-restarts)"),
            Self::RestartsUsedUp(used) => write!(f, "all {used} restarts are used up (--max-restarts)"),
            Self::NoProgress(failures) => {
                write!(f, "no step was done between {failures} failures in a row (--max-restarts)")
            }
            Self::NeverReady => write!(f, "no worker became ready in two rounds in a row"),
            Self::Stopping => write!(f, "the run was asked to stop"),
            Self::Lasting => write!(f, "starting again would end the same way"),
        }
    }
}

/// Decides after a round failed.
pub fn after_failure(history: History, limits: Limits) -> (Decision, Reason) {
    if history.stopping {
        (Decision::GiveUp, Reason::Stopping)
    } else if history.lasting {
        (Decision::GiveUp, Reason::Lasting)
    } else if history.restarts >= limits.max_restarts {
        match limits.policy {
            Recovery::Reform if limits.max_restarts > 0 => (Decision::GiveUp, Reason::NoProgress(history.restarts + 1)),
            _ => (Decision::GiveUp, Reason::RestartsUsedUp(history.restarts)),
        }
    } else if history.early_failures > EARLY_RESTARTS_MAX {
        (Decision::GiveUp, Reason::NeverReady)
    } else {
        (Decision::Restart, Reason::RestartsLeft(limits.max_restarts - history.restarts - 1))
    }
}

/// Wait before the next spare is started, when so many died in a row; `None`: no more are.
pub(super) fn spare_backoff(deaths: u32) -> Option<Duration> {
    match deaths {
        0 => Some(Duration::ZERO),
        SPARE_DEATHS_MAX.. => None,
        _ => Some(SPARE_BACKOFF.saturating_mul(1 << (deaths - 1)).min(SPARE_BACKOFF_MAX)),
    }
}

/// The furthest step of which workers keep all shares: each keeps, of that step, one share of so many.
pub(super) fn whole_step(kept: &[(u64, (u32, u32))]) -> Option<u64> {
    let mut steps: Vec<u64> = kept.iter().map(|(step, _)| *step).collect();
    steps.sort_unstable();
    let of = |step: u64| kept.iter().filter(move |(at, _)| *at == step).map(|(_, share)| *share);
    let is_whole =
        |step: &u64| of(*step).any(|(_, all)| (0..all).all(|share| of(*step).any(|had| had == (share, all))));
    steps.into_iter().rev().find(is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_make_up_a_step() {
        assert_eq!(whole_step(&[]), None);
        assert_eq!(whole_step(&[(7, (0, 2)), (7, (0, 2))]), None);
        assert_eq!(whole_step(&[(7, (0, 2)), (7, (0, 2)), (7, (1, 2))]), Some(7));
        assert_eq!(whole_step(&[(8, (0, 2)), (7, (0, 2)), (7, (1, 2))]), Some(7));
        assert_eq!(whole_step(&[(8, (0, 2)), (7, (1, 2))]), None);
        assert_eq!(whole_step(&[(8, (0, 2)), (8, (1, 2)), (7, (1, 2))]), Some(8));
    }

    const POLICIES: [Recovery; 2] = [Recovery::Restart, Recovery::Reform];

    fn decide(restarts: u32, early_failures: u32, stopping: bool, max_restarts: u32) -> (Decision, Reason) {
        let limits = Limits { max_restarts, policy: Recovery::Restart };
        after_failure(History { restarts, early_failures, stopping, ..History::default() }, limits)
    }

    #[test]
    fn each_reason() {
        assert_eq!(decide(0, 0, false, 3), (Decision::Restart, Reason::RestartsLeft(2)));
        assert_eq!(decide(3, 0, false, 3), (Decision::GiveUp, Reason::RestartsUsedUp(3)));
        assert_eq!(decide(0, 1, false, 3), (Decision::Restart, Reason::RestartsLeft(2)));
        assert_eq!(decide(1, 2, false, 3), (Decision::GiveUp, Reason::NeverReady));
        assert_eq!(decide(0, 0, true, 3), (Decision::GiveUp, Reason::Stopping));
        assert!(decide(0, 0, false, 0).1.to_string().contains("--max-restarts"));
        let reform = |max_restarts| Limits { max_restarts, policy: Recovery::Reform };
        let history = History { restarts: 2, ..History::default() };
        assert_eq!(after_failure(history, reform(2)), (Decision::GiveUp, Reason::NoProgress(3)));
        assert_eq!(after_failure(History::default(), reform(0)), (Decision::GiveUp, Reason::RestartsUsedUp(0)));
        let lasting = History { lasting: true, ..History::default() };
        assert_eq!(after_failure(lasting, reform(2)), (Decision::GiveUp, Reason::Lasting));
    }

    #[test]
    fn spares_that_die_are_started_ever_more_slowly_and_then_not_at_all() {
        let waits: Vec<_> =
            (0..=SPARE_DEATHS_MAX).map(|deaths| spare_backoff(deaths).map(|wait| wait.as_secs())).collect();
        assert_eq!(waits[..5], [Some(0), Some(1), Some(2), Some(4), Some(8)]);
        assert_eq!((waits[SPARE_DEATHS_MAX as usize - 1], waits[SPARE_DEATHS_MAX as usize]), (Some(60), None));
    }

    fn failed() -> impl Strategy<Value = Failed> {
        any::<(bool, bool, bool)>().prop_map(|(ready, progress, survivors)| Failed { ready, progress, survivors })
    }

    proptest! {
        #[test]
        fn the_limit_holds(
            max_restarts in 0u32..20,
            reform in any::<bool>(),
            rounds in proptest::collection::vec(failed(), 0..80),
        ) {
            let limits = Limits { max_restarts, policy: POLICIES[usize::from(reform)] };
            let mut history = History::default();
            let (mut in_all, mut in_row) = (0, 0);
            for round in rounds {
                history = history.with(round, limits.policy);
                let (decision, reason) = after_failure(history, limits);
                in_row = if round.progress { 0 } else { in_row };
                let used = if reform { in_row } else { in_all };
                if decision == Decision::GiveUp {
                    // Never before its time.
                    prop_assert!(used >= max_restarts || reason == Reason::NeverReady);
                    break;
                }
                prop_assert!(used < max_restarts && history.early_failures <= EARLY_RESTARTS_MAX);
                history.restarts += 1;
                (in_all, in_row) = (in_all + 1, in_row + 1);
            }
        }

        #[test]
        fn progress_is_never_given_up_under_reform(max_restarts in 1u32..20, rounds in 1usize..200) {
            let limits = Limits { max_restarts, policy: Recovery::Reform };
            let mut history = History::default();
            for _ in 0..rounds {
                history = history.with(Failed { ready: true, progress: true, survivors: true }, limits.policy);
                prop_assert_eq!(after_failure(history, limits).0, Decision::Restart);
                history.restarts += 1;
            }
        }
    }
}
