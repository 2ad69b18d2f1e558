//! This node's thread: it speaks for the node with whoever hosts the rendezvous, and hosts it when this node does.
//!
//! **Invariant:** after `News::RunEnded` nothing more is told. Nothing here blocks; every wait has its deadline.

use super::{
    coordinator::{Coordinator, Heard, KEEP_ALIVES},
    door::{Key, Nonces},
    guests::FIRST_GUEST,
    link::{LINK, Link},
    news::{News, RoundPlan, RunEnd},
    pipe::Pipe,
    seek::{Fate, Search, WayBack},
    settings::Settings,
    state::{Loss, Restart, Time},
    unread::Unread,
};
use crossbeam_channel::{Receiver, Sender};
use enn_broker::tcpstore::ForeignConnection;
use enn_common::wire::node::{FromHost, LastRound, NodeDescription, NodeId, Roster, RoundEnd, StandbyEndpoint, ToHost};
use mio::{Events, Poll, Token, Waker};
use nix::sys::eventfd::EventFd;
use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

pub(super) const WAKER: Token = Token(0);
/// Events taken from the kernel at a time.
const EVENTS_MAX: usize = 1024;
/// After the last word, the others may take so long to hear it.
const FAREWELL_MAX: Duration = Duration::from_secs(1);
/// Words that wait for the end of a cut.
const UNSAID_MAX: usize = 4096;
/// Why a node is given up whose letters are not taken.
const UNREAD: &str = "more of its letters wait to be read than may";
/// A wait that ends so much late says that this process did not run.
const LATE_MAX: Duration = Duration::from_millis(500);

/// What the handle, the store and the resolver ask for.
#[derive(Debug)]
pub(super) enum Command {
    /// `seen`: one more than the last round the group took notice of; 0: none.
    Join {
        seen: u64,
    },
    Finished {
        round: u64,
    },
    Leave {
        why: String,
    },
    /// `to`: for the host, which node; a guest writes to the host.
    Post {
        to: Option<NodeId>,
        bytes: Vec<u8>,
    },
    Deafen {
        time: Duration,
    },
    /// For the host.
    Drop {
        node: NodeId,
        why: String,
    },
    /// For the host.
    Bequeath,
    /// For the host: its supervisor ends this round.
    EndRound {
        round: u64,
        end: Box<RoundEnd>,
        restart: Restart,
    },
    /// For the host: its supervisor ends the run.
    EndRun {
        end: Box<RunEnd>,
    },
    /// For the host.
    CountClients,
    Stranger(ForeignConnection),
    Resolved {
        number: u64,
        addrs: Result<Vec<SocketAddr>, String>,
    },
    Close,
}

/// What the thread shares with the handle.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) wake: Arc<EventFd>,
    pub(super) origin: Instant,
    /// Where this node reaches the store.
    pub(super) store: Arc<Mutex<(String, u16)>>,
    pub(super) unread: Unread,
}

impl Shared {
    pub(super) fn now(&self) -> Time {
        self.origin.elapsed()
    }

    pub(super) fn store(&self) -> (String, u16) {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_store(&self, at: (String, u16)) {
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }
}

/// Where this node stands towards the rendezvous.
pub(super) enum Seat {
    Host(Box<Coordinator>),
    /// It looks for the host, and is connecting to one that may be it.
    Seeking(Box<Search>, Option<Box<Link>>),
    /// It is connected to the host.
    Guest(Box<Link>),
    /// The run is over, or this node is out of it.
    Out,
}

impl Seat {
    /// A node that begins to look for the host.
    pub(super) fn seeking(search: Search) -> Self {
        Self::Seeking(Box::new(search), None)
    }
}

/// The thread's state.
pub(super) struct Member {
    pub(super) settings: Arc<Settings>,
    pub(super) own: NodeId,
    pub(super) key: Option<Key>,
    pub(super) nonces: Nonces,
    pub(super) poll: Poll,
    pub(super) waker: Arc<Waker>,
    pub(super) commands: Receiver<Command>,
    /// For those who are to send commands.
    pub(super) to_self: Sender<Command>,
    pub(super) news: Sender<News>,
    pub(super) shared: Shared,
    pub(super) seat: Seat,
    pub(super) standby: Option<Vec<TcpListener>>,
    /// The last round this node was in, its rank there, and whether it still is.
    pub(super) roster: Option<Arc<Roster>>,
    pub(super) rank: u32,
    /// Rank there of the node that hosts the rendezvous now.
    pub(super) host_rank: Option<u32>,
    /// The host of that round, when it is out of reach.
    pub(super) way_back: Option<WayBack>,
    pub(super) running: bool,
    /// Whether the group asked for the next round.
    pub(super) ready: bool,
    /// Hosts that were given up, kept open so that they hear of it.
    pub(super) abandoned: Vec<Pipe>,
    pub(super) told: String,
    pub(super) over: bool,
    /// Until when this node takes the network for cut, and what it would have said.
    pub(super) deaf: Option<(Time, Vec<ToHost>)>,
}

impl Member {
    /// Runs until the handle is dropped.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let card = self.card(None);
        let now = self.shared.now();
        if let Seat::Host(coordinator) = &mut self.seat {
            coordinator.join_own(now, card);
        }
        let mut closing = None;
        loop {
            let now = self.shared.now();
            while let Ok(command) = self.commands.try_recv() {
                if matches!(command, Command::Close) {
                    closing.get_or_insert(now + FAREWELL_MAX);
                } else {
                    self.obey(now, command);
                }
            }
            self.listen_again(now);
            while self.advance(now) {}
            if closing.is_some_and(|until| now >= until || self.farewell_done()) {
                return;
            }
            let deaf = self.deaf.as_ref().map(|(until, _)| *until);
            let deadline = [self.deadline(), closing, deaf].into_iter().flatten().min();
            let timeout = deadline.map(|at| at.saturating_sub(self.shared.now()));
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != ErrorKind::Interrupted
            {
                tracing::error!(%error, "the rendezvous cannot poll its sockets and ends");
                return;
            }
            let now = self.shared.now();
            if deadline.is_some_and(|at| now > at + LATE_MAX) {
                self.woke(now);
            }
            for event in &events {
                self.event(now, event.token(), event.is_read_closed() || event.is_error());
            }
        }
    }

    fn event(&mut self, now: Time, token: Token, closed: bool) {
        match (&mut self.seat, token) {
            (_, LINK) if self.deaf.is_some() => {}
            (_, LINK) => self.link_ready(now),
            (Seat::Host(coordinator), token) if token.0 >= FIRST_GUEST => coordinator.ready(now, token, closed),
            _ => {}
        }
    }

    /// Whether all who have to hear the last word did.
    fn farewell_done(&self) -> bool {
        match &self.seat {
            Seat::Host(coordinator) => !coordinator.is_over() || coordinator.is_alone(),
            _ => true,
        }
    }

    fn woke(&mut self, now: Time) {
        match &mut self.seat {
            Seat::Host(coordinator) => coordinator.woke(now),
            Seat::Guest(link) => link.heard = now,
            Seat::Seeking(..) | Seat::Out => {}
        }
    }

    /// This node as it introduces itself, to the one that took over when `dead` tells who is known to be dead.
    pub(super) fn card(&self, dead: Option<&[u32]>) -> NodeDescription {
        let settings = &self.settings;
        let standby = self.standby.as_ref().map(|listeners| StandbyEndpoint {
            host: settings.local_addr.clone().unwrap_or_default(),
            port: super::endpoint::port_of(listeners),
        });
        let last = dead.zip(self.roster.as_ref()).map(|(dead, roster)| LastRound {
            round: roster.round,
            node_rank: self.rank,
            dead: dead.to_vec(),
        });
        NodeDescription {
            node: self.own,
            host: settings.host.clone(),
            local_world: settings.local_world,
            role: settings.role.clone(),
            node_rank: settings.node_rank,
            standby,
            terms: settings.terms(),
            last,
        }
    }

    fn deadline(&self) -> Option<Time> {
        let period = self.settings.silence_max / KEEP_ALIVES;
        match &self.seat {
            Seat::Host(coordinator) => coordinator.deadline(),
            Seat::Seeking(search, _) => Some(search.wake_at()),
            Seat::Guest(link) => Some((link.ticked + period).min(link.heard + self.settings.silence_max)),
            Seat::Out => None,
        }
    }

    /// Does what is due. Whether there may be more to do at once.
    fn advance(&mut self, now: Time) -> bool {
        match &mut self.seat {
            Seat::Host(coordinator) => {
                coordinator.say_own(now, ToHost::Alive { round: None });
                coordinator.advance(now);
                let heard = coordinator.take_heard();
                let more = !heard.is_empty();
                heard.into_iter().for_each(|heard| self.hear(heard));
                more
            }
            Seat::Seeking(..) => self.seek(now),
            Seat::Guest(_) => {
                self.keep_alive(now);
                false
            }
            Seat::Out => false,
        }
    }

    fn obey(&mut self, now: Time, command: Command) {
        match command {
            Command::Join { seen } => self.join(now, seen),
            Command::Finished { round } => self.say(now, ToHost::Finished { round }),
            Command::Leave { why } => self.leave(now, why),
            Command::Post { to, bytes } => self.post(now, to, bytes),
            Command::Deafen { time } => self.deaf = Some((now + time, Vec::new())),
            Command::Drop { node, why } => self.drop_node(now, node, why),
            Command::Bequeath => {
                if let Seat::Host(coordinator) = &mut self.seat {
                    coordinator.bequeath(now);
                }
            }
            Command::EndRound { round, end, restart } => {
                if let Seat::Host(coordinator) = &mut self.seat {
                    coordinator.close_round(now, round, *end, restart);
                }
            }
            Command::EndRun { end } => {
                if let Seat::Host(coordinator) = &mut self.seat {
                    coordinator.close_run(now, *end);
                }
            }
            Command::CountClients => {
                if let Seat::Host(coordinator) = &self.seat {
                    self.tell(News::StoreClients(coordinator.clients_seen()));
                }
            }
            Command::Stranger(stranger) => {
                if let Seat::Host(coordinator) = &mut self.seat {
                    coordinator.take(now, stranger);
                }
            }
            Command::Resolved { number, addrs } => self.resolved(now, number, addrs),
            Command::Close => {}
        }
    }

    fn join(&mut self, now: Time, seen: u64) {
        // Asked twice, the second time before the group took notice of the round that the first time led to.
        if self.running && self.round().is_some_and(|round| round >= seen) {
            return;
        }
        self.ready = true;
        self.say(now, ToHost::Ready);
    }

    fn post(&mut self, now: Time, to: Option<NodeId>, bytes: Vec<u8>) {
        match (&mut self.seat, to) {
            (Seat::Host(coordinator), Some(to)) => coordinator.post(now, to, bytes),
            // There is nobody to read it: who writes learns of that as news.
            (Seat::Host(_), None) => {}
            _ => self.say(now, ToHost::Message(bytes)),
        }
    }

    /// A node that is connected and yet of no use counts no more.
    fn drop_node(&mut self, now: Time, node: NodeId, why: String) {
        if let Seat::Host(coordinator) = &mut self.seat {
            coordinator.dismiss(now, node, Loss::Stuck(why));
        }
    }

    fn leave(&mut self, now: Time, why: String) {
        let by = format!("{why} on {}", self.settings.host);
        self.say(now, ToHost::Leave { why });
        if let Seat::Host(coordinator) = &mut self.seat {
            coordinator.advance(now);
        }
        self.end(RunEnd::Stopped { by });
        // The others go on without this node, and find out that they need another host.
        if matches!(&self.seat, Seat::Host(coordinator) if !coordinator.is_over()) {
            self.seat = Seat::Out;
        }
    }

    /// The network is whole again: what was said and heard meanwhile goes its way.
    fn listen_again(&mut self, now: Time) {
        if let Some((_, unsaid)) = self.deaf.take_if(|(until, _)| now >= *until) {
            unsaid.into_iter().for_each(|message| self.say(now, message));
            self.link_ready(now);
        }
    }

    /// Says it to the host, if there is one.
    pub(super) fn say(&mut self, now: Time, message: ToHost) {
        if let (Seat::Guest(_), Some((_, unsaid))) = (&self.seat, &mut self.deaf) {
            unsaid.push(message);
            if unsaid.len() > UNSAID_MAX {
                // What was to be said is never lost alone.
                unsaid.clear();
                self.host_lost(now, "the network is cut".into(), Fate::Unknown);
            }
            return;
        }
        match &mut self.seat {
            Seat::Host(coordinator) => coordinator.say_own(now, message),
            Seat::Guest(link) => {
                if let Err(gone) = link.send(&message) {
                    self.host_lost(now, gone.to_string(), Fate::Unknown);
                }
            }
            // It is told again when the host is found, or its round has ended.
            Seat::Seeking(..) | Seat::Out => {}
        }
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Said(message) => self.listen(message),
            Heard::Begin(roster, node_rank, nodes) => self.begin(roster, node_rank, nodes),
            Heard::Joined { node, host, workers } => self.tell(News::NodeJoined { node, host, workers }),
            Heard::Lost { node, host, reason } => self.tell(News::NodeLost { node, host, reason }),
            Heard::Letter(from, bytes) if self.shared.unread.came(from, &bytes) => {
                self.tell(News::Letter { from, bytes });
            }
            Heard::Letter(from, _) => self.drop_node(self.shared.now(), from, UNREAD.into()),
        }
    }

    /// The host says something.
    pub(super) fn listen(&mut self, message: FromHost) {
        match message {
            FromHost::Waiting { reason } => self.tell(News::Waiting(reason)),
            FromHost::RoundEnded(end) => self.end_round(end),
            FromHost::RunEnded(end) => self.end(end),
            FromHost::Refused { reason } => self.end(RunEnd::Refused { reason }),
            FromHost::Roster(roster) => self.roster = Some(Arc::from(roster)),
            FromHost::Begin { node_rank } => {
                if let Some(roster) = self.roster.clone() {
                    self.begin(roster, node_rank, Vec::new());
                }
            }
            FromHost::Message(bytes) if self.shared.unread.came(self.own, &bytes) => {
                self.tell(News::Letter { from: self.own, bytes });
            }
            FromHost::Message(_) => self.host_lost(self.shared.now(), UNREAD.into(), Fate::Unknown),
            // This node itself left: nothing more is told.
            FromHost::Left { .. } if matches!(self.seat, Seat::Host(_)) => self.over = true,
            FromHost::Left { successors } => {
                if let Some(roster) = &mut self.roster {
                    Arc::make_mut(roster).successors = successors;
                }
                self.host_lost(self.shared.now(), "it left the run".into(), Fate::Left);
            }
            FromHost::Challenge { .. } | FromHost::Welcome { .. } | FromHost::Alive | FromHost::Dismissed { .. } => {}
        }
    }

    fn begin(&mut self, roster: Arc<Roster>, node_rank: u32, nodes: Vec<NodeId>) {
        let Some(members) = roster.members.unpack() else {
            tracing::error!("the host's list of members makes no sense");
            return;
        };
        let round = roster.round;
        let host = roster.host;
        self.host_rank = Some(roster.host_rank);
        self.roster = Some(roster);
        self.rank = node_rank;
        self.way_back = None;
        self.running = true;
        self.ready = false;
        let master = self.shared.store();
        self.tell(News::Round(RoundPlan { round, node_rank, members, master, host, nodes }));
        let now = self.shared.now();
        self.say(now, ToHost::Alive { round: Some(round) });
    }

    /// The last round this node was told of.
    pub(super) fn round(&self) -> Option<u64> {
        self.roster.as_ref().map(|roster| roster.round)
    }

    pub(super) fn end_round(&mut self, end: RoundEnd) {
        if !self.running {
            return;
        }
        self.running = false;
        self.tell(News::RoundEnded(end));
    }

    /// The run is over for this node, unless its host was out of reach: it may live, or have a successor on the other side.
    pub(super) fn end(&mut self, end: RunEnd) {
        let now = self.shared.now();
        if let (RunEnd::HostLost { reason }, Some(back)) = (&end, self.way_back.take_if(|back| back.is_open(now))) {
            let search = Search::way_back(now, back, self.roster.as_deref(), self.rank, reason.clone());
            self.seat = Seat::seeking(search);
            return;
        }
        self.tell(News::RunEnded(end));
        self.over = true;
        if !matches!(self.seat, Seat::Host(_)) {
            self.seat = Seat::Out;
        }
    }

    pub(super) fn tell(&mut self, news: News) {
        if self.over {
            return;
        }
        // Fails only when the handle is being dropped.
        let _gone = self.news.send(news);
        let _full = self.shared.wake.write(1);
    }
}
