//! Kernels over a session: what the launcher said of them, what the manager found, and that all ranks agree.
//!
//! A quarantine goes from the worker that saw it to the launcher, from there to every worker, and takes effect at the first
//! step whose control numbers say that every rank knows of it: one epoch per step, the same step everywhere.
//!
//! **Invariant:** nothing here waits, for the launcher or for a device.

use super::{SessionError, report::Reporter};
use enn_common::{
    config::{RunConfig, train::Execution},
    kernels::{KernelBook, OpKernels, Quarantined},
    wire::message::FromWorker,
};
use enn_core::{
    autograd::Mode,
    backend::torch::safe,
    kernel::{Extra, KernelEvent, Manager, Settings},
};
use std::{cell::RefCell, collections::BTreeMap};

/// Plans whose replays are counted; beyond them all are forgotten, and those that are recorded again are counted again.
const PLANS_MAX: usize = 64;

/// Knowledge of kernels that a task has besides its configuration.
#[derive(Debug, Clone, Default)]
pub struct KernelTask {
    /// In quarantine from the first step.
    pub quarantined: Quarantined,
    /// Orders that stand over the configuration's, by operation.
    pub order: BTreeMap<String, Vec<String>>,
    pub extras: Vec<Extra>,
}

/// The manager of a session and the news between it and the launcher.
pub struct Kernels<'a> {
    pub manager: Manager,
    reporter: &'a dyn Reporter,
    /// Whether steps may run from a record.
    replays: bool,
    calls: RefCell<Calls>,
}

impl<'a> Kernels<'a> {
    /// For a session of `config`.
    ///
    /// # Errors
    /// When an operation or kernel is configured that is not there, or libtorch refuses its switch.
    pub fn new(config: &RunConfig, task: &KernelTask, reporter: &'a dyn Reporter) -> Result<Self, SessionError> {
        let mut order = config.kernels.clone();
        order.extend(task.order.clone());
        safe::deterministic(config.train.deterministic)?;
        let settings = Settings { order, deterministic: config.train.deterministic };
        let manager = Manager::new(settings, task.extras.clone(), reporter.intents())?;
        manager.begin(&task.quarantined);
        let replays = config.train.execution != Execution::Tape;
        Ok(Self { manager, reporter, replays, calls: RefCell::default() })
    }

    /// Receives lists of quarantined kernels before a step; whether one is not in force yet.
    pub fn listen(&self, step: u64) -> bool {
        self.manager.set_step(step);
        for list in self.reporter.quarantined() {
            self.manager.receive(&list);
        }
        self.manager.is_waiting()
    }

    /// Notes how a step was executed; `plan` is the hash of the record that it ran from, or that was made of it.
    pub fn ran(&self, mode: Mode, plan: Option<&str>) {
        match mode {
            Mode::Tape if self.replays => self.calls.borrow_mut().add(self.manager.take_calls(), plan),
            // Nobody will ask what a single step ran.
            Mode::Tape => {}
            Mode::Plan | Mode::Graph => self.calls.borrow_mut().replay(plan),
        }
    }

    /// After a step of which every rank has the same `waiting`, the number of ranks that are: puts the next epoch in force
    /// when all are.
    pub fn agree(&self, waiting: f64, ranks: u32) {
        if waiting >= f64::from(ranks) {
            self.manager.advance();
        }
    }

    /// Tells the launcher what the manager found.
    pub fn tell_news(&self) -> Result<(), SessionError> {
        for news in self.manager.take_events() {
            let message = match news {
                KernelEvent::Faulted(fault) => FromWorker::KernelFaulted(Box::new(fault)),
                KernelEvent::Recovered { op, kernel, sig, step } => {
                    FromWorker::KernelRecovered { op: op.to_owned(), kernel: kernel.to_owned(), sig, step }
                }
            };
            self.reporter.send(message)?;
        }
        Ok(())
    }

    /// Reports the kernels that ran since the last report.
    pub fn tell_calls(&self) -> Result<(), SessionError> {
        let mut calls = self.calls.borrow_mut();
        calls.add(self.manager.take_calls(), None);
        let ran = calls.take();
        if !ran.is_empty() {
            self.reporter.send(FromWorker::KernelsRan(ran))?;
        }
        Ok(())
    }
}

/// Kernels that ran since the last report. A replay runs what its recording ran, and passes over what that passed over.
#[derive(Default)]
struct Calls {
    book: KernelBook,
    plans: BTreeMap<String, Replays>,
}

struct Replays {
    /// Kernels that each of them runs.
    each: Vec<OpKernels>,
    /// Number of replays that are not yet in the book.
    times: u64,
}

impl Calls {
    /// Adds what ran. Where it was a step from which `plan` was made, its replays are as many times the same.
    fn add(&mut self, ran: Vec<OpKernels>, plan: Option<&str>) {
        if let Some(plan) = plan {
            self.settle();
            if self.plans.len() >= PLANS_MAX {
                self.plans.clear();
            }
            self.plans.insert(plan.to_owned(), Replays { each: ran.clone(), times: 0 });
        }
        self.book.ran(ran);
    }

    fn replay(&mut self, plan: Option<&str>) {
        if let Some(replays) = plan.and_then(|plan| self.plans.get_mut(plan)) {
            replays.times += 1;
        }
    }

    /// Brings the replays into the book.
    fn settle(&mut self) {
        for replays in self.plans.values_mut().filter(|replays| replays.times > 0) {
            let times = std::mem::take(&mut replays.times);
            self.book.ran(replays.each.iter().map(|op| repeated(op, times)).collect());
        }
    }

    fn take(&mut self) -> Vec<OpKernels> {
        self.settle();
        std::mem::take(&mut self.book.ops).into_values().collect()
    }
}

/// Multiplies the number of calls. A replay compares nothing.
fn repeated(op: &OpKernels, times: u64) -> OpKernels {
    let mut op = op.clone();
    for calls in op.ran.values_mut() {
        calls.calls *= times;
        calls.checked = 0;
    }
    op.passed_over.values_mut().for_each(|calls| *calls *= times);
    op
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::kernels::KernelCalls;

    fn ran(kernel: &str, calls: u64) -> Vec<OpKernels> {
        let order = vec!["flash".into(), "plain".into()];
        let mut op = OpKernels { op: "sdpa".into(), order, ..OpKernels::default() };
        op.ran.insert(kernel.into(), KernelCalls { calls, checked: 1 });
        if kernel == "plain" {
            op.passed_over.insert("flash: too wide".into(), calls);
        }
        vec![op]
    }

    #[test]
    fn replays_count_for_the_plan_that_ran_and_pass_over_what_its_recording_did() {
        let mut calls = Calls::default();
        calls.add(ran("flash", 2), Some("whole"));
        calls.add(ran("plain", 3), Some("rest"));
        (0..10).for_each(|_| calls.replay(Some("whole")));
        calls.replay(Some("rest"));
        calls.replay(Some("another"));
        calls.replay(None);
        let told = calls.take().remove(0);
        assert_eq!((told.ran["flash"].calls, told.ran["flash"].checked), (2 + 10 * 2, 1));
        assert_eq!((told.ran["plain"].calls, told.passed_over["flash: too wide"]), (3 + 3, 3 + 3));
        assert!(calls.take().is_empty());
        calls.replay(Some("whole"));
        calls.add(ran("plain", 1), Some("whole"));
        calls.replay(Some("whole"));
        let told = calls.take().remove(0);
        assert_eq!((told.ran["flash"].calls, told.ran["plain"].calls), (2, 2), "recorded anew in between");
    }
}
