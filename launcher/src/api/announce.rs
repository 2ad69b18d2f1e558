//! Events get a timestamp and go to the user interface in a separate thread, so that a slow terminal or disk does not delay the agent.

use crate::{error::Error, facts::Facts};
use crossbeam_channel::{Sender, bounded};
use enn_common::event::{Event, EventKind};
use enn_process::{GiveUp, run_dir::RunDir};
use enn_ui::{MetricsServer, Mode, Sink};
use std::{
    thread::JoinHandle,
    time::{SystemTime, UNIX_EPOCH},
};

/// Maximum number of queued events. Beyond it progress events are dropped; other events wait.
const EVENTS_MAX: usize = 4096;

/// The thread that shows and records events; dropping it waits until all events have been handled.
pub(super) struct Announcer {
    sender: Option<EventSender>,
    thread: Option<JoinHandle<()>>,
    give_up: Option<GiveUp>,
}

/// Sends events to the [`Announcer`]; clone it for other threads.
#[derive(Clone)]
pub(super) struct EventSender {
    events: Sender<Event>,
}

impl Announcer {
    /// Starts the thread for a run: events go to its journal, the screen and the metrics server. A launcher that has lost the run to another
    /// one shows them only.
    pub(super) fn of_run(run: &RunDir, mode: Mode, metrics: Option<MetricsServer>) -> Result<Self, Error> {
        let mut sink = Sink::new(run.path(), mode)?;
        let lock = run.witness()?;
        sink.write_while(move || lock.is_current());
        if let Some(server) = metrics {
            sink.serve(server);
        }
        Ok(Self::start(sink))
    }

    /// Starts the thread. If it cannot be started the events are lost and the run goes on.
    pub(super) fn start(mut sink: Sink) -> Self {
        let (events, incoming) = bounded(EVENTS_MAX);
        let give_up = sink.give_up();
        let show = move || incoming.iter().for_each(|event| sink.event(&event));
        let thread = std::thread::Builder::new().name("enn-ui".into()).spawn(show).ok();
        Self { sender: Some(EventSender { events }), thread, give_up }
    }

    /// Sends the first event of a run.
    pub(super) fn begin(&self, run: &RunDir, mode: &str, nproc: u32, facts: &Facts) {
        self.send(EventKind::RunStarted {
            run: run.id(),
            mode: mode.to_owned(),
            dir: run.path().to_owned(),
            host: facts.host.clone(),
            nproc,
            argv: facts.argv.clone(),
        });
    }

    /// Returns a function that sends warnings from another thread. The announcer ends when it is gone.
    pub(super) fn warner(&self) -> impl Fn(String) + Send + Sync + use<> {
        let events = self.sender();
        move |message| {
            if let Some(events) = &events {
                events.send(EventKind::Warned { message });
            }
        }
    }

    /// Sends one event with the current time.
    pub(super) fn send(&self, what: EventKind) {
        if let Some(sender) = &self.sender {
            sender.send(what);
        }
    }

    /// Stops waiting for the reader of the screen output; the journal is still completed.
    pub(super) fn give_up(&self) {
        self.give_up.iter().for_each(GiveUp::now);
    }

    /// Returns a sender for another thread. The announcer ends when all senders are gone.
    pub(super) fn sender(&self) -> Option<EventSender> {
        self.sender.clone()
    }
}

impl EventSender {
    /// Sends one event with the current time.
    pub(super) fn send(&self, what: EventKind) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let droppable = matches!(what, EventKind::Stepped { .. } | EventKind::StageProgressed { .. });
        let event = Event { time, what };
        // A user interface that has ended receives nothing more; the run goes on.
        if droppable {
            let _full = self.events.try_send(event);
        } else {
            let _gone = self.events.send(event);
        }
    }
}

impl Drop for Announcer {
    /// Waits until all events have been shown and written.
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}
