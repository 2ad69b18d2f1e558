//! Membership of one node in virtual time: the real rendezvous state, decisions and search for a successor, on simulated connections.
//!
//! It stands in for the threads and sockets of the rendezvous, and is declared there to reach its parts.

use super::{
    decide::{Decision, Reason, decide},
    news::{News, RoundPlan, RunEnd},
    seek::{Fate, Found, Last, Next, Search, WayBack},
    settings::Settings,
    state::{Loss, Restart, Stage, State, Time, Told},
};
use enn_common::wire::{
    node::{FromHost, LastRound, NodeDescription, NodeId, Roster, RoundEnd, StandbyEndpoint, ToHost},
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

/// Keep-alives within the longest silence.
const KEEP_ALIVES: u32 = 5;
/// Port at which every node would host; the address says which node.
const PORT: u16 = 1;

/// What nodes say to each other over a connection.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Packet {
    ToHost(ToHost),
    FromHost(FromHost),
    Command(Epoch, NodeCommand),
    Event(NodeEvent),
}

/// What a membership asks of the world.
#[derive(Debug)]
pub(crate) enum Action {
    /// Something for the node agent and the supervisor.
    Notify(News),
    Send(LinkId, Packet),
    /// Close the connection, as a system does.
    Close(LinkId),
    /// Give it up: what the other side sent may still arrive.
    Abandon(LinkId),
    /// Connect to the node of this number, if it hosts.
    Connect(u64),
}

/// Where the node stands.
#[derive(Debug)]
enum Seat {
    Host(Box<Hosting>),
    Seeking(Box<Search>),
    Guest(Link),
    Out,
}

/// Connection to the host.
#[derive(Debug)]
struct Link {
    id: LinkId,
    heard: Time,
    ticked: Time,
}

/// The rendezvous on the node that hosts it.
#[derive(Debug)]
struct Hosting {
    state: State,
    guests: BTreeMap<NodeId, LinkId>,
    names: BTreeMap<LinkId, NodeId>,
    told: Option<Reason>,
    until: Option<Time>,
    ticked: Time,
    awake: Time,
}

/// Membership of one node.
#[derive(Debug)]
pub(crate) struct Membership {
    own: NodeId,
    settings: Arc<Settings>,
    seat: Seat,
    roster: Option<Arc<Roster>>,
    rank: u32,
    host_rank: Option<u32>,
    way_back: Option<WayBack>,
    running: bool,
    ready: bool,
    over: bool,
    /// Address of the host that was found last.
    host: u64,
    /// Counts connections that were asked for, so that an answer finds its question.
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
    /// Hosts a rendezvous that nobody has joined.
    pub(crate) fn host(own: NodeId, settings: Settings, now: Time) -> Self {
        let state = State::open(own, &settings, now);
        let mut membership = Self::new(own, settings, Seat::Out);
        membership.seat = Seat::Host(Box::new(Hosting::new(state, now)));
        membership.join_own(now, None);
        membership
    }

    /// Looks for the rendezvous that the node of this number hosts.
    pub(crate) fn seek(own: NodeId, settings: Settings, now: Time, host: u64) -> Self {
        let search = Search::endpoint(now, address(host), settings.join_timeout);
        let mut membership = Self::new(own, settings, Seat::Seeking(Box::new(search)));
        membership.host = host;
        membership
    }

    fn new(own: NodeId, settings: Settings, seat: Seat) -> Self {
        Self {
            own,
            settings: Arc::new(settings),
            seat,
            roster: None,
            rank: 0,
            host_rank: None,
            way_back: None,
            running: false,
            ready: false,
            over: false,
            host: own.0,
            attempts: 0,
            actions: VecDeque::new(),
        }
    }

    /// Whether it hosts a rendezvous, also one that is over.
    pub(crate) fn hosts(&self) -> bool {
        matches!(self.seat, Seat::Host(_))
    }

    /// Connection to the host, on a node that is a guest.
    pub(crate) fn host_link(&self) -> Option<LinkId> {
        match &self.seat {
            Seat::Guest(link) => Some(link.id),
            Seat::Host(_) | Seat::Seeking(_) | Seat::Out => None,
        }
    }

    /// Connection to a guest, on the host.
    pub(crate) fn guest_link(&self, node: NodeId) -> Option<LinkId> {
        match &self.seat {
            Seat::Host(hosting) => hosting.guests.get(&node).copied(),
            Seat::Guest(_) | Seat::Seeking(_) | Seat::Out => None,
        }
    }

    /// Guest of a connection, on the host.
    pub(crate) fn guest_of(&self, link: LinkId) -> Option<NodeId> {
        match &self.seat {
            Seat::Host(hosting) => hosting.names.get(&link).copied(),
            Seat::Guest(_) | Seat::Seeking(_) | Seat::Out => None,
        }
    }

    /// All guests, on the host.
    pub(crate) fn guests(&self) -> Vec<NodeId> {
        match &self.seat {
            Seat::Host(hosting) => hosting.guests.keys().copied().collect(),
            Seat::Guest(_) | Seat::Seeking(_) | Seat::Out => Vec::new(),
        }
    }

    /// What is to be done, oldest first.
    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When `advance` is due, if nothing happens before.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let period = self.settings.silence_max / KEEP_ALIVES;
        match &self.seat {
            Seat::Host(hosting) => {
                let tick = (!hosting.guests.is_empty()).then(|| hosting.ticked + period);
                [hosting.until, tick].into_iter().flatten().min()
            }
            Seat::Seeking(search) => Some(search.wake_at()),
            Seat::Guest(link) => Some((link.ticked + period).min(link.heard + self.settings.silence_max)),
            Seat::Out => None,
        }
    }

    /// The process did not run for a while: nobody is blamed for not having been heard.
    pub(crate) fn woke(&mut self, now: Time) {
        match &mut self.seat {
            Seat::Host(hosting) => hosting.awake = now,
            Seat::Guest(link) => link.heard = now,
            Seat::Seeking(_) | Seat::Out => {}
        }
    }

    /// The node agent asks for the next round of the membership.
    pub(crate) fn join(&mut self, now: Time) {
        if self.running || self.over {
            return;
        }
        self.ready = true;
        self.say(now, ToHost::Ready);
    }

    /// The node's work is done in the round of the membership.
    pub(crate) fn finished(&mut self, now: Time, round: u64) {
        self.say(now, ToHost::Finished { round });
    }

    /// The node leaves for good.
    pub(crate) fn leave(&mut self, now: Time, why: String) {
        let by = format!("{why} on {}", self.settings.host);
        self.say(now, ToHost::Leave { why });
        self.end(now, RunEnd::Stopped { by });
        if matches!(&self.seat, Seat::Host(hosting) if !matches!(hosting.state.stage, Stage::Over(_))) {
            self.seat = Seat::Out;
        }
    }

    /// The supervisor ends the round.
    pub(crate) fn close_round(&mut self, now: Time, round: u64, end: RoundEnd, number: u32, wait: Duration) {
        if let Seat::Host(hosting) = &mut self.seat {
            hosting.state.close_round(now, round, end, Restart { number, wait });
            self.settle(now);
        }
    }

    /// The supervisor ends the run.
    pub(crate) fn close_run(&mut self, now: Time, end: RunEnd) {
        if let Seat::Host(hosting) = &mut self.seat {
            hosting.state.close_run(end);
            self.settle(now);
        }
    }

    /// The host leaves the run to the others.
    pub(crate) fn hand_off(&mut self, now: Time) {
        if let Seat::Host(hosting) = &mut self.seat {
            hosting.state.bequeath(&self.settings);
            self.deliver(now);
        }
    }

    /// The supervisor gives up a node whose connection stands.
    pub(crate) fn expel(&mut self, now: Time, node: NodeId, reason: String) {
        self.dismiss(node, &reason);
        if let Seat::Host(hosting) = &mut self.seat {
            hosting.state.lose(now, node, Loss::Stuck(reason));
        }
        self.settle(now);
    }

    fn dismiss(&mut self, node: NodeId, reason: &str) {
        let Seat::Host(hosting) = &mut self.seat else { return };
        if let Some(link) = hosting.guests.remove(&node) {
            hosting.names.remove(&link);
            let reason = reason.to_owned();
            self.actions.push_back(Action::Send(link, Packet::FromHost(FromHost::Dismissed { reason })));
            self.actions.push_back(Action::Close(link));
        }
    }

    /// Number of the connection that is being asked for.
    pub(crate) fn attempt(&self) -> Option<u64> {
        match &self.seat {
            Seat::Seeking(search) => search.is_connecting().then_some(self.attempts),
            Seat::Host(_) | Seat::Guest(_) | Seat::Out => None,
        }
    }

    /// The connection that was asked for stands: the node says who it is.
    pub(crate) fn connected(&mut self, now: Time, id: LinkId) {
        let found = match &mut self.seat {
            Seat::Seeking(search) => search.found(),
            Seat::Host(_) | Seat::Guest(_) | Seat::Out => None,
        };
        let Some(Found { target, dead }) = found else { return self.actions.push_back(Action::Close(id)) };
        if dead.is_some() {
            self.host_rank = target.rank;
        }
        self.host = target.at.0.parse().map_or(self.host, |ip| node_at(SocketAddr::new(ip, PORT)));
        self.seat = Seat::Guest(Link { id, heard: now, ticked: now });
        let card = self.card(dead.as_deref());
        self.say(now, ToHost::Join(Box::new(card)));
        if self.ready {
            self.say(now, ToHost::Ready);
        }
    }

    /// The attempt of a connection ended; `dead`: the other side's system refused it.
    pub(crate) fn refused(&mut self, now: Time, dead: bool) {
        if let Seat::Seeking(search) = &mut self.seat {
            search.refused("connection refused or closed".to_owned(), dead);
        }
        self.advance(now);
    }

    /// A connection ended; `closed`: by the other side's system.
    pub(crate) fn link_gone(&mut self, now: Time, id: LinkId, closed: bool) {
        match &mut self.seat {
            Seat::Guest(link) if link.id == id => {
                let fate = if closed { Fate::Closed } else { Fate::Unknown };
                self.host_lost(now, "the connection was closed".to_owned(), fate);
            }
            Seat::Host(hosting) => {
                if let Some(node) = hosting.names.remove(&id) {
                    hosting.guests.remove(&node);
                    let loss = if closed { Loss::Closed } else { Loss::Broken("the network broke it".to_owned()) };
                    hosting.state.lose(now, node, loss);
                    self.settle(now);
                }
            }
            Seat::Guest(_) | Seat::Seeking(_) | Seat::Out => {}
        }
        self.advance(now);
    }

    /// A packet of the membership's own arrived over a connection.
    pub(crate) fn on_packet(&mut self, now: Time, id: LinkId, packet: Packet) {
        match packet {
            Packet::ToHost(message) => self.host_hears(now, id, message),
            Packet::FromHost(message) => {
                if self.host_link() == Some(id) {
                    self.heard(now);
                    self.listen(now, message);
                }
            }
            Packet::Command(..) | Packet::Event(_) => {}
        }
    }

    /// Anything arrived from the host, or from a guest.
    pub(crate) fn heard(&mut self, now: Time) {
        if let Seat::Guest(link) = &mut self.seat {
            link.heard = now;
        }
    }

    /// The host hears that a guest lives.
    pub(crate) fn heard_of(&mut self, now: Time, node: NodeId) {
        if let Seat::Host(hosting) = &mut self.seat {
            hosting.state.alive(now, node, None);
        }
    }

    fn host_hears(&mut self, now: Time, id: LinkId, message: ToHost) {
        let Seat::Host(hosting) = &mut self.seat else { return };
        if let ToHost::Join(card) = message {
            let node = card.node;
            if let Some(before) = hosting.guests.insert(node, id) {
                hosting.names.remove(&before);
                self.actions.push_back(Action::Close(before));
            }
            hosting.names.insert(id, node);
            hosting.state.join(now, *card, &self.settings);
        } else if let Some(node) = hosting.names.get(&id).copied() {
            Self::handle(&mut hosting.state, now, node, message);
        }
        self.settle(now);
    }

    fn handle(state: &mut State, now: Time, node: NodeId, message: ToHost) {
        state.alive(now, node, None);
        match message {
            ToHost::Ready => state.ready(now, node),
            ToHost::Finished { round } => state.finish(node, round),
            ToHost::Leave { why } => state.lose(now, node, Loss::Left(why)),
            ToHost::Alive { round } => state.alive(now, node, round),
            ToHost::Abandon => state.lose(now, node, Loss::Abandoned),
            ToHost::Hello { .. } | ToHost::Proof { .. } | ToHost::Join(_) | ToHost::Message(_) => {}
        }
    }

    fn card(&self, dead: Option<&[u32]>) -> NodeDescription {
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

    fn join_own(&mut self, now: Time, dead: Option<&[u32]>) {
        let card = self.card(dead);
        if let Seat::Host(hosting) = &mut self.seat {
            hosting.state.join(now, card, &self.settings);
            self.settle(now);
        }
    }

    fn say(&mut self, now: Time, message: ToHost) {
        match &mut self.seat {
            Seat::Host(hosting) => {
                Self::handle(&mut hosting.state, now, self.own, message);
                self.settle(now);
            }
            Seat::Guest(link) => self.actions.push_back(Action::Send(link.id, Packet::ToHost(message))),
            Seat::Seeking(_) | Seat::Out => {}
        }
    }

    /// Does what is due.
    pub(crate) fn advance(&mut self, now: Time) {
        let period = self.settings.silence_max / KEEP_ALIVES;
        match &mut self.seat {
            Seat::Host(hosting) => {
                hosting.state.alive(now, self.own, None);
                if !hosting.guests.is_empty() && now >= hosting.ticked + period {
                    hosting.ticked = now;
                    self.sweep(now);
                }
                self.settle(now);
            }
            Seat::Seeking(_) => while self.search(now) {},
            Seat::Guest(link) => {
                let quiet = now.saturating_sub(link.heard);
                if quiet >= self.settings.silence_max {
                    let why = format!("nothing was heard of it for {:.1} s", quiet.as_secs_f64());
                    return self.host_lost(now, why, Fate::Unknown);
                }
                if now >= link.ticked + period {
                    link.ticked = now;
                    let round = self.roster.as_ref().map(|roster| roster.round);
                    self.say(now, ToHost::Alive { round });
                }
            }
            Seat::Out => {}
        }
    }

    fn sweep(&mut self, now: Time) {
        let Seat::Host(hosting) = &mut self.seat else { return };
        let silent = hosting.state.silent(now, hosting.awake, &self.settings);
        for (node, time) in silent {
            self.dismiss(node, &Loss::Silent(time).to_string());
            if let Seat::Host(hosting) = &mut self.seat {
                hosting.state.lose(now, node, Loss::Silent(time));
            }
        }
        let Seat::Host(hosting) = &self.seat else { return };
        let alive = hosting.guests.values().map(|link| Action::Send(*link, Packet::FromHost(FromHost::Alive)));
        self.actions.extend(alive);
    }

    fn settle(&mut self, now: Time) {
        loop {
            let Seat::Host(hosting) = &mut self.seat else { return };
            let (decision, reason) = decide(now, &hosting.state, &self.settings);
            let wait = match &decision {
                Decision::Wait(until) => Some(*until),
                _ => None,
            };
            hosting.state.apply(now, decision, &self.settings);
            if let Some(until) = wait {
                hosting.until = until;
                let idle = hosting.state.rounds == 0 && hosting.state.ready.is_empty();
                if !idle && hosting.told.as_ref() != Some(&reason) {
                    hosting.state.tell_reason(now, &reason);
                    hosting.told = Some(reason);
                }
            }
            self.deliver(now);
            if wait.is_some() {
                return;
            }
        }
    }

    /// Tells what the state wants told.
    fn deliver(&mut self, now: Time) {
        let Seat::Host(hosting) = &mut self.seat else { return };
        for told in hosting.state.take_told() {
            match told {
                Told::To(node, message) => {
                    self.send_to(node, message);
                    self.close_guest(node);
                }
                Told::These(nodes, message) => {
                    let own = nodes.contains(&self.own);
                    nodes.into_iter().for_each(|node| self.send_to(node, message.clone()));
                    if own {
                        self.listen(now, message);
                    }
                }
                Told::All(message) => {
                    for node in self.guests() {
                        self.send_to(node, message.clone());
                        self.close_guest(node);
                    }
                    self.listen(now, message);
                }
                Told::Begin { roster, ranks } => self.begin_all(now, &roster, &ranks),
                Told::Joined { node, host, workers } => self.tell(News::NodeJoined { node, host, workers }),
                Told::Lost { node, host, reason } => self.tell(News::NodeLost { node, host, reason }),
            }
        }
    }

    fn send_to(&mut self, node: NodeId, message: FromHost) {
        if let Some(link) = self.guest_link(node) {
            self.actions.push_back(Action::Send(link, Packet::FromHost(message)));
        }
    }

    fn close_guest(&mut self, node: NodeId) {
        let Seat::Host(hosting) = &mut self.seat else { return };
        if let Some(link) = hosting.guests.remove(&node) {
            hosting.names.remove(&link);
            self.actions.push_back(Action::Close(link));
        }
    }

    fn begin_all(&mut self, now: Time, roster: &Arc<Roster>, ranks: &[NodeId]) {
        for (node_rank, node) in (0u32..).zip(ranks) {
            if *node == self.own {
                self.begin(now, Arc::clone(roster), node_rank, ranks.to_vec());
            } else {
                self.send_to(*node, FromHost::Roster(Box::new(Roster::clone(roster))));
                self.send_to(*node, FromHost::Begin { node_rank });
            }
        }
    }

    /// The host says something.
    fn listen(&mut self, now: Time, message: FromHost) {
        match message {
            FromHost::Waiting { reason } => self.tell(News::Waiting(reason)),
            FromHost::RoundEnded(end) => self.end_round(end),
            FromHost::RunEnded(end) => self.end(now, end),
            FromHost::Refused { reason } => self.end(now, RunEnd::Refused { reason }),
            FromHost::Roster(roster) => self.roster = Some(Arc::from(roster)),
            FromHost::Begin { node_rank } => {
                if let Some(roster) = self.roster.clone() {
                    self.begin(now, roster, node_rank, Vec::new());
                }
            }
            FromHost::Left { .. } if matches!(self.seat, Seat::Host(_)) => self.over = true,
            FromHost::Left { successors } => {
                if let Some(roster) = &mut self.roster {
                    Arc::make_mut(roster).successors = successors;
                }
                self.host_lost(now, "it left the run".to_owned(), Fate::Left);
            }
            FromHost::Dismissed { reason } => self.dismissed(now, reason),
            FromHost::Challenge { .. } | FromHost::Welcome { .. } | FromHost::Alive | FromHost::Message(_) => {}
        }
    }

    /// The host gave this node up and lives: only it may be found.
    fn dismissed(&mut self, now: Time, reason: String) {
        let Seat::Guest(link) = &self.seat else { return };
        self.actions.push_back(Action::Close(link.id));
        self.tell(News::HostLost(reason.clone()));
        let host = self.settings.host.clone();
        self.end_round(RoundEnd::NodeLost { host, reason: reason.clone() });
        let at = address(self.host);
        self.way_back.get_or_insert(WayBack::to(at.clone(), now, &self.settings));
        let last = Last { at, host_rank: self.host_rank, roster: None, own_rank: self.rank, fate: Fate::Closed };
        self.seat = Seat::Seeking(Box::new(Search::successor(now, last, reason)));
        self.advance(now);
    }

    fn begin(&mut self, now: Time, roster: Arc<Roster>, node_rank: u32, nodes: Vec<NodeId>) {
        let Some(members) = roster.members.unpack() else { return };
        let round = roster.round;
        let host = roster.host;
        self.host_rank = Some(roster.host_rank);
        self.roster = Some(roster);
        self.rank = node_rank;
        self.way_back = None;
        self.running = true;
        self.ready = false;
        let master = address(self.host);
        self.tell(News::Round(RoundPlan { round, node_rank, members, master, host, nodes }));
        if matches!(self.seat, Seat::Guest(_)) {
            self.say(now, ToHost::Alive { round: Some(round) });
        } else if let Seat::Host(hosting) = &mut self.seat {
            hosting.state.alive(now, self.own, Some(round));
        }
    }

    fn end_round(&mut self, end: RoundEnd) {
        if std::mem::take(&mut self.running) {
            self.tell(News::RoundEnded(end));
        }
    }

    fn end(&mut self, now: Time, end: RunEnd) {
        if let Seat::Guest(link) = &self.seat {
            self.actions.push_back(Action::Close(link.id));
        }
        if let (RunEnd::HostLost { reason }, Some(back)) = (&end, self.way_back.take_if(|back| back.is_open(now))) {
            let search = Search::way_back(now, back, self.roster.as_deref(), self.rank, reason.clone());
            self.seat = Seat::Seeking(Box::new(search));
            return;
        }
        self.tell(News::RunEnded(end));
        self.over = true;
        if !matches!(self.seat, Seat::Host(_)) {
            self.seat = Seat::Out;
        }
    }

    fn tell(&mut self, news: News) {
        if !self.over {
            self.actions.push_back(Action::Notify(news));
        }
    }

    /// The host is gone: the round is over, and somebody has to take over.
    fn host_lost(&mut self, now: Time, why: String, fate: Fate) {
        if let Seat::Guest(link) = &self.seat {
            if fate == Fate::Unknown {
                self.actions.push_back(Action::Send(link.id, Packet::ToHost(ToHost::Abandon)));
                self.actions.push_back(Action::Abandon(link.id));
            } else {
                self.actions.push_back(Action::Close(link.id));
            }
        }
        if fate == Fate::Unknown && self.roster.is_some() {
            self.way_back.get_or_insert(WayBack::to(address(self.host), now, &self.settings));
        }
        self.tell(News::HostLost(why.clone()));
        let host = "the host".to_owned();
        self.end_round(RoundEnd::NodeLost { host, reason: why.clone() });
        let last = Last {
            at: address(self.host),
            host_rank: self.host_rank,
            roster: self.roster.as_deref(),
            own_rank: self.rank,
            fate,
        };
        self.seat = Seat::Seeking(Box::new(Search::successor(now, last, why)));
        self.advance(now);
    }

    /// One step of the search; whether another can follow at once.
    fn search(&mut self, now: Time) -> bool {
        let Seat::Seeking(search) = &mut self.seat else { return false };
        match search.next(now) {
            Next::Wait => return false,
            Next::Resolve { attempt, host, port } => {
                let ip = host.parse().map(|ip| vec![SocketAddr::new(ip, port)]);
                search.resolved(now, attempt, ip.map_err(|error: std::net::AddrParseError| error.to_string()));
            }
            Next::Connect(at) => {
                self.attempts += 1;
                self.actions.push_back(Action::Connect(node_at(at)));
                return false;
            }
            Next::TakeOver { dead, until } => self.take_over(now, &dead, until),
            Next::GiveUp => self.give_up(now),
        }
        true
    }

    fn take_over(&mut self, now: Time, dead: &[u32], until: Time) {
        let Some(roster) = self.roster.clone() else { return self.give_up(now) };
        let state = State::inherit(self.own, &roster, dead.len(), &self.settings, (now, until));
        self.host = self.own.0;
        self.seat = Seat::Host(Box::new(Hosting::new(state, now)));
        self.join_own(now, Some(dead));
        if self.ready {
            self.say(now, ToHost::Ready);
        }
    }

    fn give_up(&mut self, now: Time) {
        let Seat::Seeking(search) = &self.seat else { return };
        let reason = match &search.lost {
            None => return self.end(now, RunEnd::TimedOut { reason: "nobody answered at the endpoint".to_owned() }),
            Some(why) if search.is_way_back() => why.clone(),
            Some(why) => format!("the rendezvous is gone ({why}), and nobody takes over"),
        };
        self.end(now, RunEnd::HostLost { reason });
    }
}

impl Hosting {
    fn new(state: State, now: Time) -> Self {
        Self {
            state,
            guests: BTreeMap::new(),
            names: BTreeMap::new(),
            told: None,
            until: None,
            ticked: now,
            awake: now,
        }
    }
}
