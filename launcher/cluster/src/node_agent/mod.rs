//! The node agent: the only owner of the processes of a node.
//!
//! `state` decides: a pure machine that obeys the leader and has few rules of its own.

pub mod effect;
pub mod input;
pub mod settings;
pub mod state;
