//! The network between nodes: connections that keep their messages in order, cuts, and what is left of connections that were given up.

use super::{random::Random, world::Time};
use crate::rendezvous::simulated::{LinkId, Packet};
use std::{collections::BTreeMap, time::Duration};

/// A machine by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Machine(pub(super) usize);

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub(super) agent: u64,
    pub(super) machine: Machine,
    /// It was closed or given up from this side.
    pub(super) closed: bool,
    /// When the last message for this end arrives.
    last: Time,
}

/// What travels over a connection.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Frame {
    Packet(Box<Packet>),
    /// The other side's system closed the connection.
    Closed,
    /// The network broke it.
    Reset,
}

/// A connection: the follower, which opened it, and the leader.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) follower: End,
    pub(super) leader: End,
}

impl Connection {
    /// Returns the end of this agent, and the other one.
    pub(super) fn ends(&mut self, agent: u64) -> (&mut End, &mut End) {
        if self.follower.agent == agent {
            (&mut self.follower, &mut self.leader)
        } else {
            (&mut self.leader, &mut self.follower)
        }
    }
}

/// All connections and cuts.
#[derive(Debug, Default)]
pub(super) struct Network {
    connections: BTreeMap<LinkId, Connection>,
    /// Until when nothing passes from one machine to another.
    cuts: BTreeMap<(Machine, Machine), Time>,
    next: u64,
    delay_max: Duration,
}

impl Network {
    pub(super) fn new(delay_max: Duration) -> Self {
        Self { delay_max, ..Self::default() }
    }

    /// Opens a connection.
    pub(super) fn open(&mut self, now: Time, follower: (u64, Machine), leader: (u64, Machine)) -> LinkId {
        self.next += 1;
        let id = LinkId(self.next);
        let end = |side: (u64, Machine)| End { agent: side.0, machine: side.1, closed: false, last: now };
        self.connections.insert(id, Connection { follower: end(follower), leader: end(leader) });
        id
    }

    pub(super) fn get_mut(&mut self, id: LinkId) -> Option<&mut Connection> {
        self.connections.get_mut(&id)
    }

    /// Connections with an end at this agent that it has not closed.
    pub(super) fn of(&self, agent: u64) -> Vec<LinkId> {
        let open = |end: &End| end.agent == agent && !end.closed;
        let found = self.connections.iter().filter(|(_, link)| open(&link.follower) || open(&link.leader));
        found.map(|(id, _)| *id).collect()
    }

    /// Lets nothing pass from one machine to another before then.
    pub(super) fn cut(&mut self, from: Machine, to: Machine, until: Time) {
        let cut = self.cuts.entry((from, to)).or_insert(until);
        *cut = (*cut).max(until);
    }

    pub(super) fn cut_until(&self, from: Machine, to: Machine) -> Option<Time> {
        self.cuts.get(&(from, to)).copied()
    }

    /// Returns when something that is sent now arrives, and which agent gets it.
    pub(super) fn arrival(&mut self, id: LinkId, from: u64, now: Time, random: &mut Random) -> Option<(Time, u64)> {
        let cuts = &self.cuts;
        let delay = random.time(Duration::from_micros(50), self.delay_max);
        let link = self.connections.get_mut(&id)?;
        let (own, other) = link.ends(from);
        if own.closed {
            return None;
        }
        let healed = cuts.get(&(own.machine, other.machine)).copied().unwrap_or(Duration::ZERO);
        let at = (now + delay).max(other.last).max(healed);
        other.last = at;
        Some((at, other.agent))
    }

    /// Takes a connection down of which no end is open.
    pub(super) fn forget_closed(&mut self) {
        self.connections.retain(|_, link| !(link.follower.closed && link.leader.closed));
    }
}
