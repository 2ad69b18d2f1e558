//! Checkpoints and runs in object stores: s3://, gs://, az:// and file://, and directories by path.
//!
//! **Invariant:** what is at a place is a checkpoint if and only if its manifest is; the manifest is uploaded last and fetched
//! first. Credentials come from the environment and appear in no message.

mod error;
mod mirror;
mod outline;
mod pull;
mod push;
mod shelf;
mod store;
mod upload;

pub use error::RemoteError;
pub use mirror::{Goal, Mirror};
pub use outline::Outline;
pub use pull::{Pulled, list, pull};
pub use push::{Pushed, push, push_records, push_run};
pub use shelf::{Known, Shelf, keep};
pub use store::Store;

#[cfg(test)]
pub(crate) mod tests;
