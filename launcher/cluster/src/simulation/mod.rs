//! The three machines of a run in virtual time: the real membership, supervisor and node states, with simulated processes, network and disk,
//! under every fault. A seed is a run with its faults; one that violates what must hold is shrunk to a short list of faults.
//!
//! `ENN_SEED=N` runs one seed and prints its trace where it fails, `ENN_TRACE=1` also where it does not, and `ENN_SIMULATION_SEEDS=N`
//! runs more or fewer seeds.

mod agents;
mod broker;
mod cures;
mod disk;
mod faults;
mod given_up_workers;
mod groups;
mod invariants;
mod leader_services;
mod links;
mod liveness;
mod processes;
mod programs;
mod random;
mod run_plan;
mod scenarios;
mod scripts;
mod seeds;
mod shrink;
mod sick_devices;
mod trace;
mod world;
