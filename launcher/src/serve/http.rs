//! The sockets: HTTP/1.1 by hyper on one thread; this file alone knows it, and the runtime that it needs.
//!
//! **Invariant:** nothing here computes: bodies are read within their bounds and handed to threads that may take their time.

use super::{
    Limits,
    budget::{Budget, Share},
    crew::Reply,
    engine::Answers,
    problem::Problem,
    route::{Answer, Asked, Head, Router, Step, Wanted},
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
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::{Sleep, sleep, timeout},
};

/// Longest head, bytes, and most header lines.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
/// Connections that are told that they are too many, at a time; more are closed without a word.
const TURNED_AWAY_MAX: usize = 64;
/// How long what a client still sends is read before a connection ends: closing at once would take the answer back from it.
const LINGER_MAX: Duration = Duration::from_secs(1);
/// What is read of a body that is too long, so that its sender hears why, and how long.
const DISCARD_BYTES_MAX: usize = 64 << 20;
const DISCARD_MAX: Duration = Duration::from_secs(2);
/// Rest after the system refused a connection.
const REFUSED_REST: Duration = Duration::from_millis(100);
/// Beyond the time for an answer: an engine that took all of it is told of by who waited for it.
const TOLD_WAIT: Duration = Duration::from_millis(500);
/// More numbers are written as text on another thread.
const INLINE_NUMBERS_MAX: usize = 16 << 10;
/// Threads that read bodies and write answers.
const BLOCKING_THREADS_MAX: usize = 8;

/// How the end went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// Requests that were answered after no more were taken.
    pub finished: u64,
    /// Requests that were cut off when the time was over.
    pub cut: u64,
}

/// The server's thread.
pub(super) struct Http {
    stop: oneshot::Sender<Duration>,
    hurry: Option<Hurry>,
    thread: JoinHandle<Drained>,
}

/// Ends the time that requests have when the server stops.
pub struct Hurry(oneshot::Sender<()>);

impl Hurry {
    /// Now.
    pub fn now(self) {
        // A server that has ended needs none.
        let _ended = self.0.send(());
    }
}

impl Http {
    pub(super) fn start(listener: TcpListener, router: Arc<Router>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let (stop, stopped) = oneshot::channel();
        let (hurry, hurried) = oneshot::channel();
        let shared = Arc::new(Shared { bodies: Budget::new(router.limits.bodies_bytes_max), router });
        let thread = std::thread::Builder::new().name("enn-http".into()).spawn(move || {
            let drained = runtime.block_on(serve(listener, shared, (stopped, hurried)));
            // What still computes for somebody who is gone is not waited for.
            runtime.shutdown_background();
            drained
        })?;
        Ok(Self { stop, hurry: Some(Hurry(hurry)), thread })
    }

    pub(super) fn hurry(&mut self) -> Option<Hurry> {
        self.hurry.take()
    }

    /// Takes no more connections and ends the others when they are answered, or `grace` is over.
    pub(super) fn stop(self, grace: Duration) -> Drained {
        let _ended = self.stop.send(grace);
        self.thread.join().unwrap_or(Drained { finished: 0, cut: 0 })
    }
}

struct Shared {
    router: Arc<Router>,
    bodies: Arc<Budget>,
}

async fn serve(
    listener: tokio::net::TcpListener,
    shared: Arc<Shared>,
    (mut stopped, hurried): (oneshot::Receiver<Duration>, oneshot::Receiver<()>),
) -> Drained {
    let limits = &shared.router.limits;
    let figures = &shared.router.figures;
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let doors = Arc::new(Semaphore::new(TURNED_AWAY_MAX));
    let graceful = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_wait)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX);
    let grace = loop {
        let stream = tokio::select! {
            grace = &mut stopped => break grace.unwrap_or_default(),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => {
                    sleep(REFUSED_REST).await;
                    continue;
                }
            },
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            figures.turned_away();
            if let Ok(door) = Arc::clone(&doors).try_acquire_owned() {
                tokio::spawn(turn_away(stream, limits.connections_max, door));
            }
            continue;
        };
        // Small answers must not wait for more to be sent with them; a socket that cannot say so works all the same.
        let _kept = stream.set_nodelay(true);
        let own = Arc::clone(&shared);
        let heard = Arc::new(AtomicBool::new(true));
        let hears = Arc::clone(&heard);
        let service = service_fn(move |request| handle(Arc::clone(&own), Arc::clone(&hears), request));
        let stream = TokioIo::new(Patient { stream, wait: limits.body_wait, until: None, heard });
        let connection = graceful.watch(http.serve_connection(stream, service));
        let own = Arc::clone(&shared);
        figures.connection(1);
        tokio::spawn(async move {
            // Whatever ends a connection is its client's business.
            let _ended = connection.await;
            own.router.figures.connection(-1);
            drop(place);
        });
    };
    drop(listener);
    let before = figures.in_flight();
    tokio::select! {
        () = graceful.shutdown() => {}
        () = sleep(grace) => {}
        Ok(()) = hurried => {}
    }
    let cut = figures.in_flight();
    Drained { finished: before.saturating_sub(cut), cut }
}

/// Says why, without making a request of what is asked.
async fn turn_away(stream: TcpStream, limit: usize, _door: OwnedSemaphorePermit) {
    let body = Problem::Connections { limit }.body();
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\ncontent-length: {}\r\nconnection: \
         close\r\n\r\n",
        body.len()
    );
    let mut stream = Patient { stream, wait: LINGER_MAX, until: None, heard: Arc::new(AtomicBool::new(false)) };
    let told = async {
        stream.write_all(&[head.as_bytes(), &body].concat()).await?;
        stream.shutdown().await
    };
    let _gone = timeout(LINGER_MAX, told).await;
}

async fn handle(
    shared: Arc<Shared>,
    heard: Arc<AtomicBool>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let began = Instant::now();
    let router = Arc::clone(&shared.router);
    let _counted = router.figures.began();
    let is_head = request.method() == hyper::Method::HEAD;
    let answer = answer(&shared, request).await.unwrap_or_else(|problem| Answer::of(&problem));
    router.figures.answered(answer.status, began.elapsed());
    heard.store(answer.status < 400, Relaxed);
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
    // A target in absolute form names the host itself.
    let authority = head.uri.authority().map(|authority| authority.as_str().as_bytes());
    let step = shared.router.head(&Head {
        method: head.method.as_str(),
        path: head.uri.path(),
        host: authority.or_else(|| header(header::HOST)),
        authorization: header(header::AUTHORIZATION),
        content_type: header(header::CONTENT_TYPE),
    });
    let wanted = match step {
        Step::Done(answer) => return Ok(answer),
        Step::Predict(wanted) => wanted,
    };
    let limits = &shared.router.limits;
    let mut share = shared.bodies.share();
    let seconds = limits.body_wait.as_secs();
    let body = timeout(limits.body_wait, collect(body, limits, &mut share)).await;
    let body = body.map_err(|_| Problem::Slow { seconds })??;
    predict(&shared.router, wanted, (body, share)).await
}

async fn predict(router: &Arc<Router>, wanted: Wanted, (body, share): (Vec<u8>, Share)) -> Result<Answer, Problem> {
    let (sender, receiver) = oneshot::channel();
    let own = Arc::clone(router);
    let lost = |_| Problem::Closing;
    let seconds = router.limits.answer_wait.as_secs();
    let asked = async {
        let asked = tokio::task::spawn_blocking(move || own.ask(wanted, body, share, Box::new(Waiting(sender))));
        let asked: Asked = asked.await.map_err(|_| Problem::Lost { cause: "a bug of enn's".to_owned() })??;
        Ok::<_, Problem>((asked, receiver.await.map_err(lost)??))
    };
    let (asked, (answers, _share)): (Asked, (Answers, Share)) =
        timeout(router.limits.answer_wait + TOLD_WAIT, asked).await.map_err(|_| Problem::Late { seconds })??;
    if answers.values.len() <= INLINE_NUMBERS_MAX {
        return Ok(router.tell(&asked, &answers));
    }
    let own = Arc::clone(router);
    let told = tokio::task::spawn_blocking(move || own.tell(&asked, &answers));
    told.await.map_err(|_| Problem::Lost { cause: "a bug of enn's".to_owned() })
}

/// A body within its bounds.
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

/// Who waits on a connection.
struct Waiting(oneshot::Sender<Result<(Answers, Share), Problem>>);

impl Reply for Waiting {
    fn is_wanted(&self) -> bool {
        !self.0.is_closed()
    }

    fn tell(self: Box<Self>, answer: Result<(Answers, Share), Problem>) {
        // Somebody who went away hears nothing.
        let _gone = self.0.send(answer);
    }
}

/// A socket that gives up on a client who takes nothing for too long, and ends only after what a client who is refused still sends.
struct Patient {
    stream: TcpStream,
    wait: Duration,
    until: Option<Pin<Box<Sleep>>>,
    /// All that came was of requests that were read to their end.
    heard: Arc<AtomicBool>,
}

impl Patient {
    fn patiently<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.until = None;
            return written;
        }
        let wait = self.wait;
        let until = self.until.get_or_insert_with(|| Box::pin(sleep(wait)));
        until.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.heard.store(false, Relaxed);
        }
        read
    }
}

impl AsyncWrite for Patient {
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
        if self.heard.load(Relaxed) {
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
