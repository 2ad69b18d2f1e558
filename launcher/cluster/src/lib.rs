//! Workers of one run over many nodes.
//!
//! `supervise` runs ENN's own workers and any programs: `supervisor` decides, `node_agent` owns the processes of a node, and `leader` the
//! run directory; `rendezvous` decides who is in and who leads; `slurm` says where an allocation's nodes meet.

pub mod leader;
pub mod node_agent;
pub mod rendezvous;
#[cfg(test)]
mod simulation;
pub mod slurm;
pub mod supervise;
pub mod supervisor;
pub mod transport;
