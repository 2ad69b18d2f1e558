//! Settings of a server: its address and token, and the limits of requests and connections.

use super::token::Token;
use std::{net::SocketAddr, time::Duration};

/// Limits of requests and connections.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum number of rows in a batch; a request with more is computed in parts.
    pub batch_rows_max: usize,
    /// Maximum wait for more requests to compute together with the first.
    pub batch_wait: Duration,
    pub queue_max: usize,
    /// Maximum size of a request's body, bytes.
    pub body_bytes_max: usize,
    /// Maximum size of a body's unpacked batches and texts, bytes.
    pub unpacked_bytes_max: usize,
    /// Maximum size of all concurrent requests, bytes.
    pub bodies_bytes_max: usize,
    pub rows_max: usize,
    /// Maximum number of values of an answer.
    pub numbers_max: usize,
    pub connections_max: usize,
    /// Maximum time for a request's head, and between requests.
    pub head_wait: Duration,
    /// Maximum time for a request's body, and for each part of an answer to be read.
    pub body_wait: Duration,
    /// Maximum time for an answer, including the wait. The owner of an engine replaces it when it takes longer.
    pub answer_wait: Duration,
    pub streams_max: usize,
    /// Maximum time between two requests of a stream, after which it is closed.
    pub stream_idle_max: Duration,
    /// Maximum number of rows of a stream's request, which are computed one after the other.
    pub stream_rows_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            batch_rows_max: 1024,
            batch_wait: Duration::ZERO,
            queue_max: 256,
            body_bytes_max: 16 << 20,
            unpacked_bytes_max: 64 << 20,
            bodies_bytes_max: 256 << 20,
            rows_max: 65_536,
            numbers_max: 4 << 20,
            connections_max: 256,
            head_wait: Duration::from_secs(10),
            body_wait: Duration::from_secs(30),
            answer_wait: Duration::from_secs(30),
            streams_max: 1024,
            stream_idle_max: Duration::from_secs(3600),
            stream_rows_max: 1024,
        }
    }
}

pub struct Settings {
    pub address: SocketAddr,
    /// The token that clients must send.
    pub token: Option<Token>,
    pub limits: Limits,
    pub workers: usize,
}
