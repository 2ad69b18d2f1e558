//! The stream beside: copies, turns, sums, and moments on it.

use super::gpu::{Gpu, LinkError};
use crate::backend::{
    cuda::{driver, lane::Lane, sum},
    graph,
};
use cudarc::driver::sys as cu;
use std::ptr;
use tch::Kind;

pub use sum::{Places, Together};

/// A stream of its own. It is no more urgent than the one that computes: measured, a sum that waits for a product to end costs less than
/// one that goes before it.
#[derive(Debug)]
pub struct Beside {
    gpu: Gpu,
    lane: Lane,
}

/// A moment on a stream.
#[derive(Debug)]
pub struct Moment {
    gpu: Gpu,
    event: cu::CUevent,
}

// SAFETY: the driver's handle, which any thread may use.
unsafe impl Send for Moment {}
// SAFETY: as above.
unsafe impl Sync for Moment {}

impl Beside {
    /// Of that device.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(gpu: Gpu) -> Result<Self, LinkError> {
        let mut stream = ptr::null_mut();
        let flags = cu::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `stream` is writable; it is destroyed in `drop`.
        gpu.ask("make a stream", || unsafe { cu::cuStreamCreate(&raw mut stream, flags) })?;
        Ok(Self { gpu, lane: Lane::new(gpu.index, driver::Stream::of(stream)) })
    }

    /// What comes next waits for what the current stream was given so far; the moment when that is done.
    ///
    /// # Errors
    /// What the driver says; while the current stream records a graph.
    pub fn after_current(&self) -> Result<Moment, LinkError> {
        let records =
            graph::records().map_err(|error| LinkError { what: "look at the stream", status: error.message })?;
        if records {
            let status = "the ranks keep turns by counting them; collectives = \"nccl\" can".to_owned();
            return Err(LinkError { what: "record a collective in a graph", status });
        }
        let made = Moment::on(self.gpu, self.gpu.current()?)?;
        made.before(self.lane.stream)?;
        Ok(made)
    }

    /// Copies between mapped memory.
    ///
    /// # Safety
    /// Both places have so many bytes, and stay until a later [`Moment`] is done.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), LinkError> {
        // SAFETY: as the caller says.
        self.gpu.ask("copy to another device", || unsafe { cu::cuMemcpyAsync(to, from, bytes, self.lane.stream.raw()) })
    }

    /// Writes a word when all before it is done and seen by everybody.
    ///
    /// # Safety
    /// The word is there until a later [`Moment`] is done.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn tell(&self, word: u64, value: u32) -> Result<(), LinkError> {
        // SAFETY: as the caller says.
        self.gpu.ask("write a word", || unsafe { cu::cuStreamWriteValue32_v2(self.lane.stream.raw(), word, value, 0) })
    }

    /// Waits until a word is `value` or at most 2³¹ − 1 beyond it, counted around.
    ///
    /// # Safety
    /// The word is there until a later [`Moment`] is done.
    ///
    /// # Errors
    /// What the driver says.
    pub unsafe fn hear(&self, word: u64, value: u32) -> Result<(), LinkError> {
        let at_least = cu::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
        // SAFETY: as the caller says.
        self.gpu.ask("wait for a word", || unsafe {
            cu::cuStreamWaitValue32_v2(self.lane.stream.raw(), word, value, at_least)
        })
    }

    /// Brings together `elements` values of all ranks, in the ranks' order, at the place of the own ones. The others' are `stride` elements
    /// apart. How many sums of squares it writes, if there is a place for them.
    ///
    /// # Safety
    /// The places have so many values of that kind, and stay until a later [`Moment`] is done.
    ///
    /// # Errors
    /// The kernel cannot be compiled or launched, or is not for that kind.
    pub unsafe fn sum(
        &self,
        places: Places,
        (elements, stride): (usize, usize),
        at: (u32, u32),
        how: (Kind, Together),
    ) -> Result<usize, LinkError> {
        let numbers = (elements as i64, stride as i64);
        let summed = sum::sum_parts(&self.lane, places, numbers, at, how);
        summed
            .map(|squares| squares as usize)
            .map_err(|error| LinkError { what: "add up parts", status: error.to_string() })
    }

    /// Makes ready what [`Beside::sum`] launches: what others wait for is not given where it cannot be done.
    ///
    /// # Errors
    /// The kernel cannot be compiled, or is not for that kind.
    pub fn make_ready(&self, (kind, together): (Kind, Together)) -> Result<(), LinkError> {
        let ready = sum::make_ready(self.gpu.index, kind, together);
        ready.map_err(|error| LinkError { what: "make a sum ready", status: error.to_string() })
    }

    /// Copies by a kernel, if the word `cut` of this device's memory is 0.
    ///
    /// # Safety
    /// As [`Beside::copy`]; the word stays as well.
    ///
    /// # Errors
    /// The kernel cannot be compiled or launched.
    pub unsafe fn take(&self, from: u64, to: u64, bytes: usize, cut: u64) -> Result<(), LinkError> {
        let taken = sum::take_part(&self.lane, (from, to), bytes as i64, cut);
        taken.map_err(|error| LinkError { what: "take what came", status: error.to_string() })
    }

    /// Writes √Σ of `count` sums of squares, f32; what is no number once the word `cut` of the host's memory is not 0.
    ///
    /// # Safety
    /// So many are there, and `to` has room; all stay until a later [`Moment`] is done.
    ///
    /// # Errors
    /// As [`Beside::sum`].
    pub unsafe fn norm(&self, (squares, count): (u64, usize), to: u64, cut: u64) -> Result<(), LinkError> {
        let made = sum::norm_of_parts(&self.lane, (squares, count as i64), to, cut);
        made.map_err(|error| LinkError { what: "measure sums", status: error.to_string() })
    }

    /// The moment when all so far is done.
    ///
    /// # Errors
    /// What the driver says.
    pub fn moment(&self) -> Result<Moment, LinkError> {
        Moment::on(self.gpu, self.lane.stream)
    }

    /// Whether all so far is done, or failed.
    pub fn is_idle(&self) -> bool {
        // SAFETY: the stream lives as long as `self`.
        let status = unsafe { cu::cuStreamQuery(self.lane.stream.raw()) };
        status != cu::CUresult::CUDA_ERROR_NOT_READY
    }

    /// What the current stream is given from now on waits for that moment; the host goes on.
    ///
    /// # Errors
    /// What the driver says.
    pub fn hold(&self, moment: &Moment) -> Result<(), LinkError> {
        moment.before(self.gpu.current()?)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // SAFETY: made in `new`; what is still on it goes on by itself.
        let _ = self.gpu.ask("end a stream", || unsafe { cu::cuStreamDestroy_v2(self.lane.stream.raw()) });
    }
}

impl Moment {
    fn on(gpu: Gpu, stream: driver::Stream) -> Result<Self, LinkError> {
        let mut event = ptr::null_mut();
        let flags = cu::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: `event` is writable; it is destroyed in `drop`.
        gpu.ask("make an event", || unsafe { cu::cuEventCreate(&raw mut event, flags) })?;
        let moment = Self { gpu, event };
        // SAFETY: both are alive, of one context.
        gpu.ask("mark a moment", || unsafe { cu::cuEventRecord(moment.event, stream.raw()) })?;
        Ok(moment)
    }

    /// What `stream` is given from now on waits for it.
    fn before(&self, stream: driver::Stream) -> Result<(), LinkError> {
        // SAFETY: both are alive.
        self.gpu.ask("wait for a moment", || unsafe { cu::cuStreamWaitEvent(stream.raw(), self.event, 0) })
    }

    /// Whether it has come.
    ///
    /// # Errors
    /// What went wrong on the device.
    pub fn is_past(&self) -> Result<bool, LinkError> {
        let mut there = true;
        self.gpu.ask("look at the device", || {
            // SAFETY: the event lives as long as `self`.
            let status = unsafe { cu::cuEventQuery(self.event) };
            there = status != cu::CUresult::CUDA_ERROR_NOT_READY;
            if there { status } else { cu::CUresult::CUDA_SUCCESS }
        })?;
        Ok(there)
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        // SAFETY: made in `on`; the driver waits with what is not past.
        let _ = self.gpu.ask("end an event", || unsafe { cu::cuEventDestroy_v2(self.event) });
    }
}
