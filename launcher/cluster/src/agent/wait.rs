//! Waiting for everything at once, and the closed list of what can happen.

use super::{child::Child, committer::Committer, control::Control, error::AgentError, nodes::Nodes, spec::Signal};
use enn_common::id::WorkerId;
use enn_process::{Signals, wait_ready};
use nix::poll::{PollFd, PollFlags};
use std::{
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

/// A blocked poll lasted at least this long.
const BLOCKED_MIN: Duration = Duration::from_millis(1);

/// What can happen to an agent, in the order in which simultaneous ones are handled: a death before the words of those
/// who noticed it.
#[derive(Debug)]
pub(super) enum Event {
    /// A signal asks to stop.
    Signalled(Signal),
    /// This worker process ended. `late` bounds the time between its end and now.
    Ended {
        worker: WorkerId,
        /// At most this long ago.
        late: Duration,
    },
    /// The broker has events.
    Spoken,
    /// The rendezvous has news, of other nodes or from them.
    News,
    /// The committer has verdicts.
    Committed,
    /// Somebody asks for something at the door.
    Asked,
    /// The deadline came.
    TimeUp,
}

/// The descriptors an agent waits on.
pub(super) struct Sources {
    /// Before the broker: it is in the broker's directory.
    pub(super) control: Option<Control>,
    pub(super) nodes: Nodes,
    pub(super) committer: Committer,
    pub(super) signals: Option<Signals>,
    returned: Instant,
}

#[derive(Clone, Copy)]
enum Source {
    Signals,
    Broker,
    Rendezvous,
    Committer,
    Control,
    Child(WorkerId),
}

impl Sources {
    pub(super) fn new(
        (nodes, control): (Nodes, Option<Control>),
        committer: Committer,
        signals: Option<Signals>,
    ) -> Self {
        Self { control, nodes, committer, signals, returned: Instant::now() }
    }

    /// Waits until something happens to the agent or its living children, or until `deadline`.
    pub(super) fn wait(
        &mut self,
        children: &[(WorkerId, &Child)],
        deadline: Option<Instant>,
    ) -> Result<Vec<Event>, AgentError> {
        let began = Instant::now();
        let ready = self.ready(children, deadline)?;
        let now = Instant::now();
        // A poll that blocked was listening when the death came. One that found it waiting did not listen since the poll
        // before returned, so the death may be as old as that.
        let listening = now.duration_since(began) >= BLOCKED_MIN;
        let late = if listening { Duration::ZERO } else { now.duration_since(self.returned) };
        self.returned = now;
        let mut events = Vec::new();
        if let Some(signals) = self.signals.as_mut().filter(|_| ready.iter().any(|s| matches!(s, Source::Signals))) {
            events.extend(signals.take().into_iter().map(|signal| Event::Signalled(Signal::named(signal.as_str()))));
        }
        for source in &ready {
            if let Source::Child(worker) = source {
                events.push(Event::Ended { worker: *worker, late });
            }
        }
        if ready.iter().any(|source| matches!(source, Source::Broker)) {
            self.nodes.broker.clear_wake();
            events.push(Event::Spoken);
        }
        if ready.iter().any(|source| matches!(source, Source::Rendezvous)) {
            events.push(Event::News);
        }
        if ready.iter().any(|source| matches!(source, Source::Committer)) {
            self.committer.clear_wake();
            events.push(Event::Committed);
        }
        if ready.iter().any(|source| matches!(source, Source::Control)) {
            events.push(Event::Asked);
        }
        if deadline.is_some_and(|deadline| now >= deadline) {
            events.push(Event::TimeUp);
        }
        Ok(events)
    }

    fn ready(&self, children: &[(WorkerId, &Child)], deadline: Option<Instant>) -> Result<Vec<Source>, AgentError> {
        let mut watched: Vec<(Source, BorrowedFd<'_>)> =
            vec![(Source::Broker, self.nodes.broker.wake_fd()), (Source::Committer, self.committer.wake_fd())];
        watched.extend(self.nodes.rendezvous().map(|rendezvous| (Source::Rendezvous, rendezvous.fd())));
        watched.extend(self.signals.as_ref().map(|signals| (Source::Signals, signals.fd())));
        watched.extend(self.control.as_ref().map(|control| (Source::Control, control.fd())));
        let living = children.iter().filter(|(_, child)| child.exit().is_none());
        watched.extend(living.map(|(worker, child)| (Source::Child(*worker), child.pidfd())));
        let mut fds: Vec<PollFd<'_>> = watched.iter().map(|(_, fd)| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        wait_ready(&mut fds, deadline).map_err(|source| AgentError::System { what: "wait for events", source })?;
        let ready = watched.iter().zip(&fds).filter(|(_, fd)| fd.any().unwrap_or(false));
        Ok(ready.map(|((source, _), _)| *source).collect())
    }
}
