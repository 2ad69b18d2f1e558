//! Streams: the state that a model carries from row to row is kept here between requests.
//!
//! **Invariant:** the number of streams is limited, and idle ones are closed; a row that was not answered does not change the state.

use super::problem::Problem;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    fs::File,
    io::Read,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Number of random bytes in a name.
const NAME_BYTES: usize = 16;

#[derive(Debug)]
pub(super) struct Streams {
    numbers: usize,
    /// The maximum number of streams, and the maximum idle time.
    most: usize,
    idle_max: Duration,
    open: Mutex<HashMap<String, StreamEntry>>,
}

#[derive(Debug)]
struct StreamEntry {
    /// The state; `None` while a request is computed.
    state: Option<Vec<f32>>,
    rows: u64,
    used: Instant,
}

/// Exclusive use of a stream while its next rows are computed: [`StreamLease::done`] stores the new state, and dropping it keeps the old
/// one.
#[derive(Debug)]
pub(super) struct StreamLease {
    of: Arc<Streams>,
    name: String,
    state: Vec<f32>,
}

impl Streams {
    pub(super) fn new(numbers: usize, most: usize, idle_max: Duration) -> Arc<Self> {
        Arc::new(Self { numbers, most, idle_max, open: Mutex::default() })
    }

    /// Returns the streams that are open at `now`.
    fn at(&self, now: Instant) -> MutexGuard<'_, HashMap<String, StreamEntry>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, entry| entry.state.is_none() || now.saturating_duration_since(entry.used) < self.idle_max);
        open
    }

    pub(super) fn count(&self, now: Instant) -> usize {
        self.at(now).len()
    }

    /// Opens a stream; returns its name.
    pub(super) fn begin(&self, now: Instant) -> Result<String, Problem> {
        let mut bytes = [0; NAME_BYTES];
        File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).map_err(Problem::Scratch)?;
        let name: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut open = self.at(now);
        if open.len() >= self.most {
            return Err(Problem::Streams { limit: self.most });
        }
        open.insert(name.clone(), StreamEntry { state: Some(vec![0.0; self.numbers]), rows: 0, used: now });
        Ok(name)
    }

    pub(super) fn describe(&self, name: &str, now: Instant) -> Result<Value, Problem> {
        let open = self.at(now);
        let entry = open.get(name).ok_or_else(|| self.unknown(name))?;
        let idle = now.saturating_duration_since(entry.used).as_secs();
        Ok(json!({ "stream": name, "rows": entry.rows, "idle_s": idle, "idle_max_s": self.idle_max.as_secs() }))
    }

    pub(super) fn end(&self, name: &str, now: Instant) -> Result<(), Problem> {
        self.at(now).remove(name).map(|_| ()).ok_or_else(|| self.unknown(name))
    }

    pub(super) fn lease(self: &Arc<Self>, name: &str, now: Instant) -> Result<StreamLease, Problem> {
        let mut open = self.at(now);
        let entry = open.get_mut(name).ok_or_else(|| self.unknown(name))?;
        entry.used = now;
        let state = entry.state.take().ok_or(Problem::StreamBusy)?;
        Ok(StreamLease { of: Arc::clone(self), name: name.to_owned(), state })
    }

    fn unknown(&self, name: &str) -> Problem {
        Problem::Stream { name: name.chars().take(80).collect(), seconds: self.idle_max.as_secs() }
    }

    /// Describes streams for the description of the server.
    pub(super) fn description(&self) -> Value {
        json!({
            "begin": "POST /streams, answered {\"stream\": NAME}",
            "go on": "POST /streams/NAME with rows as for /predict: one after the other, each after those before",
            "look": "GET /streams/NAME",
            "end": "DELETE /streams/NAME",
            "most": self.most,
            "idle_max_s": self.idle_max.as_secs(),
            "bytes": self.numbers * size_of::<f32>(),
        })
    }
}

impl StreamLease {
    pub(super) fn state(&self) -> &[f32] {
        &self.state
    }

    /// Stores the state after the answered rows.
    pub(super) fn done(mut self, state: Vec<f32>, rows: u64, now: Instant) {
        self.state = state;
        if let Some(entry) = self.of.at(now).get_mut(&self.name) {
            entry.rows += rows;
            entry.used = now;
        }
    }
}

impl Drop for StreamLease {
    fn drop(&mut self) {
        let mut open = self.of.open.lock().unwrap_or_else(PoisonError::into_inner);
        // The stream may have been closed meanwhile.
        if let Some(entry) = open.get_mut(&self.name) {
            entry.state = Some(std::mem::take(&mut self.state));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_row_that_was_not_answered_leaves_no_trace() {
        let streams = Streams::new(2, 1, HOUR);
        let now = Instant::now();
        let name = streams.begin(now).unwrap();
        assert!(matches!(streams.begin(now), Err(Problem::Streams { limit: 1 })));
        let lease = streams.lease(&name, now).unwrap();
        assert_eq!(lease.state(), [0.0, 0.0]);
        assert!(matches!(streams.lease(&name, now), Err(Problem::StreamBusy)));
        lease.done(vec![1.0, 2.0], 3, now);
        drop(streams.lease(&name, now).unwrap());
        assert_eq!(streams.lease(&name, now).unwrap().state(), [1.0, 2.0]);
        assert_eq!(streams.describe(&name, now).unwrap()["rows"], 3);
        streams.end(&name, now).unwrap();
        assert!(matches!(streams.lease(&name, now), Err(Problem::Stream { .. })));
    }

    #[test]
    fn streams_that_nobody_uses_make_room_but_one_at_work_stays() {
        let streams = Streams::new(1, 2, HOUR);
        let now = Instant::now();
        let idle = streams.begin(now).unwrap();
        let busy = streams.begin(now).unwrap();
        let lease = streams.lease(&busy, now).unwrap();
        let later = now + HOUR;
        assert!(streams.begin(later).is_ok());
        assert!(streams.describe(&idle, later).is_err() && streams.describe(&busy, later).is_ok());
        assert_eq!(streams.count(later), 2);
        lease.done(vec![5.0], 1, later);
        assert_eq!(streams.lease(&busy, later).unwrap().state(), [5.0]);
    }
}
