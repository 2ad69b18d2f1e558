//! Limits the number of connections: when all are in use, an idle connection is closed to make room for a new one.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::sync::Notify;

/// The open connections and their limit.
#[derive(Debug)]
pub(super) struct Connections {
    most: usize,
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    clients: BTreeMap<u64, Arc<Client>>,
}

#[derive(Debug, Default)]
pub(super) struct Client {
    /// Whether all received bytes belong to requests that were read completely.
    pub(super) fully_read: AtomicBool,
    /// Whether a part of an answer waits for the client to read it.
    pub(super) unsent: AtomicBool,
    /// The start of the idle time; `None` during a request.
    idle_since: Mutex<Option<Instant>>,
    evicted: Notify,
}

/// A connection's slot, which is freed on drop.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    of: Arc<Connections>,
    number: u64,
    pub(super) client: Arc<Client>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.of.lock().clients.remove(&self.number);
    }
}

impl Client {
    fn since(&self) -> MutexGuard<'_, Option<Instant>> {
        self.idle_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn request_started(&self) {
        *self.since() = None;
    }

    pub(super) fn request_ended(&self, now: Instant) {
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

impl Connections {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, open: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a slot for a new connection. When all are taken, the connection that has been idle for longest is closed.
    pub(super) fn take(self: &Arc<Self>, idle_min: Duration, now: Instant) -> Option<ConnectionSlot> {
        if !self.make_room(idle_min, now) {
            return None;
        }
        let client = Arc::new(Client { fully_read: AtomicBool::new(true), ..Client::default() });
        client.request_ended(now);
        let mut open = self.lock();
        let number = open.next;
        open.next += 1;
        open.clients.insert(number, Arc::clone(&client));
        drop(open);
        Some(ConnectionSlot { of: Arc::clone(self), number, client })
    }

    /// Returns whether there is room for a connection, for which another one may be closed.
    pub(super) fn make_room(&self, idle_min: Duration, now: Instant) -> bool {
        self.lock().clients.len() < self.most || self.evict(idle_min, now)
    }

    /// Closes the connection that has been idle for longest, at least for `idle_min`; returns whether there was one.
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

    const IDLE_MIN: Duration = Duration::from_secs(1);

    #[test]
    fn whoever_asks_or_takes_an_answer_stays_and_the_longest_idle_goes() {
        let connections = Connections::new(4);
        let began = Instant::now();
        let mut held: Vec<ConnectionSlot> =
            (0..4).map(|at| connections.take(IDLE_MIN, began + Duration::from_millis(at)).unwrap()).collect();
        assert!(connections.take(IDLE_MIN, began + IDLE_MIN / 2).is_none(), "all have just come");
        held[0].client.request_started();
        held[1].client.unsent.store(true, Relaxed);
        let later = began + 2 * IDLE_MIN;
        held.push(connections.take(IDLE_MIN, later).unwrap());
        assert_eq!(connections.lock().clients.keys().copied().collect::<Vec<_>>(), [0, 1, 3, 4]);
        held.push(connections.take(IDLE_MIN, later).unwrap());
        assert!(connections.take(IDLE_MIN, later).is_none(), "nobody is idle for long enough");
        held[0].client.request_ended(later);
        assert!(connections.evict(Duration::ZERO, later));
        drop(held);
        assert!(connections.lock().clients.is_empty());
    }
}
