//! The ProcessBroker: the server the workers of one node talk to, and a store that speaks c10d's TCPStore protocol.
//!
//! ```text
//! worker ──frames──► connection ─► roster (pure) ─► BrokerEvent ──channel + eventfd──► the agent
//! worker ◄─frames─── connection ◄─ roster (pure) ◄─ Command ─────channel + waker───── the agent
//! ```
//! `server` owns sockets and the thread; `roster` decides and does no I/O. `tcpstore` is a server of its own.
//!
//! **Invariant:** a worker is trusted only after peer credentials, protocol and round fit; one that misbehaves loses its
//! own connection and nothing else.

mod connection;
mod error;
mod event;
mod handle;
pub mod roster;
mod server;
mod socket_directory;
pub mod tcpstore;

pub use error::BrokerError;
pub use event::{BrokerEvent, Command, RoundPlan};
pub use handle::Broker;
pub use socket_directory::CONTROL_SOCKET;
