//! How a round comes to the state that earlier rounds left with its ranks: no file is read.
//!
//! Imports `agree` and `progress` of the session, and of the crate `checkpoint`.

pub(crate) mod shard_recovery;
pub(crate) mod state_transfer;
