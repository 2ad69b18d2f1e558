//! The broker's thread: one mio loop over the listener, the connections and the agent's commands.
//!
//! **Invariant:** the thread waits only in `poll` and, when the agent is behind, in its bounded event queue: a flood of
//! messages slows the worker that sends it and does not fill the machine's memory.

use crate::{
    connection::{Incoming, Language, ReadEnd, WorkerConnection},
    event::{BrokerEvent, Command},
    roster::{ConnectionId, Effect, Roster, refuse},
};
use crossbeam_channel::{Receiver, Sender, TryRecvError};
use enn_common::{
    descriptors::{self, Reserve},
    wire::message::ToWorker,
};
use mio::{
    Events, Interest, Poll, Token,
    net::{UnixListener, UnixStream},
};
use nix::sys::{
    eventfd::EventFd,
    socket::{getsockopt, sockopt::PeerCredentials},
};
use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

/// Limit on connections at one time: the workers of a node and a few that have sent no Hello.
const CONNECTIONS_MAX: usize = 2048;
/// Limit on connections at one time that have sent no Hello; beyond it, the oldest that is older than `HELLO_SOON` is closed.
const UNAUTHENTICATED_MAX: usize = 256;
const HELLO_SOON: Duration = Duration::from_secs(1);
/// Pause after a connection could not be accepted.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Time within which a connection must send Hello.
const HELLO_WAIT_MAX: Duration = Duration::from_secs(10);
/// Bytes read from one connection before the others are served.
const TURN_BYTES: usize = 1 << 20;
/// Bytes read from one connection on behalf of `Command::Sync`.
const SYNC_BYTES: usize = 256 << 20;

const LISTENER: Token = Token(0);
pub(crate) const WAKER: Token = Token(1);
const FIRST_CONNECTION: usize = 2;

/// A socket that accepts connections of one language.
pub(crate) struct Listener {
    pub(crate) socket: UnixListener,
    pub(crate) language: Language,
}

pub(crate) struct WorkerServer {
    pub(crate) poll: Poll,
    pub(crate) listeners: [Listener; 2],
    pub(crate) commands: Receiver<Command>,
    /// Commands that were received and are not yet carried out.
    queued: VecDeque<Command>,
    pub(crate) events: Sender<BrokerEvent>,
    pub(crate) wake: Arc<EventFd>,
    pub(crate) uid: u32,
    reserve: Reserve,
    /// Time of the next accept after one failed: no event tells of connections that wait already.
    accept_at: Option<Instant>,
    state: State,
}

#[derive(Default)]
struct State {
    roster: Roster,
    connections: BTreeMap<ConnectionId, WorkerConnection>,
    next: usize,
    /// Connections with unread bytes at the end of their turn.
    unread: VecDeque<ConnectionId>,
}

/// The loop is to end: the agent is gone, or wants it.
struct Ended;

impl WorkerServer {
    pub(crate) fn new(
        poll: Poll,
        listeners: [Listener; 2],
        commands: Receiver<Command>,
        events: Sender<BrokerEvent>,
        wake: Arc<EventFd>,
        uid: u32,
    ) -> io::Result<Self> {
        let queued = VecDeque::new();
        let state = State::default();
        let reserve = Reserve::new();
        let mut server = Self { poll, listeners, commands, queued, events, wake, uid, reserve, accept_at: None, state };
        for listener in &mut server.listeners {
            server.poll.registry().register(&mut listener.socket, LISTENER, Interest::READABLE)?;
        }
        server.state.next = FIRST_CONNECTION;
        Ok(server)
    }

    /// Runs until `Shutdown`, or until the agent is gone.
    pub(crate) fn run(mut self) {
        let Err(Ended) = self.run_loop();
    }

    fn run_loop(&mut self) -> Result<Infallible, Ended> {
        let mut ready = Events::with_capacity(256);
        loop {
            let timeout = self.timeout();
            match self.poll.poll(&mut ready, timeout) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.emit(BrokerEvent::Broke { error: error.to_string() })?;
                    return Err(Ended);
                }
            }
            for event in &ready {
                match event.token() {
                    LISTENER => self.accept()?,
                    WAKER => self.take_commands()?,
                    Token(id) => {
                        let id = ConnectionId(id);
                        if event.is_writable() {
                            self.flush(id)?;
                        }
                        self.read(id, TURN_BYTES)?;
                    }
                }
            }
            for _ in 0..self.state.unread.len() {
                if let Some(id) = self.state.unread.pop_front() {
                    self.read(id, TURN_BYTES)?;
                }
            }
            if self.accept_at.is_some_and(|at| at <= Instant::now()) {
                self.accept()?;
            }
            self.drop_silent()?;
        }
    }

    /// Returns zero when bytes are known to wait, else the time until the next unauthenticated connection is overdue.
    fn timeout(&self) -> Option<Duration> {
        if !self.state.unread.is_empty() {
            return Some(Duration::ZERO);
        }
        let unauthenticated = self.state.connections.iter().filter(|(id, _)| !self.state.roster.is_member(**id));
        let left = |connection: &WorkerConnection| HELLO_WAIT_MAX.saturating_sub(connection.opened.elapsed());
        let accept = self.accept_at.map(|at| at.saturating_duration_since(Instant::now()));
        unauthenticated.map(|(_, connection)| left(connection)).chain(accept).min()
    }

    fn drop_silent(&mut self) -> Result<(), Ended> {
        let State { roster, connections, .. } = &self.state;
        let silent: Vec<_> = connections
            .iter()
            .filter(|(id, connection)| !roster.is_member(**id) && connection.opened.elapsed() >= HELLO_WAIT_MAX)
            .map(|(id, _)| *id)
            .collect();
        for id in silent {
            let error = format!("a connection sent no Hello within {} s", HELLO_WAIT_MAX.as_secs());
            self.apply(refuse(id, error))?;
        }
        Ok(())
    }

    /// Accepts all connections that wait, on both sockets.
    fn accept(&mut self) -> Result<(), Ended> {
        self.accept_at = None;
        (0..self.listeners.len()).try_for_each(|at| self.accept_on(at))
    }

    fn accept_on(&mut self, at: usize) -> Result<(), Ended> {
        loop {
            let Listener { socket, language } = &self.listeners[at];
            match socket.accept() {
                Ok((stream, _)) => self.admit(stream, *language)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                }
                Err(error) => {
                    self.not_accepted(&error, at)?;
                    if self.accept_at.is_some() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Handles a failed accept without ending the others: a silent connection is closed to make room, or the new one is, or it waits.
    fn not_accepted(&mut self, error: &io::Error, at: usize) -> Result<(), Ended> {
        if descriptors::are_exhausted(error) {
            if let Some(unauthenticated) = self.oldest_silent() {
                return self
                    .apply(refuse(unauthenticated, format!("a silent connection made room for another: {error}")));
            }
            if self.reserve.refuse(|| self.listeners[at].socket.accept()) {
                return self
                    .emit(BrokerEvent::Refused { error: format!("a connection could not be accepted: {error}") });
            }
        }
        self.accept_at = Some(Instant::now() + ACCEPT_REST);
        Ok(())
    }

    /// Returns the oldest connection that should have sent Hello by now.
    fn oldest_silent(&self) -> Option<ConnectionId> {
        let State { roster, connections, .. } = &self.state;
        // Connections are numbered in the order in which they were accepted.
        let (id, oldest) = connections.iter().find(|(id, _)| !roster.is_member(**id))?;
        (oldest.opened.elapsed() >= HELLO_SOON).then_some(*id)
    }

    fn admit(&mut self, mut stream: UnixStream, language: Language) -> Result<(), Ended> {
        let error = match getsockopt(&stream, PeerCredentials).map(|peer| peer.uid()) {
            Err(error) => Some(format!("the peer credentials of a connection cannot be read: {error}")),
            Ok(uid) if uid != self.uid => {
                Some(format!("a process of user {uid} connected; only user {} may", self.uid))
            }
            Ok(_) if self.state.connections.len() >= CONNECTIONS_MAX && self.oldest_silent().is_none() => {
                Some(format!("more than {CONNECTIONS_MAX} connections"))
            }
            Ok(_) => None,
        };
        if let Some(error) = error {
            return self.emit(BrokerEvent::Refused { error });
        }
        let id = ConnectionId(self.state.next);
        let registry = self.poll.registry();
        if let Err(error) = registry.register(&mut stream, Token(id.0), Interest::READABLE | Interest::WRITABLE) {
            return self.emit(BrokerEvent::Refused { error: format!("a connection could not be watched: {error}") });
        }
        self.state.next += 1;
        self.state.connections.insert(id, WorkerConnection::new(stream, language, Instant::now()));
        let all = self.state.connections.len();
        let unauthenticated = self.state.connections.keys().filter(|id| !self.state.roster.is_member(**id)).count();
        match self.oldest_silent().filter(|_| unauthenticated > UNAUTHENTICATED_MAX || all > CONNECTIONS_MAX) {
            Some(oldest) => {
                let error =
                    format!("{unauthenticated} connections have sent no Hello, expected at most {UNAUTHENTICATED_MAX}");
                self.apply(refuse(oldest, error))
            }
            None => Ok(()),
        }
    }

    fn take_commands(&mut self) -> Result<(), Ended> {
        loop {
            let gone = self.fetch_commands();
            let Some(command) = self.queued.pop_front() else {
                return if gone { Err(Ended) } else { Ok(()) };
            };
            let effects = match command {
                Command::BeginRound(plan) => self.state.roster.begin(*plan),
                Command::Expect { worker, standby } => self.state.roster.expect(worker, standby),
                Command::EndRound { reason } => self.state.roster.end(&reason),
                Command::Dismiss { worker } => self.state.roster.dismiss(worker),
                Command::StopScript { worker } => self.state.roster.stop_script(worker),
                Command::CloseAll => self.state.roster.close_all(),
                Command::TellAll(message) => self.state.roster.tell_all(&message),
                Command::Sync { token } => {
                    self.read_all()?;
                    vec![Effect::Emit(BrokerEvent::Synced { token })]
                }
                Command::Shutdown => return Err(Ended),
            };
            self.apply(effects)?;
        }
    }

    /// Receives the agent's commands; returns true when no more will come. `Expect` takes effect at once: the worker's Hello may be
    /// read while commands before that one are carried out.
    fn fetch_commands(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Expect { worker, standby }) if !self.queued.contains(&Command::CloseAll) => {
                    self.state.roster.expect(worker, standby);
                }
                Ok(command) => self.queued.push_back(command),
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => return true,
            }
        }
    }

    /// Reads all bytes that have arrived, on known and new connections.
    fn read_all(&mut self) -> Result<(), Ended> {
        self.accept()?;
        let ids: Vec<_> = self.state.connections.keys().copied().collect();
        ids.into_iter().try_for_each(|id| self.read(id, SYNC_BYTES))
    }

    fn read(&mut self, id: ConnectionId, budget: usize) -> Result<(), Ended> {
        if !self.state.roster.is_member(id) {
            self.fetch_commands();
        }
        let mut left = budget;
        loop {
            let Some(connection) = self.state.connections.get_mut(&id) else { return Ok(()) };
            // Reads in pieces, so that messages do not pile up in the buffer.
            let (read, stop) = connection.read(left.min(TURN_BYTES));
            left -= read.min(left);
            self.messages(id)?;
            match stop {
                ReadEnd::Empty => return Ok(()),
                ReadEnd::Budget if left > 0 => {}
                ReadEnd::Budget => {
                    self.state.unread.push_back(id);
                    return Ok(());
                }
                ReadEnd::Closed(error) => {
                    let cut = self.state.connections.get(&id).is_some_and(|connection| connection.pending() > 0);
                    let error = error.or_else(|| cut.then(|| "the connection ended within a frame".into()));
                    return self.closed(id, error);
                }
            }
        }
    }

    fn messages(&mut self, id: ConnectionId) -> Result<(), Ended> {
        loop {
            let unauthenticated = !self.state.roster.is_member(id);
            let Some(connection) = self.state.connections.get_mut(&id) else { return Ok(()) };
            let effects = match connection.message(unauthenticated) {
                Ok(None) => return Ok(()),
                Ok(Some(Incoming::Worker(message))) => self.state.roster.on_message(id, message),
                Ok(Some(Incoming::Script(message))) => self.state.roster.on_script(id, message),
                Err(error) => {
                    if connection.language == Language::Script {
                        // People write scripts: they are told what was wrong.
                        self.apply(vec![Effect::Send(id, ToWorker::Refused { error: error.clone() })])?;
                    }
                    return self.closed(id, Some(error));
                }
            };
            self.apply(effects)?;
        }
    }

    fn flush(&mut self, id: ConnectionId) -> Result<(), Ended> {
        let outcome = self.state.connections.get_mut(&id).map(WorkerConnection::flush);
        match outcome {
            Some(Err(error)) => self.closed(id, Some(error)),
            _ => Ok(()),
        }
    }

    fn closed(&mut self, id: ConnectionId, error: Option<String>) -> Result<(), Ended> {
        if self.state.connections.remove(&id).is_none() {
            return Ok(());
        }
        let effects = self.state.roster.on_closed(id, error);
        self.apply(effects)
    }

    fn apply(&mut self, effects: Vec<Effect>) -> Result<(), Ended> {
        for effect in effects {
            match effect {
                Effect::Send(id, message) => {
                    let queued = self.state.connections.get_mut(&id).map(|connection| connection.queue(&message));
                    match queued {
                        Some(Err(error)) => self.closed(id, Some(error))?,
                        _ => self.flush(id)?,
                    }
                }
                Effect::Close(id) => {
                    // Dropping the stream closes it and removes it from the poll set.
                    self.state.connections.remove(&id);
                }
                Effect::Emit(event) => self.emit(event)?,
            }
        }
        Ok(())
    }

    fn emit(&self, event: BrokerEvent) -> Result<(), Ended> {
        self.events.send(event).map_err(|_| Ended)?;
        // The counter saturates only long after the agent has been woken; a full one wakes it as well.
        let _full = self.wake.write(1);
        Ok(())
    }
}
