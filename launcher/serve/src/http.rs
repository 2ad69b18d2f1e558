//! Requests of the HTTP server: bodies are read within their limits and passed to other threads.
//!
//! **Invariant:** nothing is computed on the thread of the server.

use super::{
    budget::{Budget, Share},
    engine::Answers,
    job::Reply,
    problem::Problem,
    route::{Head, PredictRequest, ResponseContext, Router, Step},
    settings::Limits,
};
use enn_common::descriptors;
use enn_ui::http_server::{HttpAnswer, HttpHandler, HttpLimits, HttpRequest, HttpServer};
use http_body_util::BodyExt;
use hyper::{
    body::{Bytes, Incoming},
    header::{self, HeaderName, HeaderValue},
};
use std::{
    io,
    net::TcpListener,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::timeout,
};

/// Maximum size of a request head, bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Maximum number of excess connections that get an answer at a time; more are closed without one.
const REJECTED_MAX: usize = 64;
/// Minimum idle time of a connection that is closed for another.
pub(super) const IDLE_MIN: Duration = Duration::from_secs(1);
/// Limits of reading a body that is too long, so that its sender receives the error.
const DISCARD_BYTES_MAX: usize = 64 << 20;
const DISCARD_MAX: Duration = Duration::from_secs(2);
/// Additional time for the engine's own report that the time limit was exceeded.
const ENGINE_REPORT_WAIT: Duration = Duration::from_millis(500);
/// Number of values above which an answer is formatted on another thread.
const INLINE_NUMBERS_MAX: usize = 16 << 10;
/// Maximum number of threads for large bodies, so that small ones need not wait.
const LARGE_BODIES_MAX: usize = 4;
/// Size above which a body is large, bytes.
const SMALL_BODY_BYTES_MAX: usize = 64 << 10;

pub(super) fn start(listener: TcpListener, router: Arc<Router>) -> io::Result<HttpServer> {
    let limits = &router.limits;
    let capacity = descriptors::capacity(limits.connections_max);
    if let Some(files) = capacity.open_files {
        tracing::warn!(
            "at most {} of {} connections, as this process may have {files} files open\n  hint: ulimit -n",
            capacity.connections,
            limits.connections_max
        );
    }
    let http_limits = HttpLimits {
        connections_max: capacity.connections,
        rejected_max: REJECTED_MAX.min(capacity.connections),
        idle_min: IDLE_MIN,
        idle_min_exhausted: Duration::ZERO,
        head_bytes_max: HEAD_BYTES_MAX,
        head_wait: limits.head_wait,
        write_wait: limits.body_wait,
        connection_max: Duration::MAX,
        keep_alive: true,
    };
    let handler = Handler {
        connections_max: capacity.connections,
        large: Arc::new(Semaphore::new(LARGE_BODIES_MAX)),
        bodies: Budget::new(limits.bodies_bytes_max),
        router,
    };
    HttpServer::start("enn-http", listener, Arc::new(handler), http_limits)
}

struct Handler {
    router: Arc<Router>,
    bodies: Arc<Budget>,
    large: Arc<Semaphore>,
    connections_max: usize,
}

impl HttpHandler for Handler {
    async fn answer(self: Arc<Self>, request: HttpRequest) -> HttpAnswer {
        let began = Instant::now();
        let _counted = self.router.metrics.began();
        let answer = answer(&self, request).await.unwrap_or_else(|problem| (&problem).into());
        self.router.metrics.answered(answer.status, began.elapsed());
        answer
    }

    fn in_flight(&self) -> u64 {
        self.router.metrics.in_flight()
    }

    /// Health checks are answered, too.
    fn reject(&self, received: &[u8]) -> HttpAnswer {
        let full = || (&Problem::Connections { limit: self.connections_max }).into();
        self.router.health_unauthenticated(received).unwrap_or_else(full)
    }

    fn on_rejected(&self) {
        self.router.metrics.rejected();
    }

    fn on_connection(&self, change: i64) {
        self.router.metrics.connection(change);
    }
}

async fn answer(handler: &Handler, request: HttpRequest) -> Result<HttpAnswer, Problem> {
    let (head, body) = request.into_parts();
    let header = |name: HeaderName| head.headers.get(name).map(HeaderValue::as_bytes);
    // A request target in absolute form contains the host.
    let authority = head.uri.authority().map(|authority| authority.as_str().as_bytes());
    let step = handler.router.head(&Head {
        method: head.method.as_str(),
        path: head.uri.path(),
        host: authority.or_else(|| header(header::HOST)),
        authorization: header(header::AUTHORIZATION),
        content_type: header(header::CONTENT_TYPE),
    });
    let request = match step {
        Step::Done(answer) => return Ok(answer),
        Step::Predict(request) => request,
    };
    let limits = &handler.router.limits;
    let mut share = handler.bodies.share();
    let seconds = limits.body_wait.as_secs();
    let body = timeout(limits.body_wait, collect(body, limits, &mut share)).await;
    let body = body.map_err(|_| Problem::Slow { seconds })??;
    predict(handler, request, body, share).await
}

async fn predict(
    handler: &Handler,
    request: PredictRequest,
    body: Vec<u8>,
    share: Share,
) -> Result<HttpAnswer, Problem> {
    let router = &handler.router;
    let is_large = body.len() > SMALL_BODY_BYTES_MAX;
    let (sender, receiver) = oneshot::channel();
    let own = Arc::clone(router);
    let lost = |_| Problem::Closing;
    let seconds = router.limits.answer_wait.as_secs();
    let answering = async {
        let permit = large_permit(handler, is_large).await;
        let context =
            tokio::task::spawn_blocking(move || own.submit(request, body, share, Box::new(ResponseSender(sender))));
        let context: ResponseContext =
            context.await.map_err(|_| Problem::Lost { cause: "a bug of enn's".to_owned() })??;
        drop(permit);
        Ok::<_, Problem>((context, receiver.await.map_err(lost)??))
    };
    let (context, (answers, _share)): (ResponseContext, (Answers, Share)) =
        timeout(router.limits.answer_wait + ENGINE_REPORT_WAIT, answering)
            .await
            .map_err(|_| Problem::Late { seconds })??;
    if answers.values.len() <= INLINE_NUMBERS_MAX {
        return Ok(router.respond(&context, &answers));
    }
    let own = Arc::clone(router);
    let _permit = large_permit(handler, true).await;
    let response = tokio::task::spawn_blocking(move || own.respond(&context, &answers));
    response.await.map_err(|_| Problem::Lost { cause: "a bug of enn's".to_owned() })
}

/// Waits for a permit for a large body; a small one needs none.
async fn large_permit(handler: &Handler, is_large: bool) -> Option<OwnedSemaphorePermit> {
    if is_large { Arc::clone(&handler.large).acquire_owned().await.ok() } else { None }
}

/// Reads a body within its limits.
async fn collect(mut body: Incoming, limits: &Limits, share: &mut Share) -> Result<Vec<u8>, Problem> {
    let limit = limits.body_bytes_max;
    let mut bytes = Vec::new();
    let problem = loop {
        let Some(frame) = body.frame().await else { return Ok(bytes) };
        let frame = frame.map_err(|error| Problem::Cut(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            break Problem::Large { limit };
        }
        if !share.grow(bytes.len() + data.len()) {
            break Problem::Busy;
        }
        bytes.extend_from_slice(&data);
    };
    drop(bytes);
    let discard = async {
        let mut left = DISCARD_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    let _late = timeout(DISCARD_MAX, discard).await;
    Err(problem)
}

/// Sends the answer to the task of a connection.
struct ResponseSender(oneshot::Sender<Result<(Answers, Share), Problem>>);

impl Reply for ResponseSender {
    fn is_waiting(&self) -> bool {
        !self.0.is_closed()
    }

    fn send(self: Box<Self>, answer: Result<(Answers, Share), Problem>) {
        // The client may have closed the connection.
        let _gone = self.0.send(answer);
    }
}
