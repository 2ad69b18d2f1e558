//! Sessions of the other nodes on the leader: a handshake, then messages.
//!
//! **Invariant:** bytes, time and number of unauthenticated connections are bounded.

use super::{
    Elapsed,
    authentication::{Key, Nonce, Nonces, Prover, SAME_TOKEN},
    frame_connection::{ConnectionError, EncodedFrame, FrameConnection, ReadOutcome, encode_frame},
    node_loss::NodeLoss,
};
use enn_broker::tcpstore::ForeignConnection;
use enn_common::{
    descriptors,
    wire::node::{FromLeader, NodeDescription, NodeId, PREFIX, PROTOCOL, ToLeader},
};
use mio::{Registry, Token, net::TcpStream};
use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// First token of a peer; lower tokens are the thread's own.
pub(super) const FIRST_PEER: usize = 16;
/// Limit on unauthenticated connections. All nodes of a large run are unauthenticated for a moment at its start.
const UNAUTHENTICATED_MAX: usize = 16_384;
/// Time that an unauthenticated connection has in any case, before another one may replace it.
const HANDSHAKE_MIN: Duration = Duration::from_secs(1);
/// Limit on the time of a handshake, and of the end after the last message.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// Event of a peer session.
#[derive(Debug)]
pub(super) enum PeerEvent {
    /// A node completed its handshake.
    Joined(NodeDescription),
    /// A node sent a message.
    Message(NodeId, ToLeader),
    /// A node was lost.
    Lost(NodeId, NodeLoss),
}

#[derive(Debug)]
enum SessionStage {
    /// The next message is `Hello`.
    AwaitingHello,
    /// The next message is `Proof`, for the nonces of the node and of the leader.
    AwaitingProof(Nonce, Nonce),
    /// The next message is `Join`.
    AwaitingJoin,
    Joined(NodeId),
    /// The last message is sent; the other side has to close.
    Closing,
}

#[derive(Debug)]
struct PeerSession {
    connection: FrameConnection,
    peer: SocketAddr,
    since: Elapsed,
    /// Time of the last message to the peer.
    sent: Elapsed,
    stage: SessionStage,
}

/// Sessions of all peers.
#[derive(Debug)]
pub(super) struct PeerSessions {
    registry: Registry,
    nonces: Nonces,
    key: Option<Key>,
    sessions: HashMap<Token, PeerSession>,
    nodes: HashMap<NodeId, Token>,
    /// Limit on unauthenticated connections, so that nodes and workers have descriptors.
    unauthenticated_max: usize,
    next: usize,
    /// Number of authenticated nodes at each address.
    addresses: HashMap<IpAddr, usize>,
    /// Addresses whose number of nodes became or was zero, and whether there are nodes now.
    address_changes: Vec<(IpAddr, bool)>,
    events: Vec<PeerEvent>,
}

impl PeerSessions {
    pub(super) fn new(registry: Registry, key: Option<Key>) -> io::Result<Self> {
        Ok(Self {
            registry,
            nonces: Nonces::open()?,
            key,
            sessions: HashMap::new(),
            nodes: HashMap::new(),
            unauthenticated_max: descriptors::capacity(2 * UNAUTHENTICATED_MAX).connections.div_ceil(2),
            next: FIRST_PEER,
            addresses: HashMap::new(),
            address_changes: Vec::new(),
            events: Vec::new(),
        })
    }

    /// Whether no peer is connected.
    pub(super) fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    pub(super) fn take_events(&mut self) -> Vec<PeerEvent> {
        std::mem::take(&mut self.events)
    }

    pub(super) fn take_address_changes(&mut self) -> Vec<(IpAddr, bool)> {
        std::mem::take(&mut self.address_changes)
    }

    /// All nodes.
    pub(super) fn nodes(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    /// Returns the address of a node.
    pub(super) fn address(&self, id: NodeId) -> Option<IpAddr> {
        self.sessions.get(self.nodes.get(&id)?).map(|session| session.peer.ip().to_canonical())
    }

    /// Returns the number of unauthenticated connections.
    fn unauthenticated(&self) -> usize {
        self.sessions.len().saturating_sub(self.nodes.len())
    }

    /// Ends the oldest unauthenticated connection, if it had its time. Returns whether there was one.
    fn make_room(&mut self, now: Elapsed) -> bool {
        let unauthenticated =
            self.sessions.iter().filter(|(_, session)| !matches!(session.stage, SessionStage::Joined(_)));
        let oldest =
            unauthenticated.min_by_key(|(_, session)| session.since).map(|(token, session)| (*token, session.since));
        let Some((token, _)) = oldest.filter(|(_, since)| now.saturating_sub(*since) >= HANDSHAKE_MIN) else {
            return false;
        };
        self.remove(token, &ConnectionError::Broken(io::ErrorKind::TimedOut));
        true
    }

    /// Takes over a connection that the store accepted.
    pub(super) fn accept(&mut self, now: Elapsed, accepted: ForeignConnection) {
        let ForeignConnection { stream, peer, bytes } = accepted;
        if self.unauthenticated() >= self.unauthenticated_max && !self.make_room(now) {
            tracing::warn!(%peer, "the rendezvous has {} connections that are no node's and takes no more", self.unauthenticated_max);
            return;
        }
        let token = Token(self.next);
        self.next += 1;
        let mut connection = FrameConnection::new(TcpStream::from_std(stream), &PREFIX);
        if let Err(error) = connection.register(&self.registry, token) {
            tracing::warn!(%peer, %error, "the rendezvous could not take a connection");
            return;
        }
        let pushed = connection.push(&bytes);
        self.sessions
            .insert(token, PeerSession { connection, peer, since: now, sent: now, stage: SessionStage::AwaitingHello });
        match pushed {
            // Further bytes, or the end, are an event of the poll.
            Ok(()) => self.process_or_remove(now, token, ReadOutcome::Empty, false),
            Err(gone) => self.remove(token, &gone),
        }
    }

    /// A connection is ready; `closed` says that its end can be read.
    pub(super) fn ready(&mut self, now: Elapsed, token: Token, closed: bool) {
        self.process_or_remove(now, token, ReadOutcome::Full, closed);
    }

    fn process_or_remove(&mut self, now: Elapsed, token: Token, outcome: ReadOutcome, closed: bool) {
        if let Err(gone) = self.process(now, token, outcome, closed) {
            self.remove(token, &gone);
        }
    }

    /// Handles messages until a read gives no more; `outcome` is that of the last read.
    fn process(
        &mut self,
        now: Elapsed,
        token: Token,
        mut outcome: ReadOutcome,
        closed: bool,
    ) -> Result<(), ConnectionError> {
        loop {
            // Whole messages first: the store may have read some.
            loop {
                let Some(session) = self.sessions.get_mut(&token) else { return Ok(()) };
                let Some(message) = session.connection.next::<ToLeader>()? else { break };
                self.on_message(now, token, message)?;
            }
            let Some(session) = self.sessions.get_mut(&token) else { return Ok(()) };
            session.connection.flush()?;
            if outcome == ReadOutcome::Empty || (outcome == ReadOutcome::Partial && !closed) {
                return Ok(());
            }
            outcome = session.connection.read_once()?;
        }
    }

    fn on_message(&mut self, now: Elapsed, token: Token, message: ToLeader) -> Result<(), ConnectionError> {
        let Some(session) = self.sessions.get_mut(&token) else { return Ok(()) };
        match (&session.stage, message) {
            (SessionStage::AwaitingHello, ToLeader::Hello { protocol, .. }) if protocol != PROTOCOL => {
                let reason = format!(
                    "this node speaks version {protocol} of the rendezvous and its host version {PROTOCOL}\nhint: install \
                     the same enn on all nodes"
                );
                self.refuse(now, token, &FromLeader::Refused { reason })
            }
            (SessionStage::AwaitingHello, ToLeader::Hello { nonce, .. }) => {
                let own = self.nonces.next().map_err(|error| ConnectionError::Broken(error.kind()))?;
                session.stage = SessionStage::AwaitingProof(nonce, own);
                session.connection.send(&encode_frame(&FromLeader::Challenge { nonce: own, token: self.key.is_some() }))
            }
            (SessionStage::AwaitingProof(node, own), ToLeader::Proof { proof }) => {
                let answer = match &self.key {
                    Some(key) if key.verifies(&proof, Prover::Node, node, own) => key.proof(Prover::Leader, node, own),
                    Some(_) => {
                        let peer = session.peer;
                        tracing::warn!(
                            "{peer} has another token than this node, or none, and was refused; {SAME_TOKEN}"
                        );
                        let reason = "its token is not the one of this run".to_owned();
                        return self.refuse(now, token, &FromLeader::Refused { reason });
                    }
                    None => Nonce::default(),
                };
                session.stage = SessionStage::AwaitingJoin;
                session.connection.raise_limit();
                session.connection.send(&encode_frame(&FromLeader::Welcome { proof: answer }))
            }
            (SessionStage::AwaitingJoin, ToLeader::Join(description)) => {
                self.register(token, *description);
                Ok(())
            }
            (SessionStage::Joined(id), message) => {
                let event = match message {
                    ToLeader::Abandon => {
                        let id = *id;
                        self.unregister(id);
                        PeerEvent::Lost(id, NodeLoss::Abandoned)
                    }
                    message => PeerEvent::Message(*id, message),
                };
                self.events.push(event);
                Ok(())
            }
            (SessionStage::Closing, _) => Ok(()),
            _ => Err(ConnectionError::Foreign("messages in another order".into())),
        }
    }

    fn register(&mut self, token: Token, description: NodeDescription) {
        let Some(session) = self.sessions.get_mut(&token) else { return };
        session.stage = SessionStage::Joined(description.node);
        let ip = session.peer.ip();
        if let Some(before) = self.nodes.insert(description.node, token) {
            // The node has a new connection: the old one is dead, though its end was not seen.
            if let Some(before) = self.sessions.remove(&before) {
                self.count_node(before.peer.ip(), false);
            }
        }
        self.count_node(ip, true);
        self.events.push(PeerEvent::Joined(description));
    }

    fn count_node(&mut self, ip: IpAddr, more: bool) {
        if ip.to_canonical().is_loopback() {
            return;
        }
        let nodes = self.addresses.entry(ip).or_default();
        let before = *nodes;
        *nodes = if more { before + 1 } else { before.saturating_sub(1) };
        if (before == 0) != (*nodes == 0) {
            self.address_changes.push((ip, more));
        }
    }

    /// Sends to a node. If this fails, the node is lost, and an event follows.
    pub(super) fn send(&mut self, now: Elapsed, id: NodeId, bytes: &[&EncodedFrame]) {
        let Some(token) = self.nodes.get(&id).copied() else { return };
        let Some(session) = self.sessions.get_mut(&token) else { return };
        session.sent = now;
        let queued = bytes.iter().try_for_each(|bytes| session.connection.queue(bytes));
        if let Err(gone) = queued.and_then(|()| session.connection.flush()) {
            self.remove(token, &gone);
        }
    }

    /// Sends a keep-alive message to all nodes that received nothing for `period`.
    pub(super) fn keep_alive(&mut self, now: Elapsed, period: Duration, alive: &EncodedFrame) {
        let quiet = |token: &Token| self.sessions.get(token).is_some_and(|session| now >= session.sent + period);
        let quiet: Vec<NodeId> = self.nodes.iter().filter(|(_, token)| quiet(token)).map(|(id, _)| *id).collect();
        for id in quiet {
            self.send(now, id, &[alive]);
        }
    }

    /// Sends a last message to a node and ends its session.
    pub(super) fn dismiss(&mut self, now: Elapsed, id: NodeId, message: &EncodedFrame) {
        let Some(token) = self.unregister(id) else { return };
        if let Some(session) = self.sessions.get_mut(&token) {
            session.stage = SessionStage::Closing;
            session.since = now;
            if session.connection.send(message).is_err() {
                self.sessions.remove(&token);
            }
        }
    }

    /// Sends a last message to a peer that has not joined.
    fn refuse(&mut self, now: Elapsed, token: Token, message: &FromLeader) -> Result<(), ConnectionError> {
        let Some(session) = self.sessions.get_mut(&token) else { return Ok(()) };
        session.stage = SessionStage::Closing;
        session.since = now;
        session.connection.send(&encode_frame(message))
    }

    fn unregister(&mut self, id: NodeId) -> Option<Token> {
        let token = self.nodes.remove(&id)?;
        let session = self.sessions.get_mut(&token)?;
        session.stage = SessionStage::Closing;
        let ip = session.peer.ip();
        self.count_node(ip, false);
        Some(token)
    }

    fn remove(&mut self, token: Token, gone: &ConnectionError) {
        let Some(session) = self.sessions.remove(&token) else { return };
        match session.stage {
            SessionStage::Joined(id) => {
                self.nodes.remove(&id);
                self.count_node(session.peer.ip(), false);
                let loss = match gone {
                    ConnectionError::Closed => NodeLoss::Closed,
                    gone => NodeLoss::Broken(gone.to_string()),
                };
                self.events.push(PeerEvent::Lost(id, loss));
            }
            SessionStage::Closing => {}
            SessionStage::AwaitingHello | SessionStage::AwaitingProof(..) | SessionStage::AwaitingJoin => {
                tracing::debug!(peer = %session.peer, %gone, "a stranger left the rendezvous");
            }
        }
    }

    /// Closes connections whose handshake or end takes too long.
    pub(super) fn sweep(&mut self, now: Elapsed) {
        let late = |session: &PeerSession| {
            !matches!(session.stage, SessionStage::Joined(_)) && now.saturating_sub(session.since) > HANDSHAKE_MAX
        };
        let late: Vec<Token> =
            self.sessions.iter().filter(|(_, session)| late(session)).map(|(token, _)| *token).collect();
        for token in late {
            self.remove(token, &ConnectionError::Broken(io::ErrorKind::TimedOut));
        }
    }
}
