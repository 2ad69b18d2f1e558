//! What a manager remembers: the kernel chosen for each signature, breakers, counts, and news not yet told.
//!
//! **Invariant:** bounded. A signature that is forgotten has its calls counted first.

use super::ledger::Ledger;
use super::manager::News;
use super::policy::{Breaker, Standing};
use super::shadow::Unsettled;
use super::sig::{BySig, Sig};
use super::{Extra, names};
use crate::op::row::{Kernel, PLAIN};
use enn_common::kernels::Quarantine;
use smallvec::SmallVec;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

/// Signatures remembered; beyond them all are forgotten, and kernels are checked again.
const SIGNATURES_MAX: usize = 4096;
/// Faults and recoveries waiting to be told.
const NEWS_MAX: usize = 256;

/// What was decided for a signature.
pub(super) struct Known {
    pub(super) op: &'static str,
    /// None: the plain reference.
    pub(super) kernel: Option<&'static Kernel>,
    /// Calls since the last report.
    pub(super) calls: u64,
    /// Kernels passed over and why.
    pub(super) passed_over: SmallVec<[(&'static str, &'static str); 1]>,
    /// The step at which to decide anew.
    pub(super) until: u64,
}

/// Comparisons that said nothing.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Comparisons {
    pub(super) seen: u32,
    /// What was recorded since has the reference in it: it is recorded anew at this step.
    pub(super) again: u64,
}

/// What is remembered.
#[derive(Default)]
pub(super) struct State {
    /// Kernels of each operation in the order in which they are tried.
    pub(super) tried: HashMap<&'static str, Rc<[&'static Kernel]>>,
    pub(super) known: HashMap<Sig, Known, BySig>,
    /// By kernel, operation and signature; none: any.
    pub(super) breakers: HashMap<(&'static str, &'static str, Option<Sig>), Breaker>,
    pub(super) unsettled: HashMap<(Sig, Unsettled), Comparisons>,
    pub(super) ledger: Ledger,
    pub(super) news: Vec<News>,
    /// Agreed entries that are not yet in force, by epoch.
    pub(super) heard: VecDeque<Quarantine>,
    pub(super) heard_epoch: u64,
}

impl State {
    /// What the breakers of a kernel say, the one of the signature and the one of all.
    pub(super) fn standing(&self, kernel: &'static str, op: &'static str, sig: Sig, step: u64) -> Standing {
        let breaker = |sig| self.breakers.get(&(kernel, op, sig));
        let of = |sig| breaker(sig).map_or(Standing::Closed, |breaker| breaker.standing(step));
        match (of(Some(sig)), of(None)) {
            (open @ Standing::Open(_), _) | (_, open @ Standing::Open(_)) => open,
            (Standing::HalfOpen, _) | (_, Standing::HalfOpen) => Standing::HalfOpen,
            _ => Standing::Closed,
        }
    }

    pub(super) fn remember(&mut self, sig: Sig, known: Known) {
        if self.known.len() >= SIGNATURES_MAX {
            self.count();
            self.known.clear();
            self.unsettled.clear();
        }
        if let Some(before) = self.known.insert(sig, known) {
            self.ledger_of(&before);
        }
    }

    /// A comparison of such operands said something; whether any before had not.
    pub(super) fn settle(&mut self, sig: Sig) -> bool {
        let zeros = self.unsettled.remove(&(sig, Unsettled::Zeros));
        let odd = self.unsettled.remove(&(sig, Unsettled::NotFinite));
        zeros.is_some() || odd.is_some()
    }

    pub(super) fn forget(&mut self, sig: Sig) {
        if let Some(before) = self.known.remove(&sig) {
            self.ledger_of(&before);
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

    pub(super) fn ledger_of(&mut self, known: &Known) {
        note(&mut self.ledger, known);
    }

    pub(super) fn tell(&mut self, news: News) {
        if self.news.len() < NEWS_MAX {
            self.news.push(news);
        }
    }

    pub(super) fn agree(&mut self, entry: &Quarantine, extras: &[Extra]) {
        let Some((op, kernel)) = names::interned(&entry.op, &entry.kernel, extras) else { return };
        let sig = entry.sig.map(Sig);
        self.breakers.entry((kernel, op, sig)).or_default().agreed(entry);
        match sig {
            Some(sig) => self.forget(sig),
            None => {
                let gone: Vec<Sig> =
                    self.known.iter().filter(|(_, known)| known.op == op).map(|(sig, _)| *sig).collect();
                gone.into_iter().for_each(|sig| self.forget(sig));
                // The whole kernel is out: what was known of single signatures is of no more use.
                self.breakers.retain(|key, _| key.0 != kernel || key.1 != op || key.2.is_none());
            }
        }
    }
}

fn note(ledger: &mut Ledger, known: &Known) {
    if known.calls == 0 {
        return;
    }
    ledger.ran(known.op, known.kernel.map_or(PLAIN, |kernel| kernel.id), known.calls);
    for (kernel, reason) in &known.passed_over {
        ledger.passed_over(known.op, kernel, reason, known.calls);
    }
}
