//! What crosses a process or disk boundary, and nothing else: configuration, messages, staged arrays, checkpoints,
//! manifests, events. Both ends of each format live here.
//!
//! **Invariant:** no libtorch, no sockets opened, no environment read, no clock, but for [`panics`]. Formats (`staged`, `checkpoint`,
//! `artifact`, `fs`) import neither `config` nor `wire`.

pub mod artifact;
pub mod checkpoint;
pub mod config;
pub mod descriptors;
pub mod event;
pub mod exit;
pub mod failure;
pub mod finite;
pub mod fs;
pub mod graph;
pub mod id;
pub mod kernels;
pub mod keys;
pub mod ledger;
pub mod metrics;
pub mod mix;
pub mod panics;
pub mod probe;
pub mod profile;
pub mod secrets;
pub mod shown;
pub mod staged;
pub mod wire;
