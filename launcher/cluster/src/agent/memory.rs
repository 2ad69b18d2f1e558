//! Into how many parts micro-batches are cut because a device's memory was too small. Pure.
//!
//! A rank that runs out of memory doubles the parts. After many steps without trouble half as many are tried; when that runs out
//! of memory too, the wait for the next try doubles.

/// Steps without trouble after which half as many parts are tried.
pub(super) const GROW_AFTER: u64 = 2_000;
/// Longest such wait, steps.
const GROW_AFTER_MAX: u64 = GROW_AFTER << 10;

/// The parts, and when fewer are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parts {
    /// For the round that begins next.
    split: u32,
    /// Steps without trouble that are waited for.
    wait: u64,
    /// The step at which the parts changed last.
    changed: u64,
    /// The last change was to fewer.
    trying: bool,
}

impl Default for Parts {
    fn default() -> Self {
        Self { split: 1, wait: GROW_AFTER, changed: 0, trying: false }
    }
}

impl Parts {
    /// As a head before left them.
    pub(super) fn cut_into(split: u32) -> Self {
        Self { split: split.max(1), ..Self::default() }
    }

    /// For the round that begins.
    pub(super) fn split(self) -> u32 {
        self.split
    }

    /// Memory ran out after `step` steps in a round whose micro-batches were cut into `running`.
    pub(super) fn exhausted(&mut self, running: u32, step: u64) {
        let too_early = self.trying && step < self.changed.saturating_add(self.wait);
        let wait = if too_early { self.wait.saturating_mul(2).min(GROW_AFTER_MAX) } else { GROW_AFTER };
        *self = Self { split: running.saturating_mul(2), wait, changed: step, trying: false };
    }

    /// Whether fewer are to be tried.
    pub(super) fn may_grow(self, step: u64) -> bool {
        self.split > 1 && step >= self.changed.saturating_add(self.wait)
    }

    /// Half as many are tried from the next round on.
    pub(super) fn grow(&mut self, step: u64) {
        *self = Self { split: (self.split / 2).max(1), wait: self.wait, changed: step, trying: true };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_try_that_fails_doubles_the_wait_and_one_that_does_not_leaves_it() {
        let mut parts = Parts::default();
        assert!(!parts.may_grow(u64::MAX), "nothing is cut");
        parts.exhausted(1, 10);
        assert_eq!(parts.split(), 2);
        assert!(!parts.may_grow(10 + GROW_AFTER - 1) && parts.may_grow(10 + GROW_AFTER));
        let mut step = 10 + GROW_AFTER;
        parts.grow(step);
        assert_eq!(parts.split(), 1);
        parts.exhausted(1, step + 1);
        assert!(!parts.may_grow(step + 1 + 2 * GROW_AFTER - 1) && parts.may_grow(step + 1 + 2 * GROW_AFTER));
        step += 1 + 2 * GROW_AFTER;
        parts.grow(step);
        // It held for as long as was waited: what comes later is news.
        parts.exhausted(1, step + 2 * GROW_AFTER);
        assert!(parts.may_grow(step + 3 * GROW_AFTER));
    }

    #[test]
    fn a_round_that_still_runs_with_more_parts_is_not_taken_for_one_with_fewer() {
        let mut parts = Parts::default();
        parts.exhausted(1, 0);
        parts.exhausted(2, 5);
        parts.grow(9_000);
        assert_eq!(parts.split(), 2);
        // The round was not left yet.
        parts.exhausted(4, 9_001);
        assert_eq!(parts.split(), 8);
    }

    proptest! {
        #[test]
        fn it_waits_ever_longer_but_not_for_ever(tries in 1usize..40) {
            let mut parts = Parts::default();
            let mut step = 0;
            parts.exhausted(1, step);
            let mut before = 0;
            for _ in 0..tries {
                let wait = (0..).map(|power| GROW_AFTER << power).find(|wait| parts.may_grow(step + wait)).unwrap();
                prop_assert!(wait >= before && wait <= GROW_AFTER_MAX);
                before = wait;
                step += wait;
                parts.grow(step);
                parts.exhausted(parts.split(), step);
                prop_assert_eq!(parts.split(), 2);
            }
        }
    }
}
