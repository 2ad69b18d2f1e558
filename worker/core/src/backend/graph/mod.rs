//! CUDA graphs: a sequence of launches that is captured once and replayed as a unit.
//!
//! **Invariant:** a graph holds addresses. The owner keeps every tensor that was bound outside the capture alive, and never
//! changes its storage.

mod result;

pub use result::{Capture, Graph, Pool, at_its_address, memory, records, synchronize, use_own_stream};
