//! Sockets to table and back, on one thread of its own. The only part of the store that does I/O.
//!
//! Every client gets a bounded turn, so that none keeps the others waiting; a client that does not read its replies is no
//! longer read from, and closed in the end.

use super::{
    Limits, StoreError,
    connection::{Connection, End, Received},
    table::{ClientId, Table},
};
use mio::{
    Events, Interest, Poll, Token, Waker,
    net::{TcpListener, TcpStream},
};
use std::{
    collections::{HashMap, VecDeque},
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
const FIRST_CLIENT: ClientId = 2;

/// Events taken from the kernel at a time.
const EVENTS_MAX: usize = 1024;
/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;
/// Bytes read from one client before the others get their turn.
const TURN_BYTES_MAX: usize = 1 << 20;
/// How often clients whose time can run out are looked at; the thread sleeps without limit when there are none.
const SWEEP_PERIOD: Duration = Duration::from_secs(1);

/// A running store. Dropping it closes every connection and ends the thread.
#[derive(Debug)]
pub struct StoreHandle {
    addr: SocketAddr,
    waker: Arc<Waker>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl StoreHandle {
    /// The address it is bound to, with the port that was taken when 0 was asked for.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Waking fails only when the poll is gone, and then the thread is too.
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Binds `bind` (port 0 takes a free one) and serves it on a new thread. When this returns, clients can connect.
pub fn serve(bind: SocketAddr, limits: Limits) -> Result<StoreHandle, StoreError> {
    let start = |what| move |source| StoreError::Start { what, source };
    let mut listener = TcpListener::bind(bind).map_err(|source| StoreError::Bind { addr: bind, source })?;
    let addr = listener.local_addr().map_err(|source| StoreError::Bind { addr: bind, source })?;
    let poll = Poll::new().map_err(start("poll"))?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE).map_err(start("poll"))?;
    let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(start("waker"))?);
    let stop = Arc::new(AtomicBool::new(false));
    let server = Server {
        poll,
        listener,
        limits,
        stop: Arc::clone(&stop),
        table: Table::new(limits),
        connections: HashMap::new(),
        next_client: FIRST_CLIENT,
        runnable: VecDeque::new(),
        woken: Vec::new(),
        scratch: vec![0; READ_BYTES],
        watching: false,
        accept_again: false,
    };
    let thread =
        thread::Builder::new().name("enn-store".into()).spawn(move || server.run()).map_err(start("thread"))?;
    Ok(StoreHandle { addr, waker, stop, thread: Some(thread) })
}

struct Server {
    poll: Poll,
    listener: TcpListener,
    limits: Limits,
    stop: Arc<AtomicBool>,
    table: Table,
    connections: HashMap<ClientId, Box<Connection>>,
    next_client: ClientId,
    /// Clients with an event, or whose turn ended before their bytes did.
    runnable: VecDeque<ClientId>,
    /// Clients that were told something by another one's request.
    woken: Vec<ClientId>,
    scratch: Vec<u8>,
    /// Some client's time can run out, or accepting must be tried again.
    watching: bool,
    accept_again: bool,
}

impl Server {
    fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let mut swept_at = Instant::now();
        while !self.stop.load(Ordering::Acquire) {
            let timeout = match (self.runnable.is_empty(), self.watching) {
                (false, _) => Some(Duration::ZERO),
                (true, true) => Some(SWEEP_PERIOD),
                (true, false) => None,
            };
            if let Err(error) = self.poll.poll(&mut events, timeout) {
                if error.kind() == ErrorKind::Interrupted {
                    continue;
                }
                tracing::error!(%error, "the store cannot poll its sockets and ends");
                return;
            }
            let now = Instant::now();
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(now),
                    WAKER => {}
                    Token(client) => self.runnable.push_back(client as ClientId),
                }
            }
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

    fn accept(&mut self, now: Instant) {
        self.accept_again = false;
        loop {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    if let Err(error) = self.admit(stream, peer, now) {
                        tracing::warn!(%peer, %error, "the store could not admit a client");
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(error) => {
                    // Out of descriptors, most likely: the listener stays readable without a new event.
                    tracing::warn!(%error, "the store could not accept; it tries again");
                    self.accept_again = true;
                    self.watching = true;
                    return;
                }
            }
        }
    }

    fn admit(&mut self, mut stream: TcpStream, peer: SocketAddr, now: Instant) -> io::Result<()> {
        if self.connections.len() >= self.limits.clients_max {
            return Err(io::Error::other("too many clients"));
        }
        stream.set_nodelay(true)?;
        let client = self.next_client;
        let token = usize::try_from(client).map_err(io::Error::other)?;
        self.poll.registry().register(&mut stream, Token(token), Interest::READABLE | Interest::WRITABLE)?;
        self.next_client += 1;
        self.connections.insert(client, Box::new(Connection::new(stream, peer, self.limits, now)));
        self.watching = true;
        Ok(())
    }

    /// Serves what `client` sent, within its turn, and sends what others have to be told because of it.
    fn turn(&mut self, client: ClientId, now: Instant) {
        // Out of the map while it is served, so that replies to others can go into theirs.
        let Some(mut connection) = self.connections.remove(&client) else { return };
        match self.serve(client, &mut connection, now) {
            Ok(more) => {
                self.watching |= connection.is_watched();
                self.connections.insert(client, connection);
                if more {
                    self.runnable.push_back(client);
                }
            }
            Err(end) => self.close(client, connection, &end),
        }
        while let Some(other) = self.woken.pop() {
            self.flush(other, now);
        }
    }

    /// Whether the turn ended before the client's bytes did.
    fn serve(&mut self, client: ClientId, connection: &mut Connection, now: Instant) -> Result<bool, End> {
        let mut taken = 0;
        loop {
            loop {
                if connection.pending() > self.limits.reply_bytes_max {
                    connection.flush(now)?;
                    if connection.pending() > self.limits.reply_bytes_max {
                        return Ok(false);
                    }
                }
                let Some(request) = connection.parser.next_request()? else { break };
                let (connections, woken, out) = (&mut self.connections, &mut self.woken, &mut connection.out);
                self.table.apply(client, request, &mut |told, reply| {
                    if told == client {
                        reply.encode(out);
                    } else if let Some(other) = connections.get_mut(&told) {
                        reply.encode(&mut other.out);
                        woken.push(told);
                    }
                })?;
            }
            if taken >= TURN_BYTES_MAX {
                connection.flush(now)?;
                return Ok(true);
            }
            match connection.receive(&mut self.scratch)? {
                Received::Bytes(bytes) => taken += bytes,
                Received::NothingYet => {
                    connection.flush(now)?;
                    return Ok(false);
                }
            }
        }
    }

    fn flush(&mut self, client: ClientId, now: Instant) {
        let Some(connection) = self.connections.get_mut(&client) else { return };
        match connection.flush(now) {
            Ok(()) => self.watching |= connection.is_watched(),
            Err(end) => {
                if let Some(connection) = self.connections.remove(&client) {
                    self.close(client, connection, &end);
                }
            }
        }
    }

    fn close(&mut self, client: ClientId, mut connection: Box<Connection>, end: &End) {
        match end {
            End::Gone => tracing::debug!(peer = %connection.peer, "a client left the store"),
            End::Violation(violation) => {
                tracing::warn!(peer = %connection.peer, %violation, "the store closed a client");
            }
        }
        self.table.forget(client);
        // The descriptor is closed by the drop, which removes it from the poll as well.
        let _ = self.poll.registry().deregister(&mut connection.stream);
    }

    fn sweep(&mut self, now: Instant) {
        let overdue: Vec<_> = self
            .connections
            .iter()
            .filter_map(|(client, connection)| Some((*client, connection.overdue(&self.limits, now)?)))
            .collect();
        for (client, violation) in overdue {
            if let Some(connection) = self.connections.remove(&client) {
                self.close(client, connection, &End::Violation(violation));
            }
        }
        if self.accept_again {
            self.accept(now);
        }
        self.watching = self.accept_again || self.connections.values().any(|connection| connection.is_watched());
    }
}

#[cfg(test)]
mod tests;
