//! One client's socket: bytes in through the parser, bytes out through a bounded buffer. Never blocks.

use super::{Limits, error::Violation, protocol::Parser};
use mio::net::TcpStream;
use std::{
    io::{self, ErrorKind, Read, Write},
    net::SocketAddr,
    time::{Duration, Instant},
};

/// An emptied buffer larger than this is given back to the allocator: there may be thousands of idle clients.
const IDLE_BUFFER_BYTES_MAX: usize = 4 << 10;
/// What is left of a request gives room back when it takes less than this part of it.
const HELD_SHRINK_FACTOR: usize = 4;

/// Why a connection is no longer the store's.
#[derive(Debug)]
pub(super) enum End {
    /// It is no c10d client; what it said so far.
    Stranger(Vec<u8>),
    /// Its round is over, or the store is.
    Over,
    /// It may not come in, which was reported before.
    Unlisted,
    /// The client went away.
    Gone,
    /// The client must go.
    Violation(Violation),
}

impl From<Violation> for End {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

/// What a read gave.
pub(super) enum Received {
    Bytes(usize),
    NothingYet,
}

/// A client's socket with both of its buffers.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) parser: Parser,
    /// Bytes that were read but are no whole request yet, or must wait until replies are taken.
    pub(super) held: Vec<u8>,
    /// The end of what the client sends has come: it must be read up to there, as no event will follow.
    pub(super) closing: bool,
    /// Whether its first byte has come, and is that of a c10d client.
    pub(super) c10d: bool,
    pub(super) peer: SocketAddr,
    /// Its number in the order in which connections came.
    pub(super) serial: u64,
    /// Bytes of its buffers, as they were counted last.
    pub(super) counted: usize,
    /// Replies; those before `sent` are in the kernel's hands.
    pub(super) out: Vec<u8>,
    sent: usize,
    pub(super) accepted_at: Instant,
    /// Since when it waits for memory that others have.
    pub(super) starved_since: Option<Instant>,
    /// When the kernel last took no byte although there were some.
    stalled_since: Option<Instant>,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, peer: SocketAddr, serial: u64, limits: Limits, now: Instant) -> Self {
        let parser = Parser::new(limits);
        Self {
            stream,
            parser,
            held: Vec::new(),
            closing: false,
            c10d: false,
            peer,
            serial,
            counted: 0,
            out: Vec::new(),
            sent: 0,
            accepted_at: now,
            starved_since: None,
            stalled_since: None,
        }
    }

    /// Bytes of replies the kernel has not taken yet.
    pub(super) fn pending(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Bytes that its buffers take.
    pub(super) fn buffered(&self) -> usize {
        self.out.capacity() + self.held.capacity()
    }

    /// Reads once into `scratch`.
    pub(super) fn receive(&mut self, scratch: &mut [u8]) -> Result<Received, End> {
        loop {
            match self.stream.read(scratch) {
                Ok(0) => return Err(End::Gone),
                Ok(bytes) => return Ok(Received::Bytes(bytes)),
                Err(error) => match retry(error)? {
                    Retry::Now => {}
                    Retry::WhenReady => return Ok(Received::NothingYet),
                },
            }
        }
    }

    /// Keeps the last `left` bytes of `held` (what was taken out of the connection, `fresh` behind it), or of `fresh` when
    /// nothing was held.
    pub(super) fn hold(&mut self, mut held: Vec<u8>, fresh: &[u8], left: usize) {
        if held.is_empty() {
            held.extend_from_slice(&fresh[fresh.len() - left..]);
        } else {
            held.drain(..held.len() - left);
        }
        if held.len() < held.capacity() / HELD_SHRINK_FACTOR {
            held.shrink_to(IDLE_BUFFER_BYTES_MAX.max(held.len()));
        }
        self.held = held;
    }

    /// Gives the kernel as many replies as it takes.
    pub(super) fn flush(&mut self, now: Instant) -> Result<(), End> {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Err(End::Gone),
                Ok(bytes) => {
                    self.sent += bytes;
                    self.stalled_since = None;
                }
                Err(error) => match retry(error)? {
                    Retry::Now => {}
                    Retry::WhenReady => {
                        self.stalled_since.get_or_insert(now);
                        return Ok(());
                    }
                },
            }
        }
        self.sent = 0;
        self.out.clear();
        self.out.shrink_to(IDLE_BUFFER_BYTES_MAX);
        Ok(())
    }

    /// Whether the client has read nothing of its replies for so long.
    pub(super) fn stalls(&self, time: Duration, now: Instant) -> bool {
        self.stalled_since.is_some_and(|since| now.saturating_duration_since(since) >= time)
    }

    /// Whether time can run out for this client.
    pub(super) fn is_watched(&self) -> bool {
        !self.parser.validated() || self.stalled_since.is_some()
    }

    /// Whether time has run out.
    pub(super) fn overdue(&self, limits: &Limits, now: Instant) -> Option<Violation> {
        if !self.parser.validated() && now.duration_since(self.accepted_at) > limits.handshake_timeout {
            return Some(Violation::Slow { what: "said no handshake" });
        }
        let stalled = self.stalled_since?;
        (now.duration_since(stalled) > limits.stall_timeout).then_some(Violation::Slow { what: "took no reply" })
    }
}

enum Retry {
    Now,
    WhenReady,
}

fn retry(error: io::Error) -> Result<Retry, End> {
    match error.kind() {
        ErrorKind::Interrupted => Ok(Retry::Now),
        ErrorKind::WouldBlock => Ok(Retry::WhenReady),
        _ => Err(End::Gone),
    }
}
