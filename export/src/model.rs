//! What a writer is given: a graph, and what is said of it.

use enn_common::graph::Graph;
use std::collections::BTreeMap;

/// Rows of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Fewest; at least 1.
    pub min: u64,
    /// What compilers tune for.
    pub opt: u64,
    /// Most.
    pub max: u64,
}

impl Default for Batch {
    fn default() -> Self {
        Self { min: 1, opt: 64, max: 4096 }
    }
}

/// A graph to be written.
#[derive(Debug)]
pub struct Model<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// What is computed.
    pub graph: &'a Graph,
    /// Rows of one call, where a format states them.
    pub batch: Batch,
    /// What is said of it in the file's own metadata, e.g. `enn.run` and the whole sidecar.
    pub about: &'a BTreeMap<String, String>,
}
