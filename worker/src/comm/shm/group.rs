//! The group of one node behind [`ProcessGroup`].

use super::{
    engine::{Engine, Task},
    fault::Place,
    meet::{Met, meet},
    ring::Ring,
    watch::Watch,
    work::ShmWork,
};
use crate::comm::{CommError, ProcessGroup, Reduce, Store, Work};
use std::{sync::Arc, thread, time::Duration};
use tch::{Device, Kind, Tensor};

/// Identity and limits of a [`Shm`] rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShmOptions {
    /// This process's rank, `0..size`.
    pub rank: u32,
    /// Number of ranks, all of this node.
    pub size: u32,
    /// Longest time one collective may take from its turn on before it fails.
    pub timeout: Duration,
}

/// What the ranks agreed on.
#[derive(Debug)]
pub enum ShmFormed {
    /// All share the memory.
    Group(Shm),
    /// None does: the first rank that could not, and why. The same answer on every rank; [`crate::comm::Gloo`] remains.
    Refused {
        /// That rank.
        rank: u32,
        /// Its reason.
        reason: String,
    },
}

/// The CPU group of the ranks of one node.
#[derive(Debug)]
pub struct Shm {
    engine: Engine,
    _watch: Watch,
    at: Place,
}

impl Shm {
    /// Meets the other ranks in `store`. Blocks at most the store's own limit.
    pub fn form(store: &Store, options: &ShmOptions) -> Result<ShmFormed, CommError> {
        let ShmOptions { rank, size, timeout } = *options;
        let (segment, pids) = match meet(store, rank, size)? {
            Met::Together(segment, pids) => (segment, pids),
            Met::Apart { rank, reason } => return Ok(ShmFormed::Refused { rank, reason }),
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let ring = Arc::new(Ring::new(segment, (rank, size), cores));
        let watch = Watch::begin(&ring, &pids)?;
        let engine = Engine::start(ring, timeout)?;
        let at = Place { operation: "form", rank, size, timeout };
        Ok(ShmFormed::Group(Self { engine, _watch: watch, at }))
    }

    fn at(&self, operation: &'static str) -> Place {
        Place { operation, ..self.at }
    }

    fn issue(&self, operation: &'static str, task: Task) -> Work {
        Work::Shm(ShmWork { outcome: self.engine.issue(task), at: self.at(operation) })
    }
}

impl ProcessGroup for Shm {
    fn rank(&self) -> u32 {
        self.at.rank
    }

    fn size(&self) -> u32 {
        self.at.size
    }

    fn backend(&self) -> &'static str {
        "shm"
    }

    fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<Work, CommError> {
        let operation = "all_reduce";
        check(tensor, operation)?;
        match tensor.kind() {
            Kind::Float | Kind::Double | Kind::Int64 | Kind::BFloat16 | Kind::Half => {}
            found => return Err(CommError::Kind { operation, backend: "shm", found }),
        }
        Ok(self.issue(operation, Task::AllReduce(tensor.shallow_clone(), reduce)))
    }

    fn broadcast(&self, tensor: &Tensor, root: u32) -> Result<Work, CommError> {
        check(tensor, "broadcast")?;
        if root >= self.at.size {
            return Err(CommError::RootOutside { root, size: self.at.size });
        }
        Ok(self.issue("broadcast", Task::Broadcast(tensor.shallow_clone(), root)))
    }

    fn barrier(&self, timeout: Duration) -> Result<(), CommError> {
        self.issue("barrier", Task::Barrier).wait(timeout)
    }

    fn shutdown(mut self: Box<Self>, timeout: Duration) -> Result<(), CommError> {
        if self.engine.finish(timeout) {
            return Ok(());
        }
        let error = self.at("shutdown").timed_out(timeout);
        self.engine.cut(Duration::ZERO);
        Err(error)
    }

    fn abort(mut self: Box<Self>, timeout: Duration) -> Result<(), CommError> {
        if self.engine.cut(timeout) { Ok(()) } else { Err(self.at("abort").timed_out(timeout)) }
    }
}

/// The engine reads the raw storage: a view with gaps would be reduced wrongly.
fn check(tensor: &Tensor, operation: &'static str) -> Result<(), CommError> {
    let found = if !tensor.defined() {
        "an undefined one"
    } else if tensor.is_sparse() {
        "a sparse one"
    } else if tensor.device() != Device::Cpu {
        "one on a device"
    } else if !tensor.is_contiguous() {
        "a view with gaps"
    } else {
        return Ok(());
    };
    Err(CommError::Tensor { operation, found })
}
