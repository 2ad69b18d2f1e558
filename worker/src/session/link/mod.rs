//! The connection to the launcher while the worker works: messages out, a control page, and a thread that listens. Imports `error` and
//! `report` of the session.
//!
//! The main thread may wait in a collective when the launcher says that the round is over: the listening thread cuts it then.

pub(crate) mod mmap;
pub(crate) mod unix;

use super::{SessionError, report::Reporter};
use crate::checkpoint::staging::StagingMemory;
use crossbeam_channel::TrySendError;
use enn_comm::AbortHandle;
use enn_common::{
    kernels::Quarantined,
    wire::{
        client::{Client, ClientError, Receiver, Sender},
        control::{ControlPage, Intent, Phase},
        message::{Assignment, FromWorker, Standby, ToWorker},
    },
};
use enn_core::kernel::{Intents, NoIntents};
use nix::time::{ClockId, clock_gettime};
use std::{
    cell::Cell,
    fs::File,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

/// Exit status when the launcher is gone.
const ORPHAN_EXIT: i32 = 1;
/// Lists of quarantined kernels between two steps; each holds all of the one before.
const LISTS_MAX: usize = 64;

/// Orders that were not taken yet: a worker that halts gets one.
const ORDERS_MAX: usize = 4;

/// The next thing that a worker is to do.
#[derive(Debug)]
pub(crate) enum Order {
    Work(Box<Assignment>),
    /// Prepare, without a seat yet.
    Stand(Box<Standby>),
}

impl Order {
    /// The order in a message, if it is one.
    pub(crate) fn of(message: ToWorker) -> Result<Self, ToWorker> {
        match message {
            ToWorker::Assign(seat) => Ok(Self::Work(seat)),
            ToWorker::Stand(standby) => Ok(Self::Stand(standby)),
            other => Err(other),
        }
    }
}

/// The round under way, as both threads see it.
#[derive(Default)]
struct Rounds {
    state: Mutex<Running>,
    changed: Condvar,
}

#[derive(Default)]
struct Running {
    /// The newest round that the launcher ended, and why.
    over: Option<(u64, String)>,
    /// Cuts the process group of a round.
    cut: Option<(u64, Arc<dyn AbortHandle>)>,
    /// The round that is worked in.
    watched: u64,
    /// Words about checkpoints so far.
    checkpoints: u64,
    /// The step of the checkpoint that the last of them was about.
    settled: Option<u64>,
}

impl Rounds {
    fn end(&self, round: u64, reason: String) {
        let mut running = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        running.over = Some((round, reason));
        let cut = running.cut.as_ref().filter(|(of, _)| *of <= round).map(|(_, cut)| Arc::clone(cut));
        drop(running);
        self.changed.notify_all();
        // NCCL's ends when the main thread has let go of the graphs with its sums: that must not wait here.
        if let Some(cut) = cut {
            cut.abort();
        }
    }

    /// The launcher said what became of the checkpoint of `step`.
    fn settled(&self, step: u64) {
        let mut running = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        running.checkpoints += 1;
        running.settled = Some(step);
        self.changed.notify_all();
    }

    /// Waits for the next such message, at most so long; whether the round is over.
    fn await_settled(&self, wait_max: Duration) -> bool {
        let running = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = running.checkpoints;
        let is_over = |running: &Running| running.over.as_ref().is_some_and(|(over, _)| *over >= running.watched);
        let goes_on = |running: &mut Running| running.checkpoints == before && !is_over(running);
        let waited = self.changed.wait_timeout_while(running, wait_max, goes_on);
        is_over(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }
}

/// The launcher, as the session sees it.
pub struct Link {
    sender: Sender,
    page: Option<ControlPage<'static>>,
    memory: Option<File>,
    lists: crossbeam_channel::Receiver<Quarantined>,
    orders: crossbeam_channel::Receiver<Order>,
    rounds: Arc<Rounds>,
    step: Cell<u64>,
}

impl Link {
    /// Takes over a connection on which the assignment has arrived.
    ///
    /// # Errors
    /// [`SessionError::Thread`] when the system refuses the listening thread.
    pub(crate) fn new(
        client: Client,
        page: Option<ControlPage<'static>>,
        memory: Option<File>,
    ) -> Result<Self, SessionError> {
        let (sender, receiver) = client.into_parts();
        let (lists_in, lists) = crossbeam_channel::bounded(LISTS_MAX);
        let (orders_in, orders) = crossbeam_channel::bounded(ORDERS_MAX);
        let rounds = Arc::<Rounds>::default();
        let listener = Listener { lists: lists_in, orders: orders_in, rounds: Arc::clone(&rounds) };
        std::thread::Builder::new()
            .name("launcher".to_owned())
            .spawn(move || listener.listen(receiver))
            .map_err(SessionError::Thread)?;
        let link = Self { sender, page, memory, lists, orders, rounds, step: Cell::new(0) };
        link.phase(Phase::Boot);
        Ok(link)
    }

    pub fn phase(&self, phase: Phase) {
        self.mark(phase, self.step.get());
    }

    /// Waits for the next order. The launcher's death ends the process meanwhile.
    ///
    /// # Errors
    /// [`ClientError::Closed`] when the listening thread is gone.
    pub(crate) fn order(&self) -> Result<Order, ClientError> {
        self.orders.recv().map_err(|_| ClientError::Closed)
    }

    /// Lets the end of `round` cut its process group. A round that is over already is cut at once.
    pub(crate) fn watch(&self, round: u64, cut: Box<dyn AbortHandle>) {
        let mut running = self.rounds.state.lock().unwrap_or_else(PoisonError::into_inner);
        if running.over.as_ref().is_some_and(|(over, _)| *over >= round) {
            cut.abort();
        }
        running.cut = Some((round, Arc::from(cut)));
        running.watched = round;
    }

    /// The reason for which the launcher ended `round`; waits so long for its message.
    pub(crate) fn over(&self, round: u64, wait: Duration) -> Option<String> {
        let running = self.rounds.state.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_on = |running: &mut Running| running.over.as_ref().is_none_or(|(over, _)| *over < round);
        let waited = self.rounds.changed.wait_timeout_while(running, wait, goes_on);
        let (mut running, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let over = running.over.as_ref().filter(|(over, _)| *over >= round).map(|(_, reason)| reason.clone());
        running.cut = None;
        over
    }

    /// Waits at most so long for the launcher's message on the checkpoint of `step`; whether it ended `round` instead, whose group is gone.
    pub(crate) fn over_unsettled(&self, round: u64, step: u64, wait_max: Duration) -> bool {
        let mut running = self.rounds.state.lock().unwrap_or_else(PoisonError::into_inner);
        running.cut = None;
        let is_over = |running: &Running| running.over.as_ref().is_some_and(|(over, _)| *over >= round);
        let goes_on = |running: &mut Running| running.settled != Some(step) && !is_over(running);
        let waited = self.rounds.changed.wait_timeout_while(running, wait_max, goes_on);
        let (running, _) = waited.unwrap_or_else(PoisonError::into_inner);
        running.settled != Some(step) && is_over(&running)
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

    fn alive(&self) {
        if let Some(page) = self.page {
            page.beat(monotonic_ns());
        }
    }

    fn waited(&self, for_others: Duration) {
        if let Some(page) = self.page {
            page.set_waited(for_others.as_nanos() as u64);
        }
    }

    fn leave_requested(&self) -> bool {
        self.page.is_some_and(ControlPage::regroup)
    }

    fn staging(&self) -> Option<StagingMemory> {
        let page = self.page.filter(|page| page.takes_staged())?;
        Some(StagingMemory { file: self.memory.as_ref()?.try_clone().ok()?, page })
    }

    fn await_checkpoint(&self, wait_max: Duration) -> bool {
        self.rounds.await_settled(wait_max)
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

/// Intents on the control page, where the launcher finds them when this process is gone. A kernel that is compiled and checked
/// takes its time: each is a sign of life.
struct PageIntents(ControlPage<'static>);

impl Intents for PageIntents {
    fn open(&self, intent: &Intent) {
        self.0.open_intent(intent);
        self.0.beat(monotonic_ns());
    }

    fn close(&self) {
        self.0.close_intent();
        self.0.beat(monotonic_ns());
    }
}

struct Listener {
    lists: crossbeam_channel::Sender<Quarantined>,
    orders: crossbeam_channel::Sender<Order>,
    rounds: Arc<Rounds>,
}

impl Listener {
    /// Reads until the launcher goes; then so does the worker, whatever its main thread is waiting for.
    fn listen(self, mut receiver: Receiver) {
        loop {
            match receiver.recv() {
                Ok(ToWorker::Committed { step, path }) => {
                    tracing::info!(step, path = %path.display(), "checkpoint committed");
                    self.rounds.settled(step);
                }
                Ok(ToWorker::Abandoned { step, error }) => {
                    tracing::warn!(step, error, "checkpoint abandoned");
                    self.rounds.settled(step);
                }
                Ok(ToWorker::RoundEnded { round, reason }) => self.rounds.end(round, reason),
                Ok(ToWorker::Dismissed) => {
                    tracing::info!("dismissed by the launcher");
                    unix::exit_now(0);
                }
                Ok(ToWorker::Kernels(list)) => {
                    // A session that reads none needs none; a full queue means that it is far behind, and the next list holds all.
                    if let Err(TrySendError::Full(_)) = self.lists.try_send(*list) {
                        tracing::warn!("more than {LISTS_MAX} lists of kernels between two steps");
                    }
                }
                Ok(other) => match Order::of(other) {
                    Ok(order) => {
                        if let Err(TrySendError::Full(order)) = self.orders.try_send(order) {
                            tracing::warn!(?order, "more than {ORDERS_MAX} orders that were not taken");
                        }
                    }
                    Err(other) => {
                        tracing::warn!(?other, "the launcher sent something a working worker does not expect")
                    }
                },
                Err(error) => {
                    tracing::error!(%error, "lost the launcher");
                    unix::exit_now(ORPHAN_EXIT);
                }
            }
        }
    }
}

fn monotonic_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
