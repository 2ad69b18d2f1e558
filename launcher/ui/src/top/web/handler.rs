//! Requests of the page: its files, which hold no data, and the run, for those who bring the secret.
//!
//! The secret comes in a header that a page of another origin cannot send, and that no browser adds by itself as it does
//! with a cookie, which it would also send to the servers on other ports of this host.

use super::{
    live::ShownRun,
    picture::{self, PictureInputs},
    positions::Positions,
};
use crate::http_server::{
    BearerSecret, HttpAnswer, HttpHandler, HttpLimits, HttpRequest, LongPoll, Versions, is_loopback, off_thread,
};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Requests that may wait for news at a time; a page has one of them.
const WAITING_MAX: usize = 24;
/// Longest time for which a request waits for news.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Maximum size of a request's head, bytes.
const HEAD_BYTES_MAX: usize = 8 << 10;

pub(super) const LIMITS: HttpLimits = HttpLimits {
    connections_max: 64,
    rejected_max: 0,
    idle_min: Duration::from_millis(250),
    idle_min_exhausted: Duration::from_millis(250),
    head_bytes_max: HEAD_BYTES_MAX,
    head_wait: Duration::from_secs(30),
    write_wait: Duration::from_secs(20),
    connection_max: Duration::from_secs(3600),
    keep_alive: true,
};

/// The page's files: path, media type, content.
const FILES: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", include_str!("page/page.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page/page.js")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];
/// Path of the run.
const RUN_PATH: &str = "/run";

/// Nothing is loaded from elsewhere or written into the page, and no other page may hold it in a frame or read it.
const HEADERS: [(&str, &str); 5] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("x-frame-options", "DENY"),
];

#[derive(Debug)]
pub(super) struct PageHandler {
    shown: Mutex<ShownRun>,
    pub(super) versions: Versions,
    secret: BearerSecret,
    host: String,
    /// When a page last asked.
    asked: Mutex<Option<Instant>>,
}

impl PageHandler {
    pub(super) fn new(secret: BearerSecret, host: &str) -> Self {
        let host = host.to_owned();
        Self { shown: Mutex::default(), versions: Versions::new(WAITING_MAX), secret, host, asked: Mutex::new(None) }
    }

    pub(super) fn shown(&self) -> MutexGuard<'_, ShownRun> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a page asked within the time that it may wait for an answer.
    pub(super) fn is_watched(&self, now: Instant) -> bool {
        let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.is_some_and(|asked| now.saturating_duration_since(asked) < 2 * WAIT_MAX)
    }

    /// Returns the answer to a request that need not wait, or what the client has of the run.
    fn route(&self, head: &PageHead<'_>) -> Result<Positions, HttpAnswer> {
        if !head.host.is_some_and(is_loopback) {
            return Err(text(403, "this server answers to 127.0.0.1 and localhost only: see the header Host\n"));
        }
        if !["GET", "HEAD"].contains(&head.method) {
            return Err(HttpAnswer { header: Some(("allow", "GET, HEAD")), ..text(405, "only GET is answered\n") });
        }
        if let Some((_, kind, content)) = FILES.iter().find(|(path, ..)| *path == head.path) {
            return Err(HttpAnswer { kind, ..text(200, content) });
        }
        if head.path != RUN_PATH {
            return Err(text(404, "there is no such page: / is the run\n"));
        }
        if !self.secret.is_in(head.authorization) {
            let asks = Some(("www-authenticate", "Bearer"));
            return Err(HttpAnswer { header: asks, ..text(401, "the token is missing or is another one\n") });
        }
        let positions = Positions::parse(head.query.unwrap_or_default());
        positions.ok_or_else(|| text(400, "the query is none that the page makes\n"))
    }

    /// Returns the run as it is now, without what the client has.
    fn picture(&self, positions: Positions, version: u64) -> HttpAnswer {
        let shown = self.shown();
        let positions = positions.of_run(shown.number);
        let (mut answer, log) = picture::of(&PictureInputs { shown: &shown, host: &self.host, version }, &positions);
        let logs = shown.logs.clone();
        drop(shown);
        // A file is read while the run goes on.
        if let Some(row) = log {
            answer["log"] = picture::log(&logs, &row, &positions);
        }
        HttpAnswer { kind: "application/json", ..text(200, &answer.to_string()) }
    }
}

/// The parts of a request on which the answer depends.
#[derive(Debug, Clone, Copy)]
struct PageHead<'a> {
    method: &'a str,
    path: &'a str,
    query: Option<&'a str>,
    host: Option<&'a [u8]>,
    authorization: Option<&'a [u8]>,
}

fn text(status: u16, body: &str) -> HttpAnswer {
    HttpAnswer { status, kind: "text/plain; charset=utf-8", header: None, body: body.into() }
}

impl HttpHandler for PageHandler {
    async fn answer(self: Arc<Self>, request: HttpRequest) -> HttpAnswer {
        let header = |name: &str| request.headers().get(name).map(|value| value.as_bytes());
        // A request target in absolute form contains the host.
        let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
        let routed = self.route(&PageHead {
            method: request.method().as_str(),
            path: request.uri().path(),
            query: request.uri().query(),
            host: authority.or_else(|| header("host")),
            authorization: header("authorization"),
        });
        let positions = match routed {
            Ok(positions) => positions,
            Err(answer) => return answer,
        };
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        let version = match self.versions.other_than(positions.version, WAIT_MAX).await {
            LongPoll::Changed(version) => version,
            LongPoll::Unchanged => return text(204, ""),
            LongPoll::Crowded => return text(503, "too many pages wait: close some\n"),
        };
        let own = Arc::clone(&self);
        let answer = off_thread(move || own.picture(positions, version)).await;
        answer.unwrap_or_else(|| text(500, "the run could not be drawn: this is a bug in ENN\n"))
    }

    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        &HEADERS
    }

    fn in_flight(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests;
