//! What follows a failed round. Pure; every decision has its reason.

use std::fmt;

/// Restarts of a round in which no worker became ready: something in the start-up is wrong, and trying again and again
/// would only hide it.
const EARLY_RESTARTS_MAX: u32 = 1;

/// What the run allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Restarts in all.
    pub max_restarts: u32,
}

/// What happened so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct History {
    /// Restarts used.
    pub restarts: u32,
    /// Rounds in a row that failed before any worker was ready, the last one included.
    pub early_failures: u32,
    /// Whether a signal asked to stop.
    pub stopping: bool,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Begin another round from the newest checkpoint.
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
    /// No worker became ready, now for the second time.
    NeverReady,
    /// The user asked to stop.
    Stopping,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RestartsLeft(left) => write!(f, "{left} restarts are left after this one"),
            Self::RestartsUsedUp(0) => write!(f, "no restarts are allowed (--max-restarts)"),
            Self::RestartsUsedUp(used) => write!(f, "all {used} restarts are used up (--max-restarts)"),
            Self::NeverReady => write!(f, "no worker became ready in two rounds in a row"),
            Self::Stopping => write!(f, "the run was asked to stop"),
        }
    }
}

/// Decides after a round failed.
pub fn after_failure(history: History, limits: Limits) -> (Decision, Reason) {
    if history.stopping {
        (Decision::GiveUp, Reason::Stopping)
    } else if history.restarts >= limits.max_restarts {
        (Decision::GiveUp, Reason::RestartsUsedUp(history.restarts))
    } else if history.early_failures > EARLY_RESTARTS_MAX {
        (Decision::GiveUp, Reason::NeverReady)
    } else {
        (Decision::Restart, Reason::RestartsLeft(limits.max_restarts - history.restarts - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decide(restarts: u32, early_failures: u32, stopping: bool, max_restarts: u32) -> (Decision, Reason) {
        after_failure(History { restarts, early_failures, stopping }, Limits { max_restarts })
    }

    #[test]
    fn each_reason() {
        assert_eq!(decide(0, 0, false, 3), (Decision::Restart, Reason::RestartsLeft(2)));
        assert_eq!(decide(3, 0, false, 3), (Decision::GiveUp, Reason::RestartsUsedUp(3)));
        assert_eq!(decide(0, 1, false, 3), (Decision::Restart, Reason::RestartsLeft(2)));
        assert_eq!(decide(1, 2, false, 3), (Decision::GiveUp, Reason::NeverReady));
        assert_eq!(decide(0, 0, true, 3), (Decision::GiveUp, Reason::Stopping));
        assert!(decide(0, 0, false, 0).1.to_string().contains("--max-restarts"));
    }

    proptest! {
        #[test]
        fn restarts_never_exceed_the_limit(max in 0u32..20, early in proptest::collection::vec(any::<bool>(), 0..60)) {
            let mut history = History::default();
            for failed_early in early {
                history.early_failures = if failed_early { history.early_failures + 1 } else { 0 };
                if after_failure(history, Limits { max_restarts: max }).0 == Decision::GiveUp {
                    break;
                }
                history.restarts += 1;
                prop_assert!(history.restarts <= max && history.early_failures < 2);
            }
        }
    }
}
