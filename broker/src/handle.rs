//! The agent's handle on the broker's thread.

use crate::{
    connection::Language,
    error::BrokerError,
    event::{BrokerEvent, Command},
    server::{Listener, WAKER, WorkerServer},
    socket_directory::{self, SocketDirectory},
};
use crossbeam_channel::{Receiver, Sender, bounded};
use enn_common::fs::seats::SeatDirectory;
use mio::{Poll, Waker, net::UnixListener};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::{
    fs,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::PermissionsExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

/// Limit on the events that wait for the agent; beyond it the broker reads no more from workers.
const EVENTS_MAX: usize = 1024;
/// Limit on the commands that wait for the broker.
const COMMANDS_MAX: usize = 1024;
/// Longest wait for the broker to take a command.
const COMMAND_WAIT_MAX: Duration = Duration::from_secs(10);

/// A running broker. Dropping it ends the thread and removes the socket.
#[derive(Debug)]
pub struct Broker {
    socket: PathBuf,
    script_socket: PathBuf,
    seats: SeatDirectory,
    commands: Sender<Command>,
    waker: Waker,
    events: Receiver<BrokerEvent>,
    wake: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
    /// Removed when the thread has ended.
    _directory: SocketDirectory,
}

impl Broker {
    /// Listens on two sockets (mode 0600), for workers and for scripts, in a fresh directory (0700) under `parent`, which must exist
    /// and be short: Unix allows socket paths of 107 bytes.
    pub fn serve(parent: &Path) -> Result<Self, BrokerError> {
        let directory = SocketDirectory::make(parent)?;
        let socket = directory.path().join(socket_directory::SOCKET);
        let script_socket = directory.path().join(socket_directory::SCRIPT_SOCKET);
        let seats = SeatDirectory::make(parent)?;
        // The directory of a broker whose first socket takes no connection may be removed: it is bound first.
        let listeners = [listen(&socket, Language::Worker)?, listen(&script_socket, Language::Script)?];
        let poll = Poll::new().map_err(BrokerError::Loop)?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(BrokerError::Loop)?;
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let wake = Arc::new(wake.map_err(|error| BrokerError::Loop(error.into()))?);
        let (commands, commands_in) = bounded(COMMANDS_MAX);
        let (events_out, events) = bounded(EVENTS_MAX);
        let uid = nix::unistd::geteuid().as_raw();
        let server = WorkerServer::new(poll, listeners, commands_in, events_out, wake.clone(), uid);
        let server = server.map_err(BrokerError::Loop)?;
        let thread = std::thread::Builder::new().name("enn-broker".into()).spawn(|| server.run());
        let thread = Some(thread.map_err(BrokerError::Loop)?);
        Ok(Self { socket, script_socket, seats, commands, waker, events, wake, thread, _directory: directory })
    }

    /// Returns the path of the socket, the value of a worker's `ENN_BROKER`.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn script_socket(&self) -> &Path {
        &self.script_socket
    }

    /// Returns the folder in memory in which scripts keep what is private to a seat; it lives as long as the broker.
    pub fn seat_dir(&self) -> &Path {
        self.seats.path()
    }

    /// Has the thread carry out a command.
    pub fn send(&self, command: Command) -> Result<(), BrokerError> {
        self.commands.send_timeout(command, COMMAND_WAIT_MAX).map_err(|_| BrokerError::Gone)?;
        self.waker.wake().map_err(BrokerError::Loop)
    }

    /// Returns the next event without waiting.
    pub fn event(&self) -> Option<BrokerEvent> {
        self.events.try_recv().ok()
    }

    /// Readable when events wait. Call `clear_wake` before draining `event`.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Makes `wake_fd` unreadable until the next event.
    pub fn clear_wake(&self) {
        // An empty counter needs no clearing.
        let _empty = self.wake.read();
    }
}

fn listen(path: &Path, language: Language) -> Result<Listener, BrokerError> {
    let error = |source| BrokerError::Listen { path: path.to_owned(), source };
    let socket = UnixListener::bind(path).map_err(error)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(error)?;
    Ok(Listener { socket, language })
}

impl Drop for Broker {
    fn drop(&mut self) {
        // A broker that waits for room in the event queue must notice that its reader is gone.
        drop(std::mem::replace(&mut self.events, crossbeam_channel::never()));
        let _gone = self.send(Command::Shutdown);
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}
