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
mod error;
mod http;
mod inputs;
mod job;
mod media_type;
mod metrics;
mod policy;
mod problem;
mod queue;
mod route;
mod rows;
mod rows_error;
mod schema;
mod settings;
mod streams;
mod subject;
mod token;

pub use engine::{Answers, Engine, EngineError, Failure, Start};
pub use enn_ui::http_server::{CancelGrace, Drained};
pub use error::ServeError;
pub use settings::{Limits, Settings};
pub use subject::Subject;
pub use token::{Token, TokenError};

use engine_pool::EnginePool;
use enn_ui::http_server::HttpServer;
use inputs::Inputs;
use metrics::ServeMetrics;
use route::Router;
use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};
use streams::Streams;

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
