//! A group of GPUs of one host whose gradients are summed by copy engines; all else is the inner group's.

use super::{
    mmap::Turns,
    region::Region,
    safe::Engine,
    unix::{Address, Post},
    work::Member,
};
use crate::backend::link::{Beside, Gpu, Memory};
use crate::comm::{
    CommError, Cut, Forming, ProcessGroup, Reduce, Work,
    cut::Line,
    own_part,
    shm::mmap::{Holder, Segment},
    waited::Waited,
};
use std::{
    cell::{Cell, OnceCell, RefCell},
    fs::File,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};
use tch::{Device, Kind, Tensor};

/// Smaller arrays are the inner group's: a turn of copies takes as long as sending so much.
const BYTES_MIN: usize = 1 << 20;
/// Values of the check repeat after so many: all sums of them over the ranks are exact.
const CHECK_PERIOD: i64 = 8191;

/// The ranks of one host, each with a GPU of its own.
pub struct Linked {
    /// Once they have met; nothing where one of them cannot. Ends before the inner group.
    met: OnceCell<Option<Meeting>>,
    inner: Box<dyn ProcessGroup>,
    device: usize,
    /// Why this rank does not.
    forbidden: Option<&'static str>,
    /// Why none does, once that is known.
    apart: RefCell<Option<String>>,
    line: Arc<Line>,
    timeout: Duration,
    waited: Arc<Waited>,
}

/// What the ranks agreed on.
struct Meeting {
    engine: Engine,
    gpu: Gpu,
    post: Post,
    addresses: Vec<Address>,
    /// Until a sum was wrong.
    trusted: Cell<bool>,
}

/// What each rank says of itself: whether it can, where its GPU is plugged in, its address, and of rank 0 the segment's holder.
const CARD: usize = 10;
/// Where on the card the holder is.
const HOLDER: Range<usize> = 6..10;
/// Of eight bytes each, for the sentence of a rank that does not take part.
const REASON_WORDS: usize = 24;

impl Linked {
    /// `inner` was formed with `forming` of ranks that are all on this host, and this one's device is that; a rank may say why it does
    /// not take part, and then none does. One collective may take `timeout`.
    pub fn new(
        inner: Box<dyn ProcessGroup>,
        (device, forbidden): (usize, Option<&'static str>),
        timeout: Duration,
        forming: &Forming,
    ) -> Self {
        let (line, waited) = (Arc::clone(forming.line()), Arc::default());
        let apart = RefCell::default();
        Self { met: OnceCell::new(), inner, device, forbidden, apart, line, timeout, waited }
    }

    fn rank_of(&self) -> usize {
        self.inner.rank() as usize
    }

    /// Those words of every rank.
    fn exchange(&self, own: &[i64]) -> Result<Vec<Vec<i64>>, CommError> {
        let undefined = |_| CommError::Tensor { operation: "all_gather", found: "one the device has no room for" };
        let (size, count) = (self.inner.size() as usize, own.len());
        let mut words = vec![0; size * count];
        words[self.rank_of() * count..][..count].copy_from_slice(own);
        let told = Tensor::from_slice(&words).f_to_device(Device::Cuda(self.device)).map_err(undefined)?;
        self.inner.all_gather(&told)?.wait(self.timeout)?;
        let told = Vec::<i64>::try_from(told.f_to_device(Device::Cpu).map_err(undefined)?).map_err(undefined)?;
        Ok(told.chunks(count).map(<[i64]>::to_vec).collect())
    }

    /// What this rank has come to, if all have come to something; the same answer on every rank. Else it is known why not.
    fn agree<T>(&self, mine: Result<T, String>) -> Result<Option<T>, CommError> {
        let mut words = [0; 1 + REASON_WORDS];
        let reason = mine.as_ref().err().map_or("", String::as_str);
        for (word, bytes) in words[1..].iter_mut().zip(reason.as_bytes().chunks(8)) {
            let mut of = [0; 8];
            of[..bytes.len()].copy_from_slice(bytes);
            *word = i64::from_le_bytes(of);
        }
        words[0] = i64::from(mine.is_ok());
        let told = self.exchange(&words)?;
        let Some((rank, words)) = told.iter().enumerate().find(|(_, words)| words[0] == 0) else {
            return Ok(mine.ok());
        };
        let bytes: Vec<u8> =
            words[1..].iter().flat_map(|word| word.to_le_bytes()).take_while(|byte| *byte != 0).collect();
        let reason = format!("rank {rank}: {}", String::from_utf8_lossy(&bytes));
        tracing::info!(reason, "NCCL's kernels sum gradients, not copy engines");
        *self.apart.borrow_mut() = Some(reason);
        Ok(None)
    }

    /// Meets the others, once.
    fn meeting(&self) -> Result<Option<&Meeting>, CommError> {
        if self.met.get().is_none() {
            let _first = self.met.set(self.meet()?);
        }
        Ok(self.met().filter(|meeting| meeting.trusted.get()))
    }

    /// What they agreed on, if they have met.
    fn met(&self) -> Option<&Meeting> {
        self.met.get()?.as_ref()
    }

    /// Whether copy engines sum such tensors.
    fn takes(&self, tensor: &Tensor) -> bool {
        tensor.device() == Device::Cuda(self.device) && tensor.kind() == Kind::Float && tensor.is_contiguous()
    }

    fn meet(&self) -> Result<Option<Meeting>, CommError> {
        let at = (self.inner.rank(), self.inner.size());
        let mut segment: Option<(Segment, File)> = None;
        let mut card = [0; CARD];
        let mut introduce = || {
            if let Some(why) = self.forbidden {
                return Err(why.to_owned());
            }
            let gpu = Gpu::open(self.device).map_err(|error| error.to_string())?;
            let post = Post::open().map_err(|error| format!("a socket for descriptors: {error}"))?;
            card[1..4].copy_from_slice(&gpu.bus().map_err(|error| error.to_string())?);
            card[4..6].copy_from_slice(&post.address.map(u64::cast_signed));
            if at.0 == 0 {
                let (made, file, holder) = Segment::create(Turns::bytes(at.1)).map_err(|error| error.to_string())?;
                card[HOLDER].copy_from_slice(&holder);
                segment = Some((made, file));
            }
            card[0] = 1;
            Ok::<_, String>((gpu, post))
        };
        let introduced = introduce();
        let cards = self.exchange(&card)?;
        let (segment, _open_until_all_have_it) = segment.unzip();
        let mine = introduced.and_then(|(gpu, post)| self.join(gpu, post, segment, &cards));
        let met = self.agree(mine)?;
        if let Some(meeting) = &met {
            self.line.tie(&meeting.engine.member.turns);
        }
        Ok(met)
    }

    fn join(&self, gpu: Gpu, post: Post, segment: Option<Segment>, cards: &[Vec<i64>]) -> Result<Meeting, String> {
        let (rank, size) = (self.inner.rank(), self.inner.size());
        if let Some(other) = cards.iter().position(|card| card[0] == 0) {
            return Err(format!("rank {other} cannot"));
        }
        for card in cards.iter().enumerate().filter(|(other, _)| *other != rank as usize).map(|(_, card)| card) {
            gpu.reaches([card[1], card[2], card[3]]).map_err(|error| error.to_string())?;
        }
        let segment = match segment {
            Some(made) => made,
            None => {
                let holder = Holder::try_from(&cards[0][HOLDER]).unwrap_or_default();
                let opened = Segment::open(Turns::bytes(size), holder);
                opened.map_err(|error| format!("the segment of words: {error}"))?
            }
        };
        let turns = Turns::new(gpu, segment, (rank, size)).map_err(|error| error.to_string())?;
        let beside = Beside::new(gpu).map_err(|error| error.to_string())?;
        let member = Member { beside, turns: Arc::new(turns), waited: Arc::clone(&self.waited), rank, size };
        let addresses = cards.iter().map(|card| [card[4], card[5]].map(i64::cast_unsigned)).collect();
        Ok(Meeting { engine: Engine::new(member), gpu, post, addresses, trusted: Cell::new(true) })
    }

    /// Memory of so many bytes at every rank, and scratch where it is asked for, or nothing when one of them has none.
    fn regions(
        &self,
        meeting: &Meeting,
        bytes: usize,
        scratch: Option<usize>,
    ) -> Result<Option<Vec<Region>>, CommError> {
        let make = || {
            let sizes = [Some(bytes), scratch];
            let made = sizes.into_iter().flatten().map(|bytes| Memory::new(meeting.gpu, bytes).map(Arc::new));
            let made = made.collect::<Result<Vec<_>, _>>()?;
            let descriptors = made.iter().map(|memory| memory.share()).collect::<Result<Vec<_>, _>>()?;
            Ok((made, descriptors))
        };
        let made: Result<(Vec<Arc<Memory>>, Vec<OwnedFd>), String> =
            make().map_err(|error: crate::backend::link::LinkError| error.to_string());
        let own: Vec<BorrowedFd<'_>> = made.iter().flat_map(|(_, fds)| fds.iter().map(OwnedFd::as_fd)).collect();
        let passed = meeting.post.pass(self.rank_of(), &meeting.addresses, &own);
        let mine = passed.map_err(|error| format!("descriptors: {error}")).and_then(|taken| {
            let (made, _) = made.as_ref().map_err(Clone::clone)?;
            let mut taken: Vec<_> = taken.into_iter().map(Vec::into_iter).collect();
            let of = |memory: &Arc<Memory>| {
                let next = taken.iter_mut().enumerate().map(|(rank, fds)| match fds.next() {
                    None if rank != self.rank_of() => Err(format!("rank {rank} has no memory")),
                    fd => Ok(fd),
                });
                let next = next.collect::<Result<Vec<_>, _>>()?;
                Region::open(meeting.gpu, Arc::clone(memory), &next).map_err(|error| error.to_string())
            };
            made.iter().map(of).collect::<Result<Vec<_>, _>>()
        });
        self.agree(mine)
    }

    /// Whether a sum of known numbers, the whole array long, is right.
    fn check(&self, tensor: &Tensor) -> Result<bool, CommError> {
        let failed = |error: tch::TchError| CommError::Collective {
            operation: "check",
            rank: self.inner.rank(),
            size: self.inner.size(),
            message: error.to_string(),
        };
        let (rank, size) = (f64::from(self.inner.rank()), f64::from(self.inner.size()));
        let ramp = Tensor::f_arange(tensor.numel() as i64, (Kind::Float, tensor.device())).map_err(failed)?;
        let ramp = ramp.f_remainder(CHECK_PERIOD).map_err(failed)?.f_view_as(tensor).map_err(failed)?;
        let mut tensor = tensor.shallow_clone();
        tensor.f_copy_(&ramp.f_mul_scalar(rank + 1.0).map_err(failed)?).map_err(failed)?;
        match self.linked("check", &tensor, true)? {
            Some(work) => work.wait(self.timeout)?,
            None => return Ok(false),
        }
        let right = ramp.f_mul_scalar(size * (size + 1.0) / 2.0).map_err(failed)?.f_equal(&tensor).map_err(failed)?;
        let _zeroed = tensor.f_zero_().map_err(failed)?;
        Ok(right)
    }

    /// Begins a sum by copy engines, where the tensor lies in memory of all ranks.
    fn linked(&self, operation: &'static str, tensor: &Tensor, gather: bool) -> Result<Option<Work>, CommError> {
        let Some(meeting) = self.met().filter(|_| self.takes(tensor)) else { return Ok(None) };
        let member = &meeting.engine.member;
        let place = (tensor.data_ptr().addr() as u64, tensor.numel());
        let begun = meeting.engine.sum(operation, place, gather).map_err(|error| member.error(operation, &error))?;
        if begun.is_some() {
            member.uncut(operation)?;
        }
        Ok(begun.map(Work::Linked))
    }
}

impl ProcessGroup for Linked {
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    fn size(&self) -> u32 {
        self.inner.size()
    }

    fn backend(&self) -> &'static str {
        let sums = self.met().is_some_and(|meeting| meeting.engine.has_memory());
        if sums { "nccl, copy engines" } else { self.inner.backend() }
    }

    fn fell_back(&self) -> Option<String> {
        self.apart.borrow().as_ref().map(|reason| format!("NCCL's kernels sum gradients, not copy engines: {reason}"))
    }

    fn flops_per_byte(&self) -> f64 {
        self.inner.flops_per_byte()
    }

    fn intact(&self) -> Result<(), CommError> {
        self.met().map_or(Ok(()), |meeting| meeting.engine.member.uncut("all_reduce"))
    }

    fn all_reduce(&self, tensor: &Tensor, reduce: Reduce) -> Result<Work, CommError> {
        if reduce == Reduce::Sum
            && let Some(work) = self.linked("all_reduce", tensor, true)?
        {
            return Ok(work);
        }
        self.inner.all_reduce(tensor, reduce)
    }

    fn broadcast(&self, tensor: &Tensor, root: u32) -> Result<Work, CommError> {
        self.inner.broadcast(tensor, root)
    }

    fn reduce_scatter_sum(&self, whole: &Tensor) -> Result<Work, CommError> {
        let _it_has_parts = own_part(whole, self.rank(), self.size())?;
        match self.linked("reduce_scatter", whole, false)? {
            Some(work) => Ok(work),
            None => self.inner.reduce_scatter_sum(whole),
        }
    }

    fn all_gather(&self, whole: &Tensor) -> Result<Work, CommError> {
        self.inner.all_gather(whole)
    }

    fn shared_like(&self, tensor: &Tensor) -> Result<Option<Tensor>, CommError> {
        let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
        if !self.takes(tensor) || bytes < BYTES_MIN {
            return self.inner.shared_like(tensor);
        }
        let Some(meeting) = self.meeting()? else { return Ok(None) };
        let engine = &meeting.engine;
        let Some(regions) = self.regions(meeting, bytes, engine.scratch_for(bytes))? else { return Ok(None) };
        let mut regions = regions.into_iter();
        let (region, scratch) = (regions.next(), regions.next());
        let Some(region) = region else { return Ok(None) };
        if let Some(scratch) = scratch {
            engine.set_scratch(scratch);
        }
        let shared = region.own.tensor(tensor);
        engine.add(region);
        let right = match shared {
            Ok(shared) => {
                self.check(&shared)?.then_some(shared).ok_or_else(|| "a sum of the check is wrong".to_owned())
            }
            Err(error) => Err(error.to_string()),
        };
        let agreed = self.agree(right)?;
        if agreed.is_none() {
            engine.take_back();
            meeting.trusted.set(false);
        }
        Ok(agreed)
    }

    fn barrier(&self, timeout: Duration) -> Result<(), CommError> {
        self.inner.barrier(timeout)
    }

    fn shutdown(self: Box<Self>, timeout: Duration) -> Result<(), CommError> {
        let Self { met, inner, .. } = *self;
        if let Some(Some(meeting)) = met.get() {
            meeting.engine.rest(timeout);
        }
        drop(met);
        inner.shutdown(timeout)
    }

    fn abort(self: Box<Self>, timeout: Duration) -> Result<(), CommError> {
        let Self { met, inner, .. } = *self;
        if let Some(Some(meeting)) = met.get() {
            meeting.engine.member.turns.cut();
        }
        drop(met);
        inner.abort(timeout)
    }

    fn cutter(&self) -> Box<dyn Cut> {
        self.inner.cutter()
    }

    fn waited(&self) -> Duration {
        self.inner.waited() + self.waited.total()
    }
}
