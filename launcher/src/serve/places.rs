//! Who has a connection, and who makes room where there are as many as may be: a connection on which nothing is asked ends before
//! somebody who asks is turned away.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// How long nothing must have been asked on a connection that makes room for another.
pub(super) const IDLE_MIN: Duration = Duration::from_secs(1);

/// All connections.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    clients: BTreeMap<u64, Arc<Client>>,
}

/// What is known of a connection.
#[derive(Debug, Default)]
pub(super) struct Client {
    /// All that came was of requests that were read to their end.
    pub(super) heard: AtomicBool,
    /// Some of an answer waits until the client takes it.
    pub(super) unsent: AtomicBool,
    /// Since when nothing is asked; `None` while something is.
    idle_since: Mutex<Option<Instant>>,
    evicted: Notify,
}

/// A connection's place, free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    of: Arc<Places>,
    number: u64,
    pub(super) client: Arc<Client>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.of.lock().clients.remove(&self.number);
    }
}

impl Client {
    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.idle_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is asked.
    pub(super) fn asks(&self) {
        *self.since() = None;
    }

    /// The answer is on its way.
    pub(super) fn is_answered(&self, now: Instant) {
        *self.since() = Some(now);
    }

    /// Waits until the connection must end.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    fn idle(&self, now: Instant) -> Option<Duration> {
        let since = (*self.since())?;
        (!self.unsent.load(Relaxed)).then(|| now.saturating_duration_since(since))
    }
}

impl Places {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, open: Mutex::default() })
    }

    pub(super) const fn most(&self) -> usize {
        self.most
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection. Where all are taken, the connection on which nothing was asked for longest ends.
    pub(super) fn take(self: &Arc<Self>, now: Instant) -> Option<Place> {
        if self.lock().clients.len() >= self.most && !self.evict(IDLE_MIN, now) {
            return None;
        }
        let client = Arc::new(Client { heard: AtomicBool::new(true), ..Client::default() });
        client.is_answered(now);
        let mut open = self.lock();
        let number = open.next;
        open.next += 1;
        open.clients.insert(number, Arc::clone(&client));
        drop(open);
        Some(Place { of: Arc::clone(self), number, client })
    }

    /// Ends the connection on which nothing was asked for longest, if that is so long; whether there is one.
    pub(super) fn evict(&self, idle_min: Duration, now: Instant) -> bool {
        let mut open = self.lock();
        let idle = open.clients.iter().filter_map(|(number, client)| Some((client.idle(now)?, *number)));
        let longest = idle.max().filter(|(idle, _)| *idle >= idle_min);
        let client = longest.and_then(|(_, number)| open.clients.remove(&number));
        client.as_ref().inspect(|client| client.evicted.notify_one()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_or_takes_an_answer_stays_and_the_longest_idle_goes() {
        let places = Places::new(4);
        let began = Instant::now();
        let mut held: Vec<Place> = (0..4).map(|at| places.take(began + Duration::from_millis(at)).unwrap()).collect();
        assert!(places.take(began + IDLE_MIN / 2).is_none(), "all have just come");
        held[0].client.asks();
        held[1].client.unsent.store(true, Relaxed);
        let later = began + 2 * IDLE_MIN;
        held.push(places.take(later).unwrap());
        assert_eq!(places.lock().clients.keys().copied().collect::<Vec<_>>(), [0, 1, 3, 4]);
        held.push(places.take(later).unwrap());
        assert!(places.take(later).is_none(), "nobody is idle for long enough");
        held[0].client.is_answered(later);
        assert!(places.evict(Duration::ZERO, later));
        drop(held);
        assert!(places.lock().clients.is_empty());
    }
}
