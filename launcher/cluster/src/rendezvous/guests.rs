//! The connections of the other nodes to the host: greeted, then trusted.
//!
//! **Invariant:** a stranger costs a bounded number of bytes, for a bounded time, and there is a bounded number of them.

use super::{
    door::{Key, Nonce, Nonces, Prover, SAME_TOKEN},
    pipe::{Bytes, Filled, Gone, Pipe, frame_of},
    state::{Loss, Time},
};
use enn_broker::tcpstore::ForeignConnection;
use enn_common::{
    descriptors,
    wire::node::{FromHost, NodeDescription, NodeId, PREFIX, PROTOCOL, ToHost},
};
use mio::{Registry, Token, net::TcpStream};
use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// Tokens of guests begin here; those below are the thread's own.
pub(super) const FIRST_GUEST: usize = 16;
/// Connections at a time that are no node's; all nodes of a large run are strangers for a moment when it starts.
const STRANGERS_MAX: usize = 16_384;
/// Time that a stranger has in any case; then it makes room for another.
const GREETING_SOON: Duration = Duration::from_secs(1);
/// Time to prove oneself, and to close after the last word.
const GREETING_MAX: Duration = Duration::from_secs(10);

/// What a guest did.
#[derive(Debug)]
pub(super) enum Said {
    /// A node came.
    Came(NodeDescription),
    /// A node said something.
    Message(NodeId, ToHost),
    /// A node is gone.
    Gone(NodeId, Loss),
}

#[derive(Debug)]
enum Stage {
    /// `Hello` is awaited.
    Stranger,
    /// `Proof` is awaited, for these nonces of the node and ours.
    Challenged(Nonce, Nonce),
    /// `Join` is awaited.
    Welcome,
    Node(NodeId),
    /// The last word is said; the other side's end is awaited.
    Leaving,
}

#[derive(Debug)]
struct Guest {
    pipe: Pipe,
    peer: SocketAddr,
    since: Time,
    /// When it was last sent something.
    sent: Time,
    stage: Stage,
}

/// All connections.
#[derive(Debug)]
pub(super) struct Guests {
    registry: Registry,
    nonces: Nonces,
    key: Option<Key>,
    guests: HashMap<Token, Guest>,
    nodes: HashMap<NodeId, Token>,
    /// Connections at a time that are no node's: they leave descriptors to nodes and workers.
    strangers_max: usize,
    next: usize,
    /// Proved nodes of each address.
    addresses: HashMap<IpAddr, usize>,
    /// Addresses whose number of nodes changed to or from none: (address, whether there are any).
    doors: Vec<(IpAddr, bool)>,
    said: Vec<Said>,
}

impl Guests {
    pub(super) fn new(registry: Registry, key: Option<Key>) -> io::Result<Self> {
        Ok(Self {
            registry,
            nonces: Nonces::open()?,
            key,
            guests: HashMap::new(),
            nodes: HashMap::new(),
            strangers_max: descriptors::capacity(2 * STRANGERS_MAX).connections.div_ceil(2),
            next: FIRST_GUEST,
            addresses: HashMap::new(),
            doors: Vec::new(),
            said: Vec::new(),
        })
    }

    /// Whether nobody is connected.
    pub(super) fn is_empty(&self) -> bool {
        self.guests.is_empty()
    }

    pub(super) fn take_said(&mut self) -> Vec<Said> {
        std::mem::take(&mut self.said)
    }

    pub(super) fn take_doors(&mut self) -> Vec<(IpAddr, bool)> {
        std::mem::take(&mut self.doors)
    }

    /// All nodes.
    pub(super) fn nodes(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    /// The address a node comes from.
    pub(super) fn peer(&self, id: NodeId) -> Option<IpAddr> {
        self.guests.get(self.nodes.get(&id)?).map(|guest| guest.peer.ip().to_canonical())
    }

    /// Connections that are no node's.
    fn strangers(&self) -> usize {
        self.guests.len().saturating_sub(self.nodes.len())
    }

    /// Ends the oldest connection that is no node's, if it had the time to prove itself; whether there was one.
    fn make_room(&mut self, now: Time) -> bool {
        let strangers = self.guests.iter().filter(|(_, guest)| !matches!(guest.stage, Stage::Node(_)));
        let oldest = strangers.min_by_key(|(_, guest)| guest.since).map(|(token, guest)| (*token, guest.since));
        let Some((token, _)) = oldest.filter(|(_, since)| now.saturating_sub(*since) >= GREETING_SOON) else {
            return false;
        };
        self.remove(token, &Gone::Broken(io::ErrorKind::TimedOut));
        true
    }

    /// Takes over a connection that the store accepted.
    pub(super) fn take(&mut self, now: Time, stranger: ForeignConnection) {
        let ForeignConnection { stream, peer, bytes } = stranger;
        if self.strangers() >= self.strangers_max && !self.make_room(now) {
            tracing::warn!(%peer, "the rendezvous has {} connections that are no node's and takes no more", self.strangers_max);
            return;
        }
        let token = Token(self.next);
        self.next += 1;
        let mut pipe = Pipe::new(TcpStream::from_std(stream), &PREFIX);
        if let Err(error) = pipe.register(&self.registry, token) {
            tracing::warn!(%peer, %error, "the rendezvous could not take a connection");
            return;
        }
        let pushed = pipe.push(&bytes);
        self.guests.insert(token, Guest { pipe, peer, since: now, sent: now, stage: Stage::Stranger });
        match pushed {
            // More of it, or its end, is an event of the poll it has just come to.
            Ok(()) => self.turned(now, token, Filled::Nothing, false),
            Err(gone) => self.remove(token, &gone),
        }
    }

    /// A connection can be read or written; `closed`: it is read up to its end.
    pub(super) fn ready(&mut self, now: Time, token: Token, closed: bool) {
        self.turned(now, token, Filled::All, closed);
    }

    fn turned(&mut self, now: Time, token: Token, filled: Filled, closed: bool) {
        if let Err(gone) = self.turn(now, token, filled, closed) {
            self.remove(token, &gone);
        }
    }

    /// `filled`: what the last read gave.
    fn turn(&mut self, now: Time, token: Token, mut filled: Filled, closed: bool) -> Result<(), Gone> {
        loop {
            // Whole messages first: some came with the stranger.
            loop {
                let Some(guest) = self.guests.get_mut(&token) else { return Ok(()) };
                let Some(message) = guest.pipe.next::<ToHost>()? else { break };
                self.hear(now, token, message)?;
            }
            let Some(guest) = self.guests.get_mut(&token) else { return Ok(()) };
            guest.pipe.flush()?;
            if filled == Filled::Nothing || (filled == Filled::Rest && !closed) {
                return Ok(());
            }
            filled = guest.pipe.fill()?;
        }
    }

    fn hear(&mut self, now: Time, token: Token, message: ToHost) -> Result<(), Gone> {
        let Some(guest) = self.guests.get_mut(&token) else { return Ok(()) };
        match (&guest.stage, message) {
            (Stage::Stranger, ToHost::Hello { protocol, .. }) if protocol != PROTOCOL => {
                let reason = format!(
                    "this node speaks version {protocol} of the rendezvous and its host version {PROTOCOL}\nhint: install \
                     the same enn on all nodes"
                );
                self.part(now, token, &FromHost::Refused { reason })
            }
            (Stage::Stranger, ToHost::Hello { nonce, .. }) => {
                let own = self.nonces.next().map_err(|error| Gone::Broken(error.kind()))?;
                guest.stage = Stage::Challenged(nonce, own);
                guest.pipe.send(&frame_of(&FromHost::Challenge { nonce: own, token: self.key.is_some() }))
            }
            (Stage::Challenged(node, own), ToHost::Proof { proof }) => {
                let answer = match &self.key {
                    Some(key) if key.holds(&proof, Prover::Node, node, own) => key.proof(Prover::Host, node, own),
                    Some(_) => {
                        let peer = guest.peer;
                        tracing::warn!(
                            "{peer} has another token than this node, or none, and was refused; {SAME_TOKEN}"
                        );
                        let reason = "its token is not the one of this run".to_owned();
                        return self.part(now, token, &FromHost::Refused { reason });
                    }
                    None => Nonce::default(),
                };
                guest.stage = Stage::Welcome;
                guest.pipe.trust();
                guest.pipe.send(&frame_of(&FromHost::Welcome { proof: answer }))
            }
            (Stage::Welcome, ToHost::Join(card)) => {
                self.settle(token, *card);
                Ok(())
            }
            (Stage::Node(id), message) => {
                let said = match message {
                    ToHost::Abandon => {
                        let id = *id;
                        self.forget(id);
                        Said::Gone(id, Loss::Abandoned)
                    }
                    message => Said::Message(*id, message),
                };
                self.said.push(said);
                Ok(())
            }
            (Stage::Leaving, _) => Ok(()),
            _ => Err(Gone::Foreign("messages in another order".into())),
        }
    }

    fn settle(&mut self, token: Token, card: NodeDescription) {
        let Some(guest) = self.guests.get_mut(&token) else { return };
        guest.stage = Stage::Node(card.node);
        let ip = guest.peer.ip();
        if let Some(before) = self.nodes.insert(card.node, token) {
            // The same node on a new connection: the old one is dead though nobody said so.
            if let Some(before) = self.guests.remove(&before) {
                self.count(before.peer.ip(), false);
            }
        }
        self.count(ip, true);
        self.said.push(Said::Came(card));
    }

    fn count(&mut self, ip: IpAddr, more: bool) {
        if ip.to_canonical().is_loopback() {
            return;
        }
        let nodes = self.addresses.entry(ip).or_default();
        let before = *nodes;
        *nodes = if more { before + 1 } else { before.saturating_sub(1) };
        if (before == 0) != (*nodes == 0) {
            self.doors.push((ip, more));
        }
    }

    /// Sends to a node. What cannot be sent is a node lost, said later.
    pub(super) fn send(&mut self, now: Time, id: NodeId, bytes: &[&Bytes]) {
        let Some(token) = self.nodes.get(&id).copied() else { return };
        let Some(guest) = self.guests.get_mut(&token) else { return };
        guest.sent = now;
        let queued = bytes.iter().try_for_each(|bytes| guest.pipe.queue(bytes));
        if let Err(gone) = queued.and_then(|()| guest.pipe.flush()) {
            self.remove(token, &gone);
        }
    }

    /// Sends to all nodes that were sent nothing for `period`.
    pub(super) fn keep_alive(&mut self, now: Time, period: Duration, alive: &Bytes) {
        let quiet = |token: &Token| self.guests.get(token).is_some_and(|guest| now >= guest.sent + period);
        let quiet: Vec<NodeId> = self.nodes.iter().filter(|(_, token)| quiet(token)).map(|(id, _)| *id).collect();
        for id in quiet {
            self.send(now, id, &[alive]);
        }
    }

    /// Says the last word to a node; it is no longer one of ours.
    pub(super) fn dismiss(&mut self, now: Time, id: NodeId, word: &Bytes) {
        let Some(token) = self.forget(id) else { return };
        if let Some(guest) = self.guests.get_mut(&token) {
            guest.stage = Stage::Leaving;
            guest.since = now;
            if guest.pipe.send(word).is_err() {
                self.guests.remove(&token);
            }
        }
    }

    /// The last word to somebody who is no node yet.
    fn part(&mut self, now: Time, token: Token, word: &FromHost) -> Result<(), Gone> {
        let Some(guest) = self.guests.get_mut(&token) else { return Ok(()) };
        guest.stage = Stage::Leaving;
        guest.since = now;
        guest.pipe.send(&frame_of(word))
    }

    fn forget(&mut self, id: NodeId) -> Option<Token> {
        let token = self.nodes.remove(&id)?;
        let guest = self.guests.get_mut(&token)?;
        guest.stage = Stage::Leaving;
        let ip = guest.peer.ip();
        self.count(ip, false);
        Some(token)
    }

    fn remove(&mut self, token: Token, gone: &Gone) {
        let Some(guest) = self.guests.remove(&token) else { return };
        match guest.stage {
            Stage::Node(id) => {
                self.nodes.remove(&id);
                self.count(guest.peer.ip(), false);
                let loss = match gone {
                    Gone::Closed => Loss::Closed,
                    gone => Loss::Broken(gone.to_string()),
                };
                self.said.push(Said::Gone(id, loss));
            }
            Stage::Leaving => {}
            Stage::Stranger | Stage::Challenged(..) | Stage::Welcome => {
                tracing::debug!(peer = %guest.peer, %gone, "a stranger left the rendezvous");
            }
        }
    }

    /// Ends greetings and farewells that take too long.
    pub(super) fn sweep(&mut self, now: Time) {
        let late =
            |guest: &Guest| !matches!(guest.stage, Stage::Node(_)) && now.saturating_sub(guest.since) > GREETING_MAX;
        let late: Vec<Token> = self.guests.iter().filter(|(_, guest)| late(guest)).map(|(token, _)| *token).collect();
        for token in late {
            self.remove(token, &Gone::Broken(io::ErrorKind::TimedOut));
        }
    }
}
