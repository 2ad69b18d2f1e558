//! What follows a round that failed, and which side of a broken network may go on. Pure; every answer has its reason.

use super::settings::Settings;
use std::{collections::VecDeque, fmt, time::Duration};

/// Rounds in a row that may fail in the same way before any worker was ready: something in the start-up is wrong, and
/// trying again and again would only hide it.
const EARLY_FAILURES_MAX: u32 = 2;
/// The wait before a restart is doubled at most so often.
const BACKOFF_DOUBLINGS_MAX: u32 = 10;
/// Longest wait before a restart.
const BACKOFF_MAX: Duration = Duration::from_secs(300);

/// What happened so far. Times are counted from the start of the rendezvous.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct History {
    /// Restarts in all.
    pub(super) restarts: u32,
    /// When the last ones happened, as many as can matter.
    pub(super) times: VecDeque<Duration>,
    /// Rounds in a row that failed in the same way before any worker was ready, the last one included.
    pub(super) early_failures: u32,
}

/// What to do after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// Begin another round, not before this wait has passed.
    Restart(Duration),
    /// End the run as failed.
    GiveUp,
}

/// Why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// Restarts are left; so many after this one.
    RestartsLeft(u32),
    /// All restarts allowed were used, within so long.
    RestartsUsedUp(u32, Option<Duration>),
    /// The start-up failed in the same way, for the second time.
    NeverReady,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RestartsLeft(left) => write!(f, "{left} restarts are left after this one"),
            Self::RestartsUsedUp(0, _) => write!(f, "no restarts are allowed (--max-restarts 0)"),
            Self::RestartsUsedUp(used, None) => write!(f, "all {used} restarts are used up (--max-restarts {used})"),
            Self::RestartsUsedUp(used, Some(window)) => {
                write!(f, "{used} restarts within {} s are used up (--max-restarts {used})", window.as_secs())
            }
            Self::NeverReady => write!(f, "two rounds in a row failed in the same way before any worker was ready"),
        }
    }
}

/// Decides after a round failed or hung.
pub(super) fn after_failure(now: Duration, history: &History, settings: &Settings) -> (Decision, Reason) {
    let counted = match settings.restart_window {
        None => history.restarts,
        Some(window) => {
            let recent = history.times.iter().filter(|time| now.saturating_sub(**time) < window).count();
            u32::try_from(recent).unwrap_or(u32::MAX)
        }
    };
    if counted >= settings.restarts_max {
        (Decision::GiveUp, Reason::RestartsUsedUp(counted, settings.restart_window))
    } else if history.early_failures >= EARLY_FAILURES_MAX && !settings.retry_early {
        (Decision::GiveUp, Reason::NeverReady)
    } else {
        let doublings = counted.min(BACKOFF_DOUBLINGS_MAX);
        let wait = settings.backoff.saturating_mul(1 << doublings).min(BACKOFF_MAX.max(settings.backoff));
        (Decision::Restart(wait), Reason::RestartsLeft(settings.restarts_max - counted - 1))
    }
}

/// What one side knows of the nodes of the last round after some of them are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Side {
    /// Nodes of the round.
    pub(super) nodes: usize,
    /// Those known to be dead: their connection was closed by their own system, or refused.
    pub(super) dead: usize,
    /// Those on this side, this node included.
    pub(super) here: usize,
    /// Whether the node that hosted the round is on this side.
    pub(super) with_host: bool,
}

/// Whether this side may go on without the others.
///
/// Of the nodes of the last round that are not known to be dead, it needs more than half; exactly half is enough with the
/// node that hosted it. Two sides can then never both go on: together they would need more nodes than there are.
pub(super) fn may_go_on(side: Side) -> bool {
    let living = side.nodes.saturating_sub(side.dead);
    2 * side.here > living || (2 * side.here == living && side.with_host)
}

#[cfg(test)]
mod tests {
    use super::{super::settings::tests::settings, *};
    use proptest::prelude::*;

    fn decide(restarts: u32, early_failures: u32, restarts_max: u32) -> (Decision, Reason) {
        let history = History { restarts, early_failures, ..History::default() };
        after_failure(Duration::ZERO, &history, &Settings { restarts_max, ..settings() })
    }

    #[test]
    fn each_reason() {
        assert_eq!(decide(0, 0, 3), (Decision::Restart(Duration::ZERO), Reason::RestartsLeft(2)));
        assert_eq!(decide(3, 0, 3), (Decision::GiveUp, Reason::RestartsUsedUp(3, None)));
        assert_eq!(decide(0, 1, 3).1, Reason::RestartsLeft(2));
        assert_eq!(decide(1, 2, 3), (Decision::GiveUp, Reason::NeverReady));
        assert_eq!(decide(0, 0, 0).1.to_string(), "no restarts are allowed (--max-restarts 0)");
        assert_eq!(decide(3, 0, 3).1.to_string(), "all 3 restarts are used up (--max-restarts 3)");
    }

    #[test]
    fn a_start_that_fails_twice_is_tried_again_when_asked() {
        let history = History { restarts: 1, early_failures: 2, ..History::default() };
        let settings = Settings { restarts_max: 5, retry_early: true, ..settings() };
        assert_eq!(after_failure(Duration::ZERO, &history, &settings).1, Reason::RestartsLeft(3));
    }

    #[test]
    fn the_window_forgets_and_the_wait_doubles() {
        let seconds = Duration::from_secs;
        let settings =
            Settings { restarts_max: 2, restart_window: Some(seconds(60)), backoff: seconds(1), ..settings() };
        let history = History { restarts: 2, times: [seconds(0), seconds(50)].into(), early_failures: 0 };
        let (decision, reason) = after_failure(seconds(55), &history, &settings);
        assert_eq!(decision, Decision::GiveUp);
        assert_eq!(reason.to_string(), "2 restarts within 60 s are used up (--max-restarts 2)");
        assert_eq!(after_failure(seconds(60), &history, &settings).0, Decision::Restart(seconds(2)));
        assert_eq!(after_failure(seconds(200), &history, &settings).0, Decision::Restart(seconds(1)));
    }

    proptest! {
        #[test]
        fn never_do_two_sides_go_on(
            nodes in 1usize..40,
            places in proptest::collection::vec(0u8..3, 40),
            host in 0usize..40,
            knows in proptest::collection::vec(any::<(bool, bool)>(), 40),
        ) {
            // 0: dead; 1 and 2: on that side. A side may or may not know of a dead node that it is dead.
            let places = &places[..nodes];
            let host = host % nodes;
            let side = |which: u8| Side {
                nodes,
                dead: (0..nodes)
                    .filter(|n| places[*n] == 0 && if which == 1 { knows[*n].0 } else { knows[*n].1 })
                    .count(),
                here: places.iter().filter(|place| **place == which).count(),
                with_host: places[host] == which,
            };
            prop_assert!(!(may_go_on(side(1)) && may_go_on(side(2))));
        }
    }
}
