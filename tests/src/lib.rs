//! The outside world in miniature: programs under `bin/` that stand in for workers and clients, integration tests under
//! `tests/`, checks against PyTorch under `conformance/`, measurements under `bench/`. The library holds what they share.

pub mod agent;
pub mod artifact;
pub mod blocks;
pub mod crash;
pub mod data;
pub mod fixture;
pub mod frozen;
pub mod launch;
pub mod leavings;
pub mod network;
pub mod nodes;
pub mod pages;
pub mod scripts;
pub mod terminal;
pub mod training;
