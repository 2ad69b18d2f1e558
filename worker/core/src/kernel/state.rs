//! State of a manager: the kernel chosen for each signature, breakers, counts, and events that are not reported yet.
//!
//! **Invariant:** memory is bounded. The calls of a signature are counted before it is forgotten.

use super::event::KernelEvent;
use super::ledger::KernelLedger;
use super::policy::{Breaker, BreakerState};
use super::shadow::Unsettled;
use super::signature::{BySignature, OperandSignature};
use super::{Extra, names};
use crate::op::row::{Kernel, PLAIN};
use enn_common::kernels::Quarantine;
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

/// Most signatures that are remembered. Beyond that all are forgotten, and kernels are checked again.
const SIGNATURES_MAX: usize = 4096;
/// Most faults and recoveries that wait to be reported.
const EVENTS_MAX: usize = 256;

pub(super) struct SignatureChoice {
    pub(super) op: &'static str,
    /// The kernel; `None` for the plain reference.
    pub(super) kernel: Option<&'static Kernel>,
    /// Calls since the last report.
    pub(super) calls: u64,
    pub(super) passed_over: SmallVec<[(&'static str, &'static str); 1]>,
    /// The step at which the choice is made again.
    pub(super) until: u64,
}

impl SignatureChoice {
    /// Returns a choice that stands, without kernels that were passed over.
    pub(super) fn new(op: &'static str, kernel: Option<&'static Kernel>, calls: u64) -> Self {
        Self { op, kernel, calls, passed_over: SmallVec::new(), until: u64::MAX }
    }
}

/// Inconclusive comparisons of a signature.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Comparisons {
    pub(super) seen: u32,
    /// The step at which the comparison is repeated, and plans that contain the reference are recorded anew.
    pub(super) again: u64,
}

#[derive(Default)]
pub(super) struct ManagerState {
    /// Kernels of each operation in the order in which they are tried.
    pub(super) tried: HashMap<&'static str, Rc<[&'static Kernel]>>,
    pub(super) known: HashMap<OperandSignature, SignatureChoice, BySignature>,
    /// Breakers by kernel, operation and signature; `None` covers all signatures.
    pub(super) breakers: HashMap<(&'static str, &'static str, Option<OperandSignature>), Breaker>,
    pub(super) unsettled: HashMap<(OperandSignature, Unsettled), Comparisons>,
    pub(super) ledger: KernelLedger,
    pub(super) events: Vec<KernelEvent>,
    /// Agreed entries that are not yet in force, by epoch.
    pub(super) announced: VecDeque<Quarantine>,
    pub(super) announced_epoch: u64,
}

impl ManagerState {
    /// Combines the breaker states of a kernel for the signature and for all signatures.
    pub(super) fn state_at(
        &self,
        kernel: &'static str,
        op: &'static str,
        sig: OperandSignature,
        step: u64,
    ) -> BreakerState {
        let breaker = |sig| self.breakers.get(&(kernel, op, sig));
        let of = |sig| breaker(sig).map_or(BreakerState::Closed, |breaker| breaker.state_at(step));
        match (of(Some(sig)), of(None)) {
            (open @ BreakerState::Open(_), _) | (_, open @ BreakerState::Open(_)) => open,
            (BreakerState::HalfOpen, _) | (_, BreakerState::HalfOpen) => BreakerState::HalfOpen,
            _ => BreakerState::Closed,
        }
    }

    pub(super) fn remember(&mut self, sig: OperandSignature, known: SignatureChoice) {
        if self.known.len() >= SIGNATURES_MAX {
            self.count();
            self.known.clear();
            self.unsettled.clear();
        }
        if let Some(before) = self.known.insert(sig, known) {
            note(&mut self.ledger, &before);
        }
    }

    /// Notes a conclusive comparison. Returns whether an earlier one was inconclusive.
    pub(super) fn settle(&mut self, sig: OperandSignature) -> bool {
        let zeros = self.unsettled.remove(&(sig, Unsettled::Zeros));
        let odd = self.unsettled.remove(&(sig, Unsettled::NotFinite));
        zeros.is_some() || odd.is_some()
    }

    pub(super) fn forget(&mut self, sig: OperandSignature) {
        if let Some(before) = self.known.remove(&sig) {
            note(&mut self.ledger, &before);
        }
    }

    /// Moves the counts of all signatures to the ledger.
    pub(super) fn count(&mut self) {
        let ledger = &mut self.ledger;
        for known in self.known.values_mut() {
            note(ledger, known);
            known.calls = 0;
        }
    }

    pub(super) fn tell(&mut self, events: KernelEvent) {
        if self.events.len() < EVENTS_MAX {
            self.events.push(events);
        }
    }

    pub(super) fn agree(&mut self, entry: &Quarantine, extras: &[Extra]) {
        let Some((op, kernel)) = names::interned(&entry.op, &entry.kernel, extras) else { return };
        let sig = entry.sig.map(OperandSignature);
        self.breakers.entry((kernel, op, sig)).or_default().agreed(entry);
        match sig {
            Some(sig) => self.forget(sig),
            None => {
                let gone: Vec<OperandSignature> =
                    self.known.iter().filter(|(_, known)| known.op == op).map(|(sig, _)| *sig).collect();
                gone.into_iter().for_each(|sig| self.forget(sig));
                // The kernel is quarantined on all signatures: breakers of single signatures are obsolete.
                self.breakers.retain(|key, _| key.0 != kernel || key.1 != op || key.2.is_none());
            }
        }
    }
}

fn note(ledger: &mut KernelLedger, known: &SignatureChoice) {
    if known.calls == 0 {
        return;
    }
    ledger.ran(known.op, known.kernel.map_or(PLAIN, |kernel| kernel.id), known.calls);
    for (kernel, reason) in &known.passed_over {
        ledger.passed_over(known.op, kernel, reason, known.calls);
    }
}
