//! Thread of this node: it follows the leader, or leads.
//!
//! **Invariant:** `Notification::RunEnded` is the last notification. Nothing here blocks; every wait has a deadline.

use super::{
    Elapsed,
    authentication::{Key, Nonces},
    coordinator::{Coordinator, KEEP_ALIVES, LocalEvent},
    discovery::{Discovery, LeaderFate, WayBack},
    frame_connection::FrameConnection,
    leader_connection::{LEADER_CONNECTION, LeaderConnection},
    node_loss::NodeLoss,
    notification::{Notification, RendezvousInfo, RunEnd},
    peer_sessions::FIRST_PEER,
    settings::Settings,
    state::Restart,
    unread_messages::UnreadMessages,
};
use crossbeam_channel::{Receiver, Sender};
use enn_broker::tcpstore::ForeignConnection;
use enn_common::wire::node::{
    FromLeader, LastRound, NodeDescription, NodeId, Roster, RoundEnd, StandbyEndpoint, ToLeader,
};
use mio::{Events, Poll, Token, Waker};
use nix::sys::eventfd::EventFd;
use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

pub(super) const WAKER: Token = Token(0);
/// Largest number of events of one poll.
const EVENTS_MAX: usize = 1024;
/// Longest wait, after the last message, for the other nodes to read it.
const END_READ_MAX: Duration = Duration::from_secs(1);
/// Largest number of messages that wait for the end of a link cut.
const HELD_MAX: usize = 4096;
/// Reason for removing a node whose messages fill the queue.
const UNREAD_REASON: &str = "more of its letters wait to be read than may";
/// Delay of a wait from which on this process counts as having been stopped.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Command of the handle, the store or the resolver to the thread.
#[derive(Debug)]
pub(super) enum MemberCommand {
    /// Asks for the next round; `seen` is the number behind that of the last round that was read, 0 for none.
    Join {
        seen: u64,
    },
    Finished {
        round: u64,
    },
    Leave {
        why: String,
    },
    /// Sends a message of the program; `to` is the node, `None` on a follower.
    SendMessage {
        to: Option<NodeId>,
        bytes: Vec<u8>,
    },
    CutLink {
        time: Duration,
    },
    /// A command for the leader.
    Dismiss {
        node: NodeId,
        why: String,
    },
    /// A command for the leader.
    HandOff,
    /// A command for the leader: its supervisor ends this round.
    EndRound {
        round: u64,
        end: Box<RoundEnd>,
        restart: Restart,
    },
    /// A command for the leader: its supervisor ends the run.
    EndRun {
        end: Box<RunEnd>,
    },
    /// A command for the leader.
    CountClients,
    Accept(ForeignConnection),
    Resolved {
        number: u64,
        addrs: Result<Vec<SocketAddr>, String>,
    },
    Close,
}

/// State that thread and handle share.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) wake: Arc<EventFd>,
    pub(super) origin: Instant,
    /// Host and port at which this node reaches the store.
    pub(super) store: Arc<Mutex<(String, u16)>>,
    pub(super) unread: UnreadMessages,
}

impl Shared {
    pub(super) fn now(&self) -> Elapsed {
        self.origin.elapsed()
    }

    pub(super) fn store(&self) -> (String, u16) {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_store(&self, at: (String, u16)) {
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }
}

/// Role of this node in the rendezvous.
pub(super) enum Role {
    Leader(Box<Coordinator>),
    /// This node discovers the leader, and may be connecting to a candidate.
    Discovering(Box<Discovery>, Option<Box<LeaderConnection>>),
    /// This node is connected to the leader.
    Follower(Box<LeaderConnection>),
    /// The run has ended, or this node has left it.
    Ended,
}

impl Role {
    /// Returns the role of a node that begins a discovery.
    pub(super) fn discovering(discovery: Discovery) -> Self {
        Self::Discovering(Box::new(discovery), None)
    }
}

/// State of the thread.
pub(super) struct MemberThread {
    pub(super) settings: Arc<Settings>,
    pub(super) own: NodeId,
    pub(super) key: Option<Key>,
    pub(super) nonces: Nonces,
    pub(super) poll: Poll,
    pub(super) waker: Arc<Waker>,
    pub(super) commands: Receiver<MemberCommand>,
    /// Sender of commands, for the store and the resolver.
    pub(super) to_self: Sender<MemberCommand>,
    pub(super) notifications: Sender<Notification>,
    pub(super) shared: Shared,
    pub(super) role: Role,
    pub(super) standby: Option<Vec<TcpListener>>,
    /// Roster of the last round of this node.
    pub(super) roster: Option<Arc<Roster>>,
    /// Rank of this node in that round.
    pub(super) rank: u32,
    /// Rank of the present leader in that round.
    pub(super) leader_rank: Option<u32>,
    /// The host of that round, when it is out of reach.
    pub(super) way_back: Option<WayBack>,
    /// Whether that round runs.
    pub(super) running: bool,
    /// Whether this node has asked for the next round.
    pub(super) ready: bool,
    /// Connections to leaders that were given up, open until the last message is read.
    pub(super) abandoned: Vec<FrameConnection>,
    /// Last reason for waiting that a discovery reported.
    pub(super) reported: String,
    pub(super) over: bool,
    /// End of a link cut, and the messages that wait for it.
    pub(super) link_cut: Option<(Elapsed, Vec<ToLeader>)>,
}

impl MemberThread {
    /// Runs the thread until the handle is dropped.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let description = self.description(None);
        let now = self.shared.now();
        if let Role::Leader(coordinator) = &mut self.role {
            coordinator.join_local(now, description);
        }
        let mut closing = None;
        loop {
            let now = self.shared.now();
            while let Ok(command) = self.commands.try_recv() {
                if matches!(command, MemberCommand::Close) {
                    closing.get_or_insert(now + END_READ_MAX);
                } else {
                    self.handle_command(now, command);
                }
            }
            self.end_link_cut(now);
            while self.advance(now) {}
            if closing.is_some_and(|until| now >= until || self.end_was_read()) {
                return;
            }
            let link_cut = self.link_cut.as_ref().map(|(until, _)| *until);
            let deadline = [self.deadline(), closing, link_cut].into_iter().flatten().min();
            let timeout = deadline.map(|at| at.saturating_sub(self.shared.now()));
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != ErrorKind::Interrupted
            {
                tracing::error!(%error, "the rendezvous cannot poll its sockets and ends");
                return;
            }
            let now = self.shared.now();
            if deadline.is_some_and(|at| now > at + PAUSE_MAX) {
                self.on_resume(now);
            }
            for event in &events {
                self.on_socket_event(now, event.token(), event.is_read_closed() || event.is_error());
            }
        }
    }

    fn on_socket_event(&mut self, now: Elapsed, token: Token, closed: bool) {
        match (&mut self.role, token) {
            (_, LEADER_CONNECTION) if self.link_cut.is_some() => {}
            (_, LEADER_CONNECTION) => self.link_ready(now),
            (Role::Leader(coordinator), token) if token.0 >= FIRST_PEER => coordinator.ready(now, token, closed),
            _ => {}
        }
    }

    /// Whether all nodes have read the last message.
    fn end_was_read(&self) -> bool {
        match &self.role {
            Role::Leader(coordinator) => !coordinator.is_over() || coordinator.is_alone(),
            _ => true,
        }
    }

    fn on_resume(&mut self, now: Elapsed) {
        match &mut self.role {
            Role::Leader(coordinator) => coordinator.on_resume(now),
            Role::Follower(link) => link.last_received = now,
            Role::Discovering(..) | Role::Ended => {}
        }
    }

    /// Returns the description of this node; with `dead`, the ranks known to be dead, for a node that took over.
    pub(super) fn description(&self, dead: Option<&[u32]>) -> NodeDescription {
        let settings = &self.settings;
        let standby = self.standby.as_ref().map(|listeners| StandbyEndpoint {
            host: settings.local_addr.clone().unwrap_or_default(),
            port: super::endpoint::port_of(listeners),
        });
        let last = dead.zip(self.roster.as_ref()).map(|(dead, roster)| LastRound {
            round: roster.round,
            node_rank: self.rank,
            dead: dead.to_vec(),
        });
        NodeDescription {
            node: self.own,
            host: settings.host.clone(),
            local_world: settings.local_world,
            role: settings.role.clone(),
            node_rank: settings.node_rank,
            standby,
            terms: settings.terms(),
            last,
        }
    }

    fn deadline(&self) -> Option<Elapsed> {
        let period = self.settings.silence_max / KEEP_ALIVES;
        match &self.role {
            Role::Leader(coordinator) => coordinator.deadline(),
            Role::Discovering(discovery, _) => Some(discovery.wake_at()),
            Role::Follower(link) => {
                Some((link.last_keep_alive + period).min(link.last_received + self.settings.silence_max))
            }
            Role::Ended => None,
        }
    }

    /// Does all that is due. Returns whether there may be more to do at once.
    fn advance(&mut self, now: Elapsed) -> bool {
        match &mut self.role {
            Role::Leader(coordinator) => {
                coordinator.handle_local(now, ToLeader::Alive { round: None });
                coordinator.advance(now);
                let events = coordinator.take_local_events();
                let more = !events.is_empty();
                events.into_iter().for_each(|event| self.on_local_event(event));
                more
            }
            Role::Discovering(..) => self.discovery_step(now),
            Role::Follower(_) => {
                self.keep_alive(now);
                false
            }
            Role::Ended => false,
        }
    }

    fn handle_command(&mut self, now: Elapsed, command: MemberCommand) {
        match command {
            MemberCommand::Join { seen } => self.join(now, seen),
            MemberCommand::Finished { round } => self.send_to_leader(now, ToLeader::Finished { round }),
            MemberCommand::Leave { why } => self.leave(now, why),
            MemberCommand::SendMessage { to, bytes } => self.send_message(now, to, bytes),
            MemberCommand::CutLink { time } => self.link_cut = Some((now + time, Vec::new())),
            MemberCommand::Dismiss { node, why } => self.dismiss_node(now, node, why),
            MemberCommand::HandOff => {
                if let Role::Leader(coordinator) = &mut self.role {
                    coordinator.hand_off(now);
                }
            }
            MemberCommand::EndRound { round, end, restart } => {
                if let Role::Leader(coordinator) = &mut self.role {
                    coordinator.close_round(now, round, *end, restart);
                }
            }
            MemberCommand::EndRun { end } => {
                if let Role::Leader(coordinator) = &mut self.role {
                    coordinator.close_run(now, *end);
                }
            }
            MemberCommand::CountClients => {
                if let Role::Leader(coordinator) = &self.role {
                    self.notify(Notification::StoreClients(coordinator.clients_seen()));
                }
            }
            MemberCommand::Accept(connection) => {
                if let Role::Leader(coordinator) = &mut self.role {
                    coordinator.accept(now, connection);
                }
            }
            MemberCommand::Resolved { number, addrs } => self.resolved(now, number, addrs),
            MemberCommand::Close => {}
        }
    }

    fn join(&mut self, now: Elapsed, seen: u64) {
        // A second call, before the round that followed from the first one was read.
        if self.running && self.round().is_some_and(|round| round >= seen) {
            return;
        }
        self.ready = true;
        self.send_to_leader(now, ToLeader::Ready);
    }

    fn send_message(&mut self, now: Elapsed, to: Option<NodeId>, bytes: Vec<u8>) {
        match (&mut self.role, to) {
            (Role::Leader(coordinator), Some(to)) => coordinator.send_message(now, to, bytes),
            // No node would read it: the sender learns that from a notification.
            (Role::Leader(_), None) => {}
            _ => self.send_to_leader(now, ToLeader::Message(bytes)),
        }
    }

    /// Removes a node that is connected and does nothing any more.
    fn dismiss_node(&mut self, now: Elapsed, node: NodeId, why: String) {
        if let Role::Leader(coordinator) = &mut self.role {
            coordinator.dismiss(now, node, NodeLoss::Stuck(why));
        }
    }

    fn leave(&mut self, now: Elapsed, why: String) {
        let by = format!("{why} on {}", self.settings.host);
        self.send_to_leader(now, ToLeader::Leave { why });
        if let Role::Leader(coordinator) = &mut self.role {
            coordinator.advance(now);
        }
        self.end(RunEnd::Stopped { by });
        // The other nodes detect the loss of the leader, and another one takes over.
        if matches!(&self.role, Role::Leader(coordinator) if !coordinator.is_over()) {
            self.role = Role::Ended;
        }
    }

    /// Ends a link cut that is over: messages that waited are sent and read.
    fn end_link_cut(&mut self, now: Elapsed) {
        if let Some((_, held)) = self.link_cut.take_if(|(until, _)| now >= *until) {
            held.into_iter().for_each(|message| self.send_to_leader(now, message));
            self.link_ready(now);
        }
    }

    /// Sends a message to the leader, if there is one.
    pub(super) fn send_to_leader(&mut self, now: Elapsed, message: ToLeader) {
        if let (Role::Follower(_), Some((_, held))) = (&self.role, &mut self.link_cut) {
            held.push(message);
            if held.len() > HELD_MAX {
                // Messages are lost only together with the connection.
                held.clear();
                self.leader_lost(now, "the network is cut".into(), LeaderFate::Unknown);
            }
            return;
        }
        match &mut self.role {
            Role::Leader(coordinator) => coordinator.handle_local(now, message),
            Role::Follower(link) => {
                if let Err(gone) = link.send(&message) {
                    self.leader_lost(now, gone.to_string(), LeaderFate::Unknown);
                }
            }
            // The node repeats the message when the leader is found, or the round has ended.
            Role::Discovering(..) | Role::Ended => {}
        }
    }

    fn on_local_event(&mut self, event: LocalEvent) {
        match event {
            LocalEvent::Message(message) => self.on_leader_message(message),
            LocalEvent::Begin(roster, node_rank, nodes) => self.begin(roster, node_rank, nodes),
            LocalEvent::Joined { node, host, workers } => self.notify(Notification::NodeJoined { node, host, workers }),
            LocalEvent::Lost { node, host, reason } => self.notify(Notification::NodeLost { node, host, reason }),
            LocalEvent::NodeMessage(from, bytes) if self.shared.unread.add(from, &bytes) => {
                self.notify(Notification::Message { from, bytes });
            }
            LocalEvent::NodeMessage(from, _) => self.dismiss_node(self.shared.now(), from, UNREAD_REASON.into()),
        }
    }

    /// The leader sent a message.
    pub(super) fn on_leader_message(&mut self, message: FromLeader) {
        match message {
            FromLeader::Waiting { reason } => self.notify(Notification::Waiting(reason)),
            FromLeader::RoundEnded(end) => self.end_round(end),
            FromLeader::RunEnded(end) => self.end(end),
            FromLeader::Refused { reason } => self.end(RunEnd::Refused { reason }),
            FromLeader::Roster(roster) => self.roster = Some(Arc::from(roster)),
            FromLeader::Begin { node_rank } => {
                if let Some(roster) = self.roster.clone() {
                    self.begin(roster, node_rank, Vec::new());
                }
            }
            FromLeader::Message(bytes) if self.shared.unread.add(self.own, &bytes) => {
                self.notify(Notification::Message { from: self.own, bytes });
            }
            FromLeader::Message(_) => self.leader_lost(self.shared.now(), UNREAD_REASON.into(), LeaderFate::Unknown),
            // This node itself left: there are no further notifications.
            FromLeader::Left { .. } if matches!(self.role, Role::Leader(_)) => self.over = true,
            FromLeader::Left { successors } => {
                if let Some(roster) = &mut self.roster {
                    Arc::make_mut(roster).successors = successors;
                }
                self.leader_lost(self.shared.now(), "it left the run".into(), LeaderFate::Left);
            }
            FromLeader::Challenge { .. }
            | FromLeader::Welcome { .. }
            | FromLeader::Alive
            | FromLeader::Dismissed { .. } => {}
        }
    }

    fn begin(&mut self, roster: Arc<Roster>, node_rank: u32, nodes: Vec<NodeId>) {
        let Some(members) = roster.members.unpack() else {
            tracing::error!("the leader's list of members cannot be read");
            return;
        };
        let round = roster.round;
        let leader = roster.leader;
        self.leader_rank = Some(roster.leader_rank);
        self.roster = Some(roster);
        self.rank = node_rank;
        self.way_back = None;
        self.running = true;
        self.ready = false;
        let master = self.shared.store();
        self.notify(Notification::Round(RendezvousInfo { round, node_rank, members, master, leader, nodes }));
        let now = self.shared.now();
        self.send_to_leader(now, ToLeader::Alive { round: Some(round) });
    }

    /// Returns the number of the last round that this node received.
    pub(super) fn round(&self) -> Option<u64> {
        self.roster.as_ref().map(|roster| roster.round)
    }

    pub(super) fn end_round(&mut self, end: RoundEnd) {
        if !self.running {
            return;
        }
        self.running = false;
        self.notify(Notification::RoundEnded(end));
    }

    /// The run is over for this node, unless its host was out of reach: it may live, or have a successor on the other side.
    pub(super) fn end(&mut self, end: RunEnd) {
        let now = self.shared.now();
        if let (RunEnd::LeaderLost { reason }, Some(back)) = (&end, self.way_back.take_if(|back| back.is_open(now))) {
            let discovery = Discovery::way_back(now, back, self.roster.as_deref(), self.rank, reason.clone());
            self.role = Role::discovering(discovery);
            return;
        }
        self.notify(Notification::RunEnded(end));
        self.over = true;
        if !matches!(self.role, Role::Leader(_)) {
            self.role = Role::Ended;
        }
    }

    pub(super) fn notify(&mut self, notification: Notification) {
        if self.over {
            return;
        }
        // This fails only while the handle is being dropped.
        let _gone = self.notifications.send(notification);
        let _full = self.shared.wake.write(1);
    }
}
