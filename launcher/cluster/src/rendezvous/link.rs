//! This node's connection to the host of the rendezvous: reached, greeted, then kept alive.

use super::{
    door::{Key, Nonce, Nonces, Prover},
    pipe::{Bytes, Filled, Gone, Pipe, frame_of},
    state::Time,
};
use enn_common::wire::node::{FromHost, PREFIX, PROTOCOL, ToHost};
use mio::{Registry, Token, net::TcpStream};
use std::{io, net::SocketAddr};

/// Token of the connection in the thread's poll.
pub(super) const LINK: Token = Token(1);

/// What came of it.
#[derive(Debug)]
pub(super) enum Step {
    /// The other side is the run's host and has let this node in.
    Welcome,
    /// The host says something.
    Said(FromHost),
    /// The other side and this node do not belong together: why.
    Refused(Refusal),
}

/// Why the greeting ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The host does not accept this node's proof.
    Token,
    /// The host wants a token and this node has none.
    TokenMissing,
    /// This node has a token and the host asks for none, or has another one.
    HostUnproved,
    /// In the host's own words.
    Said(String),
}

#[derive(Debug)]
enum Stage {
    Connecting,
    /// `Challenge` is awaited.
    Greeted,
    /// `Welcome` is awaited, for the host's nonce.
    Proved(Nonce),
    Up,
}

/// The connection.
#[derive(Debug)]
pub(super) struct Link {
    pipe: Pipe,
    stage: Stage,
    nonce: Nonce,
    /// When the host last said something; when this node last did.
    pub(super) heard: Time,
    pub(super) ticked: Time,
}

impl Link {
    /// Begins to connect.
    pub(super) fn connect(now: Time, to: SocketAddr, registry: &Registry, nonces: &mut Nonces) -> io::Result<Self> {
        let mut pipe = Pipe::new(TcpStream::connect(to)?, &[]);
        pipe.register(registry, LINK)?;
        Ok(Self { pipe, stage: Stage::Connecting, nonce: nonces.next()?, heard: now, ticked: now })
    }

    /// Reads what there is, and answers the greeting.
    pub(super) fn turn(&mut self, now: Time, key: Option<&Key>) -> Result<Vec<Step>, Gone> {
        if matches!(self.stage, Stage::Connecting) && !self.connected()? {
            return Ok(Vec::new());
        }
        let mut steps = Vec::new();
        self.pipe.flush()?;
        loop {
            while let Some(message) = match self.pipe.next::<FromHost>() {
                // What came before the end is heard first; the end is found again.
                Err(_) if !steps.is_empty() => return Ok(steps),
                other => other?,
            } {
                self.heard = now;
                steps.extend(self.hear(message, key)?);
            }
            match self.pipe.fill() {
                Ok(Filled::All | Filled::Rest) => {}
                Ok(Filled::Nothing) => return Ok(steps),
                Err(_) if !steps.is_empty() => return Ok(steps),
                Err(gone) => return Err(gone),
            }
        }
    }

    fn connected(&mut self) -> Result<bool, Gone> {
        let broken = |error: io::Error| match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => Gone::Closed,
            kind => Gone::Broken(kind),
        };
        if let Some(error) = self.pipe.stream().take_error().map_err(broken)? {
            return Err(broken(error));
        }
        if self.pipe.stream().peer_addr().is_err() {
            return Ok(false);
        }
        // Only speed is lost without it.
        let _unsupported = self.pipe.stream().set_nodelay(true);
        let mut greeting = PREFIX.to_vec();
        greeting.extend_from_slice(&frame_of(&ToHost::Hello { protocol: PROTOCOL, nonce: self.nonce }));
        self.stage = Stage::Greeted;
        self.pipe.send(&greeting.into())?;
        Ok(true)
    }

    fn hear(&mut self, message: FromHost, key: Option<&Key>) -> Result<Option<Step>, Gone> {
        let refused = |refusal| Ok(Some(Step::Refused(refusal)));
        match (&self.stage, message) {
            (Stage::Up, message) => Ok(Some(Step::Said(message))),
            (Stage::Greeted, FromHost::Challenge { nonce, token }) => {
                let proof = match (key, token) {
                    (None, true) => return refused(Refusal::TokenMissing),
                    (Some(_), false) => return refused(Refusal::HostUnproved),
                    (Some(key), true) => key.proof(Prover::Node, &self.nonce, &nonce),
                    (None, false) => Nonce::default(),
                };
                self.stage = Stage::Proved(nonce);
                self.pipe.send(&frame_of(&ToHost::Proof { proof }))?;
                Ok(None)
            }
            (Stage::Proved(host), FromHost::Welcome { proof }) => {
                if key.is_some_and(|key| !key.holds(&proof, Prover::Host, &self.nonce, host)) {
                    return refused(Refusal::HostUnproved);
                }
                self.stage = Stage::Up;
                self.pipe.trust();
                Ok(Some(Step::Welcome))
            }
            (Stage::Proved(_), FromHost::Refused { .. }) if key.is_some() => refused(Refusal::Token),
            (_, FromHost::Refused { reason }) => refused(Refusal::Said(reason)),
            _ => Err(Gone::Foreign("messages in another order".into())),
        }
    }

    /// Whether somebody answered.
    pub(super) fn is_answered(&self) -> bool {
        !matches!(self.stage, Stage::Connecting | Stage::Greeted)
    }

    pub(super) fn send(&mut self, message: &ToHost) -> Result<(), Gone> {
        let bytes: Bytes = frame_of(message);
        self.pipe.send(&bytes)
    }

    /// Leaves a host without a word.
    pub(super) fn silence(mut self, registry: &Registry) -> Pipe {
        self.pipe.leave(registry);
        self.pipe
    }

    /// Leaves a host of which nothing is heard, in a way that it can tell from death if it ever hears of it.
    pub(super) fn abandon(mut self, registry: &Registry) -> Pipe {
        // If the network is gone, nothing of this arrives, and nothing can be done about it.
        let _broken = self.send(&ToHost::Abandon);
        self.pipe.finish();
        self.pipe.leave(registry);
        self.pipe
    }
}
