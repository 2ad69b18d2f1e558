//! Where the events of a run go: to the caller in the same thread, or to the thread that prepared to lead.

use crossbeam_channel::{Receiver, Sender, bounded};
use enn_common::event::EventKind;

/// Message to the thread that shows and records the events.
#[derive(Debug)]
pub(crate) enum JournalMessage {
    Event(Box<EventKind>),
    /// Answered when all events before it are recorded.
    Flush(Sender<()>),
}

pub(crate) enum Journal<'a> {
    /// The caller's own thread.
    Direct(&'a mut dyn FnMut(EventKind)),
    /// Another thread.
    Relayed(Sender<JournalMessage>),
    /// The node agent of the leader, which has a journal of its own.
    Queued(Vec<EventKind>),
}

impl Journal<'_> {
    pub(crate) fn record(&mut self, event: EventKind) {
        match self {
            Self::Direct(emit) => emit(event),
            // A thread that is gone records nothing more, and its end is noticed elsewhere.
            Self::Relayed(messages) => _ = messages.send(JournalMessage::Event(Box::new(event))),
            Self::Queued(events) => events.push(event),
        }
    }

    /// Returns the events that wait.
    pub(crate) fn take(&mut self) -> Vec<EventKind> {
        match self {
            Self::Direct(_) | Self::Relayed(_) => Vec::new(),
            Self::Queued(events) => std::mem::take(events),
        }
    }

    /// Returns what tells that all events so far are recorded; `None`: they are.
    pub(crate) fn flushed(&self) -> Option<Receiver<()>> {
        let Self::Relayed(messages) = self else { return None };
        let (done, flushed) = bounded(1);
        let _gone = messages.send(JournalMessage::Flush(done));
        Some(flushed)
    }
}
