//! A key-value store that speaks the wire protocol of c10d's TCPStore, so that libtorch's own clients (ours through
//! `worker::comm`, and PyTorch's) can share it.
//!
//! Four parts: [`protocol`] turns bytes into requests and does no I/O; [`reply`] turns replies into bytes; [`table`] is the
//! pure state (values, queues, waiters); [`server`] moves bytes between sockets and the table on a thread of
//! its own. A client can only harm itself: a client that breaks the protocol or a limit is closed with a reason in the log.
//!
//! **Invariant:** the store never trusts a length it read, never blocks on a client, and holds at most [`Limits::store_bytes_max`] of
//! values and waits and [`Limits::buffers_bytes_max`] of replies and requests, over all clients, measured by their memory.

mod allow_list;
mod clients;
mod connection;
mod error;
mod handle;
mod holder;
mod listener;
pub mod protocol;
pub mod reply;
mod server;
pub mod table;

pub use allow_list::PeerPolicy;
pub use error::StoreError;
pub use handle::{ForeignConnection, ForeignHandler, Options, StoreHandle};
pub use holder::Holder;
pub use listener::listen;
pub use server::{serve, serve_on};

use std::time::Duration;

/// Limits on clients and on memory. The first three are those of c10d's own server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub key_bytes_max: usize,
    pub value_bytes_max: usize,
    /// Limit on the keys of one check, wait, multi-get or multi-set.
    pub keys_per_request_max: usize,
    /// Bytes of one request, with all its keys and values.
    pub request_bytes_max: usize,
    pub reply_bytes_max: usize,
    /// Bytes of replies that a client may leave unread before its requests are no longer read.
    pub unread_bytes_max: usize,
    /// Bytes of all unread replies and unfinished requests; beyond them, large ones wait, and in the end the largest client is closed.
    pub buffers_bytes_max: usize,
    /// Memory of all keys, values and waits in bytes; the client whose request would exceed it is closed.
    pub store_bytes_max: usize,
    /// Connections at a time; further ones are closed when accepted.
    pub clients_max: usize,
    /// Connections without a handshake at a time; beyond them, one that has had its second for it is closed.
    pub silent_max: usize,
    /// Time within which a new connection must send the handshake.
    pub handshake_timeout: Duration,
    /// Time for which a client may leave replies unread without accepting a single byte.
    pub stall_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            key_bytes_max: 8 << 10,
            value_bytes_max: 8 << 20,
            keys_per_request_max: 128 << 10,
            request_bytes_max: 64 << 20,
            reply_bytes_max: 64 << 20,
            unread_bytes_max: 1 << 20,
            buffers_bytes_max: 256 << 20,
            store_bytes_max: 1 << 30,
            clients_max: 65_536,
            silent_max: 16_384,
            handshake_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(60),
        }
    }
}
