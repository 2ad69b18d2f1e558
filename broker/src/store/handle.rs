//! What the rest of the process holds of a running store: it opens the door to nodes, and begins rounds.

use super::{Limits, StoreError, door::Door};
use crossbeam_channel::{Receiver, Sender, bounded};
use mio::Waker;
use std::{
    fmt, io,
    net::{IpAddr, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// How long [`StoreHandle::clear`] waits; the store's thread never blocks and its turns are short.
const CLEAR_WAIT_MAX: Duration = Duration::from_secs(10);

/// A connection that does not begin as c10d's clients do: it is no longer the store's.
#[derive(Debug)]
pub struct Stranger {
    /// The connection, non-blocking.
    pub stream: TcpStream,
    /// Who is at the other end.
    pub peer: SocketAddr,
    /// What was read from it so far, from its first byte on; never empty.
    pub bytes: Vec<u8>,
}

/// Who takes a [`Stranger`]. It is called on the store's thread and must not block.
pub type Strangers = Box<dyn Fn(Stranger) + Send>;

/// How a store is run.
#[derive(Default)]
pub struct Options {
    /// What a client may ask of it.
    pub limits: Limits,
    /// From where c10d clients are accepted.
    pub door: Door,
    /// Who takes connections that are no c10d clients; without anybody they are closed.
    pub strangers: Option<Strangers>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limits, door, strangers } = self;
        f.debug_struct("Options")
            .field("limits", limits)
            .field("door", door)
            .field("strangers", &strangers.is_some())
            .finish()
    }
}

/// What the handle asks of the store's thread.
#[derive(Debug)]
pub(super) enum Command {
    Admit(IpAddr),
    Dismiss(IpAddr),
    /// Dropped when done.
    Clear(Sender<()>),
    Stop,
}

/// A running store. Dropping it closes every connection and ends the thread.
#[derive(Debug)]
pub struct StoreHandle {
    addr: SocketAddr,
    link: Link,
    thread: Option<JoinHandle<()>>,
}

/// The handle's side of what it shares with the store's thread.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) commands: Sender<Command>,
    pub(super) waker: Arc<Waker>,
    pub(super) seen: Arc<AtomicU64>,
}

impl Link {
    fn tell(&self, command: Command) -> Result<(), StoreError> {
        let gone = || StoreError::Stopped;
        self.commands.send(command).map_err(|_| gone())?;
        self.waker.wake().map_err(|_: io::Error| gone())
    }
}

impl StoreHandle {
    pub(super) fn new(addr: SocketAddr, link: Link, thread: JoinHandle<()>) -> Self {
        Self { addr, link, thread: Some(thread) }
    }

    /// The first address it is bound to, with the port that was taken when 0 was asked for.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Lets c10d clients from `ip` in, whatever they send after this returned. Admitting twice is as admitting once.
    pub fn admit(&self, ip: IpAddr) -> Result<(), StoreError> {
        self.link.tell(Command::Admit(ip))
    }

    /// Takes the admission of `ip` back and closes its c10d clients.
    pub fn dismiss(&self, ip: IpAddr) -> Result<(), StoreError> {
        self.link.tell(Command::Dismiss(ip))
    }

    /// Begins a new round: when this returns without an error, keys, queues and waiters are gone and the c10d clients of
    /// before are closed. Who is admitted stays so.
    pub fn clear(&self) -> Result<(), StoreError> {
        let (done, cleared): (Sender<()>, Receiver<()>) = bounded(1);
        self.link.tell(Command::Clear(done))?;
        cleared.recv_timeout(CLEAR_WAIT_MAX).map_err(|_| StoreError::Stopped)
    }

    /// How many c10d clients have made their handshake since the start or the last [`StoreHandle::clear`].
    pub fn clients_seen(&self) -> u64 {
        self.link.seen.load(Ordering::Acquire)
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        // Fails only when the thread has ended.
        let _ = self.link.tell(Command::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
