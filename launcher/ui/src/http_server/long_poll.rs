//! Requests that wait until there is something new.

use std::time::Duration;
use tokio::{
    sync::{Semaphore, watch},
    time::timeout,
};

/// The end of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LongPoll {
    /// There is another version than the client's.
    Changed(u64),
    /// The client has the newest version, for as long as the server lets it wait.
    Unchanged,
    /// Too many requests wait.
    Crowded,
}

/// The version of what is served, for which a bounded number of requests may wait.
#[derive(Debug)]
pub struct Versions {
    newest: watch::Sender<u64>,
    waiting: Semaphore,
}

impl Versions {
    /// Begins with version 1. At most `waiting_max` requests wait at a time.
    pub fn new(waiting_max: usize) -> Self {
        Self { newest: watch::Sender::new(1), waiting: Semaphore::new(waiting_max) }
    }

    /// Begins another version, and wakes the requests that wait for it.
    pub fn advance(&self) {
        self.newest.send_modify(|version| *version += 1);
    }

    /// Waits for a version other than `seen`, at most for `wait_max`.
    pub async fn other_than(&self, seen: u64, wait_max: Duration) -> LongPoll {
        let newest = *self.newest.borrow();
        if newest != seen {
            return LongPoll::Changed(newest);
        }
        let Ok(_place) = self.waiting.try_acquire() else { return LongPoll::Crowded };
        let mut receiver = self.newest.subscribe();
        let changed = timeout(wait_max, receiver.wait_for(|version| *version != seen)).await;
        match changed {
            Ok(Ok(version)) => LongPoll::Changed(*version),
            _ => LongPoll::Unchanged,
        }
    }
}

/// Does on another thread what takes long; `None` if it panicked.
pub async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    #[test]
    fn a_wait_ends_with_a_new_version_or_with_its_time() {
        block_on(async {
            let versions = Versions::new(1);
            let short = Duration::from_millis(10);
            assert_eq!(versions.other_than(0, short).await, LongPoll::Changed(1));
            assert_eq!(versions.other_than(1, short).await, LongPoll::Unchanged);
            let long = Duration::from_secs(60);
            let (first, second, ()) =
                tokio::join!(versions.other_than(1, long), versions.other_than(1, long), async { versions.advance() });
            assert_eq!((first, second), (LongPoll::Changed(2), LongPoll::Crowded));
            assert_eq!(versions.other_than(2, short).await, LongPoll::Unchanged, "the place is free again");
        });
    }
}
