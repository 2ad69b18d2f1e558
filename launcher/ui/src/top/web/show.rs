//! The server and the loop: follows the run, and the newest one where none was named, until it is asked to end.

use super::{
    address,
    handler::{LIMITS, PageHandler},
    listener,
    live::{LiveRun, ShownRun},
};
use crate::{
    error::{JournalError, TopError},
    follow::Follower,
    http_server::HttpServer,
    top::{
        rows::{self, RowContext},
        sample::Sampler,
        state::WorkerFilter,
    },
};
use enn_process::run_dir;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use std::{
    io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// Time between measurements, and between versions when nothing happens: ages grow.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Least time between two versions, however many events come.
const VERSION_INTERVAL: Duration = Duration::from_millis(400);
/// Time between looks for a newer run.
const NEWEST_INTERVAL: Duration = Duration::from_secs(2);

/// The run that the page shows.
pub struct WebOptions<'a> {
    /// The run's directory; `None`: no run has begun.
    pub run_dir: Option<PathBuf>,
    /// Finds the newest run: when the run that is shown is over, the page goes on with a newer one.
    pub newest: Option<&'a dyn Fn() -> Option<PathBuf>>,
    /// Readable when this program is asked to end.
    pub stop: Option<BorrowedFd<'a>>,
}

/// The server of the page, which ends when this is dropped.
#[derive(Debug)]
pub struct WebPage {
    handler: Arc<PageHandler>,
    host: String,
    port: u16,
    url: String,
    server: Option<HttpServer>,
}

impl WebPage {
    /// Listens on the loopback address of this host, whose name is `host`: on `port`, or else on a default one, or on any
    /// free one if that is taken.
    ///
    /// # Errors
    /// The port is taken, or the system refuses a thread.
    pub fn start(port: Option<u16>, host: &str) -> Result<Self, TopError> {
        let system = |what| move |source| TopError::System { what, source };
        let listener = listener::bind(port)?;
        let port = listener.local_addr().map_err(system("look at the page's port"))?.port();
        let secret = address::new_secret().map_err(system("make a token"))?;
        let handler = Arc::new(PageHandler::new(address::checked(&secret), host));
        let server = HttpServer::start("enn-web", listener, Arc::clone(&handler), LIMITS);
        let server = server.map_err(system("start the thread that serves the page"))?;
        Ok(Self { handler, host: host.to_owned(), port, url: address::url(port, &secret), server: Some(server) })
    }

    /// Returns the page's address with its secret.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Shows the run until it is asked to end.
    ///
    /// # Errors
    /// There is no journal, or the system refuses to watch.
    pub fn show(&self, options: &WebOptions<'_>) -> Result<(), TopError> {
        let sampler =
            Sampler::start().map_err(|source| TopError::System { what: "start the thread that measures", source })?;
        let run = options.run_dir.as_deref().map(FollowedRun::open).transpose()?;
        let mut watch = RunWatch { page: self, options, sampler, run: None, sampled: None, looked: None };
        if let Some((run, live)) = run {
            watch.begin(run, live);
        }
        loop {
            let news = watch.look()?;
            if news {
                self.handler.versions.advance();
            }
            if watch.wait()? == ShowOutcome::End {
                return Ok(());
            }
        }
    }
}

impl Drop for WebPage {
    fn drop(&mut self) {
        self.server.take().map(|server| server.stop(Duration::ZERO));
    }
}

#[derive(Debug, PartialEq, Eq)]
enum ShowOutcome {
    GoOn,
    End,
}

struct FollowedRun {
    path: PathBuf,
    follower: Follower,
}

impl FollowedRun {
    /// Reads the journal so far.
    fn open(path: &Path) -> Result<(Self, LiveRun), JournalError> {
        let mut follower = Follower::open(path, &run_dir::lock_path(path))?;
        let mut live = LiveRun::default();
        follower.read(|event| live.apply(&event))?;
        Ok((Self { path: path.to_owned(), follower }, live))
    }
}

struct RunWatch<'a> {
    page: &'a WebPage,
    options: &'a WebOptions<'a>,
    sampler: Sampler,
    run: Option<FollowedRun>,
    /// When the load of the workers was last asked for.
    sampled: Option<Instant>,
    /// When a newer run was last looked for.
    looked: Option<Instant>,
}

impl RunWatch<'_> {
    fn begin(&mut self, run: FollowedRun, live: LiveRun) {
        let mut shown = self.page.handler.shown();
        let number = shown.number + 1;
        let living = run_dir::is_living(&run.path);
        *shown = ShownRun { number, live, living, logs: run_dir::logs(&run.path), ..ShownRun::default() };
        self.run = Some(run);
    }

    /// Takes what is new; returns whether there is anything, or ages have grown.
    fn look(&mut self) -> Result<bool, TopError> {
        let mut news = self.take_newer();
        if let Some(run) = &mut self.run {
            // Asked before the events are read: the end of the launcher is its last event.
            let living = run_dir::is_living(&run.path);
            let mut shown = self.page.handler.shown();
            news |= shown.living != living;
            shown.living = living;
            run.follower.read(|event| {
                shown.live.apply(&event);
                news = true;
            })?;
        }
        if let Some(samples) = self.sampler.take() {
            self.page.handler.shown().samples = samples;
            news = true;
        }
        let due = self.sampled.is_none_or(|at| at.elapsed() >= SAMPLE_INTERVAL);
        if due && self.page.handler.is_watched(Instant::now()) {
            self.sampled = Some(Instant::now());
            news |= self.ask();
        }
        Ok(news)
    }

    /// Goes on with a newer run when the one that is shown is over.
    fn take_newer(&mut self) -> bool {
        let Some(newest) = self.options.newest else { return false };
        let over = self.run.as_ref().is_none_or(|run| !run_dir::is_living(&run.path));
        if !over || self.looked.is_some_and(|at| at.elapsed() < NEWEST_INTERVAL) {
            return false;
        }
        self.looked = Some(Instant::now());
        let found = newest().filter(|path| self.run.as_ref().is_none_or(|run| run.path != *path));
        // A run that has no journal yet is found again.
        match found.map(|path| FollowedRun::open(&path)) {
            Some(Ok((run, live))) => {
                self.begin(run, live);
                true
            }
            _ => false,
        }
    }

    /// Asks for the load of the living workers of this host; returns whether the run lives.
    fn ask(&self) -> bool {
        let shown = self.page.handler.shown();
        let context = RowContext { living: shown.living, host: &self.page.host };
        let rows = rows::rows(&shown.live.event_log.view, &shown.samples, context, WorkerFilter::Here);
        let living = rows.iter().filter_map(|row| row.process);
        self.sampler.ask(living.filter(|(_, status)| status.alive()).map(|(pid, _)| pid).collect());
        shown.living
    }

    /// Waits for something new, at least for the time between two versions.
    fn wait(&self) -> Result<ShowOutcome, TopError> {
        if self.poll(&[], VERSION_INTERVAL)? == ShowOutcome::End {
            return Ok(ShowOutcome::End);
        }
        let watched = [self.run.as_ref().and_then(|run| run.follower.fd()), Some(self.sampler.fd())];
        let watched: Vec<BorrowedFd<'_>> = watched.into_iter().flatten().collect();
        self.poll(&watched, SAMPLE_INTERVAL.saturating_sub(VERSION_INTERVAL))
    }

    fn poll(&self, watched: &[BorrowedFd<'_>], wait: Duration) -> Result<ShowOutcome, TopError> {
        let fds = self.options.stop.iter().chain(watched).map(|fd| PollFd::new(*fd, PollFlags::POLLIN));
        let mut fds: Vec<PollFd<'_>> = fds.collect();
        match poll(&mut fds, PollTimeout::try_from(wait).unwrap_or(PollTimeout::ZERO)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => {
                return Err(TopError::System { what: "wait for events", source: io::Error::from(error) });
            }
        }
        let asked = self.options.stop.is_some() && fds.first().is_some_and(|fd| fd.any().unwrap_or(false));
        Ok(if asked { ShowOutcome::End } else { ShowOutcome::GoOn })
    }
}
