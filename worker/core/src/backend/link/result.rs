//! The copy stream: copies, words, reductions and events on it.

use super::gpu::{Gpu, LinkError};
use crate::backend::{
    cuda::{driver, graph_stream::GraphStream, sum},
    graph,
};
use cudarc::driver::sys as cu;
use std::ptr;
use tch::Kind;

pub use sum::{PartReduction, RankReduction};

/// A stream for copies and reductions. Its priority is that of the computing stream: measurements show that a sum which waits for a product
/// costs less than one that preempts it.
#[derive(Debug)]
pub struct CopyStream {
    gpu: Gpu,
    graph_stream: GraphStream,
}

/// An event on a stream, without timing.
#[derive(Debug)]
pub struct StreamEvent {
    gpu: Gpu,
    event: cu::CUevent,
}

// SAFETY: the driver's handle, which any thread may use.
unsafe impl Send for StreamEvent {}
// SAFETY: as above.
unsafe impl Sync for StreamEvent {}

impl CopyStream {
    pub fn new(gpu: Gpu) -> Result<Self, LinkError> {
        let mut stream = ptr::null_mut();
        let flags = cu::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `stream` is writable; it is destroyed in `drop`.
        gpu.ask("make a stream", || unsafe { cu::cuStreamCreate(&raw mut stream, flags) })?;
        Ok(Self { gpu, graph_stream: GraphStream::new(gpu.index, driver::CudaStream::of(stream)) })
    }

    /// Makes later work on this stream wait for all work launched so far on the current stream. Returns the event when that is done.
    ///
    /// # Errors
    /// Errors of the driver; also while the current stream captures a graph.
    pub fn after_current(&self) -> Result<StreamEvent, LinkError> {
        if graph::records().map_err(LinkError::of("look at the stream"))? {
            let status = "copy engines count their turns on the host; use collectives = \"nccl\"".to_owned();
            return Err(LinkError { what: "record a collective in a graph", status });
        }
        let made = StreamEvent::on(self.gpu, self.gpu.current()?)?;
        made.before(self.graph_stream.stream)?;
        Ok(made)
    }

    /// Copies between mapped memory.
    ///
    /// # Safety
    /// Both addresses have so many bytes, and stay valid until a later [`StreamEvent`] is done.
    pub unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), LinkError> {
        // SAFETY: as the caller says.
        self.gpu.ask("copy to another device", || unsafe {
            cu::cuMemcpyAsync(to, from, bytes, self.graph_stream.stream.raw())
        })
    }

    /// Writes a word after all earlier work of this stream is complete and visible to all.
    ///
    /// # Safety
    /// The word stays valid until a later [`StreamEvent`] is done.
    pub unsafe fn write_word(&self, word: u64, value: u32) -> Result<(), LinkError> {
        // SAFETY: as the caller says.
        self.gpu.ask("write a word", || unsafe {
            cu::cuStreamWriteValue32_v2(self.graph_stream.stream.raw(), word, value, 0)
        })
    }

    /// Makes this stream wait until a word is at `value` or at most 2³¹ − 1 beyond it, with wrap-around.
    ///
    /// # Safety
    /// The word stays valid until a later [`StreamEvent`] is done.
    pub unsafe fn wait_word(&self, word: u64, value: u32) -> Result<(), LinkError> {
        let at_least = cu::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
        // SAFETY: as the caller says.
        self.gpu.ask("wait for a word", || unsafe {
            cu::cuStreamWaitValue32_v2(self.graph_stream.stream.raw(), word, value, at_least)
        })
    }

    /// Reduces the values of all ranks as `job` says. Returns the number of sums of squares that are written.
    ///
    /// # Safety
    /// The addresses of `job` have so many values of that kind, and stay valid until a later [`StreamEvent`] is done.
    pub unsafe fn sum(&self, job: &PartReduction) -> Result<usize, LinkError> {
        let squares = sum::sum_parts(&self.graph_stream, job).map_err(LinkError::of("add up parts"))?;
        Ok(squares as usize)
    }

    /// Compiles and loads what [`CopyStream::sum`] launches, before a collective is begun that others wait for.
    pub fn make_ready(&self, kind: Kind, reduction: RankReduction) -> Result<(), LinkError> {
        sum::make_ready(self.gpu.index, kind, reduction).map_err(LinkError::of("make a sum ready"))
    }

    /// Copies with a kernel if the word at `cut`, in this device's memory, is 0.
    ///
    /// # Safety
    /// As [`CopyStream::copy`]; the word stays as well.
    pub unsafe fn take(&self, from: u64, to: u64, bytes: usize, cut: u64) -> Result<(), LinkError> {
        sum::take_part(&self.graph_stream, from, to, bytes as i64, cut).map_err(LinkError::of("take what came"))
    }

    /// Writes √Σ of `count` sums of squares as f32; NaN once the word at `cut`, in host memory, is not 0.
    ///
    /// # Safety
    /// `squares` has `count` values and `to` has room for one; all stay valid until a later [`StreamEvent`] is done.
    pub unsafe fn norm(&self, squares: u64, count: usize, to: u64, cut: u64) -> Result<(), LinkError> {
        sum::norm_of_parts(&self.graph_stream, squares, count as i64, to, cut).map_err(LinkError::of("measure sums"))
    }

    /// Returns an event after all work given to this stream so far.
    pub fn record_event(&self) -> Result<StreamEvent, LinkError> {
        StreamEvent::on(self.gpu, self.graph_stream.stream)
    }

    /// Whether all work given so far is complete or has failed.
    pub fn is_idle(&self) -> bool {
        // SAFETY: the stream lives as long as `self`.
        let status = unsafe { cu::cuStreamQuery(self.graph_stream.stream.raw()) };
        status != cu::CUresult::CUDA_ERROR_NOT_READY
    }

    /// Makes later work on the current stream wait for an event, without blocking the host.
    pub fn hold(&self, event: &StreamEvent) -> Result<(), LinkError> {
        event.before(self.gpu.current()?)
    }
}

impl Drop for CopyStream {
    fn drop(&mut self) {
        // SAFETY: made in `new`; what is still on it goes on by itself.
        let _ = self.gpu.ask("end a stream", || unsafe { cu::cuStreamDestroy_v2(self.graph_stream.stream.raw()) });
    }
}

impl StreamEvent {
    fn on(gpu: Gpu, stream: driver::CudaStream) -> Result<Self, LinkError> {
        let mut event = ptr::null_mut();
        let flags = cu::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: `event` is writable; it is destroyed in `drop`.
        gpu.ask("make an event", || unsafe { cu::cuEventCreate(&raw mut event, flags) })?;
        let made = Self { gpu, event };
        // SAFETY: both are alive, of one context.
        gpu.ask("record an event", || unsafe { cu::cuEventRecord(made.event, stream.raw()) })?;
        Ok(made)
    }

    fn before(&self, stream: driver::CudaStream) -> Result<(), LinkError> {
        // SAFETY: both are alive.
        self.gpu.ask("wait for an event", || unsafe { cu::cuStreamWaitEvent(stream.raw(), self.event, 0) })
    }

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

impl Drop for StreamEvent {
    fn drop(&mut self) {
        // SAFETY: made in `on`; the driver waits with what is not past.
        let _ = self.gpu.ask("end an event", || unsafe { cu::cuEventDestroy_v2(self.event) });
    }
}
