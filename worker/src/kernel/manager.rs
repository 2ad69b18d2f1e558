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

use super::pace::{self, Clock};
use super::policy::{self, Breaker};
use super::sig::{self, Sig};
use super::state::{Known, State};
use super::{Extra, Intents, KernelNameError, NoIntents};
use crate::op::Op;
use crate::op::row::{Kernel, Launch, OpRow, PLAIN};
use enn_common::kernels::{Fault, KernelFault, OpKernels, Quarantined};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Something all ranks must hear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// A kernel was wrong or slow, or could not run.
    Faulted(KernelFault),
    /// A kernel was tried again after its cool-down and was right.
    Recovered {
        /// Operation.
        op: &'static str,
        kernel: &'static str,
        sig: u64,
        /// Optimizer steps done.
        step: u64,
    },
}

impl News {
    /// The fault, if it is one.
    pub fn into_fault(self) -> Option<KernelFault> {
        match self {
            Self::Faulted(fault) => Some(fault),
            Self::Recovered { .. } => None,
        }
    }
}

/// What the configuration says of kernels.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Kernels in the order in which they are tried, by operation, its short name "attention", or both.
    pub order: BTreeMap<String, Vec<String>>,
    /// Only kernels whose results are the same bits each time.
    pub deterministic: bool,
}

/// Chooses, checks and remembers. Belongs to one thread; lives as long as the session.
pub struct Manager {
    pub(super) settings: Settings,
    pub(super) extras: Vec<Extra>,
    pub(super) intents: Box<dyn Intents>,
    pub(super) state: RefCell<State>,
    pub(super) step: Cell<u64>,
    epoch: Cell<u64>,
    /// See [`super::Launcher::generation`].
    pub(super) generation: Cell<u64>,
    /// The next step at which choices are void.
    retry: Cell<u64>,
    /// Tells what is slow.
    pub(super) clock: Cell<Option<Clock>>,
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
            clock: Cell::new(Some(pace::slow)),
        }
    }
}

impl Manager {
    /// A manager with the configured choices, kernels of the user's own, and a place for intents.
    ///
    /// # Errors
    /// [`KernelNameError`] when a configured operation or kernel is not there.
    pub fn new(settings: Settings, extras: Vec<Extra>, intents: Box<dyn Intents>) -> Result<Self, KernelNameError> {
        super::names::check(&settings.order, &extras)?;
        Ok(Self { settings, extras, intents, ..Self::default() })
    }

    /// Says how many optimizer steps are done: cool-downs are counted in them.
    pub fn set_step(&self, step: u64) {
        self.step.set(step);
        if step >= self.retry.get() {
            self.changed();
        }
    }

    /// Choices made before are void.
    fn changed(&self) {
        self.generation.set(self.generation.get() + 1);
        self.plan_retry();
    }

    /// When choices may be void the next time: a cool-down ends, or a comparison that said nothing is to be made again.
    pub(super) fn plan_retry(&self) {
        let state = self.state.borrow();
        let step = self.step.get();
        let cooled = state.breakers.values().filter_map(|breaker| breaker.retry_after(step));
        let again = state.unsettled.values().map(|unsettled| unsettled.again).filter(|again| *again > step);
        self.retry.set(cooled.chain(again).min().unwrap_or(u64::MAX));
    }

    /// Runs something that times no kernel: where others compute on the device, too.
    pub fn untimed<T>(&self, run: impl FnOnce() -> T) -> T {
        let clock = self.clock.take();
        let made = run();
        self.clock.set(clock);
        made
    }

    /// The selection epoch in force: how many of the quarantines that all ranks agreed on are.
    pub fn epoch(&self) -> u64 {
        self.epoch.get()
    }

    /// Puts everything heard in force at once: before the first step, when all ranks were told the same.
    pub fn begin(&self, told: &Quarantined) {
        self.hear(told);
        while self.is_waiting() {
            self.advance();
        }
    }

    /// Takes the launcher's list; what is new takes effect with [`Manager::advance`].
    pub fn hear(&self, told: &Quarantined) {
        let mut state = self.state.borrow_mut();
        let before = state.heard_epoch;
        let mut fresh: Vec<_> = told.entries.iter().filter(|entry| entry.epoch > before).cloned().collect();
        fresh.sort_by_key(|entry| entry.epoch);
        state.heard.extend(fresh);
        state.heard_epoch = before.max(told.epoch);
    }

    /// Whether an epoch was heard of that is not in force.
    pub fn is_waiting(&self) -> bool {
        self.state.borrow().heard_epoch > self.epoch.get()
    }

    /// Puts the next epoch in force. Every rank calls this at the same step, when all are waiting.
    pub fn advance(&self) {
        let epoch = self.epoch.get() + 1;
        self.epoch.set(epoch);
        let mut state = self.state.borrow_mut();
        while state.heard.front().is_some_and(|entry| entry.epoch <= epoch) {
            if let Some(entry) = state.heard.pop_front() {
                state.agree(&entry, &self.extras);
            }
        }
        drop(state);
        self.changed();
    }

    /// Faults and recoveries since the last call.
    pub fn take_news(&self) -> Vec<News> {
        std::mem::take(&mut self.state.borrow_mut().news)
    }

    /// What ran since the last call.
    pub fn take_calls(&self) -> Vec<OpKernels> {
        let mut state = self.state.borrow_mut();
        state.count();
        state.ledger.take()
    }

    /// The kernel that runs such a call now; none: the plain reference, or nothing is known of such operands.
    pub(super) fn chosen(&self, op: &Op, l: &Launch<'_>) -> Option<&'static Kernel> {
        let row = op.row();
        if !self.has_choice(row) {
            return None;
        }
        self.state.borrow().known.get(&Sig::of(op, l.ins)).and_then(|known| known.kernel)
    }

    /// Whether an operation has more than its plain reference.
    pub(super) fn has_choice(&self, row: &OpRow) -> bool {
        !row.kernels.is_empty() || self.extras.iter().any(|extra| extra.op == row.name)
    }

    /// The kernels that could run a call, whatever their standing.
    pub(super) fn candidates(&self, op: &Op, row: &'static OpRow) -> Vec<&'static Kernel> {
        // The user's own come first.
        let added = self.extras.iter().filter(|extra| extra.op == row.name).map(|extra| extra.kernel);
        let all: Vec<&'static Kernel> = added.chain(row.kernels).collect();
        let ids: Vec<&str> = all.iter().map(|kernel| kernel.id).collect();
        let wanted = self.wanted(op.name());
        policy::order(&ids, wanted, PLAIN).into_iter().map(|index| all[index]).collect()
    }

    /// The configured order of an operation.
    pub(super) fn wanted(&self, op: &str) -> Option<&[String]> {
        let fitting = self.settings.order.iter().find(|(key, _)| policy::operations(key).iter().any(|name| name == op));
        fitting.map(|(_, order)| order.as_slice())
    }

    /// A kernel was right beside the reference: it is chosen from now on.
    pub(super) fn passed(&self, kernel: &'static Kernel, op: &Op, sig: Sig, calls: u64) {
        let row = op.row();
        let mut state = self.state.borrow_mut();
        let mut recovered = false;
        for key in [(kernel.id, row.name, Some(sig)), (kernel.id, row.name, None)] {
            recovered |= state.breakers.get_mut(&key).is_some_and(Breaker::succeeded);
        }
        if recovered {
            let step = self.step.get();
            state.tell(News::Recovered { op: row.name, kernel: kernel.id, sig: sig.0, step });
        }
        drop(state);
        self.choose_always(kernel, row, sig, calls);
    }

    /// It is chosen for that signature from now on.
    fn choose_always(&self, kernel: &'static Kernel, row: &'static OpRow, sig: Sig, calls: u64) {
        let mut state = self.state.borrow_mut();
        state.ledger.checked(row.name, kernel.id);
        let known = Known { op: row.name, kernel: Some(kernel), calls, passed_over: SmallVec::new(), until: u64::MAX };
        state.remember(sig, known);
        let settled = state.settle(sig);
        drop(state);
        if settled {
            self.plan_retry();
        }
    }

    /// A kernel was right but slow. That is told, and it runs until all ranks leave it out at the same step: another one may not have found
    /// it slow, and what ranks compute alike must have the same bits on all of them.
    pub(super) fn slow(&self, kernel: &'static Kernel, op: &Op, ins: &[&tch::Tensor], fault: Fault) {
        let sig = Sig::of(op, ins);
        self.choose_always(kernel, op.row(), sig, 1);
        let fault = self.told(kernel, op, (sig, ins), fault);
        self.state.borrow_mut().tell(News::Faulted(fault));
    }

    fn told(&self, kernel: &Kernel, op: &Op, (sig, ins): (Sig, &[&tch::Tensor]), fault: Fault) -> KernelFault {
        let op = op.name().to_owned();
        let kernel = kernel.id.to_owned();
        KernelFault { op, kernel, sig: sig.0, operands: sig::words(ins), fault, step: self.step.get() }
    }

    /// Takes a failure in, and tells it when the kernel is now passed over.
    pub(super) fn failed(&self, kernel: &'static Kernel, op: &Op, ins: &[&tch::Tensor], fault: Fault) -> KernelFault {
        let name = op.name();
        let sig = Sig::of(op, ins);
        let step = self.step.get();
        let mut state = self.state.borrow_mut();
        let breaker = state.breakers.entry((kernel.id, name, Some(sig))).or_default();
        let open = breaker.failed(&fault, step);
        let fault = self.told(kernel, op, (sig, ins), fault);
        if open {
            state.forget(sig);
            state.settle(sig);
            state.tell(News::Faulted(fault.clone()));
            drop(state);
            self.changed();
        }
        fault
    }
}
