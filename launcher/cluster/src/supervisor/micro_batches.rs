//! Number of parts into which micro-batches are split because the memory of a device was too small.
//!
//! A rank that runs out of memory doubles the parts. After many steps without trouble half as many are tried; when that runs out
//! of memory too, the wait for the next try doubles.

use enn_common::wire::node_agent::MicroBatchFacts;

/// Steps without trouble after which half as many parts are tried.
const GROW_AFTER: u64 = 2_000;
/// Longest such wait, steps.
const GROW_AFTER_MAX: u64 = GROW_AFTER << 10;

/// The parts, and when fewer are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MicroBatchPlan(pub(super) MicroBatchFacts);

impl Default for MicroBatchPlan {
    fn default() -> Self {
        Self(MicroBatchFacts { split: 1, wait: GROW_AFTER, changed: 0, trying: false })
    }
}

impl MicroBatchPlan {
    /// Goes on from where the leader before was.
    pub(super) fn of_leader_before(facts: MicroBatchFacts) -> Self {
        if facts.split == 0 { Self::default() } else { Self(facts) }
    }

    /// Returns the number of parts for the round that begins.
    pub(super) fn split(self) -> u32 {
        self.0.split
    }

    /// Notes that memory ran out after `step` steps in a round with `running` parts.
    pub(super) fn exhausted(&mut self, running: u32, step: u64) {
        let MicroBatchFacts { wait, changed, trying, .. } = self.0;
        let too_early = trying && step < changed.saturating_add(wait);
        let wait = if too_early { wait.saturating_mul(2).min(GROW_AFTER_MAX) } else { GROW_AFTER };
        self.0 = MicroBatchFacts { split: running.saturating_mul(2), wait, changed: step, trying: false };
    }

    /// Returns whether fewer parts are to be tried.
    pub(super) fn may_grow(self, step: u64) -> bool {
        self.0.split > 1 && step >= self.0.changed.saturating_add(self.0.wait)
    }

    /// Half as many parts are tried from the next round on.
    pub(super) fn grow(&mut self, step: u64) {
        self.0 = MicroBatchFacts { split: (self.0.split / 2).max(1), changed: step, trying: true, ..self.0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_try_that_fails_doubles_the_wait_and_one_that_does_not_leaves_it() {
        let mut plan = MicroBatchPlan::default();
        assert!(!plan.may_grow(u64::MAX), "nothing is split");
        plan.exhausted(1, 10);
        assert_eq!(plan.split(), 2);
        assert!(!plan.may_grow(10 + GROW_AFTER - 1) && plan.may_grow(10 + GROW_AFTER));
        let mut step = 10 + GROW_AFTER;
        plan.grow(step);
        assert_eq!(plan.split(), 1);
        plan.exhausted(1, step + 1);
        assert!(!plan.may_grow(step + 1 + 2 * GROW_AFTER - 1) && plan.may_grow(step + 1 + 2 * GROW_AFTER));
        step += 1 + 2 * GROW_AFTER;
        plan.grow(step);
        // It held for as long as was waited: what comes later is new.
        plan.exhausted(1, step + 2 * GROW_AFTER);
        assert!(plan.may_grow(step + 3 * GROW_AFTER));
    }

    #[test]
    fn a_round_that_still_runs_with_more_parts_is_not_taken_for_one_with_fewer() {
        let mut plan = MicroBatchPlan::default();
        plan.exhausted(1, 0);
        plan.exhausted(2, 5);
        plan.grow(9_000);
        assert_eq!(plan.split(), 2);
        // The round was not left yet.
        plan.exhausted(4, 9_001);
        assert_eq!(plan.split(), 8);
        assert_eq!(MicroBatchPlan::of_leader_before(plan.0), plan);
    }

    proptest! {
        #[test]
        fn it_waits_ever_longer_but_not_for_ever(tries in 1usize..40) {
            let mut plan = MicroBatchPlan::default();
            let mut step = 0;
            plan.exhausted(1, step);
            let mut before = 0;
            for _ in 0..tries {
                let wait = (0..).map(|power| GROW_AFTER << power).find(|wait| plan.may_grow(step + wait)).unwrap();
                prop_assert!(wait >= before && wait <= GROW_AFTER_MAX);
                before = wait;
                step += wait;
                plan.grow(step);
                plan.exhausted(plan.split(), step);
                prop_assert_eq!(plan.split(), 2);
            }
        }
    }
}
