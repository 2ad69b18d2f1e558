//! A group of GPUs of one host that reach each other's memory. Copy engines move the data of its collectives. Tensors in host memory are
//! passed to a CPU group.

use super::{
    handshake::{PeerTable, agree, handshake},
    safe::CopyEngine,
    work::LinkWork,
};
use crate::{
    AbortHandle, CommError, DEVICE_FLOPS_PER_BYTE, Forming, ProcessGroup, Reduce, Work, abort::AbortSignal, check,
    check_root, own_part, wait_time::WaitTime,
};
use enn_core::backend::link::LinkError;
use std::{
    cell::{Cell, RefCell},
    sync::Arc,
    time::Duration,
};
use tch::{Device, Kind, TchError, Tensor};

/// Largest relative difference of a norm from libtorch's, which is summed in f32.
const NORM_ERROR_MAX: f64 = 1e-3;
/// Period of the check's values, small enough that their sums over the ranks are exact.
const CHECK_PERIOD: i64 = 8191;
/// Lengths of the arrays that a new group checks, in floats: one is sent whole, one in parts.
const CHECKED: [i64; 2] = [1003, 300_007];

/// The ranks of one host, each with a GPU of its own.
pub struct Linked {
    /// Declared first, so that it is dropped before the host's group.
    engine: CopyEngine,
    table: PeerTable,
    host: Box<dyn ProcessGroup>,
    device: usize,
    line: Arc<AbortSignal>,
    timeout: Duration,
    waited: Arc<WaitTime>,
    /// Why arrays are not in shared memory or not measured, if they were meant to be.
    apart: RefCell<Option<String>>,
    /// Whether norms are measured: until one was wrong.
    measures: Cell<bool>,
}

/// Result of forming a group, on which all ranks agree.
pub enum LinkedFormed {
    Group(Box<Linked>),
    /// No rank takes part, because one cannot. The reason is the same on every rank; NCCL is to be used.
    Refused {
        reason: String,
    },
}

impl Linked {
    /// Forms a group of ranks that are all on this host; this rank uses CUDA device `device`. The ranks have formed `host` with limits
    /// from [`Forming::beside`]; it takes the tensors in host memory and ends with this group, or now if none is formed. One collective
    /// may take `timeout`.
    pub fn form(
        host: Box<dyn ProcessGroup>,
        device: usize,
        timeout: Duration,
        forming: &Forming,
    ) -> Result<LinkedFormed, CommError> {
        if host.size() < 2 {
            return Ok(LinkedFormed::Refused { reason: "there is only one rank".to_owned() });
        }
        let line = Arc::clone(&forming.line);
        let waited = Arc::default();
        let (table, engine) = match handshake(&*host, device, timeout, &waited, &line)? {
            Ok(met) => met,
            Err(reason) => {
                host.shutdown(timeout)?;
                return Ok(LinkedFormed::Refused { reason });
            }
        };
        let apart = RefCell::default();
        let measures = Cell::new(true);
        let group = Self { engine, table, host, device, line, timeout, waited, apart, measures };
        for length in CHECKED {
            let zeros = Tensor::f_zeros([length], (Kind::Float, Device::Cuda(device)));
            if let Err(reason) = group.checked(zeros)? {
                Box::new(group).abort(timeout)?;
                return Ok(LinkedFormed::Refused { reason });
            }
        }
        Ok(LinkedFormed::Group(Box::new(group)))
    }

    /// Whether a tensor is on this group's device (and not on the host). Fails for tensors of other devices.
    fn is_mine(&self, operation: &'static str, tensor: &Tensor) -> Result<bool, CommError> {
        check(tensor, operation)?;
        match tensor.device() {
            Device::Cuda(index) if index == self.device => Ok(true),
            Device::Cpu => Ok(false),
            _ => Err(CommError::Tensor { operation, found: "one of another device" }),
        }
    }

    /// Begins a collective, unless a rank has aborted the group.
    fn begin(
        &self,
        operation: &'static str,
        begin: impl FnOnce(&CopyEngine) -> Result<LinkWork, LinkError>,
    ) -> Result<Work, CommError> {
        let member = &self.engine.member;
        member.check_intact(operation)?;
        let work = begin(&self.engine).map_err(|error| member.error(operation, &error))?;
        member.check_intact(operation)?;
        Ok(Work::Linked(work))
    }

    fn failed(&self, operation: &'static str, error: &TchError) -> CommError {
        let rank = self.rank();
        let size = self.size();
        CommError::Collective { operation, rank, size, message: error.to_string() }
    }

    /// Sums known numbers in the whole array. Returns the norm of the sum if it is right. The array holds zeros afterwards.
    fn check(&self, tensor: &Tensor) -> Result<Option<f64>, CommError> {
        let failed = |error: TchError| self.failed("check", &error);
        let rank = f64::from(self.rank());
        let size = f64::from(self.size());
        let ramp = Tensor::f_arange(tensor.numel() as i64, (Kind::Float, tensor.device())).map_err(failed)?;
        let ramp = ramp.f_remainder(CHECK_PERIOD).map_err(failed)?.f_view_as(tensor).map_err(failed)?;
        let mut tensor = tensor.shallow_clone();
        tensor.f_copy_(&ramp.f_mul_scalar(rank + 1.0).map_err(failed)?).map_err(failed)?;
        self.all_reduce_sum(&tensor)?.wait(self.timeout)?;
        let sums = ramp.f_mul_scalar(size * (size + 1.0) / 2.0).map_err(failed)?;
        let right = sums.f_equal(&tensor).map_err(failed)?;
        let norm = right.then(|| sums.f_norm()?.f_double_value(&[])).transpose().map_err(failed)?;
        let _zeroed = tensor.f_zero_().map_err(failed)?;
        Ok(norm)
    }

    /// Runs the check on all ranks, which agree on its outcome. After a failed check this group is aborted.
    fn checked(&self, zeros: Result<Tensor, TchError>) -> Result<Result<f64, String>, CommError> {
        let norm = zeros.map_err(|error| self.failed("check", &error)).and_then(|zeros| self.check(&zeros));
        let norm = norm.map_err(|error| match error {
            // The lost peer reports the reason.
            CommError::PeerLost { .. } => String::new(),
            error => error.to_string(),
        });
        let norm = norm.and_then(|norm| norm.ok_or_else(|| "a sum of the check is wrong".to_owned()));
        if norm.is_err() {
            // Another rank may wait for data that never arrives.
            self.engine.member.turns.abort();
        }
        agree(&*self.host, self.timeout, norm)
    }

    /// Stops measuring norms if those of a sum are not `expected`, or if the array is too large to be measured.
    fn check_norms(&self, shared: &Tensor, expected: f64) -> Result<(), CommError> {
        let norm = match self.engine.norms_of(shared) {
            _ if !self.measures.get() => return Ok(()),
            Some(norms) => norms.f_norm().and_then(|norm| norm.f_double_value(&[])).map_err(|error| error.to_string()),
            None => Err(format!("{} numbers are too many to be measured", shared.numel())),
        };
        let mine = norm.and_then(|norm| {
            let near = (norm - expected).abs() <= NORM_ERROR_MAX * expected;
            near.then_some(()).ok_or_else(|| format!("the norm of a sum of the check is {norm}, not {expected}"))
        });
        if let Err(reason) = agree(&*self.host, self.timeout, mine)? {
            tracing::warn!(reason, "sums are not measured");
            *self.apart.borrow_mut() = Some(reason);
            self.measures.set(false);
        }
        Ok(())
    }
}

impl ProcessGroup for Linked {
    fn rank(&self) -> u32 {
        self.host.rank()
    }

    fn size(&self) -> u32 {
        self.host.size()
    }

    fn backend(&self) -> &'static str {
        "copy engines"
    }

    fn fell_back(&self) -> Option<String> {
        let apart = self.apart.borrow();
        let apart = apart.as_ref();
        apart
            .map(|reason| format!("gradients are summed or measured in a slower way: {reason}"))
            .or_else(|| self.host.fell_back())
    }

    fn flops_per_byte(&self) -> f64 {
        DEVICE_FLOPS_PER_BYTE
    }

    fn intact(&self) -> Result<(), CommError> {
        self.engine.member.check_intact("all_reduce")
    }

    fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<Work, CommError> {
        if !self.is_mine("all_reduce", tensor)? {
            return self.host.all_reduce(tensor, reduce);
        }
        self.begin("all_reduce", |engine| engine.all_reduce(tensor, reduce))
    }

    fn broadcast(&self, tensor: &Tensor, root: u32) -> Result<Work, CommError> {
        check_root(root, self.size())?;
        if !self.is_mine("broadcast", tensor)? {
            return self.host.broadcast(tensor, root);
        }
        self.begin("broadcast", |engine| engine.broadcast(tensor, root as usize))
    }

    fn reduce_scatter_sum(&self, whole: &Tensor) -> Result<Work, CommError> {
        let _it_has_parts = own_part(whole, self.rank(), self.size())?;
        if !self.is_mine("reduce_scatter", whole)? {
            return self.host.reduce_scatter_sum(whole);
        }
        self.begin("reduce_scatter", |engine| engine.reduce_scatter(whole))
    }

    fn all_gather(&self, whole: &Tensor) -> Result<Work, CommError> {
        let _it_has_parts = own_part(whole, self.rank(), self.size())?;
        if !self.is_mine("all_gather", whole)? {
            return self.host.all_gather(whole);
        }
        self.begin("all_gather", |engine| engine.all_gather(whole))
    }

    fn shared_like(&self, tensor: &Tensor) -> Result<Option<Tensor>, CommError> {
        let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
        if !self.is_mine("shared_like", tensor)? {
            return self.host.shared_like(tensor);
        }
        if tensor.kind() != Kind::Float || bytes == 0 {
            return Ok(None);
        }
        let shared = self.table.region(&*self.host, bytes)?.and_then(|region| {
            let made = region.own.tensor(0, tensor).and_then(|shared| Ok((shared, region.numbers(tensor.device())?)));
            let (shared, norms) = made.map_err(|error| error.to_string())?;
            Ok((region, shared, norms))
        });
        let (region, shared, norms) = match agree(&*self.host, self.timeout, shared)? {
            Ok(made) => made,
            Err(reason) => {
                tracing::info!(reason, "no memory is shared by all ranks");
                *self.apart.borrow_mut() = Some(reason);
                return Ok(None);
            }
        };
        self.engine.add(region, norms);
        let norm = self.checked(Ok(shared.shallow_clone()))?.map_err(|reason| {
            let operation = "check";
            let rank = self.rank();
            let size = self.size();
            let message = format!("copy engines do not sum ({reason}); collectives = \"nccl\" does without them");
            CommError::Collective { operation, rank, size, message }
        })?;
        self.check_norms(&shared, norm)?;
        Ok(Some(shared))
    }

    fn norms_of(&self, shared: &Tensor) -> Option<Tensor> {
        self.engine.norms_of(shared).filter(|_| self.measures.get())
    }

    fn barrier(&self, timeout: Duration) -> Result<(), CommError> {
        self.host.barrier(timeout)
    }

    fn shutdown(self: Box<Self>, timeout: Duration) -> Result<(), CommError> {
        let Self { engine, host, .. } = *self;
        let operation = "shutdown";
        let rank = host.rank();
        let size = host.size();
        let rested = engine.rest(Duration::ZERO);
        let rests = engine.rest(timeout);
        // An abort ends waits early, which must be reported.
        let intact = if rested { Ok(()) } else { engine.member.check_intact(operation) };
        drop(engine);
        let ended = host.shutdown(timeout);
        if rests { intact.and(ended) } else { Err(CommError::TimedOut { operation, rank, size, timeout }) }
    }

    fn abort(self: Box<Self>, timeout: Duration) -> Result<(), CommError> {
        let Self { engine, host, .. } = *self;
        engine.member.turns.abort();
        drop(engine);
        host.abort(timeout)
    }

    fn abort_handle(&self) -> Box<dyn AbortHandle> {
        self.line.abort_handle()
    }

    fn waited(&self) -> Duration {
        self.host.waited() + self.waited.total()
    }
}
