//! Reasons for which workers cannot be bound to CPUs.

use std::{io, path::PathBuf};

/// A requested binding is impossible.
#[derive(Debug, thiserror::Error)]
pub enum NumaError {
    #[error("cannot read the machine's topology from {}: {source}\n  hint: leave out --numa-binding", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} holds {found:?}, expected {expected}\n  hint: leave out --numa-binding", path.display())]
    Contents { path: PathBuf, found: String, expected: &'static str },
    #[error(
        "worker {local_rank} has no GPU to be bound next to: {gpus} can be seen\n  hint: start as many workers as there are GPUs, or leave out --numa-binding"
    )]
    NoGpu { local_rank: usize, gpus: usize },
    #[error(
        "worker {local_rank} cannot be bound to NUMA node {node}: this process may use none of its CPUs\n  hint: ask for CPUs of that node (cgroup, taskset, Slurm), or leave out --numa-binding"
    )]
    NoCpus { local_rank: usize, node: usize },
    #[error(
        "{workers} workers share NUMA node {node}, which has {cores} cores to give\n  hint: --numa-binding node lets them share"
    )]
    Cores {
        node: usize,
        cores: usize,
        /// GPUs, or workers without GPUs, of the node.
        workers: usize,
    },
    #[error(
        "the GPU {name:?} of CUDA_VISIBLE_DEVICES is none of the {gpus} of this machine\n  hint: name GPUs by index or by UUID"
    )]
    Visible { name: String, gpus: usize },
}
