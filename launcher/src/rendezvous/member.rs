//! This node's thread: it speaks for the node, and hosts the rendezvous when this node does.
//!
//! **Invariant:** after `News::RunEnded` nothing more is told.

use super::{
    coordinator::{Coordinator, Heard},
    news::{News, RoundPlan, RunEnd},
    settings::Settings,
    state::Time,
};
use crossbeam_channel::{Receiver, Sender};
use enn_common::{
    failure::Failure,
    wire::node::{Card, FromHost, NodeId, Roster, ToHost},
};
use mio::{Events, Poll, Token};
use nix::sys::eventfd::EventFd;
use std::{
    io::ErrorKind,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

pub(super) const WAKER: Token = Token(0);
/// Events taken from the kernel at a time.
const EVENTS_MAX: usize = 1024;

/// What the handle asks for.
#[derive(Debug)]
pub(super) enum Command {
    Join,
    Failed { round: u64, failure: Box<Failure> },
    Finished { round: u64 },
    Leave { why: String },
    Close,
}

/// What the thread shares with the handle.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) wake: Arc<EventFd>,
    /// Milliseconds since `origin` of the last progress.
    pub(super) progress: Arc<AtomicU64>,
    pub(super) origin: Instant,
    /// Where this node reaches the store.
    pub(super) store: Arc<Mutex<(String, u16)>>,
}

impl Shared {
    pub(super) fn now(&self) -> Time {
        self.origin.elapsed()
    }

    pub(super) fn store(&self) -> (String, u16) {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Age of the last progress.
    fn idle(&self, now: Time) -> Duration {
        now.saturating_sub(Duration::from_millis(self.progress.load(Ordering::Relaxed)))
    }
}

/// The thread's state.
pub(super) struct Member {
    pub(super) settings: Arc<Settings>,
    pub(super) own: NodeId,
    pub(super) poll: Poll,
    pub(super) commands: Receiver<Command>,
    pub(super) news: Sender<News>,
    pub(super) shared: Shared,
    pub(super) coordinator: Option<Coordinator>,
    pub(super) roster: Option<Arc<Roster>>,
    pub(super) over: bool,
}

impl Member {
    /// Runs until the handle is dropped.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let now = self.shared.now();
        let card = self.card();
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.join_own(now, card);
        }
        loop {
            let now = self.shared.now();
            while let Ok(command) = self.commands.try_recv() {
                if !self.obey(now, command) {
                    return;
                }
            }
            if self.hosted(now) {
                continue;
            }
            let timeout = self.deadline().map(|at| at.saturating_sub(self.shared.now()));
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != ErrorKind::Interrupted
            {
                tracing::error!(%error, "the rendezvous cannot poll its sockets and ends");
                return;
            }
        }
    }

    fn card(&self) -> Card {
        let settings = &self.settings;
        Card {
            node: self.own,
            host: settings.host.clone(),
            local_world: settings.local_world,
            role: settings.role.clone(),
            node_rank: settings.node_rank,
            standby: None,
            terms: settings.terms(),
            last: None,
        }
    }

    fn deadline(&self) -> Option<Time> {
        let keep_alive = self.settings.hang_timeout.map(|_| self.shared.now() + self.settings.silence_max / 5);
        let coordinator = self.coordinator.as_ref().and_then(Coordinator::deadline);
        [coordinator, keep_alive].into_iter().flatten().min()
    }

    /// Lets the coordinator decide and hears what it says. Whether there may be more to do at once.
    fn hosted(&mut self, now: Time) -> bool {
        let idle = self.shared.idle(now);
        let Some(coordinator) = &mut self.coordinator else { return false };
        coordinator.say_own(now, ToHost::Alive { idle });
        coordinator.advance(now);
        let heard = coordinator.take_heard();
        let any = !heard.is_empty();
        for heard in heard {
            self.hear(heard);
        }
        any
    }

    /// Whether to go on.
    fn obey(&mut self, now: Time, command: Command) -> bool {
        match command {
            Command::Join => self.say(now, ToHost::Ready),
            Command::Failed { round, failure } => self.say(now, ToHost::Failed { round, failure }),
            Command::Finished { round } => self.say(now, ToHost::Finished { round }),
            Command::Leave { why } => {
                let by = format!("{why} on {}", self.settings.host);
                self.say(now, ToHost::Leave { why });
                self.end(RunEnd::Stopped { by });
            }
            Command::Close => return false,
        }
        true
    }

    fn say(&mut self, now: Time, message: ToHost) {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.say_own(now, message);
        }
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Said(message) => self.listen(message),
            Heard::Begin(roster, node_rank) => self.begin(roster, node_rank),
            Heard::Joined { host, workers } => self.tell(News::NodeJoined { host, workers }),
            Heard::Lost { host, reason } => self.tell(News::NodeLost { host, reason }),
        }
    }

    fn listen(&mut self, message: FromHost) {
        match message {
            FromHost::Waiting { reason } => self.tell(News::Waiting(reason)),
            FromHost::RoundEnded(end) => self.tell(News::RoundEnded(end)),
            FromHost::RunEnded(end) => self.end(end),
            FromHost::Refused { reason } => self.end(RunEnd::Refused { reason }),
            FromHost::Roster(roster) => self.roster = Some(Arc::from(roster)),
            FromHost::Begin { node_rank } => {
                if let Some(roster) = self.roster.clone() {
                    self.begin(roster, node_rank);
                }
            }
            FromHost::Challenge { .. } | FromHost::Welcome { .. } | FromHost::Alive => {}
        }
    }

    fn begin(&mut self, roster: Arc<Roster>, node_rank: u32) {
        let Some(members) = roster.members.unpack() else { return };
        let (round, restarts) = (roster.round, roster.restarts);
        let now = u64::try_from(self.shared.now().as_millis()).unwrap_or(u64::MAX);
        self.shared.progress.store(now, Ordering::Relaxed);
        self.roster = Some(roster);
        self.tell(News::Round(RoundPlan { round, restarts, node_rank, members, master: self.shared.store() }));
    }

    fn end(&mut self, end: RunEnd) {
        self.tell(News::RunEnded(end));
        self.over = true;
    }

    fn tell(&mut self, news: News) {
        if self.over {
            return;
        }
        // Fails only when the handle is being dropped.
        let _gone = self.news.send(news);
        let _full = self.shared.wake.write(1);
    }
}
