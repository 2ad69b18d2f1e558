//! The terminal and the loop: waits for keys, events, logs and measurements, and draws.
//!
//! **Invariant:** the terminal is as it was when this returns, also by a signal or a panic.

use super::{
    event_log::EventLog,
    rows::{self, WorkerRow},
    sample::{Sampler, Samples},
    scene::Scene,
    state::{KeyOutcome, Pane, TopState},
    tail::{self, LogTail},
    view,
};
use crate::{error::TopError, follow::Follower, status::StatusContext, terminal};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyEventKind},
};
use std::{
    io::{self, IsTerminal},
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

/// Time between measurements, and between drawings when nothing happens: ages grow.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Least time between two drawings, however fast a log grows.
const FRAME_INTERVAL: Duration = Duration::from_millis(40);

/// The run that is shown, and its host.
pub struct TopOptions<'a> {
    pub run_dir: &'a Path,
    /// Open for writing in the launcher as long as it lives.
    pub held: &'a Path,
    /// Whether the launcher lives.
    pub living: &'a dyn Fn() -> bool,
    /// Folders below which the workers' logs are.
    pub logs: Vec<PathBuf>,
    pub host: &'a str,
    /// Readable when this program is asked to end.
    pub stop: Option<BorrowedFd<'a>>,
}

/// Shows the run until the person leaves.
///
/// # Errors
/// There is no terminal or no journal.
pub fn run(options: &TopOptions<'_>) -> Result<(), TopError> {
    if !io::stdin().is_terminal() || !terminal::draws(&io::stdout()) {
        return Err(TopError::NoTerminal);
    }
    let system = |what| move |source| TopError::System { what, source };
    let follower = Follower::open(options.run_dir, options.held)?;
    let sampler = Sampler::start().map_err(system("start the thread that measures"))?;
    let mut screen = TopScreen {
        options,
        follower,
        sampler,
        event_log: EventLog::default(),
        samples: Samples::default(),
        state: TopState::default(),
        tail: LogTail::default(),
        living: false,
    };
    let mut terminal = ratatui::try_init().map_err(system("set up the terminal"))?;
    let done = screen.run(&mut terminal);
    ratatui::try_restore().map_err(system("restore the terminal"))?;
    done
}

struct TopScreen<'a> {
    options: &'a TopOptions<'a>,
    follower: Follower,
    sampler: Sampler,
    event_log: EventLog,
    samples: Samples,
    state: TopState,
    tail: LogTail,
    living: bool,
}

impl TopScreen<'_> {
    fn run(&mut self, terminal: &mut DefaultTerminal) -> Result<(), TopError> {
        let mut sampled: Option<Instant> = None;
        loop {
            self.follower.read(|event| self.event_log.apply(&event))?;
            self.living = (self.options.living)();
            if let Some(samples) = self.sampler.take() {
                self.samples = samples;
            }
            let rows = self.scene().rows();
            if sampled.is_none_or(|at| at.elapsed() >= SAMPLE_INTERVAL) {
                self.ask(&rows);
                sampled = Some(Instant::now());
            }
            self.look_at_log(&rows);
            terminal
                .draw(|frame| view::draw(frame, &self.scene()))
                .map_err(|source| TopError::System { what: "draw", source })?;
            let drawn = Instant::now();
            let next = sampled.map_or(Duration::ZERO, |at| SAMPLE_INTERVAL.saturating_sub(at.elapsed()));
            if self.wait(drawn, next)? == KeyOutcome::Quit {
                return Ok(());
            }
        }
    }

    fn scene(&self) -> Scene<'_> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let Self { event_log, options, samples, state, tail, living, .. } = self;
        Scene {
            event_log,
            context: StatusContext { living: *living, now, width: 0 },
            host: options.host,
            samples,
            state,
            tail,
        }
    }

    /// Only living workers of this host are measured.
    fn ask(&self, rows: &[WorkerRow]) {
        let living = rows.iter().filter(|row| row.here).filter_map(|row| row.process);
        let pids = living.filter(|(_, status)| status.alive()).map(|(pid, _)| pid).collect();
        self.sampler.ask(pids);
    }

    fn look_at_log(&mut self, rows: &[WorkerRow]) {
        let row = rows::selected(rows, &self.state).and_then(|index| rows.get(index));
        if !self.state.chosen {
            self.state.suggest(tail::default_pane(&self.options.logs, row));
        }
        let path = match (row, self.state.pane) {
            (Some(row), pane @ (Pane::Stderr | Pane::Stdout)) => tail::path(&self.options.logs, row, pane),
            _ => None,
        };
        self.tail.look(path);
    }

    /// Waits for something to show. Keys are always taken at once; the rest waits until a frame's time has passed.
    fn wait(&mut self, drawn: Instant, next: Duration) -> Result<KeyOutcome, TopError> {
        let system = |what| move |source| TopError::System { what, source };
        loop {
            let calm = FRAME_INTERVAL.saturating_sub(drawn.elapsed());
            let stdin = io::stdin();
            let always = [Some(stdin.as_fd()), self.options.stop];
            let watched = [self.follower.fd(), self.tail.fd(), Some(self.sampler.fd())];
            let watched = watched.into_iter().filter(|_| calm.is_zero());
            let fds = always.into_iter().chain(watched).flatten();
            let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            let timeout = if calm.is_zero() { next } else { calm };
            let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO);
            let count = match poll(&mut fds, timeout) {
                // A signal: the window may have a new size.
                Err(Errno::EINTR) => return Ok(KeyOutcome::Stay),
                other => other.map_err(io::Error::from).map_err(system("wait for keys"))?,
            };
            let readable = |index: usize| fds.get(index).is_some_and(|fd| fd.any().unwrap_or(false));
            if self.options.stop.is_some() && readable(1) {
                return Ok(KeyOutcome::Quit);
            }
            let typed = readable(0);
            let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
            if fds.first().and_then(PollFd::revents).is_some_and(|found| found.intersects(gone)) {
                return Ok(KeyOutcome::Quit);
            }
            drop(fds);
            if typed {
                return self.keys();
            }
            if count > 0 || calm.is_zero() {
                return Ok(KeyOutcome::Stay);
            }
        }
    }

    /// Takes all keys that are there.
    fn keys(&mut self) -> Result<KeyOutcome, TopError> {
        let system = |source| TopError::System { what: "read a key", source };
        while event::poll(Duration::ZERO).map_err(system)? {
            let Event::Key(key) = event::read().map_err(system)? else { continue };
            if key.kind == KeyEventKind::Release {
                continue;
            }
            let rows = self.scene().rows();
            let shown = rows::selected(&rows, &self.state).and_then(|index| rows.get(index)).map(|row| row.rank);
            let ranks: Vec<u32> = rows.iter().map(|row| row.rank).collect();
            if self.state.press(key, &ranks, shown) == KeyOutcome::Quit {
                return Ok(KeyOutcome::Quit);
            }
        }
        Ok(KeyOutcome::Stay)
    }
}
