//! Restart budget: what follows a failed round. Every decision has its reason.

use enn_common::config::train::Recovery;
use std::{fmt, time::Duration};

/// Restarts of a round in which no worker became ready: something in the start-up is wrong, and trying again and again would only
/// hide it.
const EARLY_RESTARTS_MAX: u32 = 1;

/// Wait before a spare is started after one died, doubled with each that dies.
const SPARE_BACKOFF: Duration = Duration::from_secs(1);
/// Longest such wait.
const SPARE_BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Spares that may die in a row before no more are started.
pub(super) const SPARE_DEATHS_MAX: u32 = 12;

/// What was used of the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RestartBudget {
    /// Recoveries; those since the last step under `Recovery::Reform`.
    pub(super) failures: u32,
    /// Rounds in a row that failed before any worker was ready and had no state to go on with, the last one included.
    pub(super) early_failures: u32,
    /// A worker was ready once: the start-up is right.
    pub(super) proven: bool,
    /// A worker says that starting again would end the same way.
    pub(super) lasting: bool,
}

/// State of a round when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FailedRound {
    /// A worker was ready for its first step.
    pub(super) ready: bool,
    /// A step was done since the round began.
    pub(super) progress: bool,
    /// The round began with workers that kept the state of training.
    pub(super) survivors: bool,
}

impl RestartBudget {
    /// Returns the budget with one more failed round; the recovery from it is not yet counted.
    #[must_use]
    pub(super) fn with(self, failed: FailedRound, policy: Recovery) -> Self {
        let forgiven = policy == Recovery::Reform && failed.progress;
        let proven = self.proven || failed.ready;
        // Under `Restart` a start-up that stopped working is not tried again and again either.
        let harmless = failed.ready || failed.survivors || (policy == Recovery::Reform && proven);
        Self {
            failures: if forgiven { 0 } else { self.failures },
            early_failures: if harmless { 0 } else { self.early_failures + 1 },
            proven,
            ..self
        }
    }

    /// Decides after a round failed.
    pub(super) fn decide(self, policy: Recovery, max_restarts: u32, stopping: bool) -> FailureDecision {
        let give_up = |reason| FailureDecision::GiveUp(reason);
        if stopping {
            give_up(GiveUpReason::Stopping)
        } else if self.lasting {
            give_up(GiveUpReason::Lasting)
        } else if self.failures >= max_restarts {
            match policy {
                Recovery::Reform if max_restarts > 0 => give_up(GiveUpReason::NoProgress(self.failures + 1)),
                Recovery::Reform | Recovery::Restart => give_up(GiveUpReason::RestartsUsedUp(self.failures)),
            }
        } else if self.early_failures > EARLY_RESTARTS_MAX {
            give_up(GiveUpReason::NeverReady)
        } else {
            FailureDecision::Restart
        }
    }
}

/// What follows a failed round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureDecision {
    /// Begin another round: with the state of the survivors, or from the newest checkpoint when there are none.
    Restart,
    /// End the run as failed.
    GiveUp(GiveUpReason),
}

/// Why no other round follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GiveUpReason {
    /// All restarts allowed were used.
    RestartsUsedUp(u32),
    /// So many failures in a row had no step between them.
    NoProgress(u32),
    /// No worker became ready, now for the second time.
    NeverReady,
    /// The run was asked to stop.
    Stopping,
    /// The fault lies in what the run was given.
    Lasting,
}

impl fmt::Display for GiveUpReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
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

/// Returns the wait before the next spare is started, when so many died in a row; `None`: no more are.
pub(super) fn spare_backoff(deaths: u32) -> Option<Duration> {
    match deaths {
        0 => Some(Duration::ZERO),
        SPARE_DEATHS_MAX.. => None,
        _ => Some(SPARE_BACKOFF.saturating_mul(1 << (deaths - 1)).min(SPARE_BACKOFF_MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POLICIES: [Recovery; 2] = [Recovery::Restart, Recovery::Reform];

    fn decide(failures: u32, early_failures: u32, stopping: bool, max_restarts: u32) -> FailureDecision {
        let budget = RestartBudget { failures, early_failures, ..RestartBudget::default() };
        budget.decide(Recovery::Restart, max_restarts, stopping)
    }

    #[test]
    fn each_reason() {
        let give_up = FailureDecision::GiveUp;
        assert_eq!(decide(0, 0, false, 3), FailureDecision::Restart);
        assert_eq!(decide(3, 0, false, 3), give_up(GiveUpReason::RestartsUsedUp(3)));
        assert_eq!(decide(0, 1, false, 3), FailureDecision::Restart);
        assert_eq!(decide(1, 2, false, 3), give_up(GiveUpReason::NeverReady));
        assert_eq!(decide(0, 0, true, 3), give_up(GiveUpReason::Stopping));
        let reform = |budget: RestartBudget, max_restarts| budget.decide(Recovery::Reform, max_restarts, false);
        let used = RestartBudget { failures: 2, ..RestartBudget::default() };
        assert_eq!(reform(used, 2), give_up(GiveUpReason::NoProgress(3)));
        assert_eq!(reform(RestartBudget::default(), 0), give_up(GiveUpReason::RestartsUsedUp(0)));
        let lasting = RestartBudget { lasting: true, ..RestartBudget::default() };
        assert_eq!(reform(lasting, 2), give_up(GiveUpReason::Lasting));
        assert!(GiveUpReason::RestartsUsedUp(0).to_string().contains("--max-restarts"));
    }

    #[test]
    fn spares_that_die_are_started_ever_more_slowly_and_then_not_at_all() {
        let waits: Vec<_> =
            (0..=SPARE_DEATHS_MAX).map(|deaths| spare_backoff(deaths).map(|wait| wait.as_secs())).collect();
        assert_eq!(waits[..5], [Some(0), Some(1), Some(2), Some(4), Some(8)]);
        assert_eq!((waits[SPARE_DEATHS_MAX as usize - 1], waits[SPARE_DEATHS_MAX as usize]), (Some(60), None));
    }

    fn failed() -> impl Strategy<Value = FailedRound> {
        any::<[bool; 3]>().prop_map(|[ready, progress, survivors]| FailedRound { ready, progress, survivors })
    }

    proptest! {
        #[test]
        fn the_limit_holds(
            max_restarts in 0u32..20,
            reform in any::<bool>(),
            rounds in proptest::collection::vec(failed(), 0..80),
        ) {
            let policy = POLICIES[usize::from(reform)];
            let mut budget = RestartBudget::default();
            let (mut in_all, mut in_row) = (0, 0);
            for round in rounds {
                budget = budget.with(round, policy);
                in_row = if round.progress { 0 } else { in_row };
                let used = if reform { in_row } else { in_all };
                if let FailureDecision::GiveUp(reason) = budget.decide(policy, max_restarts, false) {
                    // Never before its time.
                    prop_assert!(used >= max_restarts || reason == GiveUpReason::NeverReady);
                    break;
                }
                prop_assert!(used < max_restarts && budget.early_failures <= EARLY_RESTARTS_MAX);
                budget.failures += 1;
                (in_all, in_row) = (in_all + 1, in_row + 1);
            }
        }

        #[test]
        fn progress_is_never_given_up_under_reform(max_restarts in 1u32..20, rounds in 1usize..200) {
            let mut budget = RestartBudget::default();
            for _ in 0..rounds {
                let failed = FailedRound { ready: true, progress: true, survivors: true };
                budget = budget.with(failed, Recovery::Reform);
                let decision = budget.decide(Recovery::Reform, max_restarts, false);
                prop_assert_eq!(decision, FailureDecision::Restart);
                budget.failures += 1;
            }
        }
    }
}
