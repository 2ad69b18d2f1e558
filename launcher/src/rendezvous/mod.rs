//! Nodes meet, agree on rounds and learn of each other's end.

mod coordinator;
mod decide;
mod error;
mod handle;
mod member;
mod news;
mod policy;
mod settings;
mod state;

pub use error::RendezvousError;
pub use handle::Rendezvous;
pub use news::{Member, News, RoundEnd, RoundPlan, RunEnd};
pub use settings::{Place, Settings, Token, TokenSource};

#[cfg(test)]
mod tests;
