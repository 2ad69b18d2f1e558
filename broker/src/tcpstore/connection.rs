//! One client's socket: bytes in through the parser, bytes out through a bounded buffer. Never blocks.

use super::{Limits, error::Violation, protocol::Parser};
use mio::net::TcpStream;
use std::{
    io::{ErrorKind, Read, Write},
    net::SocketAddr,
    time::{Duration, Instant},
};

/// An emptied buffer larger than this is returned to the allocator: there may be thousands of idle clients.
const IDLE_BUFFER_BYTES_MAX: usize = 4 << 10;
/// The rest of a request is shrunk when it takes less than this fraction of its buffer.
const HELD_SHRINK_FACTOR: usize = 4;

/// Reasons for which the store ends its use of a connection.
#[derive(Debug)]
pub(super) enum End {
    /// The peer is no c10d client; the bytes read so far.
    Foreign(Vec<u8>),
    /// The round or the store has ended.
    Over,
    /// The peer's address is not admitted, which was reported before.
    Unlisted,
    /// The client closed the connection.
    Gone,
    /// The client broke the protocol or a limit.
    Violation(Violation),
}

impl From<Violation> for End {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) stream: TcpStream,
    pub(super) parser: Parser,
    /// Bytes that were read but form no whole request yet, or must wait until replies are read.
    pub(super) held: Vec<u8>,
    /// The client has ended its side: it must be read up to the end, as no further event follows.
    pub(super) closing: bool,
    /// Whether the first byte has arrived and is that of a c10d client.
    pub(super) c10d: bool,
    pub(super) peer: SocketAddr,
    /// Serial number of the connection, in the order of acceptance.
    pub(super) serial: u64,
    /// Bytes of the connection's buffers, as they were counted last.
    pub(super) counted: usize,
    /// Encoded replies; the bytes before `sent` are in the kernel's hands.
    pub(super) out: Vec<u8>,
    sent: usize,
    pub(super) accepted_at: Instant,
    /// Time since which the client waits for memory that others use.
    pub(super) starved_since: Option<Instant>,
    /// Time at which the kernel last accepted no byte although there were some.
    stalled_since: Option<Instant>,
}

impl ClientConnection {
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

    /// Returns the bytes of replies that the kernel has not accepted yet.
    pub(super) fn pending(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Returns the capacity of the connection's buffers in bytes.
    pub(super) fn buffered(&self) -> usize {
        self.out.capacity() + self.held.capacity()
    }

    /// Reads once into `scratch`; `None` when nothing has arrived yet.
    pub(super) fn receive(&mut self, scratch: &mut [u8]) -> Result<Option<usize>, End> {
        loop {
            match self.stream.read(scratch) {
                Ok(0) => return Err(End::Gone),
                Ok(bytes) => return Ok(Some(bytes)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(_) => return Err(End::Gone),
            }
        }
    }

    /// Keeps the last `left` bytes of `held` (taken out of the connection, with `fresh` appended), or of `fresh` when nothing
    /// was held.
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

    /// Writes as many replies as the kernel accepts.
    pub(super) fn flush(&mut self, now: Instant) -> Result<(), End> {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Err(End::Gone),
                Ok(bytes) => {
                    self.sent += bytes;
                    self.stalled_since = None;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.stalled_since.get_or_insert(now);
                    return Ok(());
                }
                Err(_) => return Err(End::Gone),
            }
        }
        self.sent = 0;
        self.out.clear();
        self.out.shrink_to(IDLE_BUFFER_BYTES_MAX);
        Ok(())
    }

    /// Returns whether the client has read none of its replies for `time`.
    pub(super) fn stalls(&self, time: Duration, now: Instant) -> bool {
        self.stalled_since.is_some_and(|since| now.saturating_duration_since(since) >= time)
    }

    /// Returns whether a timeout applies to this client.
    pub(super) fn is_watched(&self) -> bool {
        !self.parser.validated() || self.stalled_since.is_some()
    }

    /// Returns the timeout that has expired, if any.
    pub(super) fn overdue(&self, limits: &Limits, now: Instant) -> Option<Violation> {
        if !self.parser.validated() && now.duration_since(self.accepted_at) > limits.handshake_timeout {
            return Some(Violation::Slow { what: "sent no handshake" });
        }
        let stalled = self.stalled_since?;
        (now.duration_since(stalled) > limits.stall_timeout).then_some(Violation::Slow { what: "read no reply" })
    }
}
