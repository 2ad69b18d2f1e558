//! The connection to the launcher while the worker works: messages out, a control page, and a thread that listens.

use super::{SessionError, report::Reporter, unix};
use crate::kernel::{Intents, NoIntents};
use crossbeam_channel::TrySendError;
use enn_common::{
    kernels::Quarantined,
    wire::{
        client::{Client, ClientError, Receiver, Sender},
        control::{ControlPage, Intent, Phase},
        message::{FromWorker, ToWorker},
    },
};
use nix::time::{ClockId, clock_gettime};
use std::cell::Cell;

/// Exit status when the launcher is gone: nobody will read it.
const ORPHAN_EXIT: i32 = 1;
/// Lists of quarantined kernels between two steps; each holds all of the one before.
const LISTS_MAX: usize = 64;

/// The launcher, as the session sees it.
#[derive(Debug)]
pub struct Link {
    sender: Sender,
    page: Option<ControlPage<'static>>,
    lists: crossbeam_channel::Receiver<Quarantined>,
    step: Cell<u64>,
}

impl Link {
    /// Takes over a connection on which the assignment has arrived.
    ///
    /// # Errors
    /// [`SessionError::Thread`] when the system refuses the listening thread.
    pub(crate) fn new(client: Client, page: Option<ControlPage<'static>>) -> Result<Self, SessionError> {
        let (sender, receiver) = client.into_parts();
        let (lists_in, lists) = crossbeam_channel::bounded(LISTS_MAX);
        std::thread::Builder::new()
            .name("launcher".to_owned())
            .spawn(move || listen(receiver, &lists_in))
            .map_err(SessionError::Thread)?;
        let link = Self { sender, page, lists, step: Cell::new(0) };
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

    fn quarantined(&self) -> Vec<Quarantined> {
        self.lists.try_iter().collect()
    }

    fn intents(&self) -> Box<dyn Intents> {
        match self.page {
            Some(page) => Box::new(PageIntents(page)),
            None => Box::new(NoIntents),
        }
    }
}

/// Intents on the control page, where the launcher finds them when this process is gone.
struct PageIntents(ControlPage<'static>);

impl Intents for PageIntents {
    fn open(&self, intent: &Intent) {
        self.0.open_intent(intent);
    }

    fn close(&self) {
        self.0.close_intent();
    }
}

/// Reads until the launcher goes; then so does the worker, whatever its main thread is waiting for.
fn listen(mut receiver: Receiver, lists: &crossbeam_channel::Sender<Quarantined>) {
    loop {
        match receiver.recv() {
            Ok(ToWorker::Committed { step, path }) => {
                tracing::info!(step, path = %path.display(), "checkpoint committed");
            }
            Ok(ToWorker::Abandoned { step, error }) => tracing::warn!(step, error, "checkpoint abandoned"),
            Ok(ToWorker::Kernels(told)) => {
                // A session that reads none needs none; a full queue means that it is far behind, and the next list holds all.
                if let Err(TrySendError::Full(_)) = lists.try_send(*told) {
                    tracing::warn!("more than {LISTS_MAX} lists of kernels between two steps");
                }
            }
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
