//! HTTP/1.1 by hyper on one thread: the server of `enn serve`, of the metrics of a run, and of the page of `enn top --web`.
//!
//! **Invariant:** a client uses a bounded amount of memory for a bounded time. When all connections are in use, one that is idle is closed
//! for a new one.

mod connections;
mod guard;
mod long_poll;

pub use guard::{BearerSecret, is_loopback};
pub use long_poll::{LongPoll, Versions, off_thread};

use connections::{Client, Connections};
use enn_common::{
    descriptors::{self, Reserve},
    panics,
};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
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

/// Maximum number of header lines of a request.
const HEADERS_MAX: usize = 64;
/// Limits of reading the request of an excess connection, for health checks.
const REJECTED_BYTES_MAX: usize = 4 << 10;
const REJECTED_READ_MAX: Duration = Duration::from_secs(1);
/// Maximum time for reading from a client before a connection is closed: closing at once could discard the answer.
const LINGER_MAX: Duration = Duration::from_secs(1);
/// Pause after the system refused a connection, or while there is no room for one.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Maximum number of threads that a handler blocks.
const BLOCKING_THREADS_MAX: usize = 8;

#[derive(Debug, Clone)]
pub struct HttpLimits {
    pub connections_max: usize,
    /// Maximum number of excess connections that get an answer at a time; more are closed without one. 0: clients wait until there is room.
    pub rejected_max: usize,
    /// Minimum idle time of a connection that is closed for another.
    pub idle_min: Duration,
    /// The same while the process has no descriptor for another connection.
    pub idle_min_exhausted: Duration,
    /// Maximum size of a request's head, bytes.
    pub head_bytes_max: usize,
    /// Maximum time for a request's head, and between requests.
    pub head_wait: Duration,
    /// Maximum time for each part of an answer to be read.
    pub write_wait: Duration,
    pub connection_max: Duration,
    /// Whether a connection takes further requests.
    pub keep_alive: bool,
}

/// A request whose body has not been read.
pub type HttpRequest = Request<Incoming>;

#[derive(Debug, PartialEq)]
pub struct HttpAnswer {
    pub status: u16,
    /// Media type of the body.
    pub kind: &'static str,
    pub header: Option<(&'static str, &'static str)>,
    pub body: Vec<u8>,
}

/// Answers requests. Nothing may be computed for long on the thread of the server.
pub trait HttpHandler: Send + Sync + 'static {
    fn answer(self: Arc<Self>, request: HttpRequest) -> impl Future<Output = HttpAnswer> + Send;

    /// Returns the headers of every answer.
    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Returns the number of requests that are being answered.
    fn in_flight(&self) -> u64;

    /// Answers on an excess connection; `received` is the beginning of its request.
    fn reject(&self, _received: &[u8]) -> HttpAnswer {
        HttpAnswer { status: 503, kind: "text/plain", header: None, body: Vec::new() }
    }

    fn on_rejected(&self) {}

    /// Counts an opened (+1) or closed (−1) connection.
    fn on_connection(&self, _change: i64) {}
}

/// The requests at the end of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Requests that were answered after the server stopped accepting.
    pub finished: u64,
    /// Requests that were cancelled at the end of the grace time.
    pub cut: u64,
}

#[derive(Debug)]
pub struct HttpServer {
    stop: oneshot::Sender<Duration>,
    cancel_grace: Option<CancelGrace>,
    thread: JoinHandle<Drained>,
}

/// Cancels the grace time of open requests when the server stops.
#[derive(Debug)]
pub struct CancelGrace(oneshot::Sender<()>);

impl CancelGrace {
    pub fn cancel(self) {
        // A server that has ended needs no cancellation.
        let _ended = self.0.send(());
    }
}

impl HttpServer {
    /// Starts the thread `name`, which serves the connections of `listener`.
    ///
    /// # Errors
    /// The system refuses the thread or its descriptors.
    pub fn start(
        name: &str,
        listener: TcpListener,
        handler: Arc<impl HttpHandler>,
        limits: HttpLimits,
    ) -> io::Result<Self> {
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
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            let connections = Connections::new(limits.connections_max);
            let acceptor = Acceptor { listener, again: spare_listener, reserve: Reserve::new(), connections, limits };
            // A request whose task panics gets no answer; the others do.
            let drained = panics::isolating(|| runtime.block_on(serve(acceptor, handler, stopped, grace_cancelled)));
            // Computations for closed connections are not waited for.
            runtime.shutdown_background();
            drained
        })?;
        Ok(Self { stop, cancel_grace: Some(CancelGrace(cancel_grace)), thread })
    }

    /// Returns the handle that ends the grace time of [`HttpServer::stop`]; there is only one.
    pub fn cancel_grace(&mut self) -> Option<CancelGrace> {
        self.cancel_grace.take()
    }

    /// Accepts no more connections and ends the others when they are answered, or when `grace` is over.
    pub fn stop(self, grace: Duration) -> Drained {
        let _ended = self.stop.send(grace);
        self.thread.join().unwrap_or(Drained { finished: 0, cut: 0 })
    }
}

struct Acceptor {
    listener: tokio::net::TcpListener,
    /// A clone of the listener for accepting a connection that is closed at once.
    again: TcpListener,
    reserve: Reserve,
    connections: Arc<Connections>,
    limits: HttpLimits,
}

impl Acceptor {
    /// Accepts the next connection; `None` where there is no room, or after the system refused one.
    async fn next(&mut self) -> Option<TcpStream> {
        let Self { connections, limits, .. } = self;
        if limits.rejected_max == 0 && !connections.make_room(limits.idle_min, Instant::now()) {
            sleep(ACCEPT_REST).await;
            return None;
        }
        let error = match self.listener.accept().await {
            Ok((stream, _)) => return Some(stream),
            Err(error) => error,
        };
        if !descriptors::are_exhausted(&error) {
            sleep(ACCEPT_REST).await;
        } else if connections.evict(limits.idle_min_exhausted, Instant::now()) {
            // The evicted connection closes its socket now.
            tokio::task::yield_now().await;
        } else if !self.reserve.refuse(|| self.again.accept()) {
            sleep(ACCEPT_REST).await;
        }
        None
    }
}

async fn serve(
    mut acceptor: Acceptor,
    handler: Arc<impl HttpHandler>,
    mut stopped: oneshot::Receiver<Duration>,
    grace_cancelled: oneshot::Receiver<()>,
) -> Drained {
    let limits = acceptor.limits.clone();
    let connections = Arc::clone(&acceptor.connections);
    let rejections = Arc::new(Semaphore::new(limits.rejected_max));
    let graceful = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_wait)
        .max_buf_size(limits.head_bytes_max)
        .max_headers(HEADERS_MAX)
        .keep_alive(limits.keep_alive);
    let grace = loop {
        let accepted = tokio::select! {
            grace = &mut stopped => break grace.unwrap_or_default(),
            accepted = acceptor.next() => accepted,
        };
        let Some(stream) = accepted else { continue };
        let Some(place) = connections.take(limits.idle_min, Instant::now()) else {
            handler.on_rejected();
            if let Ok(permit) = Arc::clone(&rejections).try_acquire_owned() {
                tokio::spawn(reject(stream, Arc::clone(&handler), permit));
            }
            continue;
        };
        // Small answers must not be delayed; a socket without the option works too.
        let _kept = stream.set_nodelay(true);
        let own = Arc::clone(&handler);
        let client = Arc::clone(&place.client);
        let service = service_fn(move |request| respond(Arc::clone(&own), Arc::clone(&client), request));
        let client = Arc::clone(&place.client);
        let stream = TokioIo::new(ClientSocket::new(stream, limits.write_wait, client));
        let connection = timeout(limits.connection_max, graceful.watch(http.serve_connection(stream, service)));
        let own = Arc::clone(&handler);
        handler.on_connection(1);
        tokio::spawn(async move {
            // The reason why a connection ends concerns only its client.
            tokio::select! {
                _ended = connection => {}
                () = place.client.evicted() => {}
            }
            own.on_connection(-1);
            drop(place);
        });
    };
    drop(acceptor);
    let before = handler.in_flight();
    tokio::select! {
        () = graceful.shutdown() => {}
        () = sleep(grace) => {}
        Ok(()) = grace_cancelled => {}
    }
    let cut = handler.in_flight();
    Drained { finished: before.saturating_sub(cut), cut }
}

/// Answers that there are too many connections, without parsing the request.
async fn reject(mut stream: TcpStream, handler: Arc<impl HttpHandler>, _permit: OwnedSemaphorePermit) {
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
    let answer = handler.reject(&received);
    let reason = StatusCode::from_u16(answer.status).ok().and_then(|status| status.canonical_reason());
    let head = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: {}\r\nretry-after: 1\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        answer.status,
        reason.unwrap_or_default(),
        answer.kind,
        answer.body.len()
    );
    let body = if received.starts_with(b"HEAD ") { &[] } else { answer.body.as_slice() };
    let mut stream = ClientSocket::new(stream, LINGER_MAX, Arc::default());
    let responding = async {
        stream.write_all(&[head.as_bytes(), body].concat()).await?;
        stream.shutdown().await
    };
    let _gone = timeout(LINGER_MAX, responding).await;
}

async fn respond(
    handler: Arc<impl HttpHandler>,
    client: Arc<Client>,
    request: HttpRequest,
) -> Result<Response<Full<Bytes>>, Infallible> {
    client.request_started();
    let is_head = request.method() == Method::HEAD;
    let common = handler.headers();
    let answer = handler.answer(request).await;
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
    for (name, value) in common.iter().copied().chain(answer.header) {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    Ok(response)
}

/// Returns the answer to a request that is not HTTP, or is too long: hyper refuses it without a text and without a type.
fn error_response(written: &[u8]) -> Option<Vec<u8>> {
    let (line, text) = match written.get(..12)? {
        b"HTTP/1.1 400" => ("400 Bad Request", "this is no HTTP/1.1 request\n"),
        b"HTTP/1.1 414" | b"HTTP/1.1 431" => ("431 Request Header Fields Too Large", "the request is too long\n"),
        _ => return None,
    };
    let has_type = memchr::memmem::find(written, b"\r\ncontent-type: ").is_some();
    let length = text.len();
    let head =
        format!("HTTP/1.1 {line}\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    (!has_type).then(|| [head, text.to_owned()].concat().into_bytes())
}

/// A socket that closes when a client reads nothing for too long, that drains the input of a refused client before it ends, and that tells
/// such a client why.
struct ClientSocket {
    stream: TcpStream,
    wait: Duration,
    until: Option<Pin<Box<Sleep>>>,
    client: Arc<Client>,
    /// The rest of an error response, which is sent instead of everything else.
    error_response: Option<Vec<u8>>,
}

impl ClientSocket {
    fn new(stream: TcpStream, wait: Duration, client: Arc<Client>) -> Self {
        Self { stream, wait, until: None, client, error_response: None }
    }

    fn send_error_response(&mut self, mut rest: Vec<u8>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !rest.is_empty() {
            let written = Pin::new(&mut self.stream).poll_write(context, &rest);
            match self.patiently(written, context) {
                Poll::Ready(Ok(count)) => drop(rest.drain(..count)),
                other => {
                    self.error_response = Some(rest);
                    return other.map_ok(|_| ());
                }
            }
        }
        self.error_response = Some(rest);
        Poll::Ready(Ok(()))
    }

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
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = parts.iter().find(|part| !part.is_empty());
        if let Some(rest) = self.error_response.take().or_else(|| error_response(first?)) {
            ready!(self.send_error_response(rest, context))?;
            return Poll::Ready(Ok(parts.iter().map(|part| part.len()).sum()));
        }
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
