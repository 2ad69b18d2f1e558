//! The manager: chooses a kernel per call, checks it at first use, falls back, and remembers.
//!
//! ```text
//! call ─► signature ─► known? ──yes──► run the kernel chosen before ──failed──► the next kernel … the plain reference
//!                        │no
//!                        ▼
//!         configured order ► fits ► deterministic ► not in quarantine ► checked beside the reference (shadow)
//! ```
//! The choice for one call is in `choice`, what is kept in `state`. A graph is captured from a plan, whose kernels are fixed:
//! the manager is not asked then.
//!
//! **Invariant:** every way ends in the row's plain reference. What it keeps is bounded.

use super::event::KernelEvent;
use super::policy::{self, Breaker};
use super::signature::{self, OperandSignature};
use super::speed::{self, SpeedTest};
use super::state::{ManagerState, SignatureChoice};
use super::{Extra, Intents, KernelNameError, NoIntents};
use crate::op::Op;
use crate::op::row::{Kernel, Launch, OpRow, PLAIN};
use enn_common::kernels::{Fault, KernelFault, OpKernels, Quarantined};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Kernels in the order in which they are tried, by operation, its short name "attention", or both.
    pub order: BTreeMap<String, Vec<String>>,
    /// Whether to use only kernels whose results have the same bits each time.
    pub deterministic: bool,
}

/// Chooses, checks and remembers kernels. A manager belongs to one thread and lives as long as the session.
pub struct Manager {
    pub(super) settings: Settings,
    pub(super) extras: Vec<Extra>,
    pub(super) intents: Box<dyn Intents>,
    pub(super) state: RefCell<ManagerState>,
    pub(super) step: Cell<u64>,
    epoch: Cell<u64>,
    /// Value of [`super::Launcher::generation`].
    pub(super) generation: Cell<u64>,
    /// The next step at which choices become invalid.
    retry: Cell<u64>,
    /// Finds slow kernels, unless timing is switched off.
    pub(super) clock: Cell<Option<SpeedTest>>,
}

impl Default for Manager {
    fn default() -> Self {
        Self {
            settings: Settings::default(),
            extras: Vec::new(),
            intents: Box::new(NoIntents),
            state: RefCell::default(),
            step: Cell::new(0),
            epoch: Cell::new(0),
            generation: Cell::new(0),
            retry: Cell::new(u64::MAX),
            clock: Cell::new(Some(speed::slow)),
        }
    }
}

impl Manager {
    /// Returns a manager with configured choices, the user's own kernels, and a log of intents.
    ///
    /// # Errors
    /// [`KernelNameError`] when a configured operation or kernel is not there.
    pub fn new(settings: Settings, extras: Vec<Extra>, intents: Box<dyn Intents>) -> Result<Self, KernelNameError> {
        super::names::check(&settings.order, &extras)?;
        Ok(Self { settings, extras, intents, ..Self::default() })
    }

    /// Sets the number of optimizer steps done, in which cool-downs are counted.
    pub fn set_step(&self, step: u64) {
        self.step.set(step);
        if step >= self.retry.get() {
            self.changed();
        }
    }

    /// Invalidates all earlier choices.
    fn changed(&self) {
        self.generation.set(self.generation.get() + 1);
        self.plan_retry();
    }

    /// Sets the next step at which choices become invalid: a cool-down ends, or an inconclusive comparison is repeated.
    pub(super) fn plan_retry(&self) {
        let state = self.state.borrow();
        let step = self.step.get();
        let cooled = state.breakers.values().filter_map(|breaker| breaker.retry_after(step));
        let again = state.unsettled.values().map(|unsettled| unsettled.again).filter(|again| *again > step);
        self.retry.set(cooled.chain(again).min().unwrap_or(u64::MAX));
    }

    /// Runs `run` without timing kernels, for use while others compute on the device.
    pub fn untimed<T>(&self, run: impl FnOnce() -> T) -> T {
        let clock = self.clock.take();
        let made = run();
        self.clock.set(clock);
        made
    }

    /// Returns the selection epoch in force: the number of agreed quarantines that have taken effect.
    pub fn epoch(&self) -> u64 {
        self.epoch.get()
    }

    /// Puts all announced quarantines in force at once, before the first step, when all ranks have the same list.
    pub fn begin(&self, list: &Quarantined) {
        self.receive(list);
        while self.is_waiting() {
            self.advance();
        }
    }

    /// Takes the launcher's list. New entries take effect with [`Manager::advance`].
    pub fn receive(&self, list: &Quarantined) {
        let mut state = self.state.borrow_mut();
        let before = state.announced_epoch;
        let mut fresh: Vec<_> = list.entries.iter().filter(|entry| entry.epoch > before).cloned().collect();
        fresh.sort_by_key(|entry| entry.epoch);
        state.announced.extend(fresh);
        state.announced_epoch = before.max(list.epoch);
    }

    /// Whether an announced epoch is not in force yet.
    pub fn is_waiting(&self) -> bool {
        self.state.borrow().announced_epoch > self.epoch.get()
    }

    /// Puts the next epoch in force. Every rank calls this at the same step, when all are waiting.
    pub fn advance(&self) {
        let epoch = self.epoch.get() + 1;
        self.epoch.set(epoch);
        let mut state = self.state.borrow_mut();
        while state.announced.front().is_some_and(|entry| entry.epoch <= epoch) {
            if let Some(entry) = state.announced.pop_front() {
                state.agree(&entry, &self.extras);
            }
        }
        drop(state);
        self.changed();
    }

    pub fn take_events(&self) -> Vec<KernelEvent> {
        std::mem::take(&mut self.state.borrow_mut().events)
    }

    /// Returns the kernels' call counts since the last call.
    pub fn take_calls(&self) -> Vec<OpKernels> {
        let mut state = self.state.borrow_mut();
        state.count();
        state.ledger.take()
    }

    /// Returns the kernel chosen for such a call; `None` for the plain reference or unknown operands.
    pub(super) fn chosen(&self, op: &Op, l: &Launch<'_>) -> Option<&'static Kernel> {
        let row = op.row();
        if !self.has_choice(row) {
            return None;
        }
        self.state.borrow().known.get(&OperandSignature::of(op, l.ins)).and_then(|known| known.kernel)
    }

    /// Whether an operation has more than its plain reference.
    pub(super) fn has_choice(&self, row: &OpRow) -> bool {
        !row.kernels.is_empty() || self.extras.iter().any(|extra| extra.op == row.name)
    }

    /// Returns the kernels that could run a call, whatever the state of their breakers.
    pub(super) fn candidates(&self, op: &Op, row: &'static OpRow) -> Vec<&'static Kernel> {
        // The user's own come first.
        let added = self.extras.iter().filter(|extra| extra.op == row.name).map(|extra| extra.kernel);
        let all: Vec<&'static Kernel> = added.chain(row.kernels).collect();
        let ids: Vec<&str> = all.iter().map(|kernel| kernel.id).collect();
        let wanted = self.wanted(op.name());
        policy::order(&ids, wanted, PLAIN).into_iter().map(|index| all[index]).collect()
    }

    /// Returns the configured order of an operation.
    pub(super) fn wanted(&self, op: &str) -> Option<&[String]> {
        let fitting = self.settings.order.iter().find(|(key, _)| policy::operations(key).iter().any(|name| name == op));
        fitting.map(|(_, order)| order.as_slice())
    }

    /// Chooses a kernel from now on, after it agreed with the reference.
    pub(super) fn passed(&self, kernel: &'static Kernel, op: &Op, sig: OperandSignature, calls: u64) {
        let row = op.row();
        let mut state = self.state.borrow_mut();
        let mut recovered = false;
        for key in [(kernel.id, row.name, Some(sig)), (kernel.id, row.name, None)] {
            recovered |= state.breakers.get_mut(&key).is_some_and(Breaker::succeeded);
        }
        if recovered {
            let step = self.step.get();
            state.tell(KernelEvent::Recovered { op: row.name, kernel: kernel.id, sig: sig.0, step });
        }
        drop(state);
        self.choose_always(kernel, row, sig, calls);
    }

    /// Chooses a kernel for a signature from now on.
    fn choose_always(&self, kernel: &'static Kernel, row: &'static OpRow, sig: OperandSignature, calls: u64) {
        let mut state = self.state.borrow_mut();
        state.ledger.checked(row.name, kernel.id);
        state.remember(sig, SignatureChoice::new(row.name, Some(kernel), calls));
        let settled = state.settle(sig);
        drop(state);
        if settled {
            self.plan_retry();
        }
    }

    /// Reports a kernel that is correct but slow. It keeps running until all ranks leave it out at the same step: another rank may not
    /// have found it slow, and results must have the same bits on all ranks.
    pub(super) fn slow(&self, kernel: &'static Kernel, op: &Op, ins: &[&tch::Tensor], fault: Fault) {
        let sig = OperandSignature::of(op, ins);
        self.choose_always(kernel, op.row(), sig, 1);
        let fault = self.fault_report(kernel, op, sig, ins, fault);
        self.state.borrow_mut().tell(KernelEvent::Faulted(fault));
    }

    fn fault_report(
        &self,
        kernel: &Kernel,
        op: &Op,
        sig: OperandSignature,
        ins: &[&tch::Tensor],
        fault: Fault,
    ) -> KernelFault {
        let op = op.name().to_owned();
        let kernel = kernel.id.to_owned();
        KernelFault { op, kernel, sig: sig.0, operands: signature::words(ins), fault, step: self.step.get() }
    }

    /// Records a failure, and reports it if it opens the kernel's breaker.
    pub(super) fn failed(&self, kernel: &'static Kernel, op: &Op, ins: &[&tch::Tensor], fault: Fault) -> KernelFault {
        let name = op.name();
        let sig = OperandSignature::of(op, ins);
        let step = self.step.get();
        let mut state = self.state.borrow_mut();
        let breaker = state.breakers.entry((kernel.id, name, Some(sig))).or_default();
        let open = breaker.failed(&fault, step);
        let fault = self.fault_report(kernel, op, sig, ins, fault);
        if open {
            state.forget(sig);
            state.settle(sig);
            state.tell(KernelEvent::Faulted(fault.clone()));
            drop(state);
            self.changed();
        }
        fault
    }
}
