//! How much fits into memory: measured with a few rows, and watched while many are computed.
//!
//! Imports `error` and `report` of the session.

pub(crate) mod autobatch;
pub(crate) mod host_memory;
pub mod portion;
pub(crate) mod room;
