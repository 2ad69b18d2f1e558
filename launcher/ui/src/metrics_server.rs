//! Answers `GET /metrics`: one thread, small limits, nothing else of HTTP.
//!
//! **Invariant:** whatever a client does, it costs a bounded amount of memory for a bounded time, and no other client and
//! no run waits for it. The metrics contain only what the events record.

use super::{error::MetricsError, model::RunView, openmetrics};
use enn_common::{
    descriptors::{self, Reserve},
    event::Event,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::{
    io::{self, PipeReader, PipeWriter, Read, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

mod http;

/// Maximum number of connections; beyond it, an idle one is closed for a new one.
const CONNECTIONS_MAX: usize = 64;
/// Time that every client has for its request before it may be closed for another one.
const ASK_SOON: Duration = Duration::from_millis(250);
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Maximum length of a request, bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Longest time for a request and its response.
const CONNECTION_MAX: Duration = Duration::from_secs(5);

/// Parses `[HOST:]PORT`. Without a host the address is the loopback address, so that the network sees nothing by default.
///
/// # Errors
/// It is neither a port nor an address with one.
pub fn address(text: &str) -> Result<SocketAddr, MetricsError> {
    let port = text.strip_prefix(':').unwrap_or(text).parse::<u16>();
    let address = match text.rsplit_once(':') {
        Some(("localhost", port)) => port.parse().ok().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        _ => text.parse().ok(),
    };
    let loopback = port.ok().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    loopback.or(address).ok_or_else(|| MetricsError::Address { text: text.to_owned() })
}

/// The metrics server, which ends when this is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    view: Arc<Mutex<RunView>>,
    address: SocketAddr,
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Listens on `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// The address is taken or not of this host.
    pub fn start(address: SocketAddr) -> Result<Self, MetricsError> {
        let listen = |source| MetricsError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let (stopped, stop) = io::pipe().map_err(listen)?;
        let view = Arc::new(Mutex::new(RunView::default()));
        let server = Server {
            listener,
            stopped,
            view: Arc::clone(&view),
            connections: Vec::new(),
            reserve: Reserve::new(),
            accept_at: None,
        };
        let thread = std::thread::Builder::new().name("enn-metrics".into()).spawn(move || server.run());
        Ok(Self { view, address, stop: Some(stop), thread: Some(thread.map_err(listen)?) })
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the view before the first event: that of a resumed run's journal.
    pub(super) fn set(&self, view: &RunView) {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone_from(view);
    }

    /// Adds an event to the view that is served.
    pub(super) fn event(&self, event: &Event) {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).apply(event);
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

struct Server {
    listener: TcpListener,
    stopped: PipeReader,
    view: Arc<Mutex<RunView>>,
    /// Connections in the order in which they were accepted.
    connections: Vec<Connection>,
    reserve: Reserve,
    /// When to accept again after it failed, or there was no room.
    accept_at: Option<Instant>,
}

/// A connection of a client.
struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    /// The bytes still to be sent; `None` before the request is complete.
    reply: Option<Vec<u8>>,
    /// Whether the response is sent. Further input is discarded, so that closing does not cut the response off.
    answered: bool,
    until: Instant,
}

impl Server {
    fn run(mut self) {
        loop {
            let Ok(stop) = self.wait() else { return };
            if stop {
                return;
            }
            self.accept();
            let now = Instant::now();
            let view = &self.view;
            self.connections.retain_mut(|connection| now < connection.until && connection.step(view).unwrap_or(false));
        }
    }

    /// Waits until there is something to do, and returns whether to stop.
    fn wait(&self) -> nix::Result<bool> {
        let listen = if self.accept_at.is_some() { PollFlags::empty() } else { PollFlags::POLLIN };
        let mut fds =
            vec![PollFd::new(self.stopped.as_fd(), PollFlags::POLLIN), PollFd::new(self.listener.as_fd(), listen)];
        fds.extend(self.connections.iter().map(|connection| {
            let wanted = if connection.reply.is_some() { PollFlags::POLLOUT } else { PollFlags::POLLIN };
            PollFd::new(connection.stream.as_fd(), wanted)
        }));
        let next = self.connections.iter().map(|connection| connection.until).chain(self.accept_at).min();
        let timeout = next.map_or(PollTimeout::NONE, |until| {
            // A millisecond more: a deadline that is not quite there must not spin.
            let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        });
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
        Ok(fds[0].any().unwrap_or(true))
    }

    fn accept(&mut self) {
        let now = Instant::now();
        if self.accept_at.is_some_and(|at| now < at) {
            return;
        }
        self.accept_at = None;
        loop {
            if self.connections.len() >= CONNECTIONS_MAX && !self.evict(now) {
                self.accept_at = Some(now + ACCEPT_REST);
                return;
            }
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_ok() {
                        let until = now + CONNECTION_MAX;
                        let request = Vec::new();
                        self.connections.push(Connection { stream, request, reply: None, answered: false, until });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {
                }
                Err(error) => {
                    let exhausted = descriptors::are_exhausted(&error);
                    if !exhausted || !(self.evict(now) || self.reserve.refuse(|| self.listener.accept())) {
                        self.accept_at = Some(now + ACCEPT_REST);
                        return;
                    }
                }
            }
        }
    }

    /// Closes the oldest connection whose client sent no request in time, or has its response. Returns whether there
    /// was one.
    fn evict(&mut self, now: Instant) -> bool {
        let idle = |connection: &Connection| {
            connection.reply.is_none() && connection.until.saturating_duration_since(now) + ASK_SOON <= CONNECTION_MAX
        };
        self.connections.iter().position(idle).map(|at| self.connections.remove(at)).is_some()
    }
}

impl Connection {
    /// Reads and writes as far as possible without waiting, and returns whether the connection stays open.
    fn step(&mut self, view: &Mutex<RunView>) -> io::Result<bool> {
        if self.reply.is_none() && !self.read()? {
            return Ok(false);
        }
        if self.reply.is_none()
            && !self.answered
            && let Some(answer) = http::answer(&self.request, REQUEST_BYTES_MAX)
        {
            let body = || {
                let view = view.lock().unwrap_or_else(PoisonError::into_inner);
                // The launcher that asks lives.
                openmetrics::text(&view, true)
            };
            self.reply = Some(answer.bytes(body));
            self.request = Vec::new();
        }
        self.write()?;
        Ok(true)
    }

    /// Reads available bytes; returns false at the end of the stream.
    fn read(&mut self) -> io::Result<bool> {
        let mut block = [0; 2048];
        loop {
            match self.stream.read(&mut block) {
                Ok(0) => return Ok(false),
                Ok(_) if self.answered => {}
                Ok(count) => self.request.extend_from_slice(&block[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.request.len() > REQUEST_BYTES_MAX {
                return Ok(true);
            }
            if self.answered {
                // One block at a time: a client that sends without end must not keep the thread.
                return Ok(true);
            }
        }
    }

    fn write(&mut self) -> io::Result<()> {
        while let Some(reply) = &mut self.reply {
            match self.stream.write(reply) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => drop(reply.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if reply.is_empty() {
                self.reply = None;
                self.answered = true;
                self.stream.shutdown(std::net::Shutdown::Write)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
