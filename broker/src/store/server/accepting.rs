//! The way in: connections are taken from the kernel in bounded numbers, and turned away when there is no room.

use super::{Connection, Server, Violation};
use crate::store::Limits;
use mio::{
    Interest, Token,
    net::{TcpListener, TcpStream},
};
use nix::sys::resource::{Resource, getrlimit};
use std::{
    fs::File,
    io::{self, ErrorKind},
    net::SocketAddr,
    time::Instant,
};

/// Open files left to the rest of the process.
const FILES_LEFT: u64 = 64;
/// How many clients there may be, and the limit of open files when that is what decides.
pub(super) fn clients_max(limits: &Limits) -> (usize, Option<u64>) {
    let Ok((files, _)) = getrlimit(Resource::RLIMIT_NOFILE) else { return (limits.clients_max, None) };
    match usize::try_from(files.saturating_sub(FILES_LEFT)) {
        Ok(max) if max < limits.clients_max => (max, Some(files)),
        _ => (limits.clients_max, None),
    }
}

/// A descriptor to give away when there is no other, so that a connection can be accepted and closed.
pub(super) fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

/// A listener.
pub(super) struct Entrance {
    pub(super) listener: TcpListener,
    pub(super) token: Token,
    /// Connections may be waiting, for which no event will come.
    pub(super) pending: bool,
}

impl Server {
    /// Accepts at most `max` connections.
    pub(super) fn accept(&mut self, max: usize, now: Instant) {
        let mut left = max;
        for at in 0..self.entrances.len() {
            while self.entrances[at].pending && left > 0 {
                match self.entrances[at].listener.accept() {
                    Ok((stream, peer)) => {
                        left -= 1;
                        if let Err(error) = self.admit(stream, peer, now) {
                            tracing::warn!(%peer, %error, "the store could not admit a client");
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => self.entrances[at].pending = false,
                    Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                    Err(error) => self.not_accepted(at, &error),
                }
            }
        }
    }

    /// Out of descriptors, most likely. The connection is closed rather than left waiting, so that its client knows.
    fn not_accepted(&mut self, at: usize, error: &io::Error) {
        self.report_crowd();
        let given_away = self.spare.take().is_some();
        if given_away && self.entrances[at].listener.accept().is_ok() {
            self.spare = spare();
            return;
        }
        self.spare = spare();
        tracing::warn!(%error, "the store could not accept; it tries again");
        self.entrances[at].pending = false;
        self.accept_again = true;
        self.watching = true;
    }

    fn report_crowd(&mut self) {
        if !self.crowd_reported {
            self.crowd_reported = true;
            let violation = Violation::Crowded { max: self.clients.len(), open_files: self.open_files };
            tracing::error!(%violation, "the store turns clients away");
        }
    }

    fn admit(&mut self, mut stream: TcpStream, peer: SocketAddr, now: Instant) -> io::Result<()> {
        if self.clients.len() >= self.clients_max {
            self.report_crowd();
            return Ok(());
        }
        stream.set_nodelay(true)?;
        let client = self.clients.reserve().ok_or(ErrorKind::OutOfMemory)?;
        let token = Token(client as usize);
        if let Err(error) = self.poll.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE) {
            self.clients.release(client);
            return Err(error);
        }
        self.clients.put(client, Box::new(Connection::new(stream, peer, self.limits, now)));
        self.watching = true;
        Ok(())
    }
}
