//! A connection between two nodes: frames in, frames out, never blocking.

use enn_common::wire::{
    frame::{self, FrameBuffer, FrameError},
    node::{GREETING_BYTES_MAX, MESSAGE_BYTES_MAX},
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

/// Bytes read at a time; before the greeting is over no more than it may have.
const READ_BYTES: usize = GREETING_BYTES_MAX;
/// Bytes that may wait for the other side to read; one that lets more gather does not read at all.
const OUT_BYTES_MAX: usize = 64 << 20;

/// Frames given to the kernel at a time.
const SLICES_MAX: usize = 8;

/// Why a connection is of no more use.
#[derive(Debug)]
pub(super) enum Gone {
    /// The other side's system closed it.
    Closed,
    /// The network gave it up, or it is no longer read.
    Broken(ErrorKind),
    /// What came is not this protocol.
    Foreign(String),
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(f, "the connection was closed"),
            Self::Broken(kind) => write!(f, "the connection broke ({kind})"),
            Self::Foreign(error) => write!(f, "what answers there is no enn of this version: {error}"),
        }
    }
}

impl From<FrameError> for Gone {
    fn from(error: FrameError) -> Self {
        Self::Foreign(error.to_string())
    }
}

/// What a read gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filled {
    /// As much as it could take: there may be more.
    All,
    /// Less: whatever comes later is a new event, but for an end that was known with this one.
    Rest,
    Nothing,
}

/// A frame, to be sent to any number of nodes.
pub(super) type Bytes = Arc<[u8]>;

/// `message` as a frame.
pub(super) fn frame_of<T: Serialize>(message: &T) -> Bytes {
    let mut out = Vec::new();
    if let Err(error) = frame::encode(message, &mut out) {
        // Our own messages have an encoding, and their parts a length that was checked when they came in.
        tracing::error!(%error, "a message of the rendezvous has no encoding");
    }
    out.into()
}

/// One connection.
#[derive(Debug)]
pub(super) struct Pipe {
    stream: TcpStream,
    buffer: FrameBuffer,
    /// What must come before the first frame and has not.
    prefix: &'static [u8],
    bytes_max: usize,
    out: VecDeque<Bytes>,
    /// Bytes of the first one that are sent; bytes of all.
    sent: usize,
    waiting: usize,
}

impl Pipe {
    pub(super) fn new(stream: TcpStream, prefix: &'static [u8]) -> Self {
        Self {
            stream,
            buffer: FrameBuffer::new(),
            prefix,
            bytes_max: GREETING_BYTES_MAX,
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

    /// The other side has proved itself: it may send more at a time.
    pub(super) fn trust(&mut self) {
        self.bytes_max = MESSAGE_BYTES_MAX;
    }

    /// Takes bytes that were read already.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> Result<(), Gone> {
        let expected = self.prefix.len().min(bytes.len());
        if bytes[..expected] != self.prefix[..expected] {
            return Err(Gone::Foreign("its first bytes are another program's".into()));
        }
        self.prefix = &self.prefix[expected..];
        bytes = &bytes[expected..];
        self.buffer.extend(bytes);
        Ok(())
    }

    /// Reads once.
    pub(super) fn fill(&mut self) -> Result<Filled, Gone> {
        let mut chunk = [0; READ_BYTES];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(Gone::Closed),
                Ok(read) => {
                    self.push(&chunk[..read])?;
                    return Ok(if read == chunk.len() { Filled::All } else { Filled::Rest });
                }
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::NotConnected => return Ok(Filled::Nothing),
                    ErrorKind::ConnectionReset => return Err(Gone::Closed),
                    kind => return Err(Gone::Broken(kind)),
                },
            }
        }
    }

    /// The next message, if one is whole.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Gone> {
        if let Some(message) = self.buffer.decode()? {
            return Ok(Some(message));
        }
        if self.buffer.pending() > self.bytes_max {
            return Err(Gone::Foreign(format!("a message of more than {} bytes", self.bytes_max)));
        }
        Ok(None)
    }

    /// Sends as soon as the other side reads.
    pub(super) fn send(&mut self, bytes: &Bytes) -> Result<(), Gone> {
        self.queue(bytes)?;
        self.flush()
    }

    /// Sends with what is sent next.
    pub(super) fn queue(&mut self, bytes: &Bytes) -> Result<(), Gone> {
        if self.waiting > OUT_BYTES_MAX {
            return Err(Gone::Broken(ErrorKind::TimedOut));
        }
        self.waiting += bytes.len();
        self.out.push_back(Arc::clone(bytes));
        Ok(())
    }

    /// Gives the kernel what it takes.
    pub(super) fn flush(&mut self) -> Result<(), Gone> {
        while !self.out.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            for (index, (slice, bytes)) in slices.iter_mut().zip(&self.out).enumerate() {
                *slice = IoSlice::new(&bytes[if index == 0 { self.sent } else { 0 }..]);
            }
            match self.stream.write_vectored(&slices) {
                Ok(0) => return Err(Gone::Closed),
                Ok(bytes) => self.sent(bytes),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock | ErrorKind::NotConnected => return Ok(()),
                    // The other side closed; what it said before may still be read.
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => return Ok(()),
                    kind => return Err(Gone::Broken(kind)),
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

    /// Takes the connection out of the poll.
    pub(super) fn leave(&mut self, registry: &Registry) {
        // Fails only when it is not in there.
        let _absent = registry.deregister(&mut self.stream);
    }

    /// Says that nothing more will be sent.
    pub(super) fn finish(&self) {
        // A connection that is gone already needs no end.
        let _gone = self.stream.shutdown(Shutdown::Write);
    }
}
