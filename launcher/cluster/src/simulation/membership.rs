//! Membership of one node in virtual time: the real rendezvous state, decisions and search for a successor, on simulated connections.
//!
//! It stands in for the threads and sockets of the rendezvous, and is declared there to reach its parts.

use super::{
    Elapsed,
    decide::decide,
    decision::{Decision, Reason},
    discovery::{Discovery, DiscoveryStep, FoundLeader, LeaderFate, LostLeader, WayBack},
    node_loss::NodeLoss,
    notification::{Notification, RendezvousInfo, RunEnd},
    settings::Settings,
    state::{RendezvousEffect, Restart, RunStage, State},
};
use enn_common::wire::{
    node::{FromLeader, LastRound, NodeDescription, NodeId, Roster, RoundEnd, StandbyEndpoint, ToLeader},
    node_agent::{Epoch, NodeCommand, NodeEvent},
};
use std::{
    collections::{BTreeMap, VecDeque},
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

/// A connection between two agents. None is used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkId(pub(crate) u64);

/// Keep-alive messages within the longest silence.
const KEEP_ALIVES: u32 = 5;
/// Port at which every node would lead; the address says which node.
const PORT: u16 = 1;

/// Message between nodes over a connection.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Packet {
    ToLeader(ToLeader),
    FromLeader(FromLeader),
    Command(Epoch, NodeCommand),
    Event(NodeEvent),
}

/// Effect of a membership on the world.
#[derive(Debug)]
pub(crate) enum Action {
    /// Something for the node agent and the supervisor.
    Notify(Notification),
    Send(LinkId, Packet),
    /// Close the connection, as a system does.
    Close(LinkId),
    /// Give it up: what the other side sent may still arrive.
    Abandon(LinkId),
    /// Connect to the node of this number, if it leads.
    Connect(u64),
}

/// Role of the node.
#[derive(Debug)]
enum Role {
    Leader(Box<LeaderState>),
    Discovering(Box<Discovery>),
    Follower(Link),
    Ended,
}

/// Connection to the leader.
#[derive(Debug)]
struct Link {
    id: LinkId,
    last_received: Elapsed,
    last_keep_alive: Elapsed,
}

/// The rendezvous on its leader.
#[derive(Debug)]
struct LeaderState {
    state: State,
    followers: BTreeMap<NodeId, LinkId>,
    names: BTreeMap<LinkId, NodeId>,
    sent_reason: Option<Reason>,
    until: Option<Elapsed>,
    last_tick: Elapsed,
    awake_since: Elapsed,
}

/// Membership of one node.
#[derive(Debug)]
pub(crate) struct Membership {
    own: NodeId,
    settings: Arc<Settings>,
    role: Role,
    roster: Option<Arc<Roster>>,
    rank: u32,
    leader_rank: Option<u32>,
    way_back: Option<WayBack>,
    running: bool,
    ready: bool,
    over: bool,
    /// Address of the leader that was found last.
    leader: u64,
    /// Number of attempts to connect: it identifies the attempt that an answer belongs to.
    attempts: u64,
    actions: VecDeque<Action>,
}

fn address(node: u64) -> (String, u16) {
    let [high, low] = u16::try_from(node).unwrap_or(u16::MAX).to_be_bytes();
    (Ipv4Addr::new(10, 0, high, low).to_string(), PORT)
}

fn node_at(at: SocketAddr) -> u64 {
    match at {
        SocketAddr::V4(at) => {
            let [_, _, high, low] = at.ip().octets();
            u64::from(u16::from_be_bytes([high, low]))
        }
        SocketAddr::V6(_) => u64::MAX,
    }
}

impl Membership {
    /// Leads a rendezvous without other nodes.
    pub(crate) fn lead(own: NodeId, settings: Settings, now: Elapsed) -> Self {
        let state = State::open(own, &settings, now);
        let mut membership = Self::new(own, settings, Role::Ended);
        membership.role = Role::Leader(Box::new(LeaderState::new(state, now)));
        membership.join_local(now, None);
        membership
    }

    /// Discovers the rendezvous that the node of this number leads.
    pub(crate) fn discover(own: NodeId, settings: Settings, now: Elapsed, leader: u64) -> Self {
        let discovery = Discovery::endpoint(now, address(leader), settings.join_timeout);
        let mut membership = Self::new(own, settings, Role::Discovering(Box::new(discovery)));
        membership.leader = leader;
        membership
    }

    fn new(own: NodeId, settings: Settings, role: Role) -> Self {
        Self {
            own,
            settings: Arc::new(settings),
            role,
            roster: None,
            rank: 0,
            leader_rank: None,
            way_back: None,
            running: false,
            ready: false,
            over: false,
            leader: own.0,
            attempts: 0,
            actions: VecDeque::new(),
        }
    }

    /// Whether the node leads a rendezvous, also one that is over.
    pub(crate) fn leads(&self) -> bool {
        matches!(self.role, Role::Leader(_))
    }

    /// Connection to the leader, on a follower.
    pub(crate) fn leader_link(&self) -> Option<LinkId> {
        match &self.role {
            Role::Follower(link) => Some(link.id),
            Role::Leader(_) | Role::Discovering(_) | Role::Ended => None,
        }
    }

    /// Connection to a follower, on the leader.
    pub(crate) fn follower_link(&self, node: NodeId) -> Option<LinkId> {
        match &self.role {
            Role::Leader(leading) => leading.followers.get(&node).copied(),
            Role::Follower(_) | Role::Discovering(_) | Role::Ended => None,
        }
    }

    /// Follower of a connection, on the leader.
    pub(crate) fn follower_of(&self, link: LinkId) -> Option<NodeId> {
        match &self.role {
            Role::Leader(leading) => leading.names.get(&link).copied(),
            Role::Follower(_) | Role::Discovering(_) | Role::Ended => None,
        }
    }

    /// All followers, on the leader.
    pub(crate) fn followers(&self) -> Vec<NodeId> {
        match &self.role {
            Role::Leader(leading) => leading.followers.keys().copied().collect(),
            Role::Follower(_) | Role::Discovering(_) | Role::Ended => Vec::new(),
        }
    }

    /// What is to be done, oldest first.
    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When `advance` is due, if nothing happens before.
    pub(crate) fn deadline(&self) -> Option<Elapsed> {
        let period = self.settings.silence_max / KEEP_ALIVES;
        match &self.role {
            Role::Leader(leading) => {
                let tick = (!leading.followers.is_empty()).then(|| leading.last_tick + period);
                [leading.until, tick].into_iter().flatten().min()
            }
            Role::Discovering(discovery) => Some(discovery.wake_at()),
            Role::Follower(link) => {
                Some((link.last_keep_alive + period).min(link.last_received + self.settings.silence_max))
            }
            Role::Ended => None,
        }
    }

    /// The process did not run for a while: the time does not count as silence of other nodes.
    pub(crate) fn on_resume(&mut self, now: Elapsed) {
        match &mut self.role {
            Role::Leader(leading) => leading.awake_since = now,
            Role::Follower(link) => link.last_received = now,
            Role::Discovering(_) | Role::Ended => {}
        }
    }

    /// The node agent asks for the next round of the membership.
    pub(crate) fn join(&mut self, now: Elapsed) {
        if self.running || self.over {
            return;
        }
        self.ready = true;
        self.send_to_leader(now, ToLeader::Ready);
    }

    /// The node's work is done in the round of the membership.
    pub(crate) fn finished(&mut self, now: Elapsed, round: u64) {
        self.send_to_leader(now, ToLeader::Finished { round });
    }

    /// The node leaves for good.
    pub(crate) fn leave(&mut self, now: Elapsed, why: String) {
        let by = format!("{why} on {}", self.settings.host);
        self.send_to_leader(now, ToLeader::Leave { why });
        self.end(now, RunEnd::Stopped { by });
        if matches!(&self.role, Role::Leader(leading) if !matches!(leading.state.stage, RunStage::Over(_))) {
            self.role = Role::Ended;
        }
    }

    /// Ends the round for the supervisor.
    pub(crate) fn close_round(&mut self, now: Elapsed, round: u64, end: RoundEnd, number: u32, wait: Duration) {
        if let Role::Leader(leading) = &mut self.role {
            leading.state.close_round(now, round, end, Restart { number, wait });
            self.settle(now);
        }
    }

    /// Ends the run for the supervisor.
    pub(crate) fn close_run(&mut self, now: Elapsed, end: RunEnd) {
        if let Role::Leader(leading) = &mut self.role {
            leading.state.close_run(end);
            self.settle(now);
        }
    }

    /// The leader leaves the run to the others.
    pub(crate) fn hand_off(&mut self, now: Elapsed) {
        if let Role::Leader(leading) = &mut self.role {
            leading.state.hand_off(&self.settings);
            self.deliver(now);
        }
    }

    /// The supervisor gives up a node whose connection stands.
    pub(crate) fn expel(&mut self, now: Elapsed, node: NodeId, reason: String) {
        self.dismiss(node, &reason);
        if let Role::Leader(leading) = &mut self.role {
            leading.state.lose(now, node, NodeLoss::Stuck(reason));
        }
        self.settle(now);
    }

    fn dismiss(&mut self, node: NodeId, reason: &str) {
        let Role::Leader(leading) = &mut self.role else { return };
        if let Some(link) = leading.followers.remove(&node) {
            leading.names.remove(&link);
            let reason = reason.to_owned();
            self.actions.push_back(Action::Send(link, Packet::FromLeader(FromLeader::Dismissed { reason })));
            self.actions.push_back(Action::Close(link));
        }
    }

    /// Number of the connection that is being asked for.
    pub(crate) fn attempt(&self) -> Option<u64> {
        match &self.role {
            Role::Discovering(discovery) => discovery.is_connecting().then_some(self.attempts),
            Role::Leader(_) | Role::Follower(_) | Role::Ended => None,
        }
    }

    /// The connection that was asked for is open: the node joins.
    pub(crate) fn connected(&mut self, now: Elapsed, id: LinkId) {
        let found = match &mut self.role {
            Role::Discovering(discovery) => discovery.found(),
            Role::Leader(_) | Role::Follower(_) | Role::Ended => None,
        };
        let Some(FoundLeader { candidate, dead }) = found else { return self.actions.push_back(Action::Close(id)) };
        if dead.is_some() {
            self.leader_rank = candidate.rank;
        }
        self.leader = candidate.at.0.parse().map_or(self.leader, |ip| node_at(SocketAddr::new(ip, PORT)));
        self.role = Role::Follower(Link { id, last_received: now, last_keep_alive: now });
        let description = self.description(dead.as_deref());
        self.send_to_leader(now, ToLeader::Join(Box::new(description)));
        if self.ready {
            self.send_to_leader(now, ToLeader::Ready);
        }
    }

    /// The attempt of a connection ended; `dead`: the other side's system refused it.
    pub(crate) fn refused(&mut self, now: Elapsed, dead: bool) {
        if let Role::Discovering(discovery) = &mut self.role {
            discovery.refused("connection refused or closed".to_owned(), dead);
        }
        self.advance(now);
    }

    /// A connection ended; `closed`: by the other side's system.
    pub(crate) fn link_gone(&mut self, now: Elapsed, id: LinkId, closed: bool) {
        match &mut self.role {
            Role::Follower(link) if link.id == id => {
                let fate = if closed { LeaderFate::Closed } else { LeaderFate::Unknown };
                self.leader_lost(now, "the connection was closed".to_owned(), fate);
            }
            Role::Leader(leading) => {
                if let Some(node) = leading.names.remove(&id) {
                    leading.followers.remove(&node);
                    let loss =
                        if closed { NodeLoss::Closed } else { NodeLoss::Broken("the network broke it".to_owned()) };
                    leading.state.lose(now, node, loss);
                    self.settle(now);
                }
            }
            Role::Follower(_) | Role::Discovering(_) | Role::Ended => {}
        }
        self.advance(now);
    }

    /// A packet of the membership's own arrived over a connection.
    pub(crate) fn on_packet(&mut self, now: Elapsed, id: LinkId, packet: Packet) {
        match packet {
            Packet::ToLeader(message) => self.on_follower_message(now, id, message),
            Packet::FromLeader(message) => {
                if self.leader_link() == Some(id) {
                    self.received(now);
                    self.on_leader_message(now, message);
                }
            }
            Packet::Command(..) | Packet::Event(_) => {}
        }
    }

    /// Anything arrived from the leader, or from a follower.
    pub(crate) fn received(&mut self, now: Elapsed) {
        if let Role::Follower(link) = &mut self.role {
            link.last_received = now;
        }
    }

    /// The leader learns that a follower lives.
    pub(crate) fn received_from(&mut self, now: Elapsed, node: NodeId) {
        if let Role::Leader(leading) = &mut self.role {
            leading.state.alive(now, node, None);
        }
    }

    fn on_follower_message(&mut self, now: Elapsed, id: LinkId, message: ToLeader) {
        let Role::Leader(leading) = &mut self.role else { return };
        if let ToLeader::Join(description) = message {
            let node = description.node;
            if let Some(before) = leading.followers.insert(node, id) {
                leading.names.remove(&before);
                self.actions.push_back(Action::Close(before));
            }
            leading.names.insert(id, node);
            leading.state.join(now, *description, &self.settings);
        } else if let Some(node) = leading.names.get(&id).copied() {
            Self::handle(&mut leading.state, now, node, message);
        }
        self.settle(now);
    }

    fn handle(state: &mut State, now: Elapsed, node: NodeId, message: ToLeader) {
        state.alive(now, node, None);
        match message {
            ToLeader::Ready => state.ready(now, node),
            ToLeader::Finished { round } => state.finish(node, round),
            ToLeader::Leave { why } => state.lose(now, node, NodeLoss::Left(why)),
            ToLeader::Alive { round } => state.alive(now, node, round),
            ToLeader::Abandon => state.lose(now, node, NodeLoss::Abandoned),
            ToLeader::Hello { .. } | ToLeader::Proof { .. } | ToLeader::Join(_) | ToLeader::Message(_) => {}
        }
    }

    fn description(&self, dead: Option<&[u32]>) -> NodeDescription {
        let (host, port) = address(self.own.0);
        let last = dead.zip(self.roster.as_ref()).map(|known| LastRound {
            round: known.1.round,
            node_rank: self.rank,
            dead: known.0.to_vec(),
        });
        NodeDescription {
            node: self.own,
            host: self.settings.host.clone(),
            local_world: self.settings.local_world,
            role: self.settings.role.clone(),
            node_rank: None,
            standby: Some(StandbyEndpoint { host, port }),
            terms: self.settings.terms(),
            last,
        }
    }

    fn join_local(&mut self, now: Elapsed, dead: Option<&[u32]>) {
        let description = self.description(dead);
        if let Role::Leader(leading) = &mut self.role {
            leading.state.join(now, description, &self.settings);
            self.settle(now);
        }
    }

    fn send_to_leader(&mut self, now: Elapsed, message: ToLeader) {
        match &mut self.role {
            Role::Leader(leading) => {
                Self::handle(&mut leading.state, now, self.own, message);
                self.settle(now);
            }
            Role::Follower(link) => self.actions.push_back(Action::Send(link.id, Packet::ToLeader(message))),
            Role::Discovering(_) | Role::Ended => {}
        }
    }

    /// Does what is due.
    pub(crate) fn advance(&mut self, now: Elapsed) {
        let period = self.settings.silence_max / KEEP_ALIVES;
        match &mut self.role {
            Role::Leader(leading) => {
                leading.state.alive(now, self.own, None);
                if !leading.followers.is_empty() && now >= leading.last_tick + period {
                    leading.last_tick = now;
                    self.sweep(now);
                }
                self.settle(now);
            }
            Role::Discovering(_) => while self.discovery_step(now) {},
            Role::Follower(link) => {
                let quiet = now.saturating_sub(link.last_received);
                if quiet >= self.settings.silence_max {
                    let why = format!("nothing was heard of it for {:.1} s", quiet.as_secs_f64());
                    return self.leader_lost(now, why, LeaderFate::Unknown);
                }
                if now >= link.last_keep_alive + period {
                    link.last_keep_alive = now;
                    let round = self.roster.as_ref().map(|roster| roster.round);
                    self.send_to_leader(now, ToLeader::Alive { round });
                }
            }
            Role::Ended => {}
        }
    }

    fn sweep(&mut self, now: Elapsed) {
        let Role::Leader(leading) = &mut self.role else { return };
        let silent = leading.state.silent(now, leading.awake_since, &self.settings);
        for (node, time) in silent {
            self.dismiss(node, &NodeLoss::Silent(time).to_string());
            if let Role::Leader(leading) = &mut self.role {
                leading.state.lose(now, node, NodeLoss::Silent(time));
            }
        }
        let Role::Leader(leading) = &self.role else { return };
        let alive = leading.followers.values().map(|link| Action::Send(*link, Packet::FromLeader(FromLeader::Alive)));
        self.actions.extend(alive);
    }

    fn settle(&mut self, now: Elapsed) {
        loop {
            let Role::Leader(leading) = &mut self.role else { return };
            let (decision, reason) = decide(now, &leading.state, &self.settings);
            let wait = match &decision {
                Decision::Wait(until) => Some(*until),
                _ => None,
            };
            leading.state.apply(now, decision, &self.settings);
            if let Some(until) = wait {
                leading.until = until;
                let idle = leading.state.rounds == 0 && leading.state.ready.is_empty();
                if !idle && leading.sent_reason.as_ref() != Some(&reason) {
                    leading.state.send_reason(now, &reason);
                    leading.sent_reason = Some(reason);
                }
            }
            self.deliver(now);
            if wait.is_some() {
                return;
            }
        }
    }

    /// Carries out the effects of the state.
    fn deliver(&mut self, now: Elapsed) {
        let Role::Leader(leading) = &mut self.role else { return };
        for effect in leading.state.take_effects() {
            match effect {
                RendezvousEffect::Close(node, message) => {
                    self.send_to(node, message);
                    self.close_follower(node);
                }
                RendezvousEffect::Send(nodes, message) => {
                    let own = nodes.contains(&self.own);
                    nodes.into_iter().for_each(|node| self.send_to(node, message.clone()));
                    if own {
                        self.on_leader_message(now, message);
                    }
                }
                RendezvousEffect::CloseAll(message) => {
                    for node in self.followers() {
                        self.send_to(node, message.clone());
                        self.close_follower(node);
                    }
                    self.on_leader_message(now, message);
                }
                RendezvousEffect::Begin { roster, ranks } => self.begin_all(now, &roster, &ranks),
                RendezvousEffect::Joined { node, host, workers } => {
                    self.notify(Notification::NodeJoined { node, host, workers })
                }
                RendezvousEffect::Lost { node, host, reason } => {
                    self.notify(Notification::NodeLost { node, host, reason })
                }
            }
        }
    }

    fn send_to(&mut self, node: NodeId, message: FromLeader) {
        if let Some(link) = self.follower_link(node) {
            self.actions.push_back(Action::Send(link, Packet::FromLeader(message)));
        }
    }

    fn close_follower(&mut self, node: NodeId) {
        let Role::Leader(leading) = &mut self.role else { return };
        if let Some(link) = leading.followers.remove(&node) {
            leading.names.remove(&link);
            self.actions.push_back(Action::Close(link));
        }
    }

    fn begin_all(&mut self, now: Elapsed, roster: &Arc<Roster>, ranks: &[NodeId]) {
        for (node_rank, node) in (0u32..).zip(ranks) {
            if *node == self.own {
                self.begin(now, Arc::clone(roster), node_rank, ranks.to_vec());
            } else {
                self.send_to(*node, FromLeader::Roster(Box::new(Roster::clone(roster))));
                self.send_to(*node, FromLeader::Begin { node_rank });
            }
        }
    }

    /// The leader sent a message.
    fn on_leader_message(&mut self, now: Elapsed, message: FromLeader) {
        match message {
            FromLeader::Waiting { reason } => self.notify(Notification::Waiting(reason)),
            FromLeader::RoundEnded(end) => self.end_round(end),
            FromLeader::RunEnded(end) => self.end(now, end),
            FromLeader::Refused { reason } => self.end(now, RunEnd::Refused { reason }),
            FromLeader::Roster(roster) => self.roster = Some(Arc::from(roster)),
            FromLeader::Begin { node_rank } => {
                if let Some(roster) = self.roster.clone() {
                    self.begin(now, roster, node_rank, Vec::new());
                }
            }
            FromLeader::Left { .. } if matches!(self.role, Role::Leader(_)) => self.over = true,
            FromLeader::Left { successors } => {
                if let Some(roster) = &mut self.roster {
                    Arc::make_mut(roster).successors = successors;
                }
                self.leader_lost(now, "it left the run".to_owned(), LeaderFate::Left);
            }
            FromLeader::Dismissed { reason } => self.dismissed(now, reason),
            FromLeader::Challenge { .. } | FromLeader::Welcome { .. } | FromLeader::Alive | FromLeader::Message(_) => {}
        }
    }

    /// The leader removed this node and lives: discovery must find no other.
    fn dismissed(&mut self, now: Elapsed, reason: String) {
        let Role::Follower(link) = &self.role else { return };
        self.actions.push_back(Action::Close(link.id));
        self.notify(Notification::LeaderLost(reason.clone()));
        let host = self.settings.host.clone();
        self.end_round(RoundEnd::NodeLost { host, reason: reason.clone() });
        let at = address(self.leader);
        self.way_back.get_or_insert(WayBack::to(at.clone(), now, &self.settings));
        let last = LostLeader {
            at,
            leader_rank: self.leader_rank,
            roster: None,
            own_rank: self.rank,
            fate: LeaderFate::Closed,
        };
        self.role = Role::Discovering(Box::new(Discovery::successor(now, last, reason)));
        self.advance(now);
    }

    fn begin(&mut self, now: Elapsed, roster: Arc<Roster>, node_rank: u32, nodes: Vec<NodeId>) {
        let Some(members) = roster.members.unpack() else { return };
        let round = roster.round;
        let leader = roster.leader;
        self.leader_rank = Some(roster.leader_rank);
        self.roster = Some(roster);
        self.rank = node_rank;
        self.way_back = None;
        self.running = true;
        self.ready = false;
        let master = address(self.leader);
        self.notify(Notification::Round(RendezvousInfo { round, node_rank, members, master, leader, nodes }));
        if matches!(self.role, Role::Follower(_)) {
            self.send_to_leader(now, ToLeader::Alive { round: Some(round) });
        } else if let Role::Leader(leading) = &mut self.role {
            leading.state.alive(now, self.own, Some(round));
        }
    }

    fn end_round(&mut self, end: RoundEnd) {
        if std::mem::take(&mut self.running) {
            self.notify(Notification::RoundEnded(end));
        }
    }

    fn end(&mut self, now: Elapsed, end: RunEnd) {
        if let Role::Follower(link) = &self.role {
            self.actions.push_back(Action::Close(link.id));
        }
        if let (RunEnd::LeaderLost { reason }, Some(back)) = (&end, self.way_back.take_if(|back| back.is_open(now))) {
            let discovery = Discovery::way_back(now, back, self.roster.as_deref(), self.rank, reason.clone());
            self.role = Role::Discovering(Box::new(discovery));
            return;
        }
        self.notify(Notification::RunEnded(end));
        self.over = true;
        if !matches!(self.role, Role::Leader(_)) {
            self.role = Role::Ended;
        }
    }

    fn notify(&mut self, notification: Notification) {
        if !self.over {
            self.actions.push_back(Action::Notify(notification));
        }
    }

    /// The leader is lost: the round ends, and discovery of the next leader begins.
    fn leader_lost(&mut self, now: Elapsed, why: String, fate: LeaderFate) {
        if let Role::Follower(link) = &self.role {
            if fate == LeaderFate::Unknown {
                self.actions.push_back(Action::Send(link.id, Packet::ToLeader(ToLeader::Abandon)));
                self.actions.push_back(Action::Abandon(link.id));
            } else {
                self.actions.push_back(Action::Close(link.id));
            }
        }
        if fate == LeaderFate::Unknown && self.roster.is_some() {
            self.way_back.get_or_insert(WayBack::to(address(self.leader), now, &self.settings));
        }
        self.notify(Notification::LeaderLost(why.clone()));
        let host = "the host".to_owned();
        self.end_round(RoundEnd::NodeLost { host, reason: why.clone() });
        let last = LostLeader {
            at: address(self.leader),
            leader_rank: self.leader_rank,
            roster: self.roster.as_deref(),
            own_rank: self.rank,
            fate,
        };
        self.role = Role::Discovering(Box::new(Discovery::successor(now, last, why)));
        self.advance(now);
    }

    /// Makes one step of the discovery. Returns whether another can follow at once.
    fn discovery_step(&mut self, now: Elapsed) -> bool {
        let Role::Discovering(discovery) = &mut self.role else { return false };
        match discovery.next(now) {
            DiscoveryStep::Wait => return false,
            DiscoveryStep::Resolve { attempt, host, port } => {
                let ip = host.parse().map(|ip| vec![SocketAddr::new(ip, port)]);
                discovery.resolved(now, attempt, ip.map_err(|error: std::net::AddrParseError| error.to_string()));
            }
            DiscoveryStep::Connect(at) => {
                self.attempts += 1;
                self.actions.push_back(Action::Connect(node_at(at)));
                return false;
            }
            DiscoveryStep::TakeOver { dead, until } => self.take_over(now, &dead, until),
            DiscoveryStep::GiveUp => self.give_up(now),
        }
        true
    }

    fn take_over(&mut self, now: Elapsed, dead: &[u32], until: Elapsed) {
        let Some(roster) = self.roster.clone() else { return self.give_up(now) };
        let state = State::take_over(self.own, &roster, dead.len(), &self.settings, now, until);
        self.leader = self.own.0;
        self.role = Role::Leader(Box::new(LeaderState::new(state, now)));
        self.join_local(now, Some(dead));
        if self.ready {
            self.send_to_leader(now, ToLeader::Ready);
        }
    }

    fn give_up(&mut self, now: Elapsed) {
        let Role::Discovering(discovery) = &self.role else { return };
        let reason = match &discovery.lost {
            None => return self.end(now, RunEnd::TimedOut { reason: "nobody answered at the endpoint".to_owned() }),
            Some(why) if discovery.is_way_back() => why.clone(),
            Some(why) => format!("the rendezvous is gone ({why}), and nobody takes over"),
        };
        self.end(now, RunEnd::LeaderLost { reason });
    }
}

impl LeaderState {
    fn new(state: State, now: Elapsed) -> Self {
        Self {
            state,
            followers: BTreeMap::new(),
            names: BTreeMap::new(),
            sent_reason: None,
            until: None,
            last_tick: now,
            awake_since: now,
        }
    }
}
