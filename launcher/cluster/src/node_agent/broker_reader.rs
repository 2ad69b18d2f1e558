//! The broker of a node, as the shells of its agent use it.

use super::{environment::StoreAddress, input::NodeInput};
use enn_broker::{Broker, BrokerEvent, Command, RoundPlan};
use enn_common::{
    id::{Round, WorkerId},
    wire::message::Assignment,
};
use std::{collections::BTreeMap, os::fd::BorrowedFd};

/// Events that are read before anything else is looked at: a worker that floods the broker must not hide a signal.
const EVENTS_MAX: usize = 1024;

/// The broker, and whether it may have more to tell than its descriptor says.
pub(super) struct BrokerReader {
    broker: Broker,
    has_more: bool,
}

impl BrokerReader {
    pub(super) fn new(broker: Broker) -> Self {
        Self { broker, has_more: false }
    }

    pub(super) fn broker(&self) -> &Broker {
        &self.broker
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.broker.wake_fd()
    }

    /// Returns whether more events may wait, of which the descriptor says nothing.
    pub(super) fn has_more(&self) -> bool {
        self.has_more
    }

    pub(super) fn read(&mut self) -> Vec<BrokerEvent> {
        self.broker.clear_wake();
        let events: Vec<BrokerEvent> = std::iter::from_fn(|| self.broker.event()).take(EVENTS_MAX).collect();
        self.has_more = events.len() == EVENTS_MAX;
        events
    }

    /// Sends a command; returns what follows when the broker is gone.
    pub(super) fn ask(&self, command: Command) -> Option<NodeInput> {
        let error = self.broker.send(command).err();
        error.map(|error| NodeInput::Fault { reason: error.to_string() })
    }

    /// Gives the workers of a round their seats, which meet in this store and use so many threads.
    pub(super) fn begin_round(
        &self,
        round: u64,
        seats: BTreeMap<WorkerId, Assignment>,
        store: StoreAddress,
        threads: u32,
    ) -> Option<NodeInput> {
        let completed = |(worker, seat): (WorkerId, Assignment)| {
            (worker, Assignment { store_host: store.0.clone(), store_port: store.1, threads, ..seat })
        };
        let seats = seats.into_iter().map(completed).collect();
        self.ask(Command::BeginRound(Box::new(RoundPlan { round: Round(round), seats })))
    }
}
