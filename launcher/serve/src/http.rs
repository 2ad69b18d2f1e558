//! HTTP/1.1 by hyper on one thread; only this file uses hyper and the runtime that it needs.
//!
//! **Invariant:** nothing is computed on this thread: bodies are read within their limits and passed to other threads.

use super::{
    Limits,
    budget::{Budget, Share},
    connections::{Client, ConnectionSlot, Connections},
    engine::Answers,
    job::Reply,
    problem::Problem,
    route::{Answer, Head, PredictRequest, ResponseContext, Router, Step},
};
use enn_common::{
    descriptors::{self, Reserve},
    panics,
};
use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{self, HeaderName, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use std::{
    convert::Infallible,
    future::Future,
    io,
    mem::MaybeUninit,
    net::TcpListener,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, ready},
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::{Sleep, sleep, timeout},
};

/// Maximum size of a request head, bytes, and maximum number of header lines.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
/// Maximum number of excess connections that get an answer at a time; more are closed without one.
const REJECTED_MAX: usize = 64;
/// Limits of reading the request of such a connection, for health checks.
const REJECTED_BYTES_MAX: usize = 4 << 10;
const REJECTED_READ_MAX: Duration = Duration::from_secs(1);
/// Maximum time for reading from a client before a connection is closed: closing at once could discard the answer.
const LINGER_MAX: Duration = Duration::from_secs(1);
/// Limits of reading a body that is too long, so that its sender receives the error.
const DISCARD_BYTES_MAX: usize = 64 << 20;
const DISCARD_MAX: Duration = Duration::from_secs(2);
/// Pause after the system refused a connection.
const REFUSED_REST: Duration = Duration::from_millis(100);
/// Additional time for the engine's own report that the time limit was exceeded.
const ENGINE_REPORT_WAIT: Duration = Duration::from_millis(500);
/// Number of values above which an answer is formatted on another thread.
const INLINE_NUMBERS_MAX: usize = 16 << 10;
/// Threads that read bodies and format answers, and the number of them for large bodies, so that small ones need not wait.
const BLOCKING_THREADS_MAX: usize = 8;
const LARGE_BODIES_MAX: usize = 4;
/// Size above which a body is large, bytes.
const SMALL_BODY_BYTES_MAX: usize = 64 << 10;

/// The requests at the end of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Requests that were answered after the server stopped accepting.
    pub finished: u64,
    /// Requests that were cancelled at the end of the grace time.
    pub cut: u64,
}

/// The thread of the server.
pub(super) struct Http {
    stop: oneshot::Sender<Duration>,
    cancel_grace: Option<CancelGrace>,
    thread: JoinHandle<Drained>,
}

/// Cancels the grace time of open requests when the server stops.
pub struct CancelGrace(oneshot::Sender<()>);

impl CancelGrace {
    pub fn cancel(self) {
        // A server that has ended needs no cancellation.
        let _ended = self.0.send(());
    }
}

impl Http {
    pub(super) fn start(listener: TcpListener, router: Arc<Router>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let spare_listener = listener.try_clone()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .on_thread_start(panics::isolate_thread)
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let (stop, stopped) = oneshot::channel();
        let (cancel_grace, grace_cancelled) = oneshot::channel();
        let bodies = Budget::new(router.limits.bodies_bytes_max);
        let capacity = descriptors::capacity(router.limits.connections_max);
        if let Some(files) = capacity.open_files {
            tracing::warn!(
                "at most {} of {} connections, as this process may have {files} files open\n  hint: ulimit -n",
                capacity.connections,
                router.limits.connections_max
            );
        }
        let shared = Arc::new(Shared {
            connections: Connections::new(capacity.connections),
            rejections: Arc::new(Semaphore::new(REJECTED_MAX.min(capacity.connections))),
            large: Arc::new(Semaphore::new(LARGE_BODIES_MAX)),
            bodies,
            router,
        });
        let thread = std::thread::Builder::new().name("enn-http".into()).spawn(move || {
            let acceptor = Acceptor { listener, again: spare_listener, reserve: Reserve::new() };
            // A request whose task panics gets no answer; the others do.
            let drained = panics::isolating(|| runtime.block_on(serve(acceptor, shared, stopped, grace_cancelled)));
            // Computations for closed connections are not waited for.
            runtime.shutdown_background();
            drained
        })?;
        Ok(Self { stop, cancel_grace: Some(CancelGrace(cancel_grace)), thread })
    }

    pub(super) fn cancel_grace(&mut self) -> Option<CancelGrace> {
        self.cancel_grace.take()
    }

    /// Accepts no more connections and ends the others when they are answered, or when `grace` is over.
    pub(super) fn stop(self, grace: Duration) -> Drained {
        let _ended = self.stop.send(grace);
        self.thread.join().unwrap_or(Drained { finished: 0, cut: 0 })
    }
}

struct Shared {
    router: Arc<Router>,
    bodies: Arc<Budget>,
    connections: Arc<Connections>,
    rejections: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

/// The listener that accepts connections.
struct Acceptor {
    listener: tokio::net::TcpListener,
    /// A clone of the listener for accepting a connection that is closed at once.
    again: TcpListener,
    reserve: Reserve,
}

impl Acceptor {
    /// Accepts the next connection; `None` after the system refused one.
    async fn next(&mut self, connections: &Connections) -> Option<TcpStream> {
        let error = match self.listener.accept().await {
            Ok((stream, _)) => return Some(stream),
            Err(error) => error,
        };
        if !descriptors::are_exhausted(&error) {
            sleep(REFUSED_REST).await;
        } else if connections.evict(Duration::ZERO, Instant::now()) {
            // The evicted connection closes its socket now.
            tokio::task::yield_now().await;
        } else if !self.reserve.refuse(|| self.again.accept()) {
            sleep(REFUSED_REST).await;
        }
        None
    }
}

async fn serve(
    mut acceptor: Acceptor,
    shared: Arc<Shared>,
    mut stopped: oneshot::Receiver<Duration>,
    grace_cancelled: oneshot::Receiver<()>,
) -> Drained {
    let limits = &shared.router.limits;
    let metrics = &shared.router.metrics;
    let graceful = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_wait)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX);
    let grace = loop {
        let accepted = tokio::select! {
            grace = &mut stopped => break grace.unwrap_or_default(),
            accepted = acceptor.next(&shared.connections) => accepted,
        };
        let Some(stream) = accepted else { continue };
        let Some(place) = shared.connections.take(Instant::now()) else {
            metrics.rejected();
            if let Ok(permit) = Arc::clone(&shared.rejections).try_acquire_owned() {
                tokio::spawn(reject(stream, Arc::clone(&shared), permit));
            }
            continue;
        };
        // Small answers must not be delayed; a socket without the option works too.
        let _kept = stream.set_nodelay(true);
        let own = Arc::clone(&shared);
        let client = Arc::clone(&place.client);
        let service = service_fn(move |request| handle(Arc::clone(&own), Arc::clone(&client), request));
        let client = Arc::clone(&place.client);
        let stream = TokioIo::new(ClientSocket { stream, wait: limits.body_wait, until: None, client });
        let connection = graceful.watch(http.serve_connection(stream, service));
        let own = Arc::clone(&shared);
        metrics.connection(1);
        tokio::spawn(async move {
            let ConnectionSlot { client, .. } = &place;
            // The reason why a connection ends concerns only its client.
            tokio::select! {
                _ended = connection => {}
                () = client.evicted() => {}
            }
            own.router.metrics.connection(-1);
            drop(place);
        });
    };
    drop(acceptor);
    let before = metrics.in_flight();
    tokio::select! {
        () = graceful.shutdown() => {}
        () = sleep(grace) => {}
        Ok(()) = grace_cancelled => {}
    }
    let cut = metrics.in_flight();
    Drained { finished: before.saturating_sub(cut), cut }
}

/// Answers that there are too many connections, without parsing the request; health checks are answered.
async fn reject(mut stream: TcpStream, shared: Arc<Shared>, _permit: OwnedSemaphorePermit) {
    let mut received = Vec::new();
    let reading = async {
        while received.len() < REJECTED_BYTES_MAX && memchr::memmem::find(&received, b"\r\n\r\n").is_none() {
            if stream.read_buf(&mut received).await? == 0 {
                break;
            }
        }
        io::Result::Ok(())
    };
    // A client that sends nothing gets the answer, too.
    let _late = timeout(REJECTED_READ_MAX, reading).await;
    let full = || Answer::of(&Problem::Connections { limit: shared.connections.most() });
    let answer = shared.router.health_unauthenticated(&received).unwrap_or_else(full);
    let reason = StatusCode::from_u16(answer.status).ok().and_then(|status| status.canonical_reason());
    let head = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: {}\r\nretry-after: 1\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        answer.status,
        reason.unwrap_or_default(),
        answer.kind,
        answer.body.len()
    );
    let body = if received.starts_with(b"HEAD ") { &[] } else { answer.body.as_slice() };
    let mut stream = ClientSocket { stream, wait: LINGER_MAX, until: None, client: Arc::default() };
    let responding = async {
        stream.write_all(&[head.as_bytes(), body].concat()).await?;
        stream.shutdown().await
    };
    let _gone = timeout(LINGER_MAX, responding).await;
}

async fn handle(
    shared: Arc<Shared>,
    client: Arc<Client>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let began = Instant::now();
    client.request_started();
    let router = Arc::clone(&shared.router);
    let _counted = router.metrics.began();
    let is_head = request.method() == hyper::Method::HEAD;
    let answer = answer(&shared, request).await.unwrap_or_else(|problem| Answer::of(&problem));
    router.metrics.answered(answer.status, began.elapsed());
    client.fully_read.store(answer.status < 400, Relaxed);
    client.request_ended(Instant::now());
    let length = answer.body.len();
    let body = if is_head { Vec::new() } else { answer.body };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(answer.kind));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some((name, value)) = answer.header {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    Ok(response)
}

async fn answer(shared: &Shared, request: Request<Incoming>) -> Result<Answer, Problem> {
    let (head, body) = request.into_parts();
    let header = |name: HeaderName| head.headers.get(name).map(HeaderValue::as_bytes);
    // A request target in absolute form contains the host.
    let authority = head.uri.authority().map(|authority| authority.as_str().as_bytes());
    let step = shared.router.head(&Head {
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
    let limits = &shared.router.limits;
    let mut share = shared.bodies.share();
    let seconds = limits.body_wait.as_secs();
    let body = timeout(limits.body_wait, collect(body, limits, &mut share)).await;
    let body = body.map_err(|_| Problem::Slow { seconds })??;
    predict(shared, request, body, share).await
}

async fn predict(shared: &Shared, request: PredictRequest, body: Vec<u8>, share: Share) -> Result<Answer, Problem> {
    let router = &shared.router;
    let is_large = body.len() > SMALL_BODY_BYTES_MAX;
    let (sender, receiver) = oneshot::channel();
    let own = Arc::clone(router);
    let lost = |_| Problem::Closing;
    let seconds = router.limits.answer_wait.as_secs();
    let answering = async {
        let permit = large_permit(shared, is_large).await;
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
    let _permit = large_permit(shared, true).await;
    let response = tokio::task::spawn_blocking(move || own.respond(&context, &answers));
    response.await.map_err(|_| Problem::Lost { cause: "a bug of enn's".to_owned() })
}

/// Waits for a permit for a large body; a small one needs none.
async fn large_permit(shared: &Shared, is_large: bool) -> Option<OwnedSemaphorePermit> {
    if is_large { Arc::clone(&shared.large).acquire_owned().await.ok() } else { None }
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

/// A socket that closes when a client reads nothing for too long, and that drains the input of a refused client before it ends.
struct ClientSocket {
    stream: TcpStream,
    wait: Duration,
    until: Option<Pin<Box<Sleep>>>,
    client: Arc<Client>,
}

impl ClientSocket {
    fn patiently<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        self.client.unsent.store(written.is_pending(), Relaxed);
        if written.is_ready() {
            self.until = None;
            return written;
        }
        let wait = self.wait;
        let until = self.until.get_or_insert_with(|| Box::pin(sleep(wait)));
        until.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.client.fully_read.store(false, Relaxed);
        }
        read
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.patiently(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.patiently(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        if self.client.fully_read.load(Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let until = self.until.get_or_insert_with(|| Box::pin(sleep(LINGER_MAX)));
        if until.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let mut space = [MaybeUninit::uninit(); 4096];
        loop {
            let mut block = ReadBuf::uninit(&mut space);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut block))?;
            if block.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
