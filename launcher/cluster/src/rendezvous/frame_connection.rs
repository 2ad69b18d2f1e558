//! A connection between two nodes that carries frames and never blocks.

use enn_common::wire::{
    frame::{self, FrameBuffer, FrameError},
    node::{HANDSHAKE_BYTES_MAX, MESSAGE_BYTES_MAX},
};
use mio::{Interest, Registry, Token, net::TcpStream};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    collections::VecDeque,
    fmt,
    io::{ErrorKind, IoSlice, Read, Write},
    net::Shutdown,
    sync::Arc,
};

/// Bytes of one read: no more than an unauthenticated peer may send.
const READ_BYTES: usize = HANDSHAKE_BYTES_MAX;
/// Limit on the bytes that wait for the other side; a side above it counts as dead.
const OUT_BYTES_MAX: usize = 64 << 20;
/// Largest number of frames of one write.
const SLICES_MAX: usize = 8;

/// Reason why a connection cannot be used any more.
#[derive(Debug)]
pub(super) enum ConnectionError {
    /// The other side's system closed the connection.
    Closed,
    /// The network broke the connection, or the other side does not read.
    Broken(ErrorKind),
    /// The other side does not speak this protocol.
    Foreign(String),
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(f, "the connection was closed"),
            Self::Broken(kind) => write!(f, "the connection broke ({kind})"),
            Self::Foreign(error) => write!(f, "what answers there is no enn of this version: {error}"),
        }
    }
}

impl From<FrameError> for ConnectionError {
    fn from(error: FrameError) -> Self {
        Self::Foreign(error.to_string())
    }
}

/// Outcome of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    /// The buffer was filled: there may be more.
    Full,
    /// The buffer was not filled: later bytes are a new event. An end that came with this event is not.
    Partial,
    Empty,
}

/// An encoded frame, which can be sent to any number of nodes.
pub(super) type EncodedFrame = Arc<[u8]>;

/// Returns `message` as a frame.
pub(super) fn encode_frame<T: Serialize>(message: &T) -> EncodedFrame {
    let mut out = Vec::new();
    if let Err(error) = frame::encode(message, &mut out) {
        // All messages have an encoding; the lengths of their parts were checked on arrival.
        tracing::error!(%error, "a message of the rendezvous has no encoding");
    }
    out.into()
}

/// Connection that carries frames.
#[derive(Debug)]
pub(super) struct FrameConnection {
    stream: TcpStream,
    buffer: FrameBuffer,
    /// Bytes still expected before the first frame.
    prefix: &'static [u8],
    bytes_max: usize,
    out: VecDeque<EncodedFrame>,
    /// Number of bytes of the first frame that are sent.
    sent: usize,
    /// Number of bytes that wait for the other side.
    waiting: usize,
}

impl FrameConnection {
    pub(super) fn new(stream: TcpStream, prefix: &'static [u8]) -> Self {
        Self {
            stream,
            buffer: FrameBuffer::new(),
            prefix,
            bytes_max: HANDSHAKE_BYTES_MAX,
            out: VecDeque::new(),
            sent: 0,
            waiting: 0,
        }
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> std::io::Result<()> {
        registry.register(&mut self.stream, token, Interest::READABLE | Interest::WRITABLE)
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Raises the limit on messages: the other side is authenticated.
    pub(super) fn raise_limit(&mut self) {
        self.bytes_max = MESSAGE_BYTES_MAX;
    }

    /// Adds bytes that were read already.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> Result<(), ConnectionError> {
        let expected = self.prefix.len().min(bytes.len());
        if bytes[..expected] != self.prefix[..expected] {
            return Err(ConnectionError::Foreign("its first bytes are another program's".into()));
        }
        self.prefix = &self.prefix[expected..];
        bytes = &bytes[expected..];
        self.buffer.extend(bytes);
        Ok(())
    }

    /// Makes one read from the socket.
    pub(super) fn read_once(&mut self) -> Result<ReadOutcome, ConnectionError> {
        let mut chunk = [0; READ_BYTES];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ConnectionError::Closed),
                Ok(read) => {
                    self.push(&chunk[..read])?;
                    return Ok(if read == chunk.len() { ReadOutcome::Full } else { ReadOutcome::Partial });
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::NotConnected => return Ok(ReadOutcome::Empty),
                    ErrorKind::ConnectionReset => return Err(ConnectionError::Closed),
                    kind => return Err(ConnectionError::Broken(kind)),
                },
            }
        }
    }

    /// Returns the next message, if it is complete.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ConnectionError> {
        if let Some(message) = self.buffer.decode()? {
            return Ok(Some(message));
        }
        if self.buffer.pending() > self.bytes_max {
            return Err(ConnectionError::Foreign(format!("a message of more than {} bytes", self.bytes_max)));
        }
        Ok(None)
    }

    /// Queues a frame, and writes as much as the kernel takes.
    pub(super) fn send(&mut self, bytes: &EncodedFrame) -> Result<(), ConnectionError> {
        self.queue(bytes)?;
        self.flush()
    }

    /// Queues a frame for the next write.
    pub(super) fn queue(&mut self, bytes: &EncodedFrame) -> Result<(), ConnectionError> {
        if self.waiting > OUT_BYTES_MAX {
            return Err(ConnectionError::Broken(ErrorKind::TimedOut));
        }
        self.waiting += bytes.len();
        self.out.push_back(Arc::clone(bytes));
        Ok(())
    }

    /// Writes as much as the kernel takes.
    pub(super) fn flush(&mut self) -> Result<(), ConnectionError> {
        while !self.out.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            for (index, (slice, bytes)) in slices.iter_mut().zip(&self.out).enumerate() {
                *slice = IoSlice::new(&bytes[if index == 0 { self.sent } else { 0 }..]);
            }
            match self.stream.write_vectored(&slices) {
                Ok(0) => return Err(ConnectionError::Closed),
                Ok(bytes) => self.sent(bytes),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::NotConnected => return Ok(()),
                    // The other side closed; its earlier messages may still be read.
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => return Ok(()),
                    kind => return Err(ConnectionError::Broken(kind)),
                },
            }
        }
        Ok(())
    }

    fn sent(&mut self, bytes: usize) {
        self.waiting -= bytes;
        self.sent += bytes;
        while let Some(first) = self.out.front().filter(|first| self.sent >= first.len()) {
            self.sent -= first.len();
            self.out.pop_front();
        }
    }

    /// Removes the connection from the poll.
    pub(super) fn deregister(&mut self, registry: &Registry) {
        // This fails only for a connection that is not registered.
        let _absent = registry.deregister(&mut self.stream);
    }

    /// Ends the sending direction.
    pub(super) fn shut_down_sending(&self) {
        // A connection that is gone needs no end.
        let _gone = self.stream.shutdown(Shutdown::Write);
    }
}
