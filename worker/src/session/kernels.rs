//! Kernels over a session: what the launcher said of them, what the manager found, and that all ranks agree.
//!
//! A quarantine goes from the worker that saw it to the launcher, from there to every worker, and takes effect at the first
//! step whose control numbers say that every rank has heard of it: one epoch per step, the same step everywhere.
//!
//! **Invariant:** nothing here waits, for the launcher or for a device.

use super::{SessionError, report::Reporter};
use crate::{
    autograd::{Mode, Program},
    backend::torch::safe,
    kernel::{Extra, Manager, News, Settings},
};
use enn_common::{config::RunConfig, kernels::Quarantined, wire::message::FromWorker};
use std::{cell::Cell, collections::BTreeMap};

/// What a task knows of kernels besides its configuration.
#[derive(Debug, Clone, Default)]
pub struct KernelTask {
    /// In quarantine from the first step.
    pub quarantined: Quarantined,
    /// Orders that stand over the configuration's, by operation.
    pub order: BTreeMap<String, Vec<String>>,
    /// Kernels of the user's own.
    pub extras: Vec<Extra>,
}

/// The manager of a session and the news between it and the launcher.
pub struct Kernels<'a> {
    /// Chooses the kernel of every operation.
    pub manager: Manager,
    reporter: &'a dyn Reporter,
    /// Steps since the last report that ran from a record.
    replays: Cell<u64>,
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
        Ok(Self { manager, reporter, replays: Cell::new(0) })
    }

    /// Before a step: listens; whether this rank heard of a quarantine that is not in force.
    pub fn listen(&self, step: u64) -> bool {
        self.manager.set_step(step);
        for told in self.reporter.quarantined() {
            self.manager.hear(&told);
        }
        self.manager.is_waiting()
    }

    /// Notes how a step was executed.
    pub fn ran(&self, mode: Mode) {
        if mode != Mode::Tape {
            self.replays.set(self.replays.get() + 1);
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
    ///
    /// # Errors
    /// When nobody listens any more.
    pub fn tell_news(&self) -> Result<(), SessionError> {
        for news in self.manager.take_news() {
            let message = match news {
                News::Faulted(fault) => FromWorker::KernelFaulted(Box::new(fault)),
                News::Recovered { op, kernel, sig, step } => {
                    FromWorker::KernelRecovered { op: op.to_owned(), kernel: kernel.to_owned(), sig, step }
                }
            };
            self.reporter.send(message)?;
        }
        Ok(())
    }

    /// Tells what ran since it was last told. `plan` is what steps ran from, if they did.
    ///
    /// # Errors
    /// When nobody listens any more.
    pub fn tell_calls(&self, plan: Option<&Program>) -> Result<(), SessionError> {
        let replays = self.replays.take();
        for rec in plan.into_iter().flat_map(Program::recs).filter(|_| replays > 0) {
            self.manager.count_replays(&rec.op, rec.kernel, replays);
        }
        let calls = self.manager.take_calls();
        if !calls.is_empty() {
            self.reporter.send(FromWorker::KernelsRan(calls))?;
        }
        Ok(())
    }
}
