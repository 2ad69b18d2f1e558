//! Events get their time and go to the user interface in a thread of its own: a slow terminal or disk must not hold up
//! the agent.

use crate::{
    process::GiveUp,
    ui::{JournalError, MetricsServer, Mode, Sink},
};
use crossbeam_channel::{Sender, bounded};
use enn_common::event::{Event, What};
use std::{
    path::Path,
    thread::JoinHandle,
    time::{SystemTime, UNIX_EPOCH},
};

/// Events waiting for the user interface. Progress beyond them is left out; everything else waits.
const EVENTS_MAX: usize = 4096;

/// The thread's handle.
pub(super) struct Announcer {
    teller: Option<Teller>,
    thread: Option<JoinHandle<()>>,
    give_up: Option<GiveUp>,
}

/// Tells events; clone it for other threads.
#[derive(Clone)]
pub(super) struct Teller {
    events: Sender<Event>,
}

impl Announcer {
    /// Tells the events of a run: to its journal, the screen, and whoever asks the metrics server.
    pub(super) fn of_run(run: &Path, mode: Mode, metrics: Option<MetricsServer>) -> Result<Self, JournalError> {
        let mut sink = Sink::new(run, mode)?;
        if let Some(server) = metrics {
            sink.serve(server);
        }
        Ok(Self::start(sink))
    }

    /// Starts the thread. When there is no thread to be had the events are lost, the run is not.
    pub(super) fn start(mut sink: Sink) -> Self {
        let (events, incoming) = bounded(EVENTS_MAX);
        let give_up = sink.give_up();
        let show = move || incoming.iter().for_each(|event| sink.event(&event));
        let thread = std::thread::Builder::new().name("enn-ui".into()).spawn(show).ok();
        Self { teller: Some(Teller { events }), thread, give_up }
    }

    /// Tells one event.
    pub(super) fn tell(&self, what: What) {
        if let Some(teller) = &self.teller {
            teller.tell(what);
        }
    }

    /// From now on nobody waits for whoever reads what is shown; the journal is still completed.
    pub(super) fn give_up(&self) {
        self.give_up.iter().for_each(GiveUp::now);
    }

    /// A teller for another thread. The announcer ends when all of them are gone.
    pub(super) fn teller(&self) -> Option<Teller> {
        self.teller.clone()
    }
}

impl Teller {
    /// Tells one event.
    pub(super) fn tell(&self, what: What) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let droppable = matches!(what, What::Stepped { .. } | What::StageProgressed { .. });
        let event = Event { time, what };
        // A user interface that is gone hears nothing more; the run goes on.
        if droppable {
            let _full = self.events.try_send(event);
        } else {
            let _gone = self.events.send(event);
        }
    }
}

impl Drop for Announcer {
    /// Waits until everything told has been shown and written.
    fn drop(&mut self) {
        self.teller = None;
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}
