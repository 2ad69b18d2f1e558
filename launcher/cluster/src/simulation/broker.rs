//! The broker of a node agent: the real roster, on connections of simulated processes.

use super::{
    processes::Pid,
    scripts::BrokerMessage,
    world::{Event, World},
};
use crate::node_agent::input::NodeInput;
use enn_broker::{
    BrokerEvent,
    roster::{ConnectionId, Effect, Roster},
};
use enn_common::{id::WorkerId, wire::message::ToWorker};
use std::collections::BTreeMap;

/// Connection of a process to the broker of its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LocalConnection(pub(super) usize);

/// The broker of one agent.
#[derive(Debug, Default)]
pub(super) struct Broker {
    pub(super) roster: Roster,
    connections: BTreeMap<LocalConnection, Pid>,
}

impl Broker {
    pub(super) fn open(&mut self, connection: LocalConnection, pid: Pid) {
        self.connections.insert(connection, pid);
    }

    pub(super) fn close(&mut self, connection: LocalConnection) {
        self.connections.remove(&connection);
    }

    pub(super) fn is_open(&self, connection: LocalConnection) -> bool {
        self.connections.contains_key(&connection)
    }
}

impl World {
    /// A process connects to the broker of its agent.
    pub(super) fn new_local_connection(&mut self, pid: Pid) -> LocalConnection {
        self.local_connections += 1;
        let connection = LocalConnection(self.local_connections);
        let agent = self.processes.get(&pid).map(|process| process.agent);
        if let Some(agent) = agent.and_then(|agent| self.agents.get_mut(&agent)) {
            agent.broker.open(connection, pid);
        }
        connection
    }

    /// Whether the broker still holds this connection.
    pub(super) fn is_connected(&self, agent: u64, connection: LocalConnection) -> bool {
        self.agents.get(&agent).is_some_and(|agent| agent.broker.is_open(connection))
    }

    /// A message of a worker arrives at its broker.
    pub(super) fn broker_hears(&mut self, agent: u64, connection: LocalConnection, message: BrokerMessage) {
        let Some(known) = self.agents.get_mut(&agent).filter(|known| known.broker.is_open(connection)) else { return };
        let id = ConnectionId(connection.0);
        let effects = match message {
            BrokerMessage::Worker(message) => known.broker.roster.on_message(id, message),
            BrokerMessage::Script(message) => known.broker.roster.on_script(id, message),
        };
        self.apply_roster(agent, effects);
    }

    /// A worker's connection ended from its side.
    pub(super) fn broker_lost(&mut self, agent: u64, connection: LocalConnection) {
        let Some(known) = self.agents.get_mut(&agent) else { return };
        if known.broker.connections.remove(&connection).is_none() {
            return;
        }
        let effects = known.broker.roster.on_closed(ConnectionId(connection.0), None);
        self.apply_roster(agent, effects);
    }

    /// Carries out what the roster decided.
    pub(super) fn apply_roster(&mut self, agent: u64, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send(ConnectionId(connection), message) => {
                    let connection = LocalConnection(connection);
                    let known = self.agents.get(&agent);
                    if let Some(pid) = known.and_then(|known| known.broker.connections.get(&connection)).copied() {
                        self.broker_sends(pid, message);
                    }
                }
                Effect::Close(ConnectionId(connection)) => {
                    let connection = LocalConnection(connection);
                    let known = self.agents.get_mut(&agent);
                    if let Some(pid) = known.and_then(|known| known.broker.connections.remove(&connection)) {
                        self.process_cut_off(pid);
                    }
                }
                // Pages are read from the processes themselves.
                Effect::Emit(BrokerEvent::Progressed { .. }) => {}
                Effect::Emit(event) => self.node_later(agent, NodeInput::Broker(event)),
            }
        }
    }

    fn broker_sends(&mut self, pid: Pid, message: ToWorker) {
        self.tell_process(pid, message);
    }

    /// The broker reports when it has read all that a worker sent.
    pub(super) fn sync_broker(&mut self, agent: u64, worker: WorkerId) {
        let sent = |process: &super::processes::Process| process.agent == agent && process.worker == worker;
        let until = self.processes.values().filter(|process| sent(process)).map(|process| process.said_until).max();
        let at = until.unwrap_or(self.now).max(self.now);
        let input = NodeInput::Broker(BrokerEvent::Synced { token: u64::from(worker.0) });
        self.at(at, Event::Node { agent, input: Box::new(input) });
    }
}
