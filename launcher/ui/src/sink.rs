//! Where events go: into the journal, and onto the screen in the way asked for.
//!
//! **Invariant:** taking an event never fails and never waits for anything but the disk and the terminal: a journal that
//! cannot be written causes a warning, once a minute at most, and the run goes on.

use super::{
    error::JournalError,
    event_channel, journal,
    lines::{EventLine, LineLevel, lines},
    metrics_server::MetricsServer,
    model::RunView,
    progress::Progress,
    tensorboard, terminal,
};
use enn_common::{
    event::{Event, EventKind},
    shown,
};
use enn_process::{GiveUp, PatientWriter};
use std::{
    io::{self, Write},
    os::fd::AsFd,
    path::Path,
};

/// Steps (or other progress events) that are written one by one; later ones at most once in `STEP_INTERVAL_S`, so that the
/// journal of a run of days stays small.
const STEPS_IN_FULL: u64 = 2_000;

/// Least time between later progress events, seconds; see [`STEPS_IN_FULL`].
const STEP_INTERVAL_S: f64 = 1.0;
/// Seconds between two warnings that the journal cannot be written.
const WARN_INTERVAL_S: f64 = 60.0;

/// Least time between two epochs' lines in a plain log, seconds; the best epoch so far is always shown.
const EPOCH_LINE_INTERVAL_S: f64 = 1.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// A progress bar when standard error is a terminal, else lines.
    #[default]
    Auto,
    /// One plain line per notable event on standard error.
    Lines,
    /// Only what went wrong, on standard error.
    Quiet,
    /// Every event as one JSON object per line on standard output, nothing else.
    Json,
}

enum EventOutput {
    Progress(Progress),
    Lines { out: Box<dyn Write + Send>, epoch_shown: f64 },
    Quiet(Box<dyn Write + Send>),
    Json(Box<dyn Write + Send>),
}

/// Takes the events of one launch, in order.
pub struct Sink {
    journal: Option<journal::JournalWriter>,
    tensorboard: Option<tensorboard::TensorboardWriter>,
    /// Says whether the run directory is still this process's.
    may_write: Box<dyn Fn() -> bool + Send>,
    /// Time of the last warning that the journal cannot be written, seconds since the Unix epoch.
    journal_warned_at: f64,
    view: RunView,
    metrics: Option<MetricsServer>,
    output: EventOutput,
    steps_written: u64,
    step_written: f64,
    give_up: Option<GiveUp>,
}

/// Writes to one of this process's streams and waits until it takes everything, unless that is given up.
fn blocking_writer(stream: &impl AsFd, give_up: Option<&GiveUp>) -> Box<dyn Write + Send> {
    match PatientWriter::new(stream, give_up.cloned()) {
        Ok(writer) => Box::new(writer),
        // Without a descriptor to be had there is nothing to write to either.
        Err(_) => Box::new(io::sink()),
    }
}

impl Sink {
    /// Appends to the journal of `run_dir` and shows the events in `mode`. Earlier events of the directory (a run that is
    /// resumed) are taken into the view, not shown again.
    ///
    /// # Errors
    /// The journal cannot be opened.
    pub fn new(run_dir: &Path, mode: Mode) -> Result<Self, JournalError> {
        let view = if run_dir.join(journal::FILE).exists() { RunView::read(run_dir)? } else { RunView::default() };
        let mut sink = Self::bare(mode);
        sink.journal = Some(journal::JournalWriter::open(run_dir)?);
        sink.tensorboard = Some(tensorboard::TensorboardWriter::new(run_dir));
        sink.view = view;
        Ok(sink)
    }

    /// Shows events without a run directory: for commands such as `enn stage` that have none.
    pub fn bare(mode: Mode) -> Self {
        let give_up = GiveUp::new().ok();
        let output = match mode {
            Mode::Auto if terminal::draws(&io::stderr()) => EventOutput::Progress(Progress::new()),
            Mode::Auto | Mode::Lines => EventOutput::Lines {
                out: blocking_writer(&io::stderr(), give_up.as_ref()),
                epoch_shown: f64::NEG_INFINITY,
            },
            Mode::Quiet => EventOutput::Quiet(blocking_writer(&io::stderr(), give_up.as_ref())),
            Mode::Json => EventOutput::Json(blocking_writer(&io::stdout(), give_up.as_ref())),
        };
        Self {
            journal: None,
            tensorboard: None,
            may_write: Box::new(|| true),
            journal_warned_at: f64::NEG_INFINITY,
            view: RunView::default(),
            metrics: None,
            output,
            steps_written: 0,
            step_written: 0.0,
            give_up,
        }
    }

    /// Returns the handle that ends this sink's waits for a standard output or error that accepts nothing.
    pub fn give_up(&self) -> Option<GiveUp> {
        self.give_up.clone()
    }

    /// Writes to the run directory only as long as `may_write` says so: another process may take it over.
    pub fn write_while(&mut self, may_write: impl Fn() -> bool + Send + 'static) {
        self.may_write = Box::new(may_write);
    }

    /// Serves this sink's events, from the beginning of the journal on, with `server`.
    pub fn serve(&mut self, server: MetricsServer) {
        server.set(&self.view);
        self.metrics = Some(server);
    }

    /// Records an event, and then shows it.
    pub fn event(&mut self, event: &Event) {
        self.view.apply(event);
        if let Some(metrics) = &self.metrics {
            metrics.event(event);
        }
        self.record(event);
        event_channel::event(event);
        let lines = lines(event, &self.view);
        if !matches!(event.what, EventKind::Warned { .. }) {
            let warnings = lines.iter().filter(|line| line.level == LineLevel::Alert);
            let warnings = warnings.filter_map(|line| line.text.strip_prefix("warning: "));
            warnings.for_each(|warning| event_channel::warn(event.time, warning.to_owned()));
        }
        self.show(event, &lines);
    }

    pub fn view(&self) -> &RunView {
        &self.view
    }

    fn record(&mut self, event: &Event) {
        let Some(journal) = &mut self.journal else { return };
        if !(self.may_write)() {
            self.journal = None;
            self.tensorboard = None;
            return;
        }
        if event_channel::is_progress(&event.what) {
            if self.steps_written >= STEPS_IN_FULL && event.time - self.step_written < STEP_INTERVAL_S {
                return;
            }
            self.steps_written += 1;
            self.step_written = event.time;
        }
        let mut done = journal.write(event);
        if matches!(event.what, EventKind::RunEnded { .. }) {
            done = done.and_then(|()| journal.sync());
        }
        if let Err(error) = done {
            self.warn(event.time, error.to_string());
        }
        if let Some(Err(error)) = self.tensorboard.as_mut().map(|writer| writer.event(event)) {
            self.tensorboard = None;
            self.warn(event.time, format!("no more numbers for TensorBoard: {error}"));
        }
    }

    /// Warns that the journal cannot be written, at most once per interval: on a full disk only some lines find room.
    fn warn(&mut self, time: f64, message: String) {
        if time - self.journal_warned_at >= WARN_INTERVAL_S {
            self.journal_warned_at = time;
            let warned = Event { time, what: EventKind::Warned { message } };
            self.view.apply(&warned);
            event_channel::event(&warned);
            let shown = lines(&warned, &self.view);
            self.show(&warned, &shown);
        }
    }

    /// A terminal that is gone is no reason to end a run: what cannot be written is dropped.
    fn show(&mut self, event: &Event, lines: &[EventLine]) {
        let since = self.view.sessions.last().map_or(event.time, |session| session.started);
        match &mut self.output {
            EventOutput::Progress(progress) => progress.draw(lines, &self.view),
            EventOutput::Lines { out, epoch_shown } => {
                if let EventKind::EpochEnded(report) = &event.what {
                    if event.time - *epoch_shown < EPOCH_LINE_INTERVAL_S && !report.best {
                        return;
                    }
                    *epoch_shown = event.time;
                }
                for line in lines {
                    let indented = line.text.replace('\n', "\n            ");
                    let _ = out.write_all(format!("[{:>8.1} s] {indented}\n", event.time - since).as_bytes());
                }
            }
            EventOutput::Quiet(out) => {
                for line in lines.iter().filter(|line| line.level == LineLevel::Alert) {
                    let _ = out.write_all(format!("{}\n", line.text).as_bytes());
                }
            }
            EventOutput::Json(out) => {
                if let Ok(line) = serde_json::to_string(event) {
                    let _ = out.write_all(format!("{}\n", shown::json(&line)).as_bytes());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{events, view_after};
    use std::sync::mpsc;

    /// Hands what is written to a channel.
    struct Tap(mpsc::Sender<Vec<u8>>);

    impl Write for Tap {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn shown(output: fn(Box<dyn Write + Send>) -> EventOutput) -> String {
        let (sender, receiver) = mpsc::channel();
        let mut sink = Sink::bare(Mode::Quiet);
        sink.output = output(Box::new(Tap(sender)));
        events().iter().for_each(|event| sink.event(event));
        drop(sink);
        String::from_utf8(receiver.iter().flatten().collect()).unwrap()
    }

    #[test]
    fn plain_lines() {
        insta::assert_snapshot!(shown(|out| EventOutput::Lines { out, epoch_shown: f64::NEG_INFINITY }));
    }

    #[test]
    fn quiet_says_only_what_went_wrong() {
        let text = shown(EventOutput::Quiet);
        assert!(text.contains("SIGKILL") && text.contains("no space left") && !text.contains("epoch"), "{text}");
    }

    #[test]
    fn a_launcher_that_has_lost_its_run_shows_events_and_writes_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = Sink::new(dir.path(), Mode::Quiet).unwrap();
        let (sender, shown) = mpsc::channel();
        sink.output = EventOutput::Json(Box::new(Tap(sender)));
        let events = events();
        sink.event(&events[0]);
        sink.write_while(|| false);
        sink.event(&events[1]);
        let written = std::fs::read_to_string(dir.path().join(journal::FILE)).unwrap();
        assert_eq!((written.lines().count(), shown.try_iter().flatten().filter(|byte| *byte == b'\n').count()), (1, 2));
    }

    #[test]
    fn json_is_the_events() {
        let text = shown(EventOutput::Json);
        let back: Vec<Event> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(back, events());
    }

    #[test]
    fn a_resumed_run_goes_on_in_its_journal() {
        let dir = tempfile::tempdir().unwrap();
        let all = events();
        let (first, second) = all.split_at(20);
        for part in [first, second] {
            let mut sink = Sink::new(dir.path(), Mode::Quiet).unwrap();
            sink.output = EventOutput::Quiet(Box::new(io::sink()));
            part.iter().for_each(|event| sink.event(event));
        }
        assert_eq!(RunView::read(dir.path()).unwrap(), view_after(&all));
    }

    #[test]
    fn a_journal_that_fails_is_told_once_and_ends_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (sender, receiver) = mpsc::channel();
        let mut sink = Sink::bare(Mode::Quiet);
        sink.output = EventOutput::Quiet(Box::new(Tap(sender)));
        sink.journal = Some(journal::JournalWriter::read_only(dir.path()));
        events().iter().for_each(|event| sink.event(event));
        drop(sink);
        let text = String::from_utf8(receiver.iter().flatten().collect()).unwrap();
        assert_eq!(text.matches("cannot append to the run's journal").count(), 1, "{text}");
        assert!(text.contains("SIGKILL"), "what came after is still shown: {text}");
    }

    #[test]
    fn a_long_run_keeps_its_journal_small() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = Sink::new(dir.path(), Mode::Quiet).unwrap();
        let steps = 10_000;
        for step in 1..=steps {
            let what = EventKind::Stepped { epoch: 1, step, loss: 1.0, lr: 0.1, grad_norm: 1.0, samples_per_s: 1.0 };
            sink.event(&Event { time: 0.1 * step as f64, what });
        }
        let mut lines = 0;
        journal::read(dir.path(), |_| lines += 1).unwrap();
        assert!((2_700..2_900).contains(&lines), "2000 in full and 800 s of one a second, not {lines}");
    }
}
