//! Reasons for which workers cannot be bound to CPUs.

use std::{io, path::PathBuf};

/// A requested binding is impossible.
#[derive(Debug, thiserror::Error)]
pub enum NumaError {
    /// The text names no mode.
    #[error("{given:?} is no mode of binding workers\n  hint: node, socket, exclusive or core-complex")]
    Mode { given: String },
    /// A file of /sys cannot be read.
    #[error("cannot read the machine's topology from {}: {source}\n  hint: leave out --numa-binding", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file of /sys has unexpected contents.
    #[error("{} holds {found:?}, expected {expected}\n  hint: leave out --numa-binding", path.display())]
    Contents { path: PathBuf, found: String, expected: &'static str },
    /// A worker has no GPU.
    #[error(
        "worker {local_rank} has no GPU to be bound next to: {gpus} can be seen\n  hint: start as many workers as there are GPUs, or leave out --numa-binding"
    )]
    NoGpu { local_rank: usize, gpus: usize },
    /// No CPU of the node may be used.
    #[error(
        "worker {local_rank} cannot be bound to NUMA node {node}: this process may use none of its CPUs\n  hint: ask for CPUs of that node (cgroup, taskset, Slurm), or leave out --numa-binding"
    )]
    NoCpus { local_rank: usize, node: usize },
    /// There are fewer cores than workers.
    #[error(
        "{workers} workers share NUMA node {node}, which has {cores} cores to give\n  hint: --numa-binding node lets them share"
    )]
    Cores {
        node: usize,
        /// Physical cores that may be used.
        cores: usize,
        /// GPUs, or workers without GPUs, of the node.
        workers: usize,
    },
    /// `CUDA_VISIBLE_DEVICES` names an unknown GPU.
    #[error(
        "the GPU {name:?} of CUDA_VISIBLE_DEVICES is none of the {gpus} of this machine\n  hint: name GPUs by index or by UUID"
    )]
    Visible { name: String, gpus: usize },
}
