//! Threads that do for an owner loop what may take long, and their answers.
//!
//! **Invariant:** the owner loop never waits for them: a queue that is full refuses, and a thread whose disk hangs is left behind.

use super::{error::AgentError, input::NodeInput};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use enn_process::stacks::{self, StackTarget};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::{
    os::fd::{AsFd, BorrowedFd},
    path::PathBuf,
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

/// Longest wait for what NVML shows of a GPU: the others wait for the worker that failed on it to be replaced.
pub(crate) const GPU_LOOK_MAX: Duration = Duration::from_secs(1);
/// Jobs that wait for one thread.
const JOBS_MAX: usize = 1024;

/// Answers that wait for the owner loop. Each answers one request, so that their number is bounded by that of the requests.
#[derive(Debug)]
pub(crate) struct Inbox<A> {
    answers: Receiver<A>,
    sender: AnswerSender<A>,
}

/// The side of a thread that answers.
#[derive(Debug)]
pub(crate) struct AnswerSender<A> {
    answers: Sender<A>,
    wake: Arc<EventFd>,
}

impl<A> Clone for AnswerSender<A> {
    fn clone(&self) -> Self {
        Self { answers: self.answers.clone(), wake: Arc::clone(&self.wake) }
    }
}

impl<A> AnswerSender<A> {
    /// Sends an answer and wakes the owner loop.
    pub(crate) fn send(&self, answer: A) {
        // Both fail only when the owner loop has ended or is about to be woken anyway.
        let _gone = self.answers.send(answer);
        let _full = self.wake.write(1);
    }
}

impl<A> Inbox<A> {
    pub(crate) fn new() -> Result<Self, AgentError> {
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let wake = wake.map_err(|error| AgentError::System { what: "make an eventfd", source: error.into() })?;
        let (sender, answers) = unbounded();
        Ok(Self { answers, sender: AnswerSender { answers: sender, wake: Arc::new(wake) } })
    }

    pub(crate) fn sender(&self) -> AnswerSender<A> {
        self.sender.clone()
    }

    /// Returns a descriptor that is readable when answers wait.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.sender.wake.as_fd()
    }

    /// Returns the answers that wait, and makes the descriptor unreadable until the next one.
    pub(crate) fn take(&self) -> Vec<A> {
        // An empty counter needs no clearing.
        let _empty = self.sender.wake.read();
        self.answers.try_iter().collect()
    }
}

/// Writes within `limit` what processes of a round do into `dir`, in a thread of its own, since the tools take their time. `answer` gets
/// `StacksCollected`. Where no thread starts, `answer` is not called, and the input that says so is returned.
pub(crate) fn collect_stacks(
    round: u64,
    targets: Vec<StackTarget>,
    dir: PathBuf,
    limit: Duration,
    answer: impl FnOnce(NodeInput) + Send + 'static,
) -> Option<NodeInput> {
    let to = dir.clone();
    let collect = move || {
        let summary = stacks::collect(&targets, &to, limit).summary();
        answer(NodeInput::StacksCollected { round, dir: to, summary });
    };
    let thread = std::thread::Builder::new().name("enn-stacks".into()).spawn(collect);
    let error = thread.err()?;
    Some(NodeInput::StacksCollected { round, dir, summary: vec![format!("no thread to read stacks: {error}")] })
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread that does one job after the other.
#[derive(Debug)]
pub(crate) struct JobThread {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// Disconnected by the thread's end.
    ended: Receiver<()>,
    /// Longest wait for the jobs under way when the thread is to end.
    end_wait_max: Duration,
}

impl JobThread {
    /// Starts the thread. When it is dropped, its jobs have `end_wait_max` to be done.
    pub(crate) fn start(name: &str, end_wait_max: Duration) -> Result<Self, AgentError> {
        let (jobs, incoming) = bounded::<Job>(JOBS_MAX);
        let (ending, ended) = bounded(0);
        let work = move || {
            incoming.into_iter().for_each(|job| job());
            drop::<Sender<()>>(ending);
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        let thread = thread.map_err(|source| AgentError::System { what: "start a thread", source })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), ended, end_wait_max })
    }

    /// Queues a job; false when too many wait, and the job is not done.
    #[must_use]
    pub(crate) fn submit(&self, job: impl FnOnce() + Send + 'static) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(Box::new(job)).is_ok())
    }

    /// Queues a job and waits until it is done, at most `wait_max`. It may be done later, or not at all when too many wait.
    pub(crate) fn run_within(&self, wait_max: Duration, job: impl FnOnce() + Send + 'static) {
        let (doing, done) = bounded::<()>(0);
        let is_queued = self.submit(move || {
            job();
            drop(doing);
        });
        if is_queued {
            // Disconnected when the job is done.
            let _done = done.recv_timeout(wait_max);
        }
    }
}

impl Drop for JobThread {
    fn drop(&mut self) {
        self.jobs = None;
        let hangs = matches!(self.ended.recv_timeout(self.end_wait_max), Err(RecvTimeoutError::Timeout));
        if let Some(thread) = self.thread.take()
            && !hangs
        {
            let _panicked = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn jobs_are_done_in_order_and_one_that_hangs_is_left_behind() {
        let inbox = Inbox::new().unwrap();
        let thread = JobThread::start("enn-test", Duration::from_secs(10)).unwrap();
        for number in 0..10 {
            let answers = inbox.sender();
            assert!(thread.submit(move || answers.send(number)));
        }
        drop(thread);
        assert_eq!(inbox.take(), (0..10).collect::<Vec<_>>());
        assert_eq!(inbox.take(), [0; 0]);
        let thread = JobThread::start("enn-test", Duration::from_millis(20)).unwrap();
        let (_never, hang) = bounded::<()>(0);
        let answers = inbox.sender();
        thread.run_within(Duration::from_secs(60), move || answers.send(7));
        assert_eq!(inbox.take(), [7]);
        thread.run_within(Duration::from_millis(1), move || _ = hang.recv());
        let began = Instant::now();
        drop(thread);
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}
