//! Answers `GET /metrics` while a run goes on.
//!
//! **Invariant:** the metrics contain only what the events record, and no run waits for a client.

use super::{
    error::MetricsError,
    http_server::{HttpAnswer, HttpHandler, HttpLimits, HttpRequest, HttpServer},
    model::RunView,
    openmetrics,
};
use enn_common::event::Event;
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

const CONNECTIONS_MAX: usize = 64;
/// Time that every client has for its request before it may be closed for another one.
const IDLE_MIN: Duration = Duration::from_millis(250);
/// Maximum length of a request, bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Longest time for a request and its response.
const CONNECTION_MAX: Duration = Duration::from_secs(5);

/// Parses `[HOST:]PORT`. Without a host the address is the loopback address, so that the network sees nothing by default.
///
/// # Errors
/// It is neither a port nor an address with one.
pub fn address(text: &str) -> Result<SocketAddr, MetricsError> {
    let port = text.strip_prefix(':').unwrap_or(text).parse::<u16>();
    let address = match text.rsplit_once(':') {
        Some(("localhost", port)) => port.parse().ok().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        _ => text.parse().ok(),
    };
    let loopback = port.ok().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    loopback.or(address).ok_or_else(|| MetricsError::Address { text: text.to_owned() })
}

/// The metrics server, which ends when this is dropped.
#[derive(Debug)]
pub struct MetricsServer {
    metrics: Arc<Metrics>,
    address: SocketAddr,
    server: Option<HttpServer>,
}

/// The state of the run that is served.
#[derive(Debug, Default)]
struct Metrics(Mutex<RunView>);

impl MetricsServer {
    /// Listens on `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// The address is taken or not of this host.
    pub fn start(address: SocketAddr) -> Result<Self, MetricsError> {
        let listen = |source| MetricsError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let metrics = Arc::new(Metrics::default());
        let limits = HttpLimits {
            connections_max: CONNECTIONS_MAX,
            rejected_max: 0,
            idle_min: IDLE_MIN,
            idle_min_exhausted: IDLE_MIN,
            head_bytes_max: REQUEST_BYTES_MAX,
            head_wait: CONNECTION_MAX,
            write_wait: CONNECTION_MAX,
            connection_max: CONNECTION_MAX,
            keep_alive: false,
        };
        let server = HttpServer::start("enn-metrics", listener, Arc::clone(&metrics), limits).map_err(listen)?;
        Ok(Self { metrics, address, server: Some(server) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the view before the first event: that of a resumed run's journal.
    pub(super) fn set(&self, view: &RunView) {
        self.metrics.view().clone_from(view);
    }

    pub(super) fn event(&self, event: &Event) {
        self.metrics.view().apply(event);
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.server.take().map(|server| server.stop(Duration::ZERO));
    }
}

impl Metrics {
    fn view(&self) -> MutexGuard<'_, RunView> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn respond(&self, method: &str, path: &str) -> HttpAnswer {
        let text = |status, header, text: &str| HttpAnswer { status, kind: "text/plain", header, body: text.into() };
        match (method, path) {
            ("GET" | "HEAD", "/metrics") => {
                // The launcher of this server lives.
                let body = openmetrics::text(&self.view(), true).into_bytes();
                HttpAnswer { status: 200, kind: openmetrics::CONTENT_TYPE, header: None, body }
            }
            ("GET" | "HEAD", _) => text(404, None, "only /metrics is here\n"),
            _ => text(405, Some(("allow", "GET, HEAD")), "only GET is answered\n"),
        }
    }
}

impl HttpHandler for Metrics {
    async fn answer(self: Arc<Self>, request: HttpRequest) -> HttpAnswer {
        self.respond(request.method().as_str(), request.uri().path())
    }

    fn in_flight(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests;
