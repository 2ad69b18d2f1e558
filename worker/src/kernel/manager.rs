//! The manager: chooses a kernel per call, checks it at first use, falls back, and remembers.
//!
//! ```text
//! call ─► signature ─► known? ──yes──► run the kernel chosen before ──failed──► the next kernel … the plain reference
//!                        │no
//!                        ▼
//!         configured order ► fits ► deterministic ► not in quarantine ► checked beside the reference (shadow)
//! ```
//! **Invariant:** every way ends in the row's plain reference. Nothing is checked, and no unchecked kernel runs, while a graph
//! is being captured. What it keeps is bounded.

use super::ledger::Ledger;
use super::policy::{self, Breaker, Standing};
use super::shadow::{self, FirstUse};
use super::sig::{self, Sig};
use super::{Extra, Intents, KernelNameError, Launcher, NoIntents};
use crate::backend::Outs;
use crate::error::OpErrorKind;
use crate::op::Op;
use crate::op::row::{Kernel, Launch, OpRow, PLAIN};
use enn_common::kernels::{Fault, KernelFault, OpKernels, Quarantine, Quarantined};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Signatures remembered; beyond them all are forgotten, and kernels are checked again.
const SIGNATURES_MAX: usize = 4096;
/// Comparisons of a signature that may be with zeros only, before the kernel is taken for right.
const EMPTY_MAX: u32 = 16;
/// Faults and recoveries waiting to be told.
const NEWS_MAX: usize = 256;

/// Something all ranks must hear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// A kernel was wrong or could not run.
    Faulted(KernelFault),
    /// A kernel was tried again after its cool-down and was right.
    Recovered {
        /// Operation.
        op: &'static str,
        /// Kernel.
        kernel: &'static str,
        /// Signature.
        sig: u64,
        /// Optimizer steps done.
        step: u64,
    },
}

/// What the configuration says of kernels.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Kernels in the order in which they are tried, by operation, its short name "attention", or both.
    pub order: BTreeMap<String, Vec<String>>,
    /// Only kernels whose results are the same bits each time.
    pub deterministic: bool,
}

/// What was decided for a signature.
struct Known {
    op: &'static str,
    /// None: the plain reference.
    kernel: Option<&'static Kernel>,
    /// Calls since the last report.
    calls: u64,
    /// Kernels passed over and why.
    passed_over: SmallVec<[(&'static str, &'static str); 1]>,
    /// The step at which to decide anew.
    until: u64,
}

#[derive(Default)]
struct State {
    /// Kernels of each operation in the order in which they are tried.
    tried: HashMap<&'static str, Vec<&'static Kernel>>,
    known: HashMap<Sig, Known>,
    /// By kernel, operation and signature; none: any.
    breakers: HashMap<(&'static str, &'static str, Option<Sig>), Breaker>,
    /// Comparisons with zeros so far.
    empty: HashMap<Sig, u32>,
    ledger: Ledger,
    news: Vec<News>,
    /// Agreed entries that are not yet in force, by epoch.
    heard: VecDeque<Quarantine>,
    heard_epoch: u64,
}

/// One call's choice.
enum Choice {
    Plain,
    Checked(&'static Kernel),
    Unchecked(&'static Kernel),
}

/// Chooses, checks and remembers. Belongs to one thread; lives as long as the session.
pub struct Manager {
    settings: Settings,
    extras: Vec<Extra>,
    intents: Box<dyn Intents>,
    state: RefCell<State>,
    step: Cell<u64>,
    epoch: Cell<u64>,
    capturing: Cell<bool>,
    plain_only: Cell<bool>,
    /// Changes when a kernel chosen before may not be chosen again.
    generation: Cell<u64>,
    /// The next step at which a kernel in quarantine may be tried again.
    retry: Cell<u64>,
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
            capturing: Cell::new(false),
            plain_only: Cell::new(false),
            generation: Cell::new(0),
            retry: Cell::new(u64::MAX),
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

    /// A number that changes when a kernel chosen before may not be chosen again: whoever keeps choices asks anew then.
    pub fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Choices made before are void; when they may be the next time.
    fn changed(&self) {
        self.generation.set(self.generation.get() + 1);
        let (state, step) = (self.state.borrow(), self.step.get());
        let retries = state.breakers.values().filter_map(|breaker| breaker.retry_after(step));
        self.retry.set(retries.min().unwrap_or(u64::MAX));
    }

    /// Says whether a graph is being captured: then only checked kernels run.
    pub fn set_capturing(&self, capturing: bool) {
        self.capturing.set(capturing);
    }

    /// Runs plain references only, e.g. for an export.
    pub fn set_plain_only(&self, plain_only: bool) {
        self.plain_only.set(plain_only);
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

    /// Counts calls that were made without asking: those of a record that ran again.
    pub fn count_replays(&self, op: &Op, kernel: &'static str, calls: u64) {
        if !op.row().kernels.is_empty() || kernel != PLAIN {
            self.state.borrow_mut().ledger.ran(op.name(), kernel, calls);
        }
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
        if row.kernels.is_empty() && self.extras.is_empty() {
            return None;
        }
        self.state.borrow().known.get(&Sig::of(op, l.ins)).and_then(|known| known.kernel)
    }

    /// The kernels that could run a call, whatever their standing.
    fn candidates(&self, op: &Op, row: &'static OpRow) -> Vec<&'static Kernel> {
        let own = row.kernels.iter().chain(self.extras.iter().filter(|e| e.op == row.name).map(|e| e.kernel));
        let all: Vec<&'static Kernel> = own.collect();
        let ids: Vec<&str> = all.iter().map(|kernel| kernel.id).collect();
        let wanted = self.wanted(op.name());
        policy::order(&ids, wanted, PLAIN).into_iter().map(|index| all[index]).collect()
    }

    fn wanted(&self, op: &str) -> Option<&[String]> {
        let fitting = self.settings.order.iter().find(|(key, _)| policy::operations(key).iter().any(|name| name == op));
        fitting.map(|(_, order)| order.as_slice())
    }

    fn choose(&self, op: &Op, l: &Launch<'_>, sig: Sig, failed: &[&'static Kernel]) -> Choice {
        let (row, step) = (op.row(), self.step.get());
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if failed.is_empty()
            && let Some(known) = state.known.get_mut(&sig)
            && step < known.until
        {
            known.calls += 1;
            return known.kernel.map_or(Choice::Plain, Choice::Checked);
        }
        let tried = state.tried.entry(row.name).or_insert_with(|| {
            let kernels = self.candidates(op, row);
            let order = kernels.iter().map(|kernel| kernel.id).chain([PLAIN]).map(str::to_owned).collect();
            state.ledger.ordered(row.name, order, self.wanted(row.name).is_some());
            kernels
        });
        let mut known = Known { op: row.name, kernel: None, calls: 1, passed_over: SmallVec::new(), until: u64::MAX };
        for kernel in tried.iter() {
            if failed.iter().any(|other| std::ptr::eq(*other, *kernel)) {
                continue;
            }
            let fits = (kernel.fits)(op, l);
            let standing = standing(&state.breakers, kernel.id, row.name, sig, step);
            let reason = match (fits, standing) {
                (Err(reason), _) => reason,
                (Ok(()), _) if self.settings.deterministic && !kernel.deterministic => "not deterministic",
                (Ok(()), Standing::Open(retry)) => {
                    known.until = known.until.min(retry.unwrap_or(u64::MAX));
                    "in quarantine"
                }
                (Ok(()), _) if self.capturing.get() => {
                    state.ledger.passed_over(row.name, kernel.id, "not checked before the capture", 1);
                    continue;
                }
                (Ok(()), _) => return Choice::Unchecked(kernel),
            };
            known.passed_over.push((kernel.id, reason));
        }
        if self.capturing.get() || !failed.is_empty() {
            state.ledger.ran(row.name, PLAIN, 1);
        } else {
            state.remember(sig, known);
        }
        Choice::Plain
    }

    /// A kernel was right beside the reference: it is chosen from now on.
    fn passed(&self, kernel: &'static Kernel, op: &Op, sig: Sig, calls: u64) {
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
        state.ledger.checked(row.name, kernel.id);
        let known = Known { op: row.name, kernel: Some(kernel), calls, passed_over: SmallVec::new(), until: u64::MAX };
        state.remember(sig, known);
    }

    /// Takes a failure in, and tells it when the kernel is now passed over.
    pub(super) fn failed(&self, kernel: &'static Kernel, op: &Op, ins: &[&tch::Tensor], fault: Fault) -> KernelFault {
        let (name, sig, step) = (op.name(), Sig::of(op, ins), self.step.get());
        let mut state = self.state.borrow_mut();
        let breaker = state.breakers.entry((kernel.id, name, Some(sig))).or_default();
        let open = breaker.failed(&fault, step);
        let (op, kernel) = (name.to_owned(), kernel.id.to_owned());
        let fault = KernelFault { op, kernel, sig: sig.0, operands: sig::words(ins), fault, step };
        if open {
            state.forget(sig);
            state.tell(News::Faulted(fault.clone()));
            drop(state);
            self.changed();
        }
        fault
    }

    /// The first launch on such operands, beside the reference.
    fn first_use(&self, kernel: &'static Kernel, op: &Op, l: &Launch<'_>, sig: Sig) -> Result<Try, OpErrorKind> {
        match shadow::first_use(kernel, op, l, sig, self.intents.as_ref())? {
            FirstUse::Right(outs) => {
                self.passed(kernel, op, sig, 1);
                Ok(Try::Ran(outs, kernel.id))
            }
            FirstUse::Faulty(fault, outs) => {
                self.failed(kernel, op, l.ins, fault);
                self.state.borrow_mut().ledger.ran(op.name(), PLAIN, 1);
                Ok(Try::Ran(outs, PLAIN))
            }
            FirstUse::Empty(outs) => {
                let mut state = self.state.borrow_mut();
                let seen = state.empty.entry(sig).or_default();
                *seen += 1;
                let enough = *seen >= EMPTY_MAX;
                state.ledger.ran(op.name(), PLAIN, 1);
                drop(state);
                if enough {
                    self.passed(kernel, op, sig, 0);
                }
                Ok(Try::Ran(outs, PLAIN))
            }
            FirstUse::NotLaunched(error) => Ok(Try::Failed(error)),
        }
    }
}

/// What one try gave.
enum Try {
    Ran(Outs, &'static str),
    Failed(OpErrorKind),
}

impl Launcher for Manager {
    fn kernel(&self, op: &Op, id: &str) -> Option<&'static Kernel> {
        let row = op.row();
        let extra = || self.extras.iter().filter(|extra| extra.op == row.name).map(|extra| extra.kernel);
        row.kernels.iter().chain(extra()).find(|kernel| kernel.id == id)
    }

    fn launch(&self, op: &Op, l: &Launch<'_>) -> Result<(Outs, &'static str), OpErrorKind> {
        let row = op.row();
        if (row.kernels.is_empty() && self.extras.is_empty()) || self.plain_only.get() {
            return Ok(((row.launch)(op, l)?, PLAIN));
        }
        let sig = Sig::of(op, l.ins);
        let mut failed: SmallVec<[&'static Kernel; 2]> = SmallVec::new();
        let mut errors: SmallVec<[OpErrorKind; 2]> = SmallVec::new();
        let ran = loop {
            let (kernel, tried) = match self.choose(op, l, sig, &failed) {
                Choice::Plain => break ((row.launch)(op, l)?, PLAIN),
                Choice::Checked(kernel) => match (kernel.launch)(op, l) {
                    Ok(outs) => (kernel, Try::Ran(outs, kernel.id)),
                    Err(error) => (kernel, Try::Failed(error)),
                },
                Choice::Unchecked(kernel) => (kernel, self.first_use(kernel, op, l, sig)?),
            };
            match tried {
                Try::Ran(outs, id) => break (outs, id),
                Try::Failed(error) => {
                    failed.push(kernel);
                    errors.push(error);
                }
            }
        };
        // Only now: where the reference fails too, the operands are at fault and no kernel is.
        for (kernel, error) in failed.into_iter().zip(errors) {
            let error = error.to_string();
            self.state.borrow_mut().ledger.passed_over(row.name, kernel.id, "launch failed", 1);
            self.failed(kernel, op, l.ins, Fault::Launch { error });
        }
        Ok(ran)
    }
}

fn standing(
    breakers: &HashMap<(&'static str, &'static str, Option<Sig>), Breaker>,
    kernel: &'static str,
    op: &'static str,
    sig: Sig,
    step: u64,
) -> Standing {
    let of = |sig| breakers.get(&(kernel, op, sig)).map_or(Standing::Closed, |breaker| breaker.standing(step));
    match (of(Some(sig)), of(None)) {
        (open @ Standing::Open(_), _) | (_, open @ Standing::Open(_)) => open,
        (Standing::HalfOpen, _) | (_, Standing::HalfOpen) => Standing::HalfOpen,
        _ => Standing::Closed,
    }
}

impl State {
    fn remember(&mut self, sig: Sig, known: Known) {
        if self.known.len() >= SIGNATURES_MAX {
            self.count();
            self.known.clear();
            self.empty.clear();
        }
        if let Some(before) = self.known.insert(sig, known) {
            self.ledger_of(&before);
        }
    }

    fn forget(&mut self, sig: Sig) {
        if let Some(before) = self.known.remove(&sig) {
            self.ledger_of(&before);
        }
    }

    /// Moves the counts of all signatures to the ledger.
    fn count(&mut self) {
        let ledger = &mut self.ledger;
        for known in self.known.values_mut() {
            note(ledger, known);
            known.calls = 0;
        }
    }

    fn ledger_of(&mut self, known: &Known) {
        note(&mut self.ledger, known);
    }

    fn tell(&mut self, news: News) {
        if self.news.len() < NEWS_MAX {
            self.news.push(news);
        }
    }

    fn agree(&mut self, entry: &Quarantine, extras: &[Extra]) {
        let Some((op, kernel)) = super::names::interned(&entry.op, &entry.kernel, extras) else { return };
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
