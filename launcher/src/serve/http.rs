//! The sockets: HTTP/1.1 by hyper on one thread; this file alone knows it, and the runtime that it needs.
//!
//! **Invariant:** nothing here computes: bodies are read within their bounds and handed to threads that may take their time.

use super::{
    Limits,
    budget::{Budget, Share},
    engine::Answers,
    job::Reply,
    places::{Client, Place, Places},
    problem::Problem,
    route::{Answer, Asked, Head, Router, Step, Wanted},
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

/// Longest head, bytes, and most header lines.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
/// Connections that are told that they are too many, at a time; more are closed without a word.
const TURNED_AWAY_MAX: usize = 64;
/// What is read of what such a connection asks, and how long: whether the server lives is told all the same.
const ASKED_BYTES_MAX: usize = 4 << 10;
const ASKED_MAX: Duration = Duration::from_secs(1);
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
/// Threads that read bodies and write answers, and how many of them large bodies have, so that small ones need not wait for them.
const BLOCKING_THREADS_MAX: usize = 8;
const LARGE_BODIES_MAX: usize = 4;
/// More bytes are a large body.
const SMALL_BODY_BYTES_MAX: usize = 64 << 10;

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
    pub fn now(self) {
        // A server that has ended needs none.
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
        let (hurry, hurried) = oneshot::channel();
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
            places: Places::new(capacity.connections),
            doors: Arc::new(Semaphore::new(TURNED_AWAY_MAX.min(capacity.connections))),
            large: Arc::new(Semaphore::new(LARGE_BODIES_MAX)),
            bodies,
            router,
        });
        let thread = std::thread::Builder::new().name("enn-http".into()).spawn(move || {
            let entrance = Entrance { listener, again: spare_listener, reserve: Reserve::new() };
            // A request whose task panics is not answered; the others are.
            let drained = panics::isolating(|| runtime.block_on(serve(entrance, shared, stopped, hurried)));
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
    places: Arc<Places>,
    doors: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

/// Where connections come from.
struct Entrance {
    listener: tokio::net::TcpListener,
    /// The same, to take a connection that is only closed.
    again: TcpListener,
    reserve: Reserve,
}

impl Entrance {
    /// The next connection; `None` after the system refused one.
    async fn next(&mut self, places: &Places) -> Option<TcpStream> {
        let error = match self.listener.accept().await {
            Ok((stream, _)) => return Some(stream),
            Err(error) => error,
        };
        if !descriptors::are_exhausted(&error) {
            sleep(REFUSED_REST).await;
        } else if places.evict(Duration::ZERO, Instant::now()) {
            // Whoever made room closes its socket now.
            tokio::task::yield_now().await;
        } else if !self.reserve.refuse(|| self.again.accept()) {
            sleep(REFUSED_REST).await;
        }
        None
    }
}

async fn serve(
    mut entrance: Entrance,
    shared: Arc<Shared>,
    mut stopped: oneshot::Receiver<Duration>,
    hurried: oneshot::Receiver<()>,
) -> Drained {
    let limits = &shared.router.limits;
    let figures = &shared.router.figures;
    let graceful = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_wait)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX);
    let grace = loop {
        let accepted = tokio::select! {
            grace = &mut stopped => break grace.unwrap_or_default(),
            accepted = entrance.next(&shared.places) => accepted,
        };
        let Some(stream) = accepted else { continue };
        let Some(place) = shared.places.take(Instant::now()) else {
            figures.turned_away();
            if let Ok(door) = Arc::clone(&shared.doors).try_acquire_owned() {
                tokio::spawn(turn_away(stream, Arc::clone(&shared), door));
            }
            continue;
        };
        // Small answers must not wait for more to be sent with them; a socket that cannot say so works all the same.
        let _kept = stream.set_nodelay(true);
        let own = Arc::clone(&shared);
        let client = Arc::clone(&place.client);
        let service = service_fn(move |request| handle(Arc::clone(&own), Arc::clone(&client), request));
        let client = Arc::clone(&place.client);
        let stream = TokioIo::new(Patient { stream, wait: limits.body_wait, until: None, client });
        let connection = graceful.watch(http.serve_connection(stream, service));
        let own = Arc::clone(&shared);
        figures.connection(1);
        tokio::spawn(async move {
            let Place { client, .. } = &place;
            // Whatever ends a connection is its client's business.
            tokio::select! {
                _ended = connection => {}
                () = client.evicted() => {}
            }
            own.router.figures.connection(-1);
            drop(place);
        });
    };
    drop(entrance);
    let before = figures.in_flight();
    tokio::select! {
        () = graceful.shutdown() => {}
        () = sleep(grace) => {}
        Ok(()) = hurried => {}
    }
    let cut = figures.in_flight();
    Drained { finished: before.saturating_sub(cut), cut }
}

/// Says that there are too many connections, without making a request of what is asked; but whoever asks for the health hears of that.
async fn turn_away(mut stream: TcpStream, shared: Arc<Shared>, _door: OwnedSemaphorePermit) {
    let mut asked = Vec::new();
    let reading = async {
        while asked.len() < ASKED_BYTES_MAX && memchr::memmem::find(&asked, b"\r\n\r\n").is_none() {
            if stream.read_buf(&mut asked).await? == 0 {
                break;
            }
        }
        io::Result::Ok(())
    };
    // Who says nothing is told, too.
    let _late = timeout(ASKED_MAX, reading).await;
    let full = || Answer::of(&Problem::Connections { limit: shared.places.most() });
    let answer = shared.router.health_at_door(&asked).unwrap_or_else(full);
    let reason = StatusCode::from_u16(answer.status).ok().and_then(|status| status.canonical_reason());
    let head = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: {}\r\nretry-after: 1\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        answer.status,
        reason.unwrap_or_default(),
        answer.kind,
        answer.body.len()
    );
    let body = if asked.starts_with(b"HEAD ") { &[] } else { answer.body.as_slice() };
    let mut stream = Patient { stream, wait: LINGER_MAX, until: None, client: Arc::default() };
    let told = async {
        stream.write_all(&[head.as_bytes(), body].concat()).await?;
        stream.shutdown().await
    };
    let _gone = timeout(LINGER_MAX, told).await;
}

async fn handle(
    shared: Arc<Shared>,
    client: Arc<Client>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let began = Instant::now();
    client.asks();
    let router = Arc::clone(&shared.router);
    let _counted = router.figures.began();
    let is_head = request.method() == hyper::Method::HEAD;
    let answer = answer(&shared, request).await.unwrap_or_else(|problem| Answer::of(&problem));
    router.figures.answered(answer.status, began.elapsed());
    client.heard.store(answer.status < 400, Relaxed);
    client.is_answered(Instant::now());
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
    predict(shared, wanted, body, share).await
}

async fn predict(shared: &Shared, wanted: Wanted, body: Vec<u8>, share: Share) -> Result<Answer, Problem> {
    let router = &shared.router;
    let is_large = body.len() > SMALL_BODY_BYTES_MAX;
    let (sender, receiver) = oneshot::channel();
    let own = Arc::clone(router);
    let lost = |_| Problem::Closing;
    let seconds = router.limits.answer_wait.as_secs();
    let asked = async {
        let place = large_place(shared, is_large).await;
        let asked = tokio::task::spawn_blocking(move || own.ask(wanted, body, share, Box::new(Waiting(sender))));
        let asked: Asked = asked.await.map_err(|_| Problem::Lost { cause: "a bug of enn's".to_owned() })??;
        drop(place);
        Ok::<_, Problem>((asked, receiver.await.map_err(lost)??))
    };
    let (asked, (answers, _share)): (Asked, (Answers, Share)) =
        timeout(router.limits.answer_wait + TOLD_WAIT, asked).await.map_err(|_| Problem::Late { seconds })??;
    if answers.values.len() <= INLINE_NUMBERS_MAX {
        return Ok(router.tell(&asked, &answers));
    }
    let own = Arc::clone(router);
    let _place = large_place(shared, true).await;
    let told = tokio::task::spawn_blocking(move || own.tell(&asked, &answers));
    told.await.map_err(|_| Problem::Lost { cause: "a bug of enn's".to_owned() })
}

/// A thread for what is large; what is small needs no place.
async fn large_place(shared: &Shared, is_large: bool) -> Option<OwnedSemaphorePermit> {
    if is_large { Arc::clone(&shared.large).acquire_owned().await.ok() } else { None }
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
    client: Arc<Client>,
}

impl Patient {
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

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.client.heard.store(false, Relaxed);
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
        if self.client.heard.load(Relaxed) {
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
