//! How a session reports to the program that runs it, and learns that it should stop. The launcher behind a socket is one listener;
//! a test or a user's own program is another.

use crate::{checkpoint::staging::StagingMemory, probe::libtorch_version};
use enn_common::{
    kernels::Quarantined,
    wire::{client::ClientError, control::Phase, message::FromWorker},
};
use enn_core::kernel::{Intents, NoIntents};
use std::{
    cell::{Cell, RefCell},
    time::Duration,
};
use tch::Device;

/// The listener of a session. Called from the session's own thread only.
pub trait Reporter {
    /// Tells what happened.
    ///
    /// # Errors
    /// [`ClientError`] when nobody listens any more: the session then ends.
    fn send(&self, message: FromWorker) -> Result<(), ClientError>;

    /// Notes what the worker is doing and how many optimizer steps are done. Must cost next to nothing: called every step.
    fn mark(&self, phase: Phase, step: u64);

    /// Notes that the session makes progress within a step. Must cost next to nothing.
    fn alive(&self) {}

    /// Notes how long this rank has waited for others since the round began. Called every step.
    fn waited(&self, _for_others: Duration) {}

    /// Whether the session was asked to finish its step, save and end.
    fn stop_requested(&self) -> bool;

    /// Whether the session was asked to finish its step and leave the round.
    fn leave_requested(&self) -> bool {
        false
    }

    /// Lists of quarantined kernels that came since the last call, the oldest first. Must cost next to nothing.
    fn quarantined(&self) -> Vec<Quarantined> {
        Vec::new()
    }

    /// Memory of the listener's in which shares of checkpoints may be left; `None`: it takes none.
    fn staging(&self) -> Option<StagingMemory> {
        None
    }

    /// Waits until something is said of a checkpoint, at most so long; whether the round is over.
    fn await_checkpoint(&self, _wait_max: Duration) -> bool {
        true
    }

    /// Where it is written that a kernel is about to run for the first time.
    fn intents(&self) -> Box<dyn Intents> {
        Box::new(NoIntents)
    }
}

/// Says that the first step can begin.
pub(crate) fn ready(reporter: &dyn Reporter, device: Device, backend: &str) -> Result<(), ClientError> {
    let device = match device {
        Device::Cuda(index) => format!("cuda:{index}"),
        other => format!("{other:?}").to_lowercase(),
    };
    reporter.send(FromWorker::Ready { device, backend: backend.to_owned(), libtorch: libtorch_version() })
}

/// A listener in the same process: keeps the messages, and asks for a stop at a chosen step.
#[derive(Debug, Default)]
pub struct Recorder {
    messages: RefCell<Vec<FromWorker>>,
    step: Cell<u64>,
    stop_at_step: Option<u64>,
}

impl Recorder {
    /// A listener that asks for a stop once `step` optimizer steps are done.
    pub fn stopping_at(step: u64) -> Self {
        Self { stop_at_step: Some(step), ..Self::default() }
    }

    pub fn take(&self) -> Vec<FromWorker> {
        self.messages.take()
    }
}

impl Reporter for Recorder {
    fn send(&self, message: FromWorker) -> Result<(), ClientError> {
        self.messages.borrow_mut().push(message);
        Ok(())
    }

    fn mark(&self, _phase: Phase, step: u64) {
        self.step.set(step);
    }

    fn stop_requested(&self) -> bool {
        self.stop_at_step.is_some_and(|step| self.step.get() >= step)
    }
}
