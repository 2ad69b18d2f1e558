//! Why workers cannot be bound to CPUs.

use std::{io, path::PathBuf};

/// A binding that was asked for and cannot be given.
#[derive(Debug, thiserror::Error)]
pub enum NumaError {
    /// Not a mode.
    #[error("{given:?} is no way to bind workers\n  hint: node, socket, exclusive or core-complex")]
    Mode { given: String },
    /// A file of /sys.
    #[error("cannot read the machine's topology from {}: {source}\n  hint: leave out --numa-binding", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file of /sys with other contents than expected.
    #[error("{} holds {found:?}, expected {expected}\n  hint: leave out --numa-binding", path.display())]
    Contents {
        path: PathBuf,
        /// What is in it.
        found: String,
        expected: &'static str,
    },
    /// A worker without a GPU.
    #[error(
        "worker {local_rank} has no GPU to be bound next to: {gpus} can be seen\n  hint: start as many workers as there are GPUs, or leave out --numa-binding"
    )]
    NoGpu { local_rank: usize, gpus: usize },
    /// A node none of whose CPUs may be used.
    #[error(
        "worker {local_rank} cannot be bound to NUMA node {node}: this process may use none of its CPUs\n  hint: ask for CPUs of that node (cgroup, taskset, Slurm), or leave out --numa-binding"
    )]
    NoCpus { local_rank: usize, node: usize },
    /// Fewer cores than workers.
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
    /// A GPU that is visible by a name that nobody knows.
    #[error(
        "the GPU {name:?} of CUDA_VISIBLE_DEVICES is none of the {gpus} of this machine\n  hint: name GPUs by index or by UUID"
    )]
    Visible { name: String, gpus: usize },
}
