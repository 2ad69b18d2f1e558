//! Counters of the server in OpenMetrics form.

use enn_ui::openmetrics::Exposition;
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Upper bounds of the histogram of latencies, seconds.
const BOUNDS_S: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

#[derive(Debug)]
pub(super) struct ServeMetrics(Mutex<Counts>);

#[derive(Debug, Default, Clone)]
struct Counts {
    workers: usize,
    up: usize,
    /// The reason why the last engine ended or did not start.
    cause: String,
    restarts: u64,
    draining: bool,
    in_flight: u64,
    connections: u64,
    rejected: u64,
    answers: BTreeMap<u16, u64>,
    latency: [u64; BOUNDS_S.len() + 1],
    latency_s: f64,
    batches: u64,
    rows: u64,
    busy_s: f64,
}

/// A request that is being answered; it is counted until it is dropped.
#[derive(Debug)]
pub(super) struct InFlight<'a>(&'a ServeMetrics);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.lock().in_flight -= 1;
    }
}

impl ServeMetrics {
    pub(super) fn new(workers: usize) -> Self {
        Self(Mutex::new(Counts { workers, cause: "none has started yet".to_owned(), ..Counts::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn began(&self) -> InFlight<'_> {
        self.lock().in_flight += 1;
        InFlight(self)
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.lock().in_flight
    }

    pub(super) fn answered(&self, status: u16, took: Duration) {
        let mut counts = self.lock();
        let took = took.as_secs_f64();
        *counts.answers.entry(status).or_default() += 1;
        let bucket = BOUNDS_S.iter().position(|bound| took <= *bound).unwrap_or(BOUNDS_S.len());
        counts.latency[bucket] += 1;
        counts.latency_s += took;
    }

    /// Counts an opened (+1) or closed (−1) connection.
    pub(super) fn connection(&self, change: i64) {
        let mut counts = self.lock();
        counts.connections = counts.connections.saturating_add_signed(change);
    }

    pub(super) fn rejected(&self) {
        self.lock().rejected += 1;
    }

    pub(super) fn computed(&self, rows: usize, took: Duration) {
        let mut counts = self.lock();
        counts.batches += 1;
        counts.rows += rows as u64;
        counts.busy_s += took.as_secs_f64();
    }

    pub(super) fn engine_up(&self) {
        self.lock().up += 1;
    }

    pub(super) fn engine_down(&self, cause: &str) {
        let mut counts = self.lock();
        counts.up = counts.up.saturating_sub(1);
        counts.restarts += 1;
        cause.clone_into(&mut counts.cause);
    }

    /// Records that an engine did not start.
    pub(super) fn engine_failed(&self, cause: &str) {
        cause.clone_into(&mut self.lock().cause);
    }

    pub(super) fn drain(&self) {
        self.lock().draining = true;
    }

    pub(super) fn is_draining(&self) -> bool {
        self.lock().draining
    }

    /// Returns the number of ready engines, the number of all, and why the last one ended.
    pub(super) fn engines(&self) -> (usize, usize, String) {
        let counts = self.lock();
        (counts.up, counts.workers, counts.cause.clone())
    }

    /// Returns the number of replaced engines, and why the last one was.
    pub(super) fn replaced(&self) -> (u64, Option<String>) {
        let counts = self.lock();
        (counts.restarts, (counts.restarts > 0).then(|| counts.cause.clone()))
    }

    /// Returns the OpenMetrics page; `waiting` is the number of queued requests, `streams` that of open streams.
    pub(super) fn page(&self, waiting: usize, streams: Option<usize>) -> String {
        let counts = self.lock().clone();
        let mut page = Exposition::default();
        page.family("enn_serve_requests", "counter", "", "Requests answered, by status.");
        for (status, count) in &counts.answers {
            page.sample("enn_serve_requests_total", &[("code", &status.to_string())], *count as f64);
        }
        page.family("enn_serve_request_seconds", "histogram", "seconds", "Time from a request's head to its answer.");
        let mut below = 0;
        for (at, count) in counts.latency.iter().enumerate() {
            below += count;
            let bound = BOUNDS_S.get(at).map_or("+Inf".to_owned(), f64::to_string);
            page.sample("enn_serve_request_seconds_bucket", &[("le", &bound)], below as f64);
        }
        page.sample("enn_serve_request_seconds_sum", &[], counts.latency_s);
        page.sample("enn_serve_request_seconds_count", &[], below as f64);
        page.counter("enn_serve_rows", "Rows computed.", counts.rows as f64);
        page.counter("enn_serve_batches", "Batches computed.", counts.batches as f64);
        page.family("enn_serve_busy_seconds", "counter", "seconds", "Time that workers computed, summed over them.");
        page.sample("enn_serve_busy_seconds_total", &[], counts.busy_s);
        page.counter("enn_serve_restarts", "Workers that ended and were replaced.", counts.restarts as f64);
        page.counter("enn_serve_turned_away", "Connections that were too many.", counts.rejected as f64);
        page.gauge("enn_serve_in_flight", "", "Requests that are being answered.", Some(counts.in_flight as f64));
        page.gauge("enn_serve_queue", "", "Requests that wait for a worker.", Some(waiting as f64));
        if let Some(streams) = streams {
            page.gauge("enn_serve_streams", "", "Open streams.", Some(streams as f64));
        }
        page.gauge("enn_serve_connections", "", "Open connections.", Some(counts.connections as f64));
        page.gauge("enn_serve_workers", "", "Workers that are to be up.", Some(counts.workers as f64));
        page.gauge("enn_serve_workers_up", "", "Workers that are up.", Some(counts.up as f64));
        page.end()
    }
}
