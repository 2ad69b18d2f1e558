//! Decides whether a kernel may run, and in which order kernels are tried. Pure functions only.
//!
//! ```text
//! closed ──3 failed launches, or 1 wrong result──► open ──cool-down, in steps──► half open ──right──► closed
//!                                                    ▲                              │
//!                                                    └────────────wrong─────────────┘  (cool-down doubled)
//! ```
//! The breaker of a kernel that ended a process stays open in this build. A quarantine that all ranks agreed on, e.g. of a slow
//! kernel, opens it, too.

use enn_common::kernels::{COOL_DOWN_STEPS, Fault, Quarantine};

/// Failed launches in a row after which a kernel is passed over.
const FAILURES_MAX: u32 = 3;
/// Most times that the cool-down is doubled.
const DOUBLINGS_MAX: u32 = 10;

/// A second name of the plain reference in a configured order.
const PLAIN_ALIAS: &str = "math";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BreakerState {
    Closed,
    /// The kernel is passed over until this step; `None` means for good.
    Open(Option<u64>),
    /// The kernel may run once more, compared with the reference.
    HalfOpen,
}

/// Circuit breaker of one kernel on one signature, or on all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Breaker {
    failures: u32,
    opened: u32,
    /// If the breaker is open: the step at which the kernel may be tried again; inner `None` means never.
    retry: Option<Option<u64>>,
}

impl Breaker {
    /// Records a failure. Returns whether the kernel is now passed over.
    pub(super) fn failed(&mut self, fault: &Fault, step: u64) -> bool {
        self.failures += 1;
        let half_open = self.state_at(step) == BreakerState::HalfOpen;
        if matches!(fault, Fault::Launch { .. }) && self.failures < FAILURES_MAX && !half_open {
            return false;
        }
        let cool_down = COOL_DOWN_STEPS << self.opened.min(DOUBLINGS_MAX);
        self.opened += 1;
        self.failures = 0;
        self.retry = Some((!fault.is_final()).then(|| step + cool_down));
        true
    }

    /// Takes over a quarantine that all ranks agreed on.
    pub(super) fn agreed(&mut self, entry: &Quarantine) {
        self.opened = entry.count;
        self.failures = 0;
        self.retry = entry.recovered.is_none().then(|| entry.retry_at());
    }

    /// Closes the breaker after a correct result. Returns whether it was open before.
    pub(super) fn succeeded(&mut self) -> bool {
        self.failures = 0;
        self.retry.take().is_some()
    }

    /// Returns the step after `step` at which the kernel may be tried again, if there is one.
    pub(super) fn retry_after(&self, step: u64) -> Option<u64> {
        self.retry.flatten().filter(|retry| *retry > step)
    }

    pub(super) fn state_at(&self, step: u64) -> BreakerState {
        match self.retry {
            None => BreakerState::Closed,
            Some(Some(retry)) if step >= retry => BreakerState::HalfOpen,
            Some(retry) => BreakerState::Open(retry),
        }
    }
}

/// Whether a configured name denotes the kernel `id`: the whole name, or one of its words between dots.
fn means(wanted: &str, id: &str) -> bool {
    wanted == id || id.split('.').any(|word| word == wanted)
}

/// Whether a configured name denotes the plain reference.
pub(super) fn means_plain(wanted: &str, plain: &str) -> bool {
    wanted == plain || wanted == PLAIN_ALIAS
}

/// Returns positions in `ids` in the order of `wanted`. Names after the plain reference are ignored.
pub(super) fn order(ids: &[&str], wanted: Option<&[String]>, plain: &str) -> Vec<usize> {
    let Some(wanted) = wanted else { return (0..ids.len()).collect() };
    let mut order = Vec::new();
    for name in wanted.iter().take_while(|name| !means_plain(name, plain)) {
        let fitting = (0..ids.len()).filter(|index| means(name, ids[*index]));
        for index in fitting {
            if !order.contains(&index) {
                order.push(index);
            }
        }
    }
    order
}

/// Returns the operations of a configured key: the operation itself and its backward; "attention" means scaled dot-product attention.
pub(super) fn operations(key: &str) -> [String; 2] {
    let name = if key == "attention" { "sdpa" } else { key };
    [name.to_owned(), format!("{name}_backward")]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch() -> Fault {
        Fault::Launch { error: "no".into() }
    }

    #[test]
    fn three_failed_launches_or_one_wrong_result_open() {
        let mut breaker = Breaker::default();
        assert!(!breaker.failed(&launch(), 1) && !breaker.failed(&launch(), 2));
        assert_eq!(breaker.state_at(2), BreakerState::Closed);
        assert!(breaker.failed(&launch(), 3));
        assert_eq!(breaker.state_at(3), BreakerState::Open(Some(3 + COOL_DOWN_STEPS)));
        assert!(Breaker::default().failed(&Fault::NonFinite, 3));
    }

    #[test]
    fn a_success_between_failures_begins_the_count_anew() {
        let mut breaker = Breaker::default();
        breaker.failed(&launch(), 1);
        breaker.failed(&launch(), 2);
        assert!(!breaker.succeeded());
        assert!(!breaker.failed(&launch(), 3));
    }

    #[test]
    fn after_the_cool_down_one_try_decides() {
        let mut breaker = Breaker::default();
        breaker.failed(&Fault::Unstable, 0);
        assert_eq!(breaker.state_at(COOL_DOWN_STEPS - 1), BreakerState::Open(Some(COOL_DOWN_STEPS)));
        assert_eq!(breaker.state_at(COOL_DOWN_STEPS), BreakerState::HalfOpen);
        assert!(breaker.failed(&launch(), COOL_DOWN_STEPS), "one failed launch is enough now");
        assert_eq!(breaker.state_at(COOL_DOWN_STEPS), BreakerState::Open(Some(3 * COOL_DOWN_STEPS)));
        assert!(breaker.succeeded());
        assert_eq!(breaker.state_at(0), BreakerState::Closed);
    }

    #[test]
    fn a_crash_is_for_good() {
        let mut breaker = Breaker::default();
        breaker.failed(&Fault::Crash { how: "SIGSEGV".into() }, 5);
        assert_eq!(breaker.state_at(u64::MAX), BreakerState::Open(None));
    }

    #[test]
    fn a_configured_order_ends_at_the_plain_reference() {
        let ids = ["cuda.flash", "aten.flash", "aten.cudnn"];
        let named = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(order(&ids, None, "plain"), [0, 1, 2]);
        assert_eq!(order(&ids, Some(&named(&["cudnn", "flash"])), "plain"), [2, 0, 1]);
        assert_eq!(order(&ids, Some(&named(&["aten.flash", "math", "cudnn"])), "plain"), [1]);
        assert!(order(&ids, Some(&named(&["plain"])), "plain").is_empty());
        assert_eq!(operations("attention"), ["sdpa", "sdpa_backward"]);
    }
}
