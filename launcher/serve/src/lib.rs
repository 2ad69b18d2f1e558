//! Serves a model over HTTP.
//!
//! ```text
//! socket ─ http ─► route ─► rows (JSON | Arrow) ─► inputs ─► jobs, bounded ─► pool: engine, engine, … ─► sheet ─► JSON | Arrow
//! ```
//! Requests that wait together are computed together. Bytes, rows and time are limited for each request and for all of them. The state of
//! a client's stream is kept here (`streams`) and passed to the engines with each row.
//!
//! **Invariant:** a client uses a bounded amount of memory for a bounded time; when an engine ends only the requests that it was computing
//! fail, with an error; answers are equal to those of `enn predict`.

mod budget;
mod engine;
mod engine_pool;
mod http;
mod inputs;
mod job;
mod metrics;
mod policy;
mod problem;
mod queue;
mod route;
mod rows;
mod schema;
mod streams;
mod token;

pub use engine::{Answers, Engine, EngineError, Failure, Start};
pub use enn_ui::http_server::{CancelGrace, Drained};
pub use inputs::Subject;
pub use token::{Token, TokenError};

use engine_pool::EnginePool;
use enn_ui::http_server::HttpServer;
use inputs::Inputs;
use metrics::ServeMetrics;
use route::Router;
use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};
use streams::Streams;

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is taken or does not belong to this host.
    #[error("cannot listen on {address}: {source}\n  hint: --addr 0 takes a free port")]
    Listen { address: SocketAddr, source: io::Error },
    /// The address can be reached by other hosts, and there is no token.
    #[error(
        "{address} can be reached by others, and there is no token\n  hint: --token-file FILE with a secret in it, or a loopback address"
    )]
    Open { address: SocketAddr },
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Stage(#[from] enn_data::stage::StageError),
    #[error("cannot {what}: {source}")]
    System { what: &'static str, source: io::Error },
    #[error("{0}")]
    Engine(#[source] Failure),
}

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

/// A running server with its engines.
pub struct Server {
    http: HttpServer,
    pool: EnginePool,
    router: Arc<Router>,
}

impl Server {
    /// Starts engines and listens; the first engine is ready when this returns.
    ///
    /// # Errors
    /// The cases of [`ServeError`].
    pub fn start(subject: Subject, start: Box<Start>, settings: Settings) -> Result<Self, ServeError> {
        let address = settings.address;
        if settings.token.is_none() && !address.ip().is_loopback() {
            return Err(ServeError::Open { address });
        }
        let listen = |source| ServeError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let inputs = Inputs::new(subject)?;
        let metrics = Arc::new(ServeMetrics::new(settings.workers));
        let pool = EnginePool::start(start.into(), &settings, Arc::clone(&metrics))?;
        let limits = settings.limits;
        let streams = Some(pool.state).filter(|state| *state > 0);
        let streams = streams.map(|state| Streams::new(state, limits.streams_max, limits.stream_idle_max));
        let router =
            Router { inputs, metrics, jobs: pool.jobs.clone(), streams, token: settings.token, address, limits };
        let router = Arc::new(router);
        let http = http::start(listener, Arc::clone(&router)).map_err(listen)?;
        Ok(Self { http, pool, router })
    }

    pub fn address(&self) -> SocketAddr {
        self.router.address
    }

    /// Returns a command line with an example request.
    pub fn example(&self) -> String {
        self.router.inputs.schema.curl(self.address(), self.router.token.is_some())
    }

    /// Returns the handle that ends the grace time of [`Server::stop`]; there is only one.
    pub fn cancel_grace(&mut self) -> Option<CancelGrace> {
        self.http.cancel_grace()
    }

    /// Accepts no more requests, waits up to `grace` for the open ones, and ends.
    pub fn stop(self, grace: Duration) -> Drained {
        self.router.metrics.drain();
        let drained = self.http.stop(grace);
        drop(self.router);
        // An engine that computes for a cancelled request ends with the process.
        if drained.cut == 0 {
            self.pool.stop();
        }
        drained
    }
}

#[cfg(test)]
mod tests;
