//! Nodes meet, agree on rounds and learn of each other's end.

mod coordinator;
mod decide;
mod door;
mod endpoint;
mod error;
mod guest;
mod guests;
mod handle;
mod link;
mod member;
mod news;
mod pipe;
mod policy;
pub(crate) mod seek;
mod settings;
mod state;
mod unread;

pub use error::RendezvousError;
pub use handle::Rendezvous;
pub use news::{Member, News, NodeId, RoundEnd, RoundPlan, RunEnd};
pub use settings::{Place, Settings, Token, TokenSource};

#[cfg(test)]
pub(crate) use settings::tests::settings as settings_for_tests;

#[cfg(test)]
#[path = "../simulation/membership.rs"]
pub(crate) mod simulated;
#[cfg(test)]
mod tests;
