//! The worker's end of the socket: blocking, with a writer that any thread may hold.
//!
//! ```no_run
//! # use enn_common::wire::{client::Client, message::{FromWorker, PROTOCOL}};
//! # fn f() -> Result<(), enn_common::wire::client::ClientError> {
//! let mut client = Client::connect("/run/enn/broker.sock".as_ref())?;
//! client.send(&FromWorker::Hello { protocol: PROTOCOL, worker: 0, pid: 1 })?;
//! let assignment = client.recv()?;
//! let (sender, mut receiver) = client.into_parts(); // the receiver for a reader thread, `sender.clone()` for others
//! # Ok(()) }
//! ```
//! **Invariant:** every write has a deadline. A read waits as long as the launcher lives: its death closes the socket.

use super::{
    frame::{self, FrameBuffer, FrameError},
    message::{FromWorker, ToWorker},
};
use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Longest wait for the broker to take bytes. It reads in its own thread, so that longer means it hangs.
pub const SEND_WAIT_MAX: Duration = Duration::from_secs(30);

const READ_BYTES: usize = 64 << 10;

/// Why the socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot connect to the broker at {path}: {source}")]
    Connect { path: PathBuf, source: io::Error },
    /// The socket broke while writing, or the broker did not read for `SEND_WAIT_MAX`.
    #[error("cannot send to the broker: {0}")]
    Send(#[source] io::Error),
    #[error("cannot receive from the broker: {0}")]
    Receive(#[source] io::Error),
    #[error("the broker closed the connection (the launcher ended)")]
    Closed,
    #[error("the broker's bytes make no sense: {0}")]
    Frame(#[from] FrameError),
}

#[derive(Debug)]
pub struct Client {
    sender: Sender,
    receiver: Receiver,
}

impl Client {
    /// Connects to the socket at `path`. The broker listens before any worker is started, so nothing is retried.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let connect = |source| ClientError::Connect { path: path.to_owned(), source };
        let read = UnixStream::connect(path).map_err(connect)?;
        let write = read.try_clone().map_err(connect)?;
        write.set_write_timeout(Some(SEND_WAIT_MAX)).map_err(connect)?;
        let sender = Sender { socket: Arc::new(Mutex::new(Outgoing { socket: write, bytes: Vec::new() })) };
        Ok(Self { sender, receiver: Receiver { socket: read, buffer: FrameBuffer::new() } })
    }

    pub fn send(&self, message: &FromWorker) -> Result<(), ClientError> {
        self.sender.send(message)
    }

    /// Waits for the next message.
    pub fn recv(&mut self) -> Result<ToWorker, ClientError> {
        self.receiver.recv()
    }

    /// A writer for another thread.
    pub fn sender(&self) -> Sender {
        self.sender.clone()
    }

    /// Writer and reader apart.
    pub fn into_parts(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }
}

/// The writing half; clones write to the same socket, whole messages at a time.
#[derive(Debug, Clone)]
pub struct Sender {
    socket: Arc<Mutex<Outgoing>>,
}

#[derive(Debug)]
struct Outgoing {
    socket: UnixStream,
    bytes: Vec<u8>,
}

impl Sender {
    /// Sends one message. Safe to call from several threads and from a panic hook.
    pub fn send(&self, message: &FromWorker) -> Result<(), ClientError> {
        let mut guard = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let Outgoing { socket, bytes } = &mut *guard;
        bytes.clear();
        frame::encode(message, bytes)?;
        socket.write_all(bytes).map_err(ClientError::Send)
    }
}

#[derive(Debug)]
pub struct Receiver {
    socket: UnixStream,
    buffer: FrameBuffer,
}

impl Receiver {
    /// Waits for the next message. `Closed` says that the launcher ended.
    pub fn recv(&mut self) -> Result<ToWorker, ClientError> {
        let mut chunk = [0; READ_BYTES];
        loop {
            if let Some(message) = self.buffer.decode()? {
                return Ok(message);
            }
            match self.socket.read(&mut chunk) {
                Ok(0) => return Err(ClientError::Closed),
                Ok(read) => self.buffer.extend(&chunk[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(ClientError::Closed),
                Err(error) => return Err(ClientError::Receive(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::net::UnixListener, thread};

    #[test]
    fn several_threads_write_whole_messages_and_the_end_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let broker = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut buffer = FrameBuffer::new();
            let mut chunk = [0; 7];
            let mut seen = 0;
            while seen < 200 {
                let read = socket.read(&mut chunk).unwrap();
                buffer.extend(&chunk[..read]);
                while let Some(message) = buffer.decode::<FromWorker>().unwrap() {
                    assert!(matches!(message, FromWorker::Warned { message } if message.len() == 300));
                    seen += 1;
                }
            }
            let mut out = Vec::new();
            frame::encode(&ToWorker::Abandoned { step: 3, error: "disk full".into() }, &mut out).unwrap();
            socket.write_all(&out).unwrap();
        });
        let mut client = Client::connect(&path).unwrap();
        thread::scope(|scope| {
            for _ in 0..2 {
                let sender = client.sender();
                scope.spawn(move || {
                    for _ in 0..100 {
                        sender.send(&FromWorker::Warned { message: "x".repeat(300) }).unwrap();
                    }
                });
            }
        });
        assert_eq!(client.recv().unwrap(), ToWorker::Abandoned { step: 3, error: "disk full".into() });
        broker.join().unwrap();
        assert!(matches!(client.recv(), Err(ClientError::Closed)));
    }

    #[test]
    fn a_missing_socket_is_named() {
        let error = Client::connect("/nowhere/broker.sock".as_ref()).unwrap_err();
        assert!(error.to_string().contains("/nowhere/broker.sock"), "{error}");
    }
}
