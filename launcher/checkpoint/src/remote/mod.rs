//! Checkpoints and runs in object stores: s3://, gs://, az:// and file://, and directories by path.
//!
//! **Invariant:** a prefix is a checkpoint if and only if it has a manifest; the manifest is uploaded last and fetched first. Credentials
//! come from the environment and appear in no message.

mod error;
mod mirror;
mod notes;
mod outline;
mod pull;
mod push;
mod remote_runs;
mod store;
mod upload;

pub use error::RemoteError;
pub use mirror::{Mirror, UploadTarget};
pub use outline::Outline;
pub use pull::{Pulled, list, pull};
pub use push::{Pushed, push, push_records, push_run};
pub use remote_runs::{KnownRuns, RemoteRuns, upload_run};
pub use store::Store;

#[cfg(test)]
mod tests;
