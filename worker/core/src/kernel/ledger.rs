//! Counts, per operation, which kernels ran, which were passed over and why. Counts are reported now and then and reset by the report.
//!
//! **Invariant:** memory is bounded: one entry per operation with kernels, and a few reasons in each.

use enn_common::kernels::{OpKernels, REASONS_MAX};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct KernelLedger {
    ops: BTreeMap<&'static str, OpKernels>,
}

impl KernelLedger {
    fn op(&mut self, op: &'static str) -> &mut OpKernels {
        self.ops.entry(op).or_insert_with(|| OpKernels { op: op.to_owned(), ..OpKernels::default() })
    }

    /// Sets the order in which an operation's kernels are tried.
    pub(super) fn ordered(&mut self, op: &'static str, order: Vec<String>, forced: bool) {
        let own = self.op(op);
        own.order = order;
        own.forced = forced;
    }

    /// Adds `calls` calls of a kernel.
    pub(super) fn ran(&mut self, op: &'static str, kernel: &str, calls: u64) {
        self.op(op).ran.entry(kernel.to_owned()).or_default().calls += calls;
    }

    /// Counts one more signature on which a kernel agreed with the reference.
    pub(super) fn checked(&mut self, op: &'static str, kernel: &str) {
        self.op(op).ran.entry(kernel.to_owned()).or_default().checked += 1;
    }

    /// Adds `calls` calls for which a kernel was passed over.
    pub(super) fn passed_over(&mut self, op: &'static str, kernel: &str, reason: &str, calls: u64) {
        let own = self.op(op);
        let key = format!("{kernel}: {reason}");
        if own.passed_over.len() < REASONS_MAX || own.passed_over.contains_key(&key) {
            *own.passed_over.entry(key).or_default() += calls;
        }
    }

    /// Returns all counts and resets them. The orders stay.
    pub(super) fn take(&mut self) -> Vec<OpKernels> {
        let report = self.ops.values().filter(|op| !op.ran.is_empty() || !op.passed_over.is_empty()).cloned().collect();
        for op in self.ops.values_mut() {
            op.ran.clear();
            op.passed_over.clear();
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_told_once_and_reasons_are_few() {
        let mut ledger = KernelLedger::default();
        ledger.ordered("sdpa", vec!["flash".into(), "plain".into()], true);
        assert!(ledger.take().is_empty());
        ledger.ran("sdpa", "plain", 2);
        ledger.ran("sdpa", "plain", 1);
        for width in 0..100 {
            ledger.passed_over("sdpa", "flash", &format!("width {width}"), 1);
        }
        let told = ledger.take();
        assert_eq!((told[0].ran["plain"].calls, told[0].passed_over.len()), (3, REASONS_MAX));
        assert!(told[0].forced && told[0].order == ["flash", "plain"]);
        assert!(ledger.take().is_empty());
    }
}
