//! Membership of a run: nodes discover the leader, form rounds, and detect the loss of each other.

mod authentication;
mod coordinator;
mod decide;
mod decision;
pub(crate) mod discovery;
mod endpoint;
mod error;
mod follower;
mod frame_connection;
mod handle;
mod leader_connection;
mod member_thread;
mod node_loss;
mod notification;
mod partition;
mod peer_sessions;
mod settings;
mod state;
mod unread_messages;

pub use error::RendezvousError;
pub use handle::Rendezvous;
pub use notification::{Member, NodeId, Notification, RendezvousInfo, RoundEnd, RunEnd};
pub use settings::{Settings, StoreLocation, Token, TokenSource};

#[cfg(test)]
pub(crate) use settings::tests::settings as settings_for_tests;

/// Time since the rendezvous was opened.
type Elapsed = std::time::Duration;

#[cfg(test)]
#[path = "../simulation/membership.rs"]
pub(crate) mod simulated;
#[cfg(test)]
mod tests;
