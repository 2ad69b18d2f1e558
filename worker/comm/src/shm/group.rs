//! The shared-memory group of one node, which implements [`ProcessGroup`].

use super::{
    check::{self, Spoil},
    engine::{CollectiveThread, Task},
    fault::CollectiveContext,
    handshake::{Handshake, handshake},
    region::{REGIONS_MAX, SharedRegion},
    ring::Ring,
    safe::tensor_in,
    watch::Watch,
    work::ShmWork,
};
use crate::{
    AbortHandle, CommError, Forming, ProcessGroup, Reduce, ShmOptions, Store, Work, abort::AbortSignal, check_root,
    wait_time::WaitTime,
};
use std::{cell::RefCell, io, sync::Arc, thread, time::Duration};
use tch::{Device, Kind, Tensor};

/// Result of forming a group, on which all ranks agree.
#[derive(Debug)]
pub enum ShmFormed {
    Group(Shm),
    /// No rank shares memory, because one could not or its sums were wrong. The answer is the same on every rank;
    /// [`crate::Gloo`] is to be used.
    Refused {
        /// The first rank that could not share memory.
        rank: u32,
        reason: String,
    },
}

/// The CPU group of the ranks of one node.
#[derive(Debug)]
pub struct Shm {
    engine: CollectiveThread,
    _watch: Watch,
    /// Memory of tensors made by `shared_like`.
    regions: RefCell<Vec<Arc<SharedRegion>>>,
    line: Arc<AbortSignal>,
    waited: Arc<WaitTime>,
    at: CollectiveContext,
}

impl Shm {
    /// Connects with the other ranks through `store`, within the limits of `forming`, and checks sums of known numbers.
    pub fn form(store: &Store, options: &ShmOptions, forming: &Forming) -> Result<ShmFormed, CommError> {
        Self::form_with(store, options, forming, &|_| {})
    }

    pub(super) fn form_with(
        store: &Store,
        options: &ShmOptions,
        forming: &Forming,
        spoil: Spoil<'_>,
    ) -> Result<ShmFormed, CommError> {
        let ShmOptions { rank, size, timeout } = *options;
        let failed = |error: CommError| forming.failed(rank, size, "shm", error.to_string());
        let store = store.guarded(forming).map_err(failed)?;
        let met = handshake(&store, rank, size).map_err(failed)?;
        let (segment, pids) = match met {
            Handshake::Together(segment, pids) => (segment, pids),
            Handshake::Apart { rank, reason } => return Ok(ShmFormed::Refused { rank, reason }),
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let ring = Arc::new(Ring::new(segment, rank, size, cores));
        let watch = Watch::begin(&ring, &pids)?;
        forming.line.tie(&ring);
        let engine = CollectiveThread::start(ring, timeout)?;
        let at = CollectiveContext { operation: "form", rank, size, timeout };
        let line = Arc::clone(&forming.line);
        let waited = Arc::default();
        let group = Self { engine, _watch: watch, regions: RefCell::default(), line, waited, at };
        let found = check::sums(&group, group.at("check"), timeout.min(forming.left()), spoil);
        // A failure is reported, too: the others wait for this rank's report.
        let word = found.as_ref().map_or_else(|error| Err(error.to_string()), Clone::clone);
        check::report(&store, rank, size, &word).map_err(failed)?;
        let _right_or_not = found.map_err(failed)?;
        Ok(match check::verdict(&store).map_err(failed)? {
            Some((rank, reason)) => ShmFormed::Refused { rank, reason },
            None => ShmFormed::Group(group),
        })
    }

    fn at(&self, operation: &'static str) -> CollectiveContext {
        CollectiveContext { operation, ..self.at }
    }

    /// Returns the region that holds `tensor`, and its position there.
    fn shared(&self, tensor: &Tensor) -> Option<(Arc<SharedRegion>, usize)> {
        if !is_shared_kind(tensor.kind()) || tensor.numel() == 0 {
            return None;
        }
        let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
        let found = |region: &Arc<SharedRegion>| {
            let start = region.find(self.at.rank, tensor.data_ptr().addr(), bytes)?;
            Some((Arc::clone(region), start))
        };
        self.regions.borrow().iter().find_map(found)
    }

    /// Returns whether `mine` is true on all ranks.
    fn all(&self, mine: bool) -> Result<bool, CommError> {
        let all = Tensor::from_slice(&[i64::from(mine)]);
        self.all_reduce(&all, Reduce::Min)?.wait(self.at.timeout)?;
        Ok(all.int64_value(&[0]) == 1)
    }

    fn issue(&self, operation: &'static str, task: Task) -> Work {
        let waited = Arc::clone(&self.waited);
        Work::Shm(ShmWork { outcome: self.engine.issue(task), at: self.at(operation), waited })
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
        check_host(tensor, operation)?;
        match tensor.kind() {
            Kind::Float | Kind::Double | Kind::Int64 | Kind::BFloat16 | Kind::Half => {}
            found => return Err(CommError::Kind { operation, backend: "shm", found }),
        }
        let task = match self.shared(tensor) {
            Some(place) => Task::AllReduceShared(tensor.shallow_clone(), reduce, place),
            None => Task::AllReduce(tensor.shallow_clone(), reduce),
        };
        Ok(self.issue(operation, task))
    }

    fn broadcast(&self, tensor: &Tensor, root: u32) -> Result<Work, CommError> {
        check_host(tensor, "broadcast")?;
        check_root(root, self.at.size)?;
        Ok(self.issue("broadcast", Task::Broadcast(tensor.shallow_clone(), root)))
    }

    fn shared_like(&self, tensor: &Tensor) -> Result<Option<Tensor>, CommError> {
        check_host(tensor, "shared_like")?;
        let rank = self.at.rank;
        let size = self.at.size;
        let number = self.regions.borrow().len() + 1;
        // Rank 0 keeps the file open until everybody has answered.
        let created =
            (rank == 0 && number <= REGIONS_MAX).then(|| logged(SharedRegion::create(tensor, size, number))).flatten();
        let place = created.as_ref().map_or([0; 4], |(_, _, holder)| *holder);
        let holder = Tensor::from_slice(&place);
        self.broadcast(&holder, 0)?.wait(self.at.timeout)?;
        let region = if rank == 0 {
            created.as_ref().map(|(region, ..)| Arc::clone(region))
        } else {
            let place = std::array::from_fn(|word| holder.int64_value(&[word as i64]));
            logged(SharedRegion::open(tensor, size, number, place))
        };
        let ours = region.and_then(|region| Some((logged(tensor_in(&region, rank, tensor))?, region)));
        if !self.all(ours.is_some())? {
            return Ok(None);
        }
        let Some((tensor, region)) = ours else { return Ok(None) };
        if is_shared_kind(tensor.kind()) && tensor.numel() > 0 {
            let place = (Arc::clone(&region), 0);
            let right = check::shared_sum(self.at("check"), &tensor, |part| {
                self.issue("check", Task::AllReduceShared(part, Reduce::Sum, place))
            })?;
            if !self.all(right)? {
                tracing::warn!("tensors are not shared: a sum of the check is wrong on a rank");
                return Ok(None);
            }
        }
        self.regions.borrow_mut().push(region);
        Ok(Some(tensor))
    }

    fn barrier(&self, timeout: Duration) -> Result<(), CommError> {
        self.issue("barrier", Task::Barrier).wait(timeout)
    }

    fn abort_handle(&self) -> Box<dyn AbortHandle> {
        self.line.abort_handle()
    }

    fn waited(&self) -> Duration {
        self.waited.total()
    }

    fn shutdown(mut self: Box<Self>, timeout: Duration) -> Result<(), CommError> {
        if self.engine.finish(timeout) {
            return Ok(());
        }
        let error = self.at("shutdown").timed_out(timeout);
        self.engine.abort(Duration::ZERO);
        Err(error)
    }

    fn abort(mut self: Box<Self>, timeout: Duration) -> Result<(), CommError> {
        if self.engine.abort(timeout) { Ok(()) } else { Err(self.at("abort").timed_out(timeout)) }
    }
}

fn logged<T>(result: io::Result<T>) -> Option<T> {
    result.inspect_err(|error| tracing::info!(%error, "tensors are not shared")).ok()
}

/// Whether tensors of this kind are summed in place in shared memory.
fn is_shared_kind(kind: Kind) -> bool {
    matches!(kind, Kind::Float | Kind::Double | Kind::Int64)
}

fn check_host(tensor: &Tensor, operation: &'static str) -> Result<(), CommError> {
    crate::check(tensor, operation)?;
    match tensor.device() {
        Device::Cpu => Ok(()),
        _ => Err(CommError::Tensor { operation, found: "one on a device" }),
    }
}
