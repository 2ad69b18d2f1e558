//! Workers of one run over many nodes.
//!
//! `agent` keeps ENN's own workers alive and `group` any program's; `rendezvous` decides who is in and who leads; `slurm` says
//! where an allocation's nodes meet.

pub mod group;
pub mod leader;
pub mod node_agent;
pub mod rendezvous;
#[cfg(test)]
mod simulation;
pub mod slurm;
pub mod supervise;
pub mod supervisor;
pub mod transport;
