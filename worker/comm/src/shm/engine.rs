//! The thread that runs this rank's collectives, one after the other in the order of issue, while the caller goes on.

use super::{
    exchange::Exchange,
    fault::{Fault, RankState},
    region::SharedRegion,
    ring::Ring,
    safe::numbers,
    work::WorkOutcome,
};
use crate::{AbortHandle, CommError, Reduce};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tch::{Kind, Tensor};

/// Most collectives that are issued and not yet run; one more makes the issuer wait.
const QUEUE_MAX: usize = 1024;

pub(super) enum Task {
    AllReduce(Tensor, Reduce),
    /// Reduction of a tensor that begins at this byte of its rank's part of a region.
    AllReduceShared(Tensor, Reduce, (Arc<SharedRegion>, usize)),
    Broadcast(Tensor, u32),
    Barrier,
}

struct QueuedTask {
    task: Task,
    outcome: Arc<WorkOutcome>,
}

impl Drop for QueuedTask {
    fn drop(&mut self) {
        // If the thread is gone, waiters must not wait for ever. An outcome that was set before stays.
        self.outcome.tell(Err(Fault::Aborted));
    }
}

#[derive(Debug)]
pub(super) struct CollectiveThread {
    ring: Arc<Ring>,
    jobs: Option<Sender<QueuedTask>>,
    /// Closed by the thread's end.
    ended: Receiver<()>,
}

impl CollectiveThread {
    /// Starts the thread; each collective may take `timeout` from its start.
    pub(super) fn start(ring: Arc<Ring>, timeout: Duration) -> Result<Self, CommError> {
        let (jobs, queue) = bounded::<QueuedTask>(QUEUE_MAX);
        let (ending, ended) = bounded::<()>(0);
        let rank = ring.rank;
        let size = ring.size;
        let exchange = Exchange::new(Arc::clone(&ring));
        thread::Builder::new()
            .name("enn-comm".to_owned())
            .spawn(move || {
                run(exchange, &queue, timeout);
                drop(ending);
            })
            .map_err(|error| CommError::Form {
                backend: "shm",
                rank,
                size,
                message: format!("a thread for collectives: {error}"),
            })?;
        Ok(Self { ring, jobs: Some(jobs), ended })
    }

    pub(super) fn issue(&self, task: Task) -> Arc<WorkOutcome> {
        let outcome = Arc::<WorkOutcome>::default();
        let job = QueuedTask { task, outcome: Arc::clone(&outcome) };
        if let Some(jobs) = &self.jobs {
            // If the thread is gone, the task is dropped, which sets its outcome.
            let _ = jobs.send(job);
        }
        outcome
    }

    /// Ends the thread after the queued collectives. Returns whether that took at most `timeout`.
    pub(super) fn finish(&mut self, timeout: Duration) -> bool {
        self.jobs = None;
        matches!(self.ended.recv_timeout(timeout), Err(RecvTimeoutError::Disconnected))
    }

    /// Aborts the collectives in flight and ends the thread. Returns whether that took at most `timeout`.
    pub(super) fn abort(&mut self, timeout: Duration) -> bool {
        self.ring.abort();
        self.finish(timeout)
    }
}

impl Drop for CollectiveThread {
    fn drop(&mut self) {
        if self.jobs.is_some() {
            self.ring.abort();
        }
    }
}

fn run(mut exchange: Exchange, queue: &Receiver<QueuedTask>, timeout: Duration) {
    let _no_grad = tch::no_grad_guard();
    let mut broken = None;
    while let Ok(mut job) = queue.recv() {
        let result = match broken {
            Some(fault) => Err(fault),
            None if exchange.ring.is_aborted() => Err(Fault::Aborted),
            None => perform(&mut exchange, &mut job.task, Instant::now() + timeout),
        };
        if let Err(fault) = result
            && broken.is_none()
        {
            // The ranks are out of step now: waits for this rank must end soon.
            exchange.ring.say(fault.state());
            broken = Some(fault);
        }
        job.outcome.tell(result);
    }
    exchange.ring.say(RankState::Left);
}

fn perform(exchange: &mut Exchange, task: &mut Task, deadline: Instant) -> Result<(), Fault> {
    match task {
        Task::AllReduce(tensor, reduce) => {
            let kind = tensor.kind();
            let code = kind as u8;
            match kind {
                Kind::Float => exchange.all_reduce(numbers::<f32>(tensor), *reduce, code, deadline),
                Kind::Double => exchange.all_reduce(numbers::<f64>(tensor), *reduce, code, deadline),
                Kind::Int64 => exchange.all_reduce(numbers::<i64>(tensor), *reduce, code, deadline),
                _ => {
                    // Half kinds are added up in f32 and rounded once.
                    let mut wide = tensor.to_kind(Kind::Float);
                    exchange.all_reduce(numbers::<f32>(&mut wide), *reduce, code, deadline)?;
                    tensor.copy_(&wide);
                    Ok(())
                }
            }
        }
        Task::AllReduceShared(tensor, reduce, (region, start)) => {
            let kind = tensor.kind();
            let count = tensor.numel();
            let code = kind as u8;
            match kind {
                Kind::Double => exchange.all_reduce_shared::<f64>(region, *start, count, *reduce, code, deadline),
                Kind::Int64 => exchange.all_reduce_shared::<i64>(region, *start, count, *reduce, code, deadline),
                _ => exchange.all_reduce_shared::<f32>(region, *start, count, *reduce, code, deadline),
            }
        }
        Task::Broadcast(tensor, root) => {
            let kind = tensor.kind() as u8;
            exchange.broadcast(numbers::<u8>(tensor), *root, kind, deadline)
        }
        Task::Barrier => exchange.barrier(deadline),
    }
}
