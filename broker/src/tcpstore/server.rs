//! Transfer between sockets and table, on one thread of its own. The only part of the store that does I/O.
//!
//! Every client gets a bounded turn, so that none keeps the others waiting; a client that does not read its replies is no
//! longer read from, and closed in the end.

use super::{
    ForeignConnection, ForeignHandler, Limits, Options, StoreError, StoreHandle,
    allow_list::{Admission, AllowList},
    clients::Clients,
    connection::{ClientConnection, End},
    error::Violation,
    handle::{StoreCommand, StoreLink},
    listener::{ListenSocket, listener},
    protocol::VALIDATE,
    table::{ClientId, Table},
};
use crossbeam_channel::{Receiver, unbounded};
use enn_common::descriptors::{self, Capacity, Reserve};
use mio::{Events, Interest, Poll, Token, Waker, net::TcpListener};
use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, ErrorKind},
    mem,
    net::{self, IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const WAKER: Token = Token(usize::MAX);
/// Listener tokens count down from here; client tokens count up from 0.
const FIRST_LISTENER: usize = usize::MAX - 1;

const EVENTS_MAX: usize = 1024;
const READ_BYTES: usize = 64 << 10;
/// Limits on one client's turn: bytes read, and work on requests in bytes.
const TURN_BYTES_MAX: usize = 128 << 10;
const TURN_WORK_MAX: usize = 256 << 10;
/// Bytes of replies and of an unfinished request that every client may have, however much others have.
const SMALL_BYTES: usize = 16 << 10;
/// Time that a client waits for memory until the largest client is closed, and the period of the retries.
const STARVED_MAX: Duration = Duration::from_secs(2);
const STARVED_PERIOD: Duration = Duration::from_millis(20);
/// Work of a request besides the bytes that it has and gives.
const REQUEST_WORK: usize = 64;
/// Connections accepted before the existing ones are served.
const ACCEPTS_PER_TURN: usize = 256;
/// Connections accepted for a clear: more than the kernel's backlog holds.
const ACCEPTS_PER_CLEAR: usize = 16 << 10;
/// Period of the timeout checks; the thread sleeps without limit when no timeout applies.
const SWEEP_PERIOD: Duration = Duration::from_secs(1);

/// Binds `bind` (port 0 takes a free one) and serves it on a new thread, to every client that connects. When this returns,
/// clients can connect.
pub fn serve(bind: SocketAddr, limits: Limits) -> Result<StoreHandle, StoreError> {
    let options = Options { limits, peers: super::PeerPolicy::Open, foreign_handler: None };
    serve_on(vec![listener(bind)?], options)
}

/// Serves `listeners`, which are bound already ([`super::listen`]), on a new thread.
pub fn serve_on(listeners: Vec<net::TcpListener>, options: Options) -> Result<StoreHandle, StoreError> {
    let start = |what| move |source| StoreError::Start { what, source };
    let first = listeners.first().ok_or_else(|| start("listener")(io::Error::from(ErrorKind::InvalidInput)))?;
    let addr = first.local_addr().map_err(start("listener"))?;
    let poll = Poll::new().map_err(start("poll"))?;
    let mut listen_sockets = Vec::new();
    for (listener, token) in listeners.into_iter().zip((0..FIRST_LISTENER).rev()) {
        listener.set_nonblocking(true).map_err(start("listener"))?;
        let mut listener = TcpListener::from_std(listener);
        poll.registry().register(&mut listener, Token(token), Interest::READABLE).map_err(start("poll"))?;
        listen_sockets.push(ListenSocket { listener, token: Token(token), pending: false });
    }
    let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(start("waker"))?);
    let (commands, received) = unbounded();
    let seen = Arc::new(AtomicU64::new(0));
    let Options { limits, peers, foreign_handler } = options;
    let Capacity { connections: clients_max, open_files } = descriptors::capacity(limits.clients_max);
    let server = StoreServer {
        poll,
        listen_sockets,
        limits,
        clients_max,
        open_files,
        // Clients without a handshake leave room for those with one.
        silent_max: limits.silent_max.min(clients_max.div_ceil(2)),
        silent: BTreeMap::new(),
        serial: 0,
        buffered: 0,
        reserve: Reserve::new(),
        commands: received,
        seen: Arc::clone(&seen),
        allow_list: AllowList::new(peers),
        foreign_handler,
        table: Table::new(limits),
        clients: Clients::default(),
        runnable: VecDeque::new(),
        starved: Vec::new(),
        woken: Vec::new(),
        scratch: vec![0; READ_BYTES],
        watching: false,
        accept_again: false,
        crowd_reported: false,
    };
    let thread =
        thread::Builder::new().name("enn-store".into()).spawn(move || server.run()).map_err(start("thread"))?;
    Ok(StoreHandle::new(addr, StoreLink { commands, waker, seen }, thread))
}

struct StoreServer {
    poll: Poll,
    listen_sockets: Vec<ListenSocket>,
    limits: Limits,
    clients_max: usize,
    open_files: Option<u64>,
    silent_max: usize,
    /// Clients without a handshake, by serial number (order of acceptance).
    silent: BTreeMap<u64, ClientId>,
    /// Number of connections so far.
    serial: u64,
    buffered: usize,
    reserve: Reserve,
    commands: Receiver<StoreCommand>,
    seen: Arc<AtomicU64>,
    allow_list: AllowList,
    foreign_handler: Option<ForeignHandler>,
    table: Table,
    clients: Clients,
    /// Clients with an event, or with bytes left at the end of their turn.
    runnable: VecDeque<ClientId>,
    /// Clients that wait for memory that others use.
    starved: Vec<ClientId>,
    /// Clients that received a reply because of another one's request.
    woken: Vec<ClientId>,
    scratch: Vec<u8>,
    /// Whether a client's timeout applies, or accepting must be tried again.
    watching: bool,
    /// Whether accepting failed and the sweep tries it again.
    accept_again: bool,
    crowd_reported: bool,
}

impl StoreServer {
    fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let mut swept_at = Instant::now();
        loop {
            let busy = !self.runnable.is_empty() || self.listen_sockets.iter().any(|socket| socket.pending);
            let timeout = match (busy, self.starved.is_empty(), self.watching) {
                (true, _, _) => Some(Duration::ZERO),
                (false, false, _) => Some(STARVED_PERIOD),
                (false, true, true) => Some(SWEEP_PERIOD),
                (false, true, false) => None,
            };
            if let Err(error) = self.poll.poll(&mut events, timeout) {
                if error.kind() == ErrorKind::Interrupted {
                    continue;
                }
                tracing::error!(%error, "the store cannot poll its sockets and ends");
                return;
            }
            let now = Instant::now();
            let mut commanded = false;
            for event in &events {
                match event.token() {
                    WAKER => commanded = true,
                    token => match self.listen_sockets.iter_mut().find(|socket| socket.token == token) {
                        Some(socket) => socket.pending = true,
                        None => {
                            let client = token.0 as ClientId;
                            if event.is_read_closed()
                                && let Some(connection) = self.clients.get_mut(client)
                            {
                                connection.closing = true;
                            }
                            self.runnable.push_back(client);
                        }
                    },
                }
            }
            // Commands run before any turn: bytes that a client sends after a command was given meet its effect.
            if commanded && !self.run_commands(now) {
                return;
            }
            self.accept(ACCEPTS_PER_TURN, now);
            self.retry_starved(now);
            for _ in 0..self.runnable.len() {
                if let Some(client) = self.runnable.pop_front() {
                    self.turn(client, now);
                }
            }
            if self.watching && now.duration_since(swept_at) >= SWEEP_PERIOD {
                swept_at = now;
                self.sweep(now);
            }
        }
    }

    /// Carries out the handle's commands; returns `false` to stop.
    fn run_commands(&mut self, now: Instant) -> bool {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                StoreCommand::Admit(ip) => self.allow_list.admit(ip),
                StoreCommand::Dismiss(ip) => self.dismiss(ip, now),
                StoreCommand::Clear(done) => {
                    self.clear(now);
                    let _ = done.send(());
                }
                StoreCommand::Stop => return false,
            }
        }
        true
    }

    fn dismiss(&mut self, ip: IpAddr, now: Instant) {
        self.allow_list.dismiss(ip);
        if self.allow_list.check(ip, now) == Admission::Admitted {
            return;
        }
        let from_ip =
            |connection: &ClientConnection| connection.c10d && connection.peer.ip().to_canonical() == ip.to_canonical();
        self.close_all(from_ip);
    }

    /// Ends the round: clients whose connection waits to be accepted, or to be read for the first time, belong to that round
    /// as well.
    fn clear(&mut self, now: Instant) {
        self.listen_sockets.iter_mut().for_each(|socket| socket.pending = true);
        self.accept(ACCEPTS_PER_CLEAR, now);
        let unread: Vec<_> = self.clients.iter().filter(|(_, c)| !c.c10d).map(|(client, _)| client).collect();
        for client in unread {
            self.turn(client, now);
        }
        // The table is replaced first, so that closing the clients searches nothing in it.
        self.table = Table::new(self.limits);
        self.close_all(|connection| connection.c10d);
        self.seen.store(0, Ordering::Release);
        self.crowd_reported = false;
    }

    fn close_all(&mut self, of: impl Fn(&ClientConnection) -> bool) {
        let gone: Vec<_> = self.clients.iter().filter(|(_, c)| of(c)).map(|(client, _)| client).collect();
        for client in gone {
            self.close(client, End::Over);
        }
    }

    /// Serves the bytes that `client` sent, within its turn, and flushes the replies to others that follow from them.
    fn turn(&mut self, client: ClientId, now: Instant) {
        // The connection is out of its slot while it is served, so that replies can be queued for others.
        let Some(mut connection) = self.clients.take(client) else { return };
        let mut scratch = mem::take(&mut self.scratch);
        let served = self.serve(client, &mut connection, &mut scratch, now);
        self.scratch = scratch;
        self.watching |= connection.is_watched();
        count_buffers(&mut self.buffered, &mut connection);
        self.clients.put(client, connection);
        match served {
            Ok(true) => self.runnable.push_back(client),
            Ok(false) => {}
            Err(end) => self.close(client, end),
        }
        while let Some(other) = self.woken.pop() {
            self.flush(other, now);
        }
    }

    /// Lets starved clients try again. When one has waited for too long, the largest client is closed.
    fn retry_starved(&mut self, now: Instant) {
        let starved = mem::take(&mut self.starved);
        let since = starved.iter().filter_map(|client| self.clients.get_mut(*client)?.starved_since).min();
        if since.is_some_and(|since| now.saturating_duration_since(since) >= STARVED_MAX) {
            self.close_largest(now);
        }
        self.runnable.extend(starved);
    }

    /// Closes the client with the largest buffers; clients that read nothing come first.
    fn close_largest(&mut self, now: Instant) {
        let largest =
            self.clients.iter().max_by_key(|(_, connection)| (connection.stalls(STARVED_MAX, now), connection.counted));
        if let Some((client, connection)) = largest {
            let found = connection.counted;
            let held = self.buffered;
            self.close(client, End::Violation(Violation::Buffers { found, held }));
        }
    }

    /// Returns whether a client may use `more` bytes of memory: small amounts always, larger ones within the common limit.
    fn has_room(&self, connection: &ClientConnection, more: usize) -> bool {
        let own = connection.buffered();
        let others = self.buffered - connection.counted;
        connection.pending() + connection.held.len() + more <= SMALL_BYTES
            || others + own + more <= self.limits.buffers_bytes_max
    }

    /// Serves one turn; returns whether the turn ended before the client's bytes did.
    fn serve(
        &mut self,
        client: ClientId,
        connection: &mut ClientConnection,
        scratch: &mut [u8],
        now: Instant,
    ) -> Result<bool, End> {
        let answered = self.serve_turn(client, connection, scratch, now)?;
        connection.flush(now)?;
        match answered {
            Answered::NoRoom => {
                connection.starved_since.get_or_insert(now);
                self.starved.push(client);
            }
            _ => connection.starved_since = None,
        }
        Ok(answered == Answered::Enough)
    }

    fn serve_turn(
        &mut self,
        client: ClientId,
        connection: &mut ClientConnection,
        scratch: &mut [u8],
        now: Instant,
    ) -> Result<Answered, End> {
        let mut turn = TurnCost::default();
        if !connection.held.is_empty() {
            let answered = self.answer(client, connection, &[], &mut turn, now)?;
            if answered != Answered::All {
                return Ok(answered);
            }
        }
        loop {
            if !connection.held.is_empty() && !self.has_room(connection, scratch.len()) {
                return Ok(Answered::NoRoom);
            }
            let bytes = match connection.receive(scratch) {
                Ok(Some(bytes)) => bytes,
                Ok(None) => break,
                Err(end) => {
                    // The client may have shut down one direction only and wait for replies.
                    let _ = connection.flush(now);
                    return Err(end);
                }
            };
            let fresh = &scratch[..bytes];
            if !connection.c10d {
                self.classify(connection, fresh, now)?;
            }
            let answered = self.answer(client, connection, fresh, &mut turn, now)?;
            if answered != Answered::All {
                return Ok(answered);
            }
            // A short read means that no more bytes are there: an event announces more, unless the end has come already.
            if bytes < scratch.len() && !connection.closing {
                break;
            }
            turn.bytes += bytes;
            if turn.bytes >= TURN_BYTES_MAX {
                return Ok(Answered::Enough);
            }
        }
        Ok(Answered::All)
    }

    /// Answers the requests in the held and the fresh bytes.
    fn answer(
        &mut self,
        client: ClientId,
        connection: &mut ClientConnection,
        fresh: &[u8],
        turn: &mut TurnCost,
        now: Instant,
    ) -> Result<Answered, End> {
        let mut held = mem::take(&mut connection.held);
        let mut input = fresh;
        if !held.is_empty() {
            held.extend_from_slice(fresh);
            input = &held;
        }
        let answered = self.answer_all(client, connection, &mut input, turn, now)?;
        let left = input.len();
        connection.hold(held, fresh, left);
        Ok(answered)
    }

    fn answer_all(
        &mut self,
        client: ClientId,
        connection: &mut ClientConnection,
        input: &mut &[u8],
        turn: &mut TurnCost,
        now: Instant,
    ) -> Result<Answered, End> {
        loop {
            if connection.pending() > self.limits.unread_bytes_max {
                connection.flush(now)?;
                if connection.pending() > self.limits.unread_bytes_max {
                    return Ok(Answered::Unread);
                }
            }
            if turn.work >= TURN_WORK_MAX {
                return Ok(Answered::Enough);
            }
            let new = !connection.parser.validated();
            let whole = *input;
            let request = connection.parser.next_request(input)?;
            if new && connection.parser.validated() {
                self.silent.remove(&connection.serial);
                self.seen.fetch_add(1, Ordering::AcqRel);
            }
            let Some(request) = request else { return Ok(Answered::All) };
            if !self.has_room(connection, self.table.reply_bytes(&request)) {
                // The request is read again when there is room.
                *input = whole;
                return Ok(Answered::NoRoom);
            }
            turn.work += REQUEST_WORK + whole.len() - input.len();
            let clients = &mut self.clients;
            let woken = &mut self.woken;
            let out = &mut connection.out;
            let replied = out.len();
            self.table.apply(client, request, &mut |recipient, reply| {
                turn.work += REQUEST_WORK;
                if recipient == client {
                    reply.encode(out);
                } else if let Some(other) = clients.get_mut(recipient) {
                    reply.encode(&mut other.out);
                    woken.push(recipient);
                }
            })?;
            turn.work += connection.out.len() - replied;
        }
    }

    /// Decides by the first byte whether a connection is a c10d client.
    fn classify(&mut self, connection: &mut ClientConnection, bytes: &[u8], now: Instant) -> Result<(), End> {
        if bytes.first() != Some(&VALIDATE) && self.foreign_handler.is_some() {
            return Err(End::Foreign(bytes.to_vec()));
        }
        connection.c10d = true;
        let ip = connection.peer.ip().to_canonical();
        match self.allow_list.check(ip, now) {
            Admission::Admitted => Ok(()),
            Admission::Refused { first: true } => Err(Violation::NotListed { ip }.into()),
            Admission::Refused { first: false } => Err(End::Unlisted),
        }
    }

    fn flush(&mut self, client: ClientId, now: Instant) {
        let Some(connection) = self.clients.get_mut(client) else { return };
        let flushed = connection.flush(now);
        count_buffers(&mut self.buffered, connection);
        match flushed {
            Ok(()) => self.watching |= connection.is_watched(),
            Err(end) => self.close(client, end),
        }
    }

    fn close(&mut self, client: ClientId, end: End) {
        let Some(mut connection) = self.clients.take(client) else { return };
        self.clients.release(client);
        self.silent.remove(&connection.serial);
        self.buffered -= connection.counted;
        self.table.forget(client);
        let _ = self.poll.registry().deregister(&mut connection.stream);
        let peer = connection.peer;
        match end {
            End::Gone | End::Over | End::Unlisted => tracing::debug!(%peer, "a client left the store"),
            End::Violation(violation) => tracing::warn!(%peer, %violation, "the store closed a client"),
            End::Foreign(bytes) => {
                if let Some(foreign_handler) = &self.foreign_handler {
                    foreign_handler(ForeignConnection { stream: connection.stream.into(), peer, bytes });
                }
            }
        }
    }

    fn sweep(&mut self, now: Instant) {
        let overdue: Vec<_> = self
            .clients
            .iter()
            .filter_map(|(client, connection)| Some((client, connection.overdue(&self.limits, now)?)))
            .collect();
        for (client, violation) in overdue {
            self.close(client, End::Violation(violation));
        }
        if self.accept_again {
            self.accept_again = false;
            self.listen_sockets.iter_mut().for_each(|socket| socket.pending = true);
        }
        self.watching = self.clients.iter().any(|(_, connection)| connection.is_watched());
    }
}

/// Cost of a client's turn so far.
#[derive(Debug, Default)]
struct TurnCost {
    bytes: usize,
    work: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answered {
    /// All whole requests are answered.
    All,
    /// The client must read replies first.
    Unread,
    /// Other clients are served first.
    Enough,
    /// Other clients must read replies first.
    NoRoom,
}

fn count_buffers(all: &mut usize, connection: &mut ClientConnection) {
    let now = connection.buffered();
    *all = *all - connection.counted + now;
    connection.counted = now;
}

mod accepting;
#[cfg(test)]
mod isolation_tests;
#[cfg(test)]
mod tests;
