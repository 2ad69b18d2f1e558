//! The connection to the launcher while the worker works: messages out, a control page, and a thread that listens.

use super::{SessionError, report::Reporter, unix};
use enn_common::wire::{
    client::{Client, ClientError, Receiver, Sender},
    control::{ControlPage, Phase},
    message::{FromWorker, ToWorker},
};
use nix::time::{ClockId, clock_gettime};
use std::cell::Cell;

/// Exit status when the launcher is gone: nobody will read it.
const ORPHAN_EXIT: i32 = 1;

/// The launcher, as the session sees it.
#[derive(Debug)]
pub struct Link {
    sender: Sender,
    page: Option<ControlPage<'static>>,
    step: Cell<u64>,
}

impl Link {
    /// Takes over a connection on which the assignment has arrived.
    ///
    /// # Errors
    /// [`SessionError::Thread`] when the system refuses the listening thread.
    pub(crate) fn new(client: Client, page: Option<ControlPage<'static>>) -> Result<Self, SessionError> {
        let (sender, receiver) = client.into_parts();
        std::thread::Builder::new()
            .name("launcher".to_owned())
            .spawn(move || listen(receiver))
            .map_err(SessionError::Thread)?;
        let link = Self { sender, page, step: Cell::new(0) };
        link.phase(Phase::Boot);
        Ok(link)
    }

    /// Notes what the worker is doing.
    pub fn phase(&self, phase: Phase) {
        self.mark(phase, self.step.get());
    }

    /// A sender for other threads and the panic hook.
    pub fn sender(&self) -> Sender {
        self.sender.clone()
    }
}

impl Reporter for Link {
    fn send(&self, message: FromWorker) -> Result<(), ClientError> {
        self.sender.send(&message)
    }

    fn mark(&self, phase: Phase, step: u64) {
        self.step.set(step);
        if let Some(page) = self.page {
            let now = monotonic_ns();
            page.set_phase(phase, now);
            page.set_step(step, now);
        }
    }

    fn stop_requested(&self) -> bool {
        self.page.is_some_and(ControlPage::stop)
    }
}

/// Reads until the launcher goes; then so does the worker, whatever its main thread is waiting for.
fn listen(mut receiver: Receiver) {
    loop {
        match receiver.recv() {
            Ok(ToWorker::Committed { step, path }) => {
                tracing::info!(step, path = %path.display(), "checkpoint committed");
            }
            Ok(ToWorker::Abandoned { step, error }) => tracing::warn!(step, error, "checkpoint abandoned"),
            Ok(other) => tracing::warn!(?other, "the launcher sent something a working worker does not expect"),
            Err(error) => {
                tracing::error!(%error, "lost the launcher");
                unix::exit_now(ORPHAN_EXIT);
            }
        }
    }
}

fn monotonic_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
