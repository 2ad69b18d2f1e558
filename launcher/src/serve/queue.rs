//! Jobs that wait for an engine. Long ones come back between their parts, so that short ones do not wait for their end.

use super::{
    job::EngineJob,
    policy::{self, Order, Part},
};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Oldest first, those that were computed in part behind all that came before their part.
type Waiting = Arc<Mutex<VecDeque<EngineJob>>>;

/// Where jobs go.
#[derive(Clone)]
pub(super) struct Jobs {
    waiting: Waiting,
    wake: Sender<()>,
    most: usize,
}

/// Where engines take them from.
#[derive(Clone)]
pub(super) struct Work {
    waiting: Waiting,
    wake: Sender<()>,
    woken: Receiver<()>,
}

/// Why a job is not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotTaken {
    /// As many wait as may.
    Full,
    /// Nobody takes jobs any more.
    Closed,
}

/// A queue of at most `most` jobs for so many engines.
pub(super) fn queue(most: usize, engines: usize) -> (Jobs, Work) {
    let waiting = Waiting::default();
    // As many wake-ups as there are engines are enough: whoever is awake looks at all that waits.
    let (wake, woken) = bounded(engines.max(1));
    let jobs = Jobs { waiting: Arc::clone(&waiting), wake: wake.clone(), most: most.max(1) };
    (jobs, Work { waiting, wake, woken })
}

fn locked(waiting: &Waiting) -> MutexGuard<'_, VecDeque<EngineJob>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Jobs {
    /// Puts a job behind the others.
    pub(super) fn push(&self, job: EngineJob) -> Result<(), NotTaken> {
        let mut waiting = locked(&self.waiting);
        if waiting.len() >= self.most {
            waiting.retain(|job| job.reply.is_wanted());
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

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        locked(&self.waiting).len()
    }
}

impl Work {
    /// Says something when jobs may have come.
    pub(super) const fn woken(&self) -> &Receiver<()> {
        &self.woken
    }

    /// Rows that wait, of jobs that somebody waits for.
    pub(super) fn rows(&self) -> usize {
        let mut waiting = locked(&self.waiting);
        waiting.retain(|job| job.reply.is_wanted());
        waiting.iter().map(|job| job.left().max(1)).sum()
    }

    /// The jobs to compute next, with the rows of each: of one job at most `part_max`, of all together at most `rows_max`.
    pub(super) fn take(&self, part_max: usize, rows_max: usize, order: Order) -> Vec<EngineJob> {
        let mut waiting = locked(&self.waiting);
        waiting.retain(|job| job.reply.is_wanted());
        let left: Vec<usize> = waiting.iter().map(EngineJob::left).collect();
        let mut parts = policy::parts(&left, part_max, rows_max, order);
        // From the last place to the first, so that those before stay where they are.
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
            // Another engine may be idle. A full channel has wake-ups enough.
            let _full = self.wake.try_send(());
        }
        taken
    }

    /// Tells the answers of jobs that are done; the others wait for their next part.
    pub(super) fn settle(&self, jobs: Vec<EngineJob>) {
        let (done, more): (Vec<EngineJob>, Vec<EngineJob>) = jobs.into_iter().partition(|job| job.left() == 0);
        if !more.is_empty() {
            locked(&self.waiting).extend(more);
            let _full = self.wake.try_send(());
        }
        done.into_iter().for_each(EngineJob::finish);
    }
}
