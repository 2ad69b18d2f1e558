//! Kernels of a run: which may not run and why, which ran and which were passed over. What workers tell, what the launcher
//! keeps in `kernels.json`, and what it tells all workers.
//!
//! A quarantine names a kernel, an operation and a signature: a 64-bit hash of the operation's attributes and of its
//! operands' shapes, strides, kinds and alignments. It takes effect with a selection epoch, which every rank reaches at the
//! same step, and ends with the build of the worker program it was seen in.
//!
//! **Invariant:** nothing here reads a clock: cool-downs are counted in optimizer steps, so that all ranks agree.

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

/// File in the run directory.
pub const FILE: &str = "kernels.json";
pub const VERSION: u32 = 1;
/// Steps before a quarantined kernel is tried again for the first time; doubled at each further time.
pub const COOL_DOWN_STEPS: u64 = 64;
/// The cool-down is doubled this many times at most.
const COOL_DOWN_DOUBLINGS_MAX: u32 = 10;
/// Signatures of one kernel that may be in quarantine before the kernel is as a whole.
pub const SIGNATURES_MAX: usize = 4;
/// Limit for a kernel that ended a process: each time costs a restart.
pub const CRASHES_MAX: usize = 2;
/// Limit for a kernel that is slow: what is so on some operands need not be on others.
pub const SLOW_MAX: usize = 16;
/// Reasons kept per operation for why a kernel was passed over.
pub const REASONS_MAX: usize = 16;

/// Signals by which a process dies of its own code.
const CRASHES: [Signal; 7] =
    [Signal::SIGSEGV, Signal::SIGABRT, Signal::SIGBUS, Signal::SIGFPE, Signal::SIGILL, Signal::SIGTRAP, Signal::SIGSYS];

/// The name of a signal by which a process dies of its own code; none for others.
pub fn crash(number: i32) -> Option<&'static str> {
    Signal::try_from(number).ok().filter(|signal| CRASHES.contains(signal)).map(Signal::as_str)
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The kernel could not be launched.
    Launch { error: String },
    /// The results are further from the plain reference's than the kernel promises.
    Wrong {
        /// The largest distance, in words.
        found: String,
    },
    /// The results are not finite where the plain reference's are.
    NonFinite,
    /// The kernel promises equal bits for equal operands, and two runs differed.
    Unstable,
    /// The kernel takes much longer than the plain reference.
    Slow {
        /// Times of both, in words.
        found: String,
    },
    /// The process died while the kernel ran for the first time on such operands.
    Crash { how: String },
}

impl Fault {
    /// Whether the kernel is not tried again in this build.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Crash { .. })
    }

    fn is_slow(&self) -> bool {
        matches!(self, Self::Slow { .. })
    }

    /// Signatures with such a fault after which a kernel is not used on any operands.
    fn signatures_max(&self) -> usize {
        match self {
            Self::Crash { .. } => CRASHES_MAX,
            Self::Slow { .. } => SLOW_MAX,
            _ => SIGNATURES_MAX,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Launch { error } => write!(f, "cannot be launched: {error}"),
            Self::Wrong { found } => write!(f, "differs from the plain reference: {found}"),
            Self::NonFinite => f.write_str("is not finite where the plain reference is"),
            Self::Unstable => f.write_str("gave two results for the same operands"),
            Self::Slow { found } => write!(f, "is slower than the plain reference: {found}"),
            Self::Crash { how } => write!(f, "ended the process: {how}"),
        }
    }
}

/// One observation of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFault {
    pub op: String,
    pub kernel: String,
    pub sig: u64,
    /// The operands in words.
    pub operands: String,
    pub fault: Fault,
    pub step: u64,
}

/// A kernel that may not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    pub op: String,
    pub kernel: String,
    /// Signature in hexadecimal; none: on any operands.
    #[serde(with = "hexadecimal")]
    pub sig: Option<u64>,
    /// The operands in words.
    pub operands: String,
    pub fault: Fault,
    /// How often it was put here.
    pub count: u32,
    pub first_step: u64,
    pub last_step: u64,
    /// Selection epoch it takes effect with.
    pub epoch: u64,
    /// Build of the worker program; another build starts without it.
    pub build: String,
    /// Step at which the kernel was tried again and was right.
    #[serde(default)]
    pub recovered: Option<u64>,
}

impl Quarantine {
    /// The step at which it may be tried again; none: not in this build.
    pub fn retry_at(&self) -> Option<u64> {
        let doublings = self.count.saturating_sub(1).min(COOL_DOWN_DOUBLINGS_MAX);
        (!self.fault.is_final()).then(|| self.last_step + (COOL_DOWN_STEPS << doublings))
    }

    /// Whether it speaks of this kernel on these operands.
    pub fn covers(&self, op: &str, kernel: &str, sig: u64) -> bool {
        self.op == op && self.kernel == kernel && self.sig.is_none_or(|own| own == sig)
    }

    pub fn sentence(&self) -> String {
        let Self { op, kernel, operands, fault, .. } = self;
        let on = if self.sig.is_some() { operands.as_str() } else { "any operands" };
        format!("kernel {kernel} of {op} on {on} {fault}")
    }
}

/// Quarantine list that the launcher sends to every worker: the whole list, which only grows within a run of the launcher.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Quarantined {
    pub epoch: u64,
    /// Entries, each with the epoch it takes effect with.
    pub entries: Vec<Quarantine>,
}

/// Calls of one kernel of one operation since the report before.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KernelCalls {
    pub calls: u64,
    /// Signatures on which it was compared with the plain reference, and agreed.
    pub checked: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OpKernels {
    pub op: String,
    /// Kernels in the order in which they are tried; the plain reference is the last.
    pub order: Vec<String>,
    /// Whether the configuration gave that order.
    pub forced: bool,
    pub ran: BTreeMap<String, KernelCalls>,
    /// Calls on which a kernel was passed over, by "kernel: reason".
    pub passed_over: BTreeMap<String, u64>,
}

impl OpKernels {
    /// Adds what came since.
    fn add(&mut self, more: Self) {
        self.op = more.op;
        self.order = more.order;
        self.forced = more.forced;
        for (kernel, calls) in more.ran {
            let own = self.ran.entry(kernel).or_default();
            own.calls += calls.calls;
            own.checked += calls.checked;
        }
        for (reason, calls) in more.passed_over {
            if self.passed_over.len() < REASONS_MAX || self.passed_over.contains_key(&reason) {
                *self.passed_over.entry(reason).or_default() += calls;
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelBook {
    pub version: u32,
    pub epoch: u64,
    pub quarantine: Vec<Quarantine>,
    /// Kernels that ran on rank 0, by operation.
    pub ops: BTreeMap<String, OpKernels>,
}

impl Default for KernelBook {
    fn default() -> Self {
        Self { version: VERSION, epoch: 0, quarantine: Vec::new(), ops: BTreeMap::new() }
    }
}

impl KernelBook {
    /// Forgets what was seen in another build of the worker program.
    pub fn keep_build(&mut self, build: &str) {
        self.quarantine.retain(|entry| entry.build == build);
    }

    /// Enters a fault, with a new selection epoch. The entry it became; none when it is already in force as seen (another
    /// rank saw the same at the same time).
    pub fn enter(&mut self, fault: KernelFault, build: &str) -> Option<&Quarantine> {
        let whole = self.signatures(&fault) >= fault.fault.signatures_max();
        let sig = (!whole).then_some(fault.sig);
        let known = self.quarantine.iter().position(|entry| entry.covers(&fault.op, &fault.kernel, fault.sig));
        if let Some(known) = known {
            let entry = &self.quarantine[known];
            // It is out as a whole for more than that.
            if entry.sig.is_none() && fault.fault.is_slow() && !entry.fault.is_slow() {
                return None;
            }
            let again = entry.recovered.is_some_and(|step| fault.step >= step)
                || entry.retry_at().is_some_and(|step| fault.step >= step)
                || (fault.fault.is_final() && !entry.fault.is_final());
            if !again {
                return None;
            }
        }
        self.epoch += 1;
        let before = known.map(|known| self.quarantine.remove(known));
        if whole {
            self.quarantine.retain(|entry| entry.op != fault.op || entry.kernel != fault.kernel);
        }
        self.quarantine.push(Quarantine {
            op: fault.op,
            kernel: fault.kernel,
            sig: before.as_ref().map_or(sig, |before| before.sig),
            operands: fault.operands,
            fault: fault.fault,
            count: before.as_ref().map_or(1, |before| before.count + 1),
            first_step: before.as_ref().map_or(fault.step, |before| before.first_step),
            last_step: fault.step,
            epoch: self.epoch,
            build: build.to_owned(),
            recovered: None,
        });
        self.quarantine.last()
    }

    /// Signatures on which the fault's kernel is in quarantine, the fault's own included: all that are slow, or all others.
    fn signatures(&self, fault: &KernelFault) -> usize {
        let others = self.quarantine.iter().filter(|entry| entry.op == fault.op && entry.kernel == fault.kernel);
        let others = others.filter(|entry| entry.fault.is_slow() == fault.fault.is_slow());
        others.filter(|entry| entry.sig.is_some_and(|sig| sig != fault.sig)).count() + 1
    }

    /// A kernel was tried again and was right. The entry, unless a later fault speaks against it.
    pub fn recover(&mut self, op: &str, kernel: &str, sig: u64, step: u64) -> Option<&Quarantine> {
        let entry = self.quarantine.iter_mut().find(|entry| entry.covers(op, kernel, sig))?;
        if entry.recovered.is_some() || step <= entry.last_step || entry.fault.is_final() {
            return None;
        }
        entry.recovered = Some(step);
        Some(entry)
    }

    /// Adds what ran since the last report.
    pub fn ran(&mut self, ops: Vec<OpKernels>) {
        for more in ops {
            self.ops.entry(more.op.clone()).or_default().add(more);
        }
    }

    /// Returns the list that is sent to workers.
    pub fn quarantined(&self) -> Quarantined {
        Quarantined { epoch: self.epoch, entries: self.quarantine.clone() }
    }
}

/// A signature as 16 hexadecimal digits: readers of JSON lose the low bits of a 64-bit number.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(sig: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
        sig.map(|sig| format!("{sig:016x}")).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| u64::from_str_radix(&text, 16).map_err(D::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(sig: u64, fault: Fault, step: u64) -> KernelFault {
        KernelFault { op: "sdpa".into(), kernel: "flash".into(), sig, operands: "q 2x3 f32".into(), fault, step }
    }

    fn wrong() -> Fault {
        Fault::Wrong { found: "3 units".into() }
    }

    #[test]
    fn two_ranks_that_see_the_same_make_one_entry() {
        let mut book = KernelBook::default();
        assert_eq!(book.enter(fault(7, wrong(), 5), "b").map(|entry| (entry.epoch, entry.count)), Some((1, 1)));
        assert_eq!(book.enter(fault(7, wrong(), 5), "b"), None);
        assert_eq!((book.epoch, book.quarantined().entries.len()), (1, 1));
        // A later failure at the next try counts again and waits twice as long.
        let retry = book.quarantine[0].retry_at().unwrap();
        assert_eq!(retry, 5 + COOL_DOWN_STEPS);
        let again = book.enter(fault(7, Fault::NonFinite, retry), "b").unwrap();
        assert_eq!((again.count, again.first_step, again.retry_at()), (2, 5, Some(retry + 2 * COOL_DOWN_STEPS)));
    }

    #[test]
    fn a_crash_is_final_and_only_another_build_forgets_it() {
        let mut book = KernelBook::default();
        book.enter(fault(7, wrong(), 5), "b");
        let crash = Fault::Crash { how: "SIGSEGV".into() };
        assert_eq!(book.enter(fault(7, crash, 5), "b").and_then(Quarantine::retry_at), None);
        assert_eq!(book.recover("sdpa", "flash", 7, 9000), None);
        book.keep_build("b");
        assert_eq!(book.quarantine.len(), 1);
        book.keep_build("c");
        assert!(book.quarantine.is_empty());
    }

    #[test]
    fn many_signatures_become_the_whole_kernel() {
        let mut book = KernelBook::default();
        for sig in 0..SIGNATURES_MAX as u64 {
            book.enter(fault(sig, wrong(), sig), "b");
        }
        assert_eq!(book.quarantine.len(), 1);
        assert!(book.quarantine[0].covers("sdpa", "flash", 999) && !book.quarantine[0].covers("sdpa", "cudnn", 0));
        assert_eq!(book.enter(fault(999, wrong(), 3), "b"), None);
    }

    #[test]
    fn the_second_crash_is_the_last() {
        let mut book = KernelBook::default();
        for sig in [1, 2] {
            book.enter(fault(sig, Fault::Crash { how: "SIGSEGV".into() }, 0), "b");
        }
        assert!(book.quarantine.len() == 1 && book.quarantine[0].covers("sdpa", "flash", 3), "{book:?}");
    }

    #[test]
    fn what_is_slow_on_many_operands_may_run_on_others() {
        let slow = |sig| fault(sig, Fault::Slow { found: "3 ms, 1 ms".into() }, 0);
        let mut book = KernelBook::default();
        for sig in 1..SLOW_MAX as u64 {
            book.enter(slow(sig), "b");
        }
        book.enter(fault(99, wrong(), 0), "b");
        assert!(book.quarantine.len() == SLOW_MAX && book.quarantine.iter().all(|entry| entry.sig.is_some()));
        book.enter(slow(0), "b");
        assert!(book.quarantine.len() == 1 && book.quarantine[0].covers("sdpa", "flash", 12345), "{book:?}");
    }

    #[test]
    fn what_is_out_for_its_results_is_not_out_for_its_time() {
        let mut book = KernelBook::default();
        for sig in 0..SIGNATURES_MAX as u64 {
            book.enter(fault(sig, wrong(), 0), "b");
        }
        let slow = Fault::Slow { found: "3 ms, 1 ms".into() };
        assert_eq!(book.enter(fault(1, slow, COOL_DOWN_STEPS), "b"), None);
        assert!(matches!(&book.quarantine[..], [entry] if entry.sig.is_none() && entry.fault == wrong()), "{book:?}");
    }

    #[test]
    fn a_recovery_loses_against_a_fault_of_the_same_step() {
        let mut book = KernelBook::default();
        book.enter(fault(7, wrong(), 5), "b");
        assert_eq!(book.recover("sdpa", "flash", 7, 5), None);
        assert_eq!(book.recover("sdpa", "flash", 7, 69).and_then(|entry| entry.recovered), Some(69));
        let again = book.enter(fault(7, wrong(), 80), "b").unwrap();
        assert_eq!((again.recovered, again.count), (None, 2));
    }

    #[test]
    fn the_file_says_signatures_in_hexadecimal_and_comes_back() {
        let mut book = KernelBook::default();
        book.enter(fault(u64::MAX, wrong(), 5), "b");
        let mut ran =
            OpKernels { op: "sdpa".into(), order: vec!["flash".into(), "plain".into()], ..OpKernels::default() };
        ran.ran.insert("plain".into(), KernelCalls { calls: 3, checked: 0 });
        ran.passed_over.insert("flash: quarantine".into(), 3);
        book.ran(vec![ran.clone()]);
        book.ran(vec![ran]);
        let text = serde_json::to_string(&book).unwrap();
        assert!(text.contains("\"ffffffffffffffff\"") && text.contains("\"fault\":{\"wrong\""), "{text}");
        let back: KernelBook = serde_json::from_str(&text).unwrap();
        assert_eq!(back, book);
        assert_eq!(back.ops["sdpa"].ran["plain"].calls, 6);
    }
}
