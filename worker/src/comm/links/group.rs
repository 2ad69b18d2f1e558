//! A group of GPUs of one host that reach each other's memory: copy engines move what its collectives bring together. What lies in the host's
//! memory is a group of the host's.

use super::{
    meet::{Table, agree, meet},
    safe::Engine,
    work::LinkWork,
};
use crate::backend::link::{LinkError, Together};
use crate::comm::{
    CommError, Cut, DEVICE_FLOPS_PER_BYTE, Forming, ProcessGroup, Reduce, Work, check, cut::Line, own_part,
    waited::Waited,
};
use std::{
    cell::{Cell, RefCell},
    sync::Arc,
    time::Duration,
};
use tch::{Device, Kind, TchError, Tensor};

/// A norm may differ by so much from libtorch's, which adds in f32.
const NORM_ERROR_MAX: f64 = 1e-3;
/// Values of the check repeat after so many: all sums of them over the ranks are exact.
const CHECK_PERIOD: i64 = 8191;
/// Floats of the checks of a group that has just formed: of arrays that go whole, and in parts.
const CHECKED: [i64; 2] = [1003, 300_007];

/// The ranks of one host, each with a GPU of its own.
pub struct Linked {
    /// Ends before the host's group.
    engine: Engine,
    table: Table,
    host: Box<dyn ProcessGroup>,
    device: usize,
    line: Arc<Line>,
    timeout: Duration,
    waited: Arc<Waited>,
    /// Why arrays that were to lie in memory of all do not, or are not measured.
    apart: RefCell<Option<String>>,
    /// Until a norm was wrong.
    measures: Cell<bool>,
}

/// What the ranks agreed on.
pub enum LinkedFormed {
    /// All take part.
    Group(Box<Linked>),
    /// None does: a rank that cannot, and why. The same answer on every rank; NCCL remains.
    Refused {
        /// The sentence.
        reason: String,
    },
}

impl Linked {
    /// Of ranks that are all on this host, this one with that CUDA device. They have formed `host` [`Forming::beside`] `forming`, and its
    /// collectives take tensors of the host's; it ends with this group, or now, where there is none. One collective may take `timeout`.
    ///
    /// # Errors
    /// Those of `host`.
    pub fn form(
        host: Box<dyn ProcessGroup>,
        device: usize,
        timeout: Duration,
        forming: &Forming,
    ) -> Result<LinkedFormed, CommError> {
        if host.size() < 2 {
            return Ok(LinkedFormed::Refused { reason: "a rank alone".to_owned() });
        }
        let line = Arc::clone(forming.line());
        let waited = Arc::default();
        let (table, engine) = match meet(&*host, device, (timeout, &waited), &line)? {
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

    /// Whether a tensor is this group's business and not the host's; refuses what is nobody's.
    fn is_mine(&self, operation: &'static str, tensor: &Tensor) -> Result<bool, CommError> {
        check(tensor, operation)?;
        match tensor.device() {
            Device::Cuda(index) if index == self.device => Ok(true),
            Device::Cpu => Ok(false),
            _ => Err(CommError::Tensor { operation, found: "one of another device" }),
        }
    }

    /// Begins something, unless a rank has cut the group.
    fn begin(
        &self,
        operation: &'static str,
        begin: impl FnOnce(&Engine) -> Result<LinkWork, LinkError>,
    ) -> Result<Work, CommError> {
        let member = &self.engine.member;
        member.uncut(operation)?;
        let work = begin(&self.engine).map_err(|error| member.error(operation, &error))?;
        member.uncut(operation)?;
        Ok(Work::Linked(work))
    }

    fn failed(&self, operation: &'static str, error: &TchError) -> CommError {
        let rank = self.rank();
        let size = self.size();
        CommError::Collective { operation, rank, size, message: error.to_string() }
    }

    /// The norm of a sum of known numbers, the whole array long, if it is right; the array holds zeros afterwards.
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

    /// [`Linked::check`] on all ranks; the same answer on each but for the norm. After a wrong one this group does no more.
    fn checked(&self, zeros: Result<Tensor, TchError>) -> Result<Result<f64, String>, CommError> {
        let norm = zeros.map_err(|error| self.failed("check", &error)).and_then(|zeros| self.check(&zeros));
        let norm = norm.map_err(|error| match error {
            // That one knows why.
            CommError::PeerLost { .. } => String::new(),
            error => error.to_string(),
        });
        let norm = norm.and_then(|norm| norm.ok_or_else(|| "a sum of the check is wrong".to_owned()));
        if norm.is_err() {
            // Another rank may wait for what does not come.
            self.engine.member.turns.cut();
        }
        agree(&*self.host, self.timeout, norm)
    }

    /// Measures nothing from now on where the norms of a sum are not `expected`, or such an array has none.
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
            .map(|reason| format!("gradients are summed or measured in another way than they could be: {reason}"))
            .or_else(|| self.host.fell_back())
    }

    fn flops_per_byte(&self) -> f64 {
        DEVICE_FLOPS_PER_BYTE
    }

    fn intact(&self) -> Result<(), CommError> {
        self.engine.member.uncut("all_reduce")
    }

    fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<Work, CommError> {
        if !self.is_mine("all_reduce", tensor)? {
            return self.host.all_reduce(tensor, reduce);
        }
        let together = match reduce {
            Reduce::Sum => Together::Sum,
            Reduce::Min => Together::Min,
            Reduce::Max => Together::Max,
        };
        self.begin("all_reduce", |engine| engine.all_reduce(tensor, together))
    }

    fn broadcast(&self, tensor: &Tensor, root: u32) -> Result<Work, CommError> {
        if root >= self.size() {
            return Err(CommError::RootOutside { root, size: self.size() });
        }
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
                tracing::info!(reason, "no memory of all ranks");
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
        // A cut ends waits before their time.
        let uncut = if rested { Ok(()) } else { engine.member.uncut(operation) };
        drop(engine);
        let ended = host.shutdown(timeout);
        if rests { uncut.and(ended) } else { Err(CommError::TimedOut { operation, rank, size, timeout }) }
    }

    fn abort(self: Box<Self>, timeout: Duration) -> Result<(), CommError> {
        let Self { engine, host, .. } = *self;
        engine.member.turns.cut();
        drop(engine);
        host.abort(timeout)
    }

    fn cutter(&self) -> Box<dyn Cut> {
        self.line.cutter()
    }

    fn waited(&self) -> Duration {
        self.host.waited() + self.waited.total()
    }
}
