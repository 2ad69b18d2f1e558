//! Acceptance: connections are taken from the kernel in bounded numbers, and closed when there is no room.

use super::{ClientConnection, StoreServer, Violation};
use crate::tcpstore::{connection::End, table::ClientId};
use enn_common::descriptors;
use mio::{Interest, Token, net::TcpStream};
use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    time::{Duration, Instant},
};

/// Time that every client has for its handshake, even when there are many.
const HANDSHAKE_SOON: Duration = Duration::from_secs(1);

impl StoreServer {
    pub(super) fn accept(&mut self, max: usize, now: Instant) {
        let mut left = max;
        for at in 0..self.listen_sockets.len() {
            while self.listen_sockets[at].pending && left > 0 {
                match self.listen_sockets[at].listener.accept() {
                    Ok((stream, peer)) => {
                        left -= 1;
                        if let Err(error) = self.admit(stream, peer, now) {
                            tracing::warn!(%peer, %error, "the store could not admit a client");
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => self.listen_sockets[at].pending = false,
                    Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                    Err(error) => self.not_accepted(at, &error),
                }
            }
        }
    }

    /// Handles a failed accept, mostly for lack of descriptors. A client without a handshake is closed to make room; else the new
    /// connection is closed rather than left waiting, so that its client notices.
    fn not_accepted(&mut self, at: usize, error: &io::Error) {
        if descriptors::are_exhausted(error) {
            if let Some(silent) = self.silent_client(Instant::now()) {
                self.close(silent, End::Violation(Violation::Slow { what: "sent no handshake while others waited" }));
                return;
            }
            let Self { listen_sockets, reserve, .. } = &mut *self;
            if reserve.refuse(|| listen_sockets[at].listener.accept()) {
                self.report_crowd();
                return;
            }
        }
        self.report_crowd();
        tracing::warn!(%error, "the store could not accept; it tries again");
        self.listen_sockets[at].pending = false;
        self.accept_again = true;
        self.watching = true;
    }

    /// Returns the oldest client without a handshake, if it has had `HANDSHAKE_SOON` for it.
    fn silent_client(&mut self, now: Instant) -> Option<ClientId> {
        let client = *self.silent.first_key_value()?.1;
        let accepted_at = self.clients.get_mut(client)?.accepted_at;
        (now.saturating_duration_since(accepted_at) >= HANDSHAKE_SOON).then_some(client)
    }

    /// Makes room for another client without a handshake; returns whether there is room.
    fn make_room(&mut self, now: Instant) -> bool {
        let full = self.clients.len() >= self.clients_max;
        if !full && self.silent.len() < self.silent_max {
            return true;
        }
        let Some(silent) = self.silent_client(now) else { return false };
        self.close(silent, End::Violation(Violation::Slow { what: "sent no handshake while others waited" }));
        true
    }

    fn report_crowd(&mut self) {
        if !self.crowd_reported {
            self.crowd_reported = true;
            let violation = Violation::Crowded { max: self.clients.len(), open_files: self.open_files };
            tracing::error!(%violation, "the store turns clients away");
        }
    }

    fn admit(&mut self, mut stream: TcpStream, peer: SocketAddr, now: Instant) -> io::Result<()> {
        if !self.make_room(now) {
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
        self.serial += 1;
        self.silent.insert(self.serial, client);
        self.clients.put(client, Box::new(ClientConnection::new(stream, peer, self.serial, self.limits, now)));
        self.watching = true;
        Ok(())
    }
}
