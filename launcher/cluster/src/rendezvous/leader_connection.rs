//! This node's connection to the leader: connecting, a handshake, then messages.

use super::{
    Elapsed,
    authentication::{Key, Nonce, Nonces, Prover},
    frame_connection::{ConnectionError, EncodedFrame, FrameConnection, ReadOutcome, encode_frame},
};
use enn_common::wire::node::{FromLeader, PREFIX, PROTOCOL, ToLeader};
use mio::{Registry, Token, net::TcpStream};
use std::{io, net::SocketAddr};

/// Token of the connection in the thread's poll.
pub(super) const LEADER_CONNECTION: Token = Token(1);

/// Event of the connection to the leader.
#[derive(Debug)]
pub(super) enum LinkEvent {
    /// The other side is the leader of the run and has accepted this node.
    Accepted,
    /// The leader sent a message.
    Message(FromLeader),
    /// The other side refused this node, or this node the other side.
    Refused(HandshakeError),
}

/// Reason why a handshake failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HandshakeError {
    /// The leader does not accept this node's proof.
    Token,
    /// The leader requires a token, and this node has none.
    TokenMissing,
    /// This node has a token, and the leader requires none or has another one.
    LeaderUnproved,
    /// The leader refused this node with this reason.
    Rejected(String),
}

#[derive(Debug)]
enum LinkStage {
    Connecting,
    /// The next message is `Challenge`.
    AwaitingChallenge,
    /// The next message is `Welcome`, for the leader's nonce.
    AwaitingWelcome(Nonce),
    Open,
}

/// Connection of a follower to the leader.
#[derive(Debug)]
pub(super) struct LeaderConnection {
    connection: FrameConnection,
    stage: LinkStage,
    nonce: Nonce,
    /// Time of the last message from the leader.
    pub(super) last_received: Elapsed,
    /// Time of the last keep-alive message of this node.
    pub(super) last_keep_alive: Elapsed,
}

impl LeaderConnection {
    /// Opens a connection; the handshake follows.
    pub(super) fn connect(now: Elapsed, to: SocketAddr, registry: &Registry, nonces: &mut Nonces) -> io::Result<Self> {
        let mut connection = FrameConnection::new(TcpStream::connect(to)?, &[]);
        connection.register(registry, LEADER_CONNECTION)?;
        Ok(Self {
            connection,
            stage: LinkStage::Connecting,
            nonce: nonces.next()?,
            last_received: now,
            last_keep_alive: now,
        })
    }

    /// Reads all that can be read, and answers the messages of the handshake.
    pub(super) fn process(&mut self, now: Elapsed, key: Option<&Key>) -> Result<Vec<LinkEvent>, ConnectionError> {
        if matches!(self.stage, LinkStage::Connecting) && !self.connected()? {
            return Ok(Vec::new());
        }
        let mut events = Vec::new();
        self.connection.flush()?;
        loop {
            while let Some(message) = match self.connection.next::<FromLeader>() {
                // Messages before the end are handled first; the end is found again.
                Err(_) if !events.is_empty() => return Ok(events),
                other => other?,
            } {
                self.last_received = now;
                events.extend(self.on_message(message, key)?);
            }
            match self.connection.read_once() {
                Ok(ReadOutcome::Full | ReadOutcome::Partial) => {}
                Ok(ReadOutcome::Empty) => return Ok(events),
                Err(_) if !events.is_empty() => return Ok(events),
                Err(gone) => return Err(gone),
            }
        }
    }

    fn connected(&mut self) -> Result<bool, ConnectionError> {
        let broken = |error: io::Error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => ConnectionError::Closed,
            kind => ConnectionError::Broken(kind),
        };
        if let Some(error) = self.connection.stream().take_error().map_err(broken)? {
            return Err(broken(error));
        }
        if self.connection.stream().peer_addr().is_err() {
            return Ok(false);
        }
        // Without this option the connection is only slower.
        let _unsupported = self.connection.stream().set_nodelay(true);
        let mut hello = PREFIX.to_vec();
        hello.extend_from_slice(&encode_frame(&ToLeader::Hello { protocol: PROTOCOL, nonce: self.nonce }));
        self.stage = LinkStage::AwaitingChallenge;
        self.connection.send(&hello.into())?;
        Ok(true)
    }

    fn on_message(&mut self, message: FromLeader, key: Option<&Key>) -> Result<Option<LinkEvent>, ConnectionError> {
        let refused = |error| Ok(Some(LinkEvent::Refused(error)));
        match (&self.stage, message) {
            (LinkStage::Open, message) => Ok(Some(LinkEvent::Message(message))),
            (LinkStage::AwaitingChallenge, FromLeader::Challenge { nonce, token }) => {
                let proof = match (key, token) {
                    (None, true) => return refused(HandshakeError::TokenMissing),
                    (Some(_), false) => return refused(HandshakeError::LeaderUnproved),
                    (Some(key), true) => key.proof(Prover::Node, &self.nonce, &nonce),
                    (None, false) => Nonce::default(),
                };
                self.stage = LinkStage::AwaitingWelcome(nonce);
                self.connection.send(&encode_frame(&ToLeader::Proof { proof }))?;
                Ok(None)
            }
            (LinkStage::AwaitingWelcome(leader), FromLeader::Welcome { proof }) => {
                if key.is_some_and(|key| !key.verifies(&proof, Prover::Leader, &self.nonce, leader)) {
                    return refused(HandshakeError::LeaderUnproved);
                }
                self.stage = LinkStage::Open;
                self.connection.raise_limit();
                Ok(Some(LinkEvent::Accepted))
            }
            (LinkStage::AwaitingWelcome(_), FromLeader::Refused { .. }) if key.is_some() => {
                refused(HandshakeError::Token)
            }
            (_, FromLeader::Refused { reason }) => refused(HandshakeError::Rejected(reason)),
            _ => Err(ConnectionError::Foreign("messages in another order".into())),
        }
    }

    /// Whether the other side answered.
    pub(super) fn is_answered(&self) -> bool {
        !matches!(self.stage, LinkStage::Connecting | LinkStage::AwaitingChallenge)
    }

    pub(super) fn send(&mut self, message: &ToLeader) -> Result<(), ConnectionError> {
        let bytes: EncodedFrame = encode_frame(message);
        self.connection.send(&bytes)
    }

    /// Gives the connection up without a message.
    pub(super) fn detach(mut self, registry: &Registry) -> FrameConnection {
        self.connection.deregister(registry);
        self.connection
    }

    /// Gives up a silent leader, in a way that the leader can distinguish from the death of this node.
    pub(super) fn abandon(mut self, registry: &Registry) -> FrameConnection {
        // If the network is gone, the message does not arrive, and nothing can be done about it.
        let _broken = self.send(&ToLeader::Abandon);
        self.connection.shut_down_sending();
        self.connection.deregister(registry);
        self.connection
    }
}
