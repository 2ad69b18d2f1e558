//! Restart budget of a group of programs: whether another round follows one that failed or hung. Every decision has its reason.

use super::input::Time;
use enn_common::failure::Failure;
use std::{collections::VecDeque, fmt, time::Duration};

/// Rounds in a row that may fail in the same way before any worker was ready: something in the start-up is wrong, and
/// trying again and again would only hide it.
const EARLY_FAILURES_MAX: u32 = 2;
/// The wait before a restart is doubled at most so often.
const BACKOFF_DOUBLINGS_MAX: u32 = 10;
/// Longest wait before a restart.
const BACKOFF_MAX: Duration = Duration::from_secs(300);
/// Restarts whose time is remembered.
const RESTART_TIMES_MAX: usize = 4096;

/// Settings of the budget, besides the number of restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupLimits {
    /// Restarts are counted within this time; `None`: over the whole run.
    pub window: Option<Duration>,
    /// Wait before the first restart, doubled with each further one that counts.
    pub backoff: Duration,
    /// A start-up that fails twice in the same way is tried again.
    pub retry_early: bool,
}

/// How a worker failed that was not ready.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EarlyLook {
    code: Option<i32>,
    signal: Option<i32>,
    message: Option<String>,
}

/// What was used of the budget.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct GroupBudget {
    pub(super) restarts: u32,
    /// When the last ones happened, as many as can matter.
    times: VecDeque<Time>,
    /// Rounds in a row that failed in the same way before any worker was ready, the last one included.
    pub(super) early_failures: u32,
    /// How the last of them failed.
    early: Option<EarlyLook>,
}

/// What follows a round that failed or hung.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupDecision {
    /// Begin another round, not before this wait has passed.
    Restart { wait: Duration },
    /// End the run as failed.
    GiveUp(GroupReason),
}

/// Why no other round follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupReason {
    /// All restarts allowed were used, within so long.
    RestartsUsedUp { used: u32, window: Option<Duration> },
    /// The start-up failed in the same way, for the second time.
    NeverReady,
}

impl fmt::Display for GroupReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RestartsUsedUp { used: 0, .. } => write!(f, "no restarts are allowed (--max-restarts 0)"),
            Self::RestartsUsedUp { used, window: None } => {
                write!(f, "all {used} restarts are used up (--max-restarts {used})")
            }
            Self::RestartsUsedUp { used, window: Some(window) } => {
                write!(f, "{used} restarts within {} s are used up (--max-restarts {used})", window.as_secs())
            }
            Self::NeverReady => write!(f, "two rounds in a row failed in the same way before any worker was ready"),
        }
    }
}

impl GroupBudget {
    /// Returns the budget of a run of which a successor knows only how many restarts there were.
    pub(super) fn of_leader_before(restarts: u32, early_failures: u32, now: Time) -> Self {
        let remembered = u32::try_from(RESTART_TIMES_MAX).unwrap_or(u32::MAX);
        let times = (0..restarts.min(remembered)).map(|_| now).collect();
        Self { restarts, times, early_failures, early: None }
    }

    /// Notes how a worker failed. A worker whose program met the others in the store was ready.
    pub(super) fn note_failure(&mut self, failure: &Failure) {
        let look = failure.early.then(|| EarlyLook {
            code: failure.code,
            signal: failure.signal,
            message: failure.message.clone(),
        });
        self.early_failures = match (&look, &self.early) {
            (None, _) => 0,
            (Some(look), Some(before)) if look == before => self.early_failures + 1,
            (Some(_), _) => 1,
        };
        self.early = look;
    }

    /// Decides after a round failed or hung.
    pub(super) fn decide(&self, now: Time, restarts_max: u32, limits: GroupLimits) -> GroupDecision {
        let counted = match limits.window {
            None => self.restarts,
            Some(window) => {
                let recent = self.times.iter().filter(|time| now.saturating_sub(**time) < window).count();
                u32::try_from(recent).unwrap_or(u32::MAX)
            }
        };
        if counted >= restarts_max {
            GroupDecision::GiveUp(GroupReason::RestartsUsedUp { used: counted, window: limits.window })
        } else if self.early_failures >= EARLY_FAILURES_MAX && !limits.retry_early {
            GroupDecision::GiveUp(GroupReason::NeverReady)
        } else {
            let doublings = counted.min(BACKOFF_DOUBLINGS_MAX);
            let wait = limits.backoff.saturating_mul(1 << doublings).min(BACKOFF_MAX.max(limits.backoff));
            GroupDecision::Restart { wait }
        }
    }

    /// Counts a restart.
    pub(super) fn charge(&mut self, now: Time) {
        self.restarts += 1;
        self.times.push_back(now);
        if self.times.len() > RESTART_TIMES_MAX {
            self.times.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::ZERO;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const LIMITS: GroupLimits = GroupLimits { window: None, backoff: Duration::ZERO, retry_early: false };

    fn decide(restarts: u32, early_failures: u32, restarts_max: u32) -> GroupDecision {
        GroupBudget { restarts, early_failures, ..GroupBudget::default() }.decide(NOW, restarts_max, LIMITS)
    }

    fn used_up(used: u32, window: Option<Duration>) -> GroupDecision {
        GroupDecision::GiveUp(GroupReason::RestartsUsedUp { used, window })
    }

    #[test]
    fn each_reason() {
        let at_once = GroupDecision::Restart { wait: Duration::ZERO };
        assert_eq!(decide(0, 0, 3), at_once);
        assert_eq!(decide(3, 0, 3), used_up(3, None));
        assert_eq!(decide(0, 1, 3), at_once);
        assert_eq!(decide(1, 2, 3), GroupDecision::GiveUp(GroupReason::NeverReady));
        let words = |used| GroupReason::RestartsUsedUp { used, window: None }.to_string();
        assert_eq!(words(0), "no restarts are allowed (--max-restarts 0)");
        assert_eq!(words(3), "all 3 restarts are used up (--max-restarts 3)");
    }

    #[test]
    fn a_start_that_fails_twice_is_tried_again_when_asked() {
        let budget = GroupBudget { restarts: 1, early_failures: 2, ..GroupBudget::default() };
        let limits = GroupLimits { retry_early: true, ..LIMITS };
        assert_eq!(budget.decide(NOW, 5, limits), GroupDecision::Restart { wait: Duration::ZERO });
    }

    #[test]
    fn the_window_forgets_and_the_wait_doubles() {
        let limits = GroupLimits { window: Some(seconds(60)), backoff: seconds(1), ..LIMITS };
        let mut budget = GroupBudget::default();
        budget.charge(seconds(0));
        budget.charge(seconds(50));
        assert_eq!(budget.decide(seconds(55), 2, limits), used_up(2, Some(seconds(60))));
        let reason = GroupReason::RestartsUsedUp { used: 2, window: Some(seconds(60)) };
        assert_eq!(reason.to_string(), "2 restarts within 60 s are used up (--max-restarts 2)");
        assert_eq!(budget.decide(seconds(60), 2, limits), GroupDecision::Restart { wait: seconds(2) });
        assert_eq!(budget.decide(seconds(200), 2, limits), GroupDecision::Restart { wait: seconds(1) });
        let long = GroupLimits { backoff: seconds(10), window: None, ..limits };
        let many = GroupBudget { restarts: 50, ..GroupBudget::default() };
        assert_eq!(many.decide(NOW, 100, long), GroupDecision::Restart { wait: BACKOFF_MAX });
    }

    #[test]
    fn early_failures_count_only_while_they_look_the_same() {
        let failed = |code, early| Failure { code: Some(code), early, ..Failure::default() };
        let mut budget = GroupBudget::default();
        let mut note = |failure: &Failure| {
            budget.note_failure(failure);
            budget.early_failures
        };
        assert_eq!(note(&failed(1, true)), 1);
        assert_eq!(note(&failed(1, true)), 2);
        assert_eq!(note(&failed(2, true)), 1);
        assert_eq!(note(&failed(2, false)), 0);
        assert_eq!(note(&failed(2, true)), 1);
    }
}
