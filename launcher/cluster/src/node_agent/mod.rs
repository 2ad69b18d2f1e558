//! The node agent: the only owner of the processes of a node.

pub mod effect;
pub mod input;
