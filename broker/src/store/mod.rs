//! A key-value store that speaks the wire protocol of c10d's TCPStore, so that libtorch's own clients (ours through
//! `worker::comm`, and PyTorch's) meet in it.
//!
//! Four parts: [`protocol`] turns bytes into requests and does no I/O; [`reply`] turns replies into bytes; [`table`] is the
//! pure state (values, queues, who waits for what); [`server`] moves bytes between sockets and the table on a thread of
//! its own. A client can only harm itself: what breaks the protocol or a limit is closed with a reason in the log.
//!
//! **Invariant:** the store never trusts a length it read, never blocks on a client, and holds at most [`Limits::store_bytes_max`] of
//! values and waits and [`Limits::buffers_bytes_max`] of replies and requests, of all clients together and by what they take in memory.

mod clients;
mod connection;
mod door;
mod error;
mod handle;
mod holder;
mod listener;
pub mod protocol;
pub mod reply;
mod server;
pub mod table;

pub use door::Door;
pub use error::StoreError;
pub use handle::{Options, StoreHandle, Stranger, Strangers};
pub use holder::Holder;
pub use listener::listen;
pub use server::{serve, serve_on};

use std::time::Duration;

/// What a client may ask of the store. The first three are those of c10d's own server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a key.
    pub key_bytes_max: usize,
    /// Bytes of a value.
    pub value_bytes_max: usize,
    /// Keys of one check, wait, multi-get or multi-set.
    pub keys_per_request_max: usize,
    /// Bytes of one request, all its keys and values together.
    pub request_bytes_max: usize,
    /// Bytes of a reply.
    pub reply_bytes_max: usize,
    /// Bytes of replies a client may leave unread before its requests are no longer read.
    pub unread_bytes_max: usize,
    /// Bytes of all unread replies and unfinished requests; beyond them, large ones wait, and in the end the client that has most is closed.
    pub buffers_bytes_max: usize,
    /// Bytes of all keys, values and waits, by what they take in memory; the client whose request would exceed it is closed.
    pub store_bytes_max: usize,
    /// Connections at a time; further ones are closed when accepted.
    pub clients_max: usize,
    /// Connections that have not said the magic number, at a time; beyond them, one that had the time to is closed.
    pub silent_max: usize,
    /// Time a new connection has to say the protocol's magic number.
    pub handshake_timeout: Duration,
    /// Time a client may leave replies unread without taking a single byte.
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
