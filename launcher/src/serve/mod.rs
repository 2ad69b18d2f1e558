//! A model that answers over HTTP, so that it can be tried at once.
//!
//! ```text
//! socket ─ http ─► route ─► rows (JSON | Arrow) ─► inputs ─► jobs, bounded ─► crew: engine, engine, … ─► sheet ─► JSON | Arrow
//! ```
//! Requests that wait together are computed together. Each has a bound: its bytes, its rows, its time; so have all of them. What a model
//! carries from row to row of a client's stream stays here (`streams`); engines are told it with each row.
//!
//! **Invariant:** whatever a client does, it costs a bounded amount of memory for a bounded time; an engine that ends takes with it
//! only what it was computing, and those who asked are told; what is answered is what `enn predict` answers.

mod budget;
mod crew;
mod engine;
mod figures;
mod http;
mod inputs;
mod job;
mod places;
mod policy;
mod problem;
mod queue;
mod route;
mod rows;
mod schema;
mod streams;
mod token;

pub use engine::{Answers, Engine, Failure, Lost, Start};
pub use http::{Drained, Hurry};
pub use inputs::Subject;
pub use token::{Token, TokenError};

use crew::Crew;
use figures::Figures;
use inputs::Inputs;
use route::Router;
use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::Duration,
};
use streams::Streams;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address is taken or not of this host.
    #[error("cannot listen on {address}: {source}\n  hint: --addr 0 takes a free port")]
    Listen {
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// An address that others can reach, and no token.
    #[error(
        "{address} can be reached by others, and there is no token\n  hint: --token-file FILE with a secret in it, or a loopback address"
    )]
    Open { address: SocketAddr },
    /// The secret.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A model whose data cannot be described.
    #[error(transparent)]
    Stage(#[from] crate::stage::StageError),
    /// The system refuses something.
    #[error("cannot {what}: {source}")]
    System {
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// No engine starts.
    #[error("{0}")]
    Engine(#[source] Failure),
}

/// Bounds on what is asked.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Rows that are computed together, at most; a request with more is computed in parts.
    pub batch_rows_max: usize,
    /// Longest wait for more requests to compute together with the first.
    pub batch_wait: Duration,
    /// Requests that wait, at most.
    pub queue_max: usize,
    /// Bytes of a request's body.
    pub body_bytes_max: usize,
    /// Bytes of a body's batches and their texts, unpacked.
    pub unpacked_bytes_max: usize,
    /// Bytes of all requests that are there at the same time.
    pub bodies_bytes_max: usize,
    /// Rows of a request.
    pub rows_max: usize,
    /// Numbers of an answer.
    pub numbers_max: usize,
    /// Connections at a time.
    pub connections_max: usize,
    /// Time for a request's head, and between requests.
    pub head_wait: Duration,
    /// Time for a request's body, and for taking each part of an answer.
    pub body_wait: Duration,
    /// Time for an answer, waiting included. An engine that takes longer is replaced, which is its owner's to see to.
    pub answer_wait: Duration,
    /// Streams at a time.
    pub streams_max: usize,
    /// Longest time between two requests of a stream; then it is gone.
    pub stream_idle_max: Duration,
    /// Rows of a stream's request, which are computed one after the other.
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

/// How to serve.
pub struct Settings {
    pub address: SocketAddr,
    /// What clients must know.
    pub token: Option<Token>,
    /// Bounds.
    pub limits: Limits,
    /// Engines at the same time.
    pub workers: usize,
}

/// A server at work.
pub struct Server {
    http: http::Http,
    crew: Crew,
    router: Arc<Router>,
}

impl Server {
    /// Starts engines and listens; the first engine is ready when this returns.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn start(subject: Subject, start: Box<Start>, settings: Settings) -> Result<Self, ServeError> {
        let address = settings.address;
        if settings.token.is_none() && !address.ip().is_loopback() {
            return Err(ServeError::Open { address });
        }
        let listen = |source| ServeError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let inputs = Inputs::new(subject)?;
        let figures = Arc::new(Figures::new(settings.workers));
        let crew = Crew::start(start.into(), &settings, Arc::clone(&figures))?;
        let limits = settings.limits;
        let streams = Some(crew.state()).filter(|state| *state > 0);
        let streams = streams.map(|state| Streams::new(state, limits.streams_max, limits.stream_idle_max));
        let router = Router { inputs, figures, jobs: crew.jobs(), streams, token: settings.token, address, limits };
        let router = Arc::new(router);
        let http = http::Http::start(listener, Arc::clone(&router)).map_err(listen)?;
        Ok(Self { http, crew, router })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.router.address
    }

    /// A command line that asks it.
    pub fn example(&self) -> String {
        self.router.inputs.schema.curl(self.address(), self.router.token.is_some())
    }

    /// What cuts [`Server::stop`] short; there is one.
    pub fn hurry(&mut self) -> Option<Hurry> {
        self.http.hurry()
    }

    /// Takes no more requests, gives those that are there so much time, and ends.
    pub fn stop(self, grace: Duration) -> Drained {
        self.router.figures.drain();
        let drained = self.http.stop(grace);
        drop(self.router);
        // Who computes for somebody that was cut off ends with the process.
        if drained.cut == 0 {
            self.crew.stop();
        }
        drained
    }
}

#[cfg(test)]
mod tests;
