//! The thread that runs this rank's collectives, one after the other in the order of issue, while the caller goes on.

use super::{
    exchange::Exchange,
    fault::{Fault, State},
    region::Region,
    ring::Ring,
    safe::numbers,
    work::Outcome,
};
use crate::comm::{CommError, Reduce};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tch::{Kind, Tensor};

/// Collectives issued and not yet run; one more makes the issuer wait.
const QUEUE_MAX: usize = 1024;

/// What is to be done.
pub(super) enum Task {
    AllReduce(Tensor, Reduce),
    /// Of a tensor that begins at this byte of its rank's part of a region.
    AllReduceShared(Tensor, Reduce, (Arc<Region>, usize)),
    Broadcast(Tensor, u32),
    Barrier,
}

struct Job {
    task: Task,
    outcome: Arc<Outcome>,
}

impl Drop for Job {
    fn drop(&mut self) {
        // Whatever became of the thread, nobody waits for ever; a told outcome stays.
        self.outcome.tell(Err(Fault::Aborted));
    }
}

/// Owner of the thread.
#[derive(Debug)]
pub(super) struct Engine {
    ring: Arc<Ring>,
    jobs: Option<Sender<Job>>,
    /// Closed by the thread's end.
    ended: Receiver<()>,
}

impl Engine {
    /// Starts the thread; each collective may take `timeout` from its turn on.
    pub(super) fn start(ring: Arc<Ring>, timeout: Duration) -> Result<Self, CommError> {
        let (jobs, queue) = bounded::<Job>(QUEUE_MAX);
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

    /// Puts a collective behind those issued before.
    pub(super) fn issue(&self, task: Task) -> Arc<Outcome> {
        let outcome = Arc::<Outcome>::default();
        let job = Job { task, outcome: Arc::clone(&outcome) };
        if let Some(jobs) = &self.jobs {
            // A thread that is gone drops the job, which tells its outcome.
            let _ = jobs.send(job);
        }
        outcome
    }

    /// Lets what was issued end, then the thread; whether that took no longer than `timeout`.
    pub(super) fn finish(&mut self, timeout: Duration) -> bool {
        self.jobs = None;
        matches!(self.ended.recv_timeout(timeout), Err(RecvTimeoutError::Disconnected))
    }

    /// Cuts what is in flight, and ends the thread; whether that took no longer than `timeout`.
    pub(super) fn cut(&mut self, timeout: Duration) -> bool {
        self.ring.abort();
        self.finish(timeout)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.jobs.is_some() {
            self.ring.abort();
        }
    }
}

fn run(mut exchange: Exchange, queue: &Receiver<Job>, timeout: Duration) {
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
            // The ranks are out of step now: whoever waits for this one must not wait for long.
            exchange.ring.say(fault.state());
            broken = Some(fault);
        }
        job.outcome.tell(result);
    }
    exchange.ring.say(State::Left);
}

fn perform(exchange: &mut Exchange, task: &mut Task, deadline: Instant) -> Result<(), Fault> {
    match task {
        Task::AllReduce(tensor, reduce) => {
            let kind = tensor.kind();
            let what = (*reduce, kind as u8);
            match kind {
                Kind::Float => exchange.all_reduce(numbers::<f32>(tensor), what, deadline),
                Kind::Double => exchange.all_reduce(numbers::<f64>(tensor), what, deadline),
                Kind::Int64 => exchange.all_reduce(numbers::<i64>(tensor), what, deadline),
                _ => {
                    // Half kinds are added up in f32 and rounded once.
                    let mut wide = tensor.to_kind(Kind::Float);
                    exchange.all_reduce(numbers::<f32>(&mut wide), what, deadline)?;
                    tensor.copy_(&wide);
                    Ok(())
                }
            }
        }
        Task::AllReduceShared(tensor, reduce, (region, start)) => {
            let kind = tensor.kind();
            let place = (&**region, *start, tensor.numel());
            let what = (*reduce, kind as u8);
            match kind {
                Kind::Double => exchange.all_reduce_shared::<f64>(place, what, deadline),
                Kind::Int64 => exchange.all_reduce_shared::<i64>(place, what, deadline),
                _ => exchange.all_reduce_shared::<f32>(place, what, deadline),
            }
        }
        Task::Broadcast(tensor, root) => {
            let kind = tensor.kind() as u8;
            exchange.broadcast(numbers::<u8>(tensor), (*root, kind), deadline)
        }
        Task::Barrier => exchange.barrier(deadline),
    }
}
