//! Streams: what a model carries from one row of a client's to the next, kept here between its requests.
//!
//! **Invariant:** there are no more of them than may be, and none that nobody has used for too long; a row that was not answered leaves
//! no trace.

use super::problem::Problem;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    fs::File,
    io::Read,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Bytes of a name, which nobody guesses.
const NAME_BYTES: usize = 16;

/// The streams of a server.
#[derive(Debug)]
pub(super) struct Streams {
    /// Numbers that each carries.
    numbers: usize,
    /// Most at a time, and the longest time without a row.
    most: usize,
    idle_max: Duration,
    open: Mutex<HashMap<String, Held>>,
}

#[derive(Debug)]
struct Held {
    /// `None` while a request of it is computed.
    state: Option<Vec<f32>>,
    rows: u64,
    used: Instant,
}

/// A stream whose next rows are computed: it goes on with [`Turn::done`], and is as it was before when this is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    of: Arc<Streams>,
    name: String,
    state: Vec<f32>,
}

impl Streams {
    pub(super) fn new(numbers: usize, most: usize, idle_max: Duration) -> Arc<Self> {
        Arc::new(Self { numbers, most, idle_max, open: Mutex::default() })
    }

    /// Those that are open at `now`.
    fn at(&self, now: Instant) -> MutexGuard<'_, HashMap<String, Held>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, held| held.state.is_none() || now.saturating_duration_since(held.used) < self.idle_max);
        open
    }

    pub(super) fn count(&self, now: Instant) -> usize {
        self.at(now).len()
    }

    /// A new one; its name.
    pub(super) fn begin(&self, now: Instant) -> Result<String, Problem> {
        let mut bytes = [0; NAME_BYTES];
        File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)).map_err(Problem::Scratch)?;
        let name: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut open = self.at(now);
        if open.len() >= self.most {
            return Err(Problem::Streams { limit: self.most });
        }
        open.insert(name.clone(), Held { state: Some(vec![0.0; self.numbers]), rows: 0, used: now });
        Ok(name)
    }

    /// What is known of one.
    pub(super) fn look(&self, name: &str, now: Instant) -> Result<Value, Problem> {
        let open = self.at(now);
        let held = open.get(name).ok_or_else(|| self.unknown(name))?;
        let idle = now.saturating_duration_since(held.used).as_secs();
        Ok(json!({ "stream": name, "rows": held.rows, "idle_s": idle, "idle_max_s": self.idle_max.as_secs() }))
    }

    /// Ends one.
    pub(super) fn end(&self, name: &str, now: Instant) -> Result<(), Problem> {
        self.at(now).remove(name).map(|_| ()).ok_or_else(|| self.unknown(name))
    }

    /// Takes one up.
    pub(super) fn turn(self: &Arc<Self>, name: &str, now: Instant) -> Result<Turn, Problem> {
        let mut open = self.at(now);
        let held = open.get_mut(name).ok_or_else(|| self.unknown(name))?;
        held.used = now;
        let state = held.state.take().ok_or(Problem::Turn)?;
        Ok(Turn { of: Arc::clone(self), name: name.to_owned(), state })
    }

    fn unknown(&self, name: &str) -> Problem {
        Problem::Stream { name: name.chars().take(80).collect(), seconds: self.idle_max.as_secs() }
    }

    /// For the description of the server.
    pub(super) fn told(&self) -> Value {
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

impl Turn {
    /// The state before the next row.
    pub(super) fn state(&self) -> &[f32] {
        &self.state
    }

    /// The rows were answered, and this is the state after them; one of which nothing can be said begins no new stream.
    pub(super) fn done(mut self, state: Vec<f32>, rows: u64, now: Instant) {
        self.state = state;
        if let Some(held) = self.of.at(now).get_mut(&self.name) {
            held.rows += rows;
            held.used = now;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut open = self.of.open.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have been ended meanwhile.
        if let Some(held) = open.get_mut(&self.name) {
            held.state = Some(std::mem::take(&mut self.state));
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
        let turn = streams.turn(&name, now).unwrap();
        assert_eq!(turn.state(), [0.0, 0.0]);
        assert!(matches!(streams.turn(&name, now), Err(Problem::Turn)));
        turn.done(vec![1.0, 2.0], 3, now);
        drop(streams.turn(&name, now).unwrap());
        assert_eq!(streams.turn(&name, now).unwrap().state(), [1.0, 2.0]);
        assert_eq!(streams.look(&name, now).unwrap()["rows"], 3);
        streams.end(&name, now).unwrap();
        assert!(matches!(streams.turn(&name, now), Err(Problem::Stream { .. })));
    }

    #[test]
    fn streams_that_nobody_uses_make_room_but_one_at_work_stays() {
        let streams = Streams::new(1, 2, HOUR);
        let now = Instant::now();
        let idle = streams.begin(now).unwrap();
        let busy = streams.begin(now).unwrap();
        let turn = streams.turn(&busy, now).unwrap();
        let later = now + HOUR;
        assert!(streams.begin(later).is_ok());
        assert!(streams.look(&idle, later).is_err() && streams.look(&busy, later).is_ok());
        assert_eq!(streams.count(later), 2);
        turn.done(vec![5.0], 1, later);
        assert_eq!(streams.turn(&busy, later).unwrap().state(), [5.0]);
    }
}
