//! One socket: bytes in to messages, messages out to bytes. Never blocks.

use enn_common::wire::{
    frame::{self, FrameBuffer, FrameError},
    message::{FromWorker, ToWorker},
    script::{self, FromScript, ToScript},
};
use mio::net::UnixStream;
use std::{
    io::{self, Read, Write},
    time::Instant,
};

/// Limit on the bytes that are buffered of a connection before its Hello.
const HELLO_BYTES_MAX: usize = 4096;
/// Limit on the bytes that wait for a worker that does not read.
const OUT_BYTES_MAX: usize = 16 << 20;
const READ_BYTES: usize = 64 << 10;

#[derive(Debug, PartialEq)]
pub(crate) enum ReadEnd {
    /// No more bytes have arrived.
    Empty,
    /// The budget is used up, and more bytes may have arrived.
    Budget,
    /// The stream ended; the error is set when it broke.
    Closed(Option<String>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    /// ENN's own workers.
    Worker,
    /// Any other program.
    Script,
}

/// A message that was received.
#[derive(Debug)]
pub(crate) enum Incoming {
    Worker(FromWorker),
    Script(FromScript),
}

#[derive(Debug)]
pub(crate) struct WorkerConnection {
    pub(crate) stream: UnixStream,
    pub(crate) language: Language,
    pub(crate) opened: Instant,
    incoming: FrameBuffer,
    outgoing: Vec<u8>,
}

impl WorkerConnection {
    pub(crate) fn new(stream: UnixStream, language: Language, opened: Instant) -> Self {
        Self { stream, language, opened, incoming: FrameBuffer::new(), outgoing: Vec::new() }
    }

    /// Reads at most `budget` bytes. Call `message` until it returns `None` before reading again.
    pub(crate) fn read(&mut self, budget: usize) -> (usize, ReadEnd) {
        let mut chunk = [0; READ_BYTES];
        let mut total = 0;
        while total < budget {
            match self.stream.read(&mut chunk) {
                Ok(0) => return (total, ReadEnd::Closed(None)),
                Ok(read) => {
                    self.incoming.extend(&chunk[..read]);
                    total += read;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return (total, ReadEnd::Empty),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return (total, ReadEnd::Closed(None)),
                Err(error) => return (total, ReadEnd::Closed(Some(error.to_string()))),
            }
        }
        (total, ReadEnd::Budget)
    }

    /// Returns the next message received so far. `unauthenticated` applies the limit of connections that have sent no Hello.
    pub(crate) fn message(&mut self, unauthenticated: bool) -> Result<Option<Incoming>, String> {
        let message = self.decode().map_err(|error| error.to_string())?;
        if message.is_none() && unauthenticated && self.incoming.pending() > HELLO_BYTES_MAX {
            return Err(format!("{} bytes arrived before Hello", self.incoming.pending()));
        }
        Ok(message)
    }

    fn decode(&mut self) -> Result<Option<Incoming>, FrameError> {
        match self.language {
            Language::Worker => Ok(self.incoming.decode()?.map(Incoming::Worker)),
            Language::Script => Ok(script::decode(&mut self.incoming)?.map(Incoming::Script)),
        }
    }

    /// Returns the number of bytes that form no whole message yet.
    pub(crate) fn pending(&self) -> usize {
        self.incoming.pending()
    }

    pub(crate) fn queue(&mut self, message: &ToWorker) -> Result<(), String> {
        let encoded = match self.language {
            Language::Worker => frame::encode(message, &mut self.outgoing),
            Language::Script => match ToScript::of(message) {
                Some(message) => script::encode(&message, &mut self.outgoing),
                None => return Ok(()),
            },
        };
        encoded.map_err(|error| error.to_string())?;
        if self.outgoing.len() > OUT_BYTES_MAX {
            return Err(format!("the worker does not read: {} bytes wait for it", self.outgoing.len()));
        }
        Ok(())
    }

    /// Writes as many bytes as the socket accepts.
    pub(crate) fn flush(&mut self) -> Result<(), String> {
        let mut done = 0;
        while done < self.outgoing.len() {
            match self.stream.write(&self.outgoing[done..]) {
                Ok(0) => break,
                Ok(written) => done += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The next read finds the end of the stream and the bytes before it.
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
