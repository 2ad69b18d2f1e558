//! The queue of jobs. Long jobs are queued again between their parts, so that short ones do not wait for them.

use super::{
    job::EngineJob,
    policy::{self, Order, Part},
};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The waiting jobs, oldest first; a job that was computed in part comes after all that arrived before.
type Waiting = Arc<Mutex<VecDeque<EngineJob>>>;

#[derive(Clone)]
pub(super) struct Jobs {
    waiting: Waiting,
    wake: Sender<()>,
    most: usize,
}

#[derive(Clone)]
pub(super) struct Work {
    waiting: Waiting,
    wake: Sender<()>,
    woken: Receiver<()>,
}

/// The reason why a job is not accepted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    Full,
    /// All engines have ended.
    Closed,
}

/// Makes a queue of at most `most` jobs for the given number of engines.
pub(super) fn queue(most: usize, engines: usize) -> (Jobs, Work) {
    let waiting = Waiting::default();
    // One wake-up per engine is enough: an awake engine looks at all waiting jobs.
    let (wake, woken) = bounded(engines.max(1));
    let jobs = Jobs { waiting: Arc::clone(&waiting), wake: wake.clone(), most: most.max(1) };
    (jobs, Work { waiting, wake, woken })
}

fn locked(waiting: &Waiting) -> MutexGuard<'_, VecDeque<EngineJob>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Jobs {
    pub(super) fn push(&self, job: EngineJob) -> Result<(), NotTaken> {
        let mut waiting = locked(&self.waiting);
        if waiting.len() >= self.most {
            waiting.retain(|job| job.reply.is_waiting());
        }
        if waiting.len() >= self.most {
            return Err(NotTaken::Full);
        }
        if let Err(TrySendError::Disconnected(())) = self.wake.try_send(()) {
            return Err(NotTaken::Closed);
        }
        waiting.push_back(job);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        locked(&self.waiting).len()
    }
}

impl Work {
    /// Returns a channel that receives when jobs may have arrived.
    pub(super) const fn woken(&self) -> &Receiver<()> {
        &self.woken
    }

    /// Returns the number of waiting rows of jobs whose clients still wait.
    pub(super) fn rows(&self) -> usize {
        let mut waiting = locked(&self.waiting);
        waiting.retain(|job| job.reply.is_waiting());
        waiting.iter().map(|job| job.left().max(1)).sum()
    }

    /// Takes the jobs to compute next, with at most `part_max` rows of one job and `rows_max` of all.
    pub(super) fn take(&self, part_max: usize, rows_max: usize, order: Order) -> Vec<EngineJob> {
        let mut waiting = locked(&self.waiting);
        waiting.retain(|job| job.reply.is_waiting());
        let left: Vec<usize> = waiting.iter().map(EngineJob::left).collect();
        let mut parts = policy::parts(&left, part_max, rows_max, order);
        // Jobs are removed from the end, so that the other indices stay valid.
        parts.sort_by_key(|part| std::cmp::Reverse(part.at));
        let mut taken = Vec::with_capacity(parts.len());
        for Part { at, rows } in parts {
            if let Some(mut job) = waiting.remove(at) {
                job.part = rows;
                taken.push(job);
            }
        }
        taken.reverse();
        if !waiting.is_empty() {
            // Another engine may be idle; a full channel already wakes it.
            let _full = self.wake.try_send(());
        }
        taken
    }

    /// Answers finished jobs; the others wait for their next part.
    pub(super) fn settle(&self, jobs: Vec<EngineJob>) {
        let (done, more): (Vec<EngineJob>, Vec<EngineJob>) = jobs.into_iter().partition(|job| job.left() == 0);
        if !more.is_empty() {
            locked(&self.waiting).extend(more);
            let _full = self.wake.try_send(());
        }
        done.into_iter().for_each(EngineJob::finish);
    }
}
