//! The broker's thread: one mio loop over the listener, the connections and the agent's commands.
//!
//! **Invariant:** it waits only in `poll` and, when the agent is behind, in its bounded event queue: a flood from a worker
//! slows that worker, not the machine's memory.

use crate::{
    connection::{Connection, Stop},
    event::{BrokerEvent, Command},
    roster::{ConnectionId, Effect, Roster, refuse},
};
use crossbeam_channel::{Receiver, Sender, TryRecvError};
use mio::{Events, Interest, Poll, Token, net::UnixListener};
use nix::sys::{
    eventfd::EventFd,
    socket::{getsockopt, sockopt::PeerCredentials},
};
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::Arc,
    time::{Duration, Instant},
};

/// Connections at one time: the workers of a node and a few strangers.
const CONNECTIONS_MAX: usize = 2048;
/// Time a connection has to introduce itself.
const HELLO_WAIT_MAX: Duration = Duration::from_secs(10);
/// Bytes read from one connection before the others get their turn.
const TURN_BYTES: usize = 1 << 20;
/// Bytes read from one connection on behalf of `Command::Sync`.
const SYNC_BYTES: usize = 256 << 20;

const LISTENER: Token = Token(0);
pub(crate) const WAKER: Token = Token(1);
const FIRST_CONNECTION: usize = 2;

/// State of the thread.
pub(crate) struct Server {
    pub(crate) poll: Poll,
    pub(crate) listener: UnixListener,
    pub(crate) commands: Receiver<Command>,
    /// Taken in and not yet carried out.
    queued: VecDeque<Command>,
    pub(crate) events: Sender<BrokerEvent>,
    pub(crate) wake: Arc<EventFd>,
    pub(crate) uid: u32,
    state: State,
}

#[derive(Default)]
struct State {
    roster: Roster,
    connections: BTreeMap<ConnectionId, Connection>,
    next: usize,
    /// Connections with bytes left unread when their turn ended.
    unread: VecDeque<ConnectionId>,
}

/// The loop goes on, or ends.
#[derive(PartialEq)]
enum Flow {
    On,
    End,
}

impl Server {
    pub(crate) fn new(
        (poll, listener): (Poll, UnixListener),
        commands: Receiver<Command>,
        (events, wake): (Sender<BrokerEvent>, Arc<EventFd>),
        uid: u32,
    ) -> io::Result<Self> {
        let (queued, state) = (VecDeque::new(), State::default());
        let mut server = Self { poll, listener, commands, queued, events, wake, uid, state };
        server.poll.registry().register(&mut server.listener, LISTENER, Interest::READABLE)?;
        server.state.next = FIRST_CONNECTION;
        Ok(server)
    }

    /// Runs until told to shut down, or until the agent is gone.
    pub(crate) fn run(mut self) {
        if let Err(error) = self.turn_until_end() {
            let _gone = self.emit(BrokerEvent::Broke { error: error.to_string() });
        }
    }

    fn turn_until_end(&mut self) -> io::Result<()> {
        let mut ready = Events::with_capacity(256);
        loop {
            let timeout = self.timeout();
            match self.poll.poll(&mut ready, timeout) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                outcome => outcome?,
            }
            for event in &ready {
                let flow = match event.token() {
                    LISTENER => self.accept()?,
                    WAKER => self.take_commands()?,
                    Token(id) => {
                        let id = ConnectionId(id);
                        if event.is_writable() {
                            self.flush(id)
                        } else {
                            Flow::On
                        };
                        self.read(id, TURN_BYTES)
                    }
                };
                if flow == Flow::End {
                    return Ok(());
                }
            }
            for _ in 0..self.state.unread.len() {
                if let Some(id) = self.state.unread.pop_front()
                    && self.read(id, TURN_BYTES) == Flow::End
                {
                    return Ok(());
                }
            }
            if self.drop_silent() == Flow::End {
                return Ok(());
            }
        }
    }

    /// Zero when bytes are known to wait, else until the first stranger's time is up.
    fn timeout(&self) -> Option<Duration> {
        if !self.state.unread.is_empty() {
            return Some(Duration::ZERO);
        }
        let strangers = self.state.connections.iter().filter(|(id, _)| !self.state.roster.is_member(**id));
        let left = |connection: &Connection| HELLO_WAIT_MAX.saturating_sub(connection.opened.elapsed());
        strangers.map(|(_, connection)| left(connection)).min()
    }

    fn drop_silent(&mut self) -> Flow {
        let State { roster, connections, .. } = &self.state;
        let silent: Vec<_> = connections
            .iter()
            .filter(|(id, connection)| !roster.is_member(**id) && connection.opened.elapsed() >= HELLO_WAIT_MAX)
            .map(|(id, _)| *id)
            .collect();
        for id in silent {
            let error = format!("a connection did not introduce itself within {} s", HELLO_WAIT_MAX.as_secs());
            if self.apply(refuse(id, error)) == Flow::End {
                return Flow::End;
            }
        }
        Flow::On
    }

    fn accept(&mut self) -> io::Result<Flow> {
        loop {
            let (mut stream, _) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Flow::On),
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                    continue;
                }
                Err(error) => return Err(error),
            };
            let uid = getsockopt(&stream, PeerCredentials)?.uid();
            if uid != self.uid || self.state.connections.len() >= CONNECTIONS_MAX {
                let error = if uid == self.uid {
                    format!("more than {CONNECTIONS_MAX} connections")
                } else {
                    format!("a process of user {uid} connected; only user {} may", self.uid)
                };
                if self.emit(BrokerEvent::Refused { error }) == Flow::End {
                    return Ok(Flow::End);
                }
                continue;
            }
            let id = ConnectionId(self.state.next);
            self.state.next += 1;
            self.poll.registry().register(&mut stream, Token(id.0), Interest::READABLE | Interest::WRITABLE)?;
            self.state.connections.insert(id, Connection::new(stream, Instant::now()));
        }
    }

    fn take_commands(&mut self) -> io::Result<Flow> {
        loop {
            let gone = self.fetch_commands();
            let Some(command) = self.queued.pop_front() else {
                return Ok(if gone { Flow::End } else { Flow::On });
            };
            let effects = match command {
                Command::BeginRound(plan) => self.state.roster.begin(*plan),
                Command::Expect { worker, standby } => self.state.roster.expect(worker, standby),
                Command::EndRound { reason } => self.state.roster.end(&reason),
                Command::Dismiss { worker } => self.state.roster.dismiss(worker),
                Command::CloseAll => self.state.roster.close_all(),
                Command::TellAll(message) => self.state.roster.tell_all(&message),
                Command::Sync { token } => {
                    if self.read_all()? == Flow::End {
                        return Ok(Flow::End);
                    }
                    vec![Effect::Emit(BrokerEvent::Synced { token })]
                }
                Command::Shutdown => return Ok(Flow::End),
            };
            if self.apply(effects) == Flow::End {
                return Ok(Flow::End);
            }
        }
    }

    /// Takes in what the agent said; true when nothing more will come. Who is expected is let in at once: its introduction may be
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

    /// Reads everything that has arrived, on connections known and new.
    fn read_all(&mut self) -> io::Result<Flow> {
        if self.accept()? == Flow::End {
            return Ok(Flow::End);
        }
        let ids: Vec<_> = self.state.connections.keys().copied().collect();
        for id in ids {
            if self.read(id, SYNC_BYTES) == Flow::End {
                return Ok(Flow::End);
            }
        }
        Ok(Flow::On)
    }

    fn read(&mut self, id: ConnectionId, budget: usize) -> Flow {
        if !self.state.roster.is_member(id) {
            self.fetch_commands();
        }
        let mut left = budget;
        loop {
            let Some(connection) = self.state.connections.get_mut(&id) else { return Flow::On };
            // A piece at a time, so that messages do not pile up unread in the buffer.
            let (read, stop) = connection.read(left.min(TURN_BYTES));
            left -= read.min(left);
            if self.messages(id) == Flow::End {
                return Flow::End;
            }
            match stop {
                Stop::Empty => return Flow::On,
                Stop::Budget if left > 0 => {}
                Stop::Budget => {
                    self.state.unread.push_back(id);
                    return Flow::On;
                }
                Stop::Closed(error) => {
                    let cut = self.state.connections.get(&id).is_some_and(|connection| connection.pending() > 0);
                    let error = error.or_else(|| cut.then(|| "the connection ended within a frame".into()));
                    return self.closed(id, error);
                }
            }
        }
    }

    fn messages(&mut self, id: ConnectionId) -> Flow {
        loop {
            let stranger = !self.state.roster.is_member(id);
            let Some(connection) = self.state.connections.get_mut(&id) else { return Flow::On };
            let effects = match connection.message(stranger) {
                Ok(None) => return Flow::On,
                Ok(Some(message)) => self.state.roster.on_message(id, message),
                Err(error) => return self.closed(id, Some(error)),
            };
            if self.apply(effects) == Flow::End {
                return Flow::End;
            }
        }
    }

    fn flush(&mut self, id: ConnectionId) -> Flow {
        let outcome = self.state.connections.get_mut(&id).map(Connection::flush);
        match outcome {
            Some(Err(error)) => self.closed(id, Some(error)),
            _ => Flow::On,
        }
    }

    fn closed(&mut self, id: ConnectionId, error: Option<String>) -> Flow {
        if self.state.connections.remove(&id).is_none() {
            return Flow::On;
        }
        let effects = self.state.roster.on_closed(id, error);
        self.apply(effects)
    }

    fn apply(&mut self, effects: Vec<Effect>) -> Flow {
        for effect in effects {
            let flow = match effect {
                Effect::Send(id, message) => {
                    let queued = self.state.connections.get_mut(&id).map(|connection| connection.queue(&message));
                    match queued {
                        Some(Err(error)) => self.closed(id, Some(error)),
                        _ => self.flush(id),
                    }
                }
                Effect::Close(id) => {
                    // Dropping the stream closes it and takes it out of the poll set.
                    self.state.connections.remove(&id);
                    Flow::On
                }
                Effect::Emit(event) => self.emit(event),
            };
            if flow == Flow::End {
                return Flow::End;
            }
        }
        Flow::On
    }

    fn emit(&self, event: BrokerEvent) -> Flow {
        if self.events.send(event).is_err() {
            return Flow::End;
        }
        // The counter saturates long after the agent has been woken; a full one is as good as one more.
        let _full = self.wake.write(1);
        Flow::On
    }
}
