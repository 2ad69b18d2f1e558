//! Checkpoints as a session makes and opens them: how this rank's share leaves it, and which model a committed one holds.
//!
//! Imports `error`, `report` and `clock` of the session, and of the crate `checkpoint`.

pub mod saved_model;
pub(crate) mod saver;
