//! Errors when the store is started, and reasons for which a client was closed.

use super::holder::Holder;
use std::{
    io,
    net::{IpAddr, SocketAddr},
};
use thiserror::Error;

#[derive(Debug, Error)]
pub enum StoreError {
    #[error("failed to bind the store to {addr}: {source}\nhint: port 0 takes a free port")]
    Bind { addr: SocketAddr, source: io::Error },
    #[error("failed to bind the store to {addr}: the port is taken{}\nhint: end that program, take another port, or port 0 for a free one", held_by(.holder))]
    Taken {
        addr: SocketAddr,
        /// The process that listens, where the system reveals it.
        holder: Option<Holder>,
    },
    #[error(
        "failed to find an address of the host {host:?}: {source}\nhint: give an address, or a name this machine can resolve"
    )]
    Resolve { host: String, source: io::Error },
    #[error("the store has stopped")]
    Stopped,
    #[error("failed to start the store's {what}: {source}")]
    Start {
        /// "poll", "waker" or "thread".
        what: &'static str,
        source: io::Error,
    },
}

fn held_by(holder: &Option<Holder>) -> String {
    holder.as_ref().map_or_else(|| " by a process that this user cannot see".into(), |holder| format!(" by {holder}"))
}

fn raise(open_files: &Option<u64>) -> String {
    let hint =
        |files: &u64| format!(": this process may open {files} files\nhint: raise the limit, as with ulimit -n 65536");
    open_files.as_ref().map_or_else(String::new, hint)
}

/// Reasons for which the store closed a client.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Violation {
    #[error("the first byte is {code}, expected 0 (validate); this is no c10d client")]
    NotValidated { code: u8 },
    #[error("the handshake is {found:#010x}, expected 0x3c85f7ce; this is no c10d client")]
    Magic { found: u32 },
    #[error("request code {code} is unknown, expected 0 to 17")]
    Code { code: u8 },
    #[error("{what} of {found}, expected at most {max}")]
    TooMuch { what: &'static str, found: u64, max: u64 },
    /// ADD was asked on a value that is no decimal number, or the sum exceeds 64 bits.
    #[error("add {amount} to key {key:?}: its value is no 64-bit number with room for that")]
    Add { key: String, amount: i64 },
    #[error("the store holds {held} bytes of at most {max}: no room for {wanted} more")]
    Full { held: usize, max: usize, wanted: usize },
    #[error(
        "a c10d client from {ip} is not let in: no node of this run has that address\nhint: --store-open lets c10d clients in from everywhere"
    )]
    NotListed { ip: IpAddr },
    #[error("the store has {max} clients and takes no more{}", raise(.open_files))]
    Crowded {
        max: usize,
        /// The limit of open files, when that is the reason.
        open_files: Option<u64>,
    },
    /// Unread replies and unfinished requests take all the memory that they may, other clients wait for some, and this client uses most of it.
    #[error(
        "its unread replies and unfinished requests take {found} of {held} bytes that all clients may take, and others wait"
    )]
    Buffers { found: usize, held: usize },
    #[error("the client {what} for too long")]
    Slow { what: &'static str },
}
