//! The handle on a running store: it admits nodes and begins rounds.

use super::{Limits, StoreError, allow_list::PeerPolicy};
use crossbeam_channel::{Receiver, Sender, bounded};
use mio::Waker;
use std::{
    net::{IpAddr, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Longest wait of [`StoreHandle::clear`]; the store's thread never blocks and its turns are short.
const CLEAR_WAIT_MAX: Duration = Duration::from_secs(10);

/// A connection that does not begin as c10d's clients do, handed on by the store.
#[derive(Debug)]
pub struct ForeignConnection {
    /// The connection, in non-blocking mode.
    pub stream: TcpStream,
    pub peer: SocketAddr,
    /// The bytes read so far, from the first byte on; never empty.
    pub bytes: Vec<u8>,
}

/// Handler of a [`ForeignConnection`]. It is called on the store's thread and must not block.
pub type ForeignHandler = Box<dyn Fn(ForeignConnection) + Send>;

#[derive(Default)]
pub struct Options {
    pub limits: Limits,
    /// Policy for the addresses of c10d clients.
    pub peers: PeerPolicy,
    /// Handler of connections that are no c10d clients; without one they are closed.
    pub foreign_handler: Option<ForeignHandler>,
}

/// Commands from the handle to the store's thread.
#[derive(Debug)]
pub(super) enum StoreCommand {
    Admit(IpAddr),
    Dismiss(IpAddr),
    /// The sender is dropped when the clear is done.
    Clear(Sender<()>),
    Stop,
}

/// A running store. Dropping it closes every connection and ends the thread.
#[derive(Debug)]
pub struct StoreHandle {
    addr: SocketAddr,
    link: StoreLink,
    thread: Option<JoinHandle<()>>,
}

/// The handle's side of the state shared with the store's thread.
#[derive(Debug)]
pub(super) struct StoreLink {
    pub(super) commands: Sender<StoreCommand>,
    pub(super) waker: Arc<Waker>,
    pub(super) seen: Arc<AtomicU64>,
}

impl StoreLink {
    fn tell(&self, command: StoreCommand) -> Result<(), StoreError> {
        self.commands.send(command).map_err(|_| StoreError::Stopped)?;
        self.waker.wake().map_err(|_| StoreError::Stopped)
    }
}

impl StoreHandle {
    pub(super) fn new(addr: SocketAddr, link: StoreLink, thread: JoinHandle<()>) -> Self {
        Self { addr, link, thread: Some(thread) }
    }

    /// Returns the first bound address, with the port that was chosen when 0 was requested.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Admits c10d clients from `ip`; applies to everything that they send after this returned. Admitting twice has no further effect.
    pub fn admit(&self, ip: IpAddr) -> Result<(), StoreError> {
        self.link.tell(StoreCommand::Admit(ip))
    }

    /// Withdraws the admission of `ip` and closes its c10d clients.
    pub fn dismiss(&self, ip: IpAddr) -> Result<(), StoreError> {
        self.link.tell(StoreCommand::Dismiss(ip))
    }

    /// Begins a new round: when this returns without an error, keys, queues and waiters are gone and the earlier c10d clients
    /// are closed. Admissions stay.
    pub fn clear(&self) -> Result<(), StoreError> {
        let (done, cleared): (Sender<()>, Receiver<()>) = bounded(1);
        self.link.tell(StoreCommand::Clear(done))?;
        cleared.recv_timeout(CLEAR_WAIT_MAX).map_err(|_| StoreError::Stopped)
    }

    /// Returns how many c10d clients have made their handshake since the start or the last [`StoreHandle::clear`].
    pub fn clients_seen(&self) -> u64 {
        self.link.seen.load(Ordering::Acquire)
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        // Sending fails only when the thread has ended.
        let _ = self.link.tell(StoreCommand::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
