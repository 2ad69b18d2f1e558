//! One socket: bytes in to messages, messages out to bytes. Never blocks.

use enn_common::wire::{
    frame::{self, FrameBuffer},
    message::{FromWorker, ToWorker},
};
use mio::net::UnixStream;
use std::{
    io::{self, Read, Write},
    time::Instant,
};

/// Bytes of a stranger that are read at most before it has introduced itself.
const STRANGER_BYTES_MAX: usize = 4096;
/// Bytes waiting for a worker that does not read.
const OUT_BYTES_MAX: usize = 16 << 20;
const READ_BYTES: usize = 64 << 10;

/// Why reading stopped.
#[derive(Debug, PartialEq)]
pub(crate) enum Stop {
    /// Nothing more has arrived.
    Empty,
    /// The budget is used up; more may be there.
    Budget,
    /// End of stream; with an error when it broke.
    Closed(Option<String>),
}

/// A connection and its buffers.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: UnixStream,
    pub(crate) opened: Instant,
    incoming: FrameBuffer,
    outgoing: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream, opened: Instant) -> Self {
        Self { stream, opened, incoming: FrameBuffer::new(), outgoing: Vec::new() }
    }

    /// Reads at most `budget` bytes. Call `message` until it has no more before reading again.
    pub(crate) fn read(&mut self, budget: usize) -> (usize, Stop) {
        let mut chunk = [0; READ_BYTES];
        let mut total = 0;
        while total < budget {
            match self.stream.read(&mut chunk) {
                Ok(0) => return (total, Stop::Closed(None)),
                Ok(read) => {
                    self.incoming.extend(&chunk[..read]);
                    total += read;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return (total, Stop::Empty),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return (total, Stop::Closed(None)),
                Err(error) => return (total, Stop::Closed(Some(error.to_string()))),
            }
        }
        (total, Stop::Budget)
    }

    /// The next message read so far. `stranger` applies the limit for those who have not introduced themselves.
    pub(crate) fn message(&mut self, stranger: bool) -> Result<Option<FromWorker>, String> {
        let message = self.incoming.decode().map_err(|error| error.to_string())?;
        if message.is_none() && stranger && self.incoming.pending() > STRANGER_BYTES_MAX {
            return Err(format!("{} bytes came before an introduction", self.incoming.pending()));
        }
        Ok(message)
    }

    /// Bytes that are no whole message yet.
    pub(crate) fn pending(&self) -> usize {
        self.incoming.pending()
    }

    pub(crate) fn queue(&mut self, message: &ToWorker) -> Result<(), String> {
        frame::encode(message, &mut self.outgoing).map_err(|error| error.to_string())?;
        if self.outgoing.len() > OUT_BYTES_MAX {
            return Err(format!("the worker does not read: {} bytes wait for it", self.outgoing.len()));
        }
        Ok(())
    }

    /// Writes what the socket takes.
    pub(crate) fn flush(&mut self) -> Result<(), String> {
        let mut done = 0;
        while done < self.outgoing.len() {
            match self.stream.write(&self.outgoing[done..]) {
                Ok(0) => break,
                Ok(written) => done += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Reading will find the end and what came before it.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                    self.outgoing.clear();
                    return Ok(());
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        self.outgoing.drain(..done);
        Ok(())
    }
}
