//! What the owner loop of this node holds of the rendezvous.

use super::{
    coordinator::Coordinator,
    door::{Key, Nonces},
    endpoint::{self, Opened},
    error::RendezvousError,
    guests::Guests,
    member::{Command, Member, Seat, Shared, WAKER},
    news::{News, RoundEnd, RunEnd},
    seek::Search,
    settings::{Place, Settings},
    state::{Restart, State},
    unread::Unread,
};
use crossbeam_channel::{Receiver, Sender, unbounded};
use enn_broker::tcpstore::{ForeignHandler, Options, PeerPolicy, StoreHandle, serve_on};
use enn_common::wire::node::NodeId;
use mio::{Poll, Waker};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::{
    hash::{BuildHasher, Hasher, RandomState},
    io,
    net::TcpListener,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

/// Longest wait for the thread to say goodbye.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(2);

/// This node's part in the rendezvous of a run. Dropping it says goodbye to the others.
#[derive(Debug)]
pub struct Rendezvous {
    commands: Sender<Command>,
    waker: Arc<Waker>,
    news: Receiver<News>,
    /// One more than the last round that was told.
    seen: AtomicU64,
    own: NodeId,
    is_host: bool,
    silence_max: Duration,
    shared: Shared,
    closed: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Rendezvous {
    /// Opens or looks for the rendezvous. Listens at once when this node hosts it, so that a taken port is told here;
    /// everything else happens on a thread and is told as news.
    pub fn start(settings: Settings) -> Result<Self, RendezvousError> {
        let system = |what| move |source: io::Error| RendezvousError::System { what, source };
        check(&settings)?;
        let settings = Arc::new(settings);
        let poll = Poll::new().map_err(system("poll"))?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(system("waker"))?);
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let wake = Arc::new(wake.map_err(|error| system("eventfd")(error.into()))?);
        // Keyed by the operating system's randomness, once per RandomState.
        let own = NodeId(RandomState::new().build_hasher().finish());
        let key = settings.token.as_ref().map(Key::of);
        let (to_self, commands) = unbounded();
        let (news_out, news) = unbounded();
        let opened = endpoint::open(&settings)?;
        let (Opened::Host { at, .. } | Opened::Guest { at, .. }) = &opened;
        let is_host = matches!(opened, Opened::Host { .. });
        let silence_max = settings.silence_max;
        let shared =
            Shared { wake, origin: Instant::now(), store: Arc::new(Mutex::new(at.clone())), unread: Unread::default() };
        let now = shared.now();
        let (seat, standby) = match opened {
            Opened::Host { listeners, at } => {
                warn_without_token(key.as_ref(), &at);
                let store = serve(listeners, &settings, &to_self, &waker)?;
                let registry = poll.registry().try_clone().map_err(system("poll"))?;
                let guests = Guests::new(registry, key.clone()).map_err(system("random numbers"))?;
                let state = State::open(own, &settings, now);
                let coordinator = Coordinator::new(now, state, Arc::clone(&settings), store, guests);
                (Seat::Host(Box::new(coordinator)), None)
            }
            Opened::Guest { at, standby } => (Seat::seeking(Search::endpoint(now, at, settings.join_timeout)), standby),
        };
        let (closing, closed) = crossbeam_channel::bounded::<()>(0);
        let member = Member {
            settings,
            own,
            key,
            nonces: Nonces::open().map_err(system("random numbers"))?,
            poll,
            waker: Arc::clone(&waker),
            commands,
            to_self: to_self.clone(),
            news: news_out,
            shared: shared.clone(),
            seat,
            standby,
            roster: None,
            rank: 0,
            host_rank: None,
            way_back: None,
            running: false,
            ready: false,
            abandoned: Vec::new(),
            told: String::new(),
            over: false,
            deaf: None,
        };
        let run = move || {
            member.run();
            drop(closing);
        };
        let thread = Builder::new().name("enn-rendezvous".into()).spawn(run).map_err(system("thread"))?;
        let commands = to_self;
        let seen = AtomicU64::new(0);
        let thread = Some(thread);
        Ok(Self { commands, waker, news, seen, own, is_host, silence_max, shared, closed, thread })
    }

    /// Readable when news wait. Call `clear` before draining `news`.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }

    /// Makes `fd` unreadable until the next news.
    pub fn clear(&self) {
        // Nothing to read means nothing to clear.
        let _empty = self.shared.wake.read();
    }

    /// The next news, if some wait.
    pub fn news(&self) -> Option<News> {
        let news = self.news.try_recv().ok();
        match &news {
            Some(News::Round(plan)) => self.seen.store(plan.round + 1, Ordering::Relaxed),
            Some(News::Letter { from, bytes }) => self.shared.unread.read(*from, bytes),
            _ => {}
        }
        news
    }

    /// Waits until the end of the run, or that of its host, is told, at most `limit`. What is told before is dropped.
    pub fn await_end(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while let Ok(news) = self.news.recv_deadline(deadline) {
            if matches!(news, News::RunEnded(_) | News::HostLost(_)) {
                return;
            }
        }
    }

    /// No worker of the last round that `news` told of lives here any more; this node wants to be in the next. Saying it
    /// twice is as saying it once.
    pub fn join(&self) {
        self.tell(Command::Join { seen: self.seen.load(Ordering::Relaxed) });
    }

    /// All workers of this node exited 0 in `round`.
    pub fn finished(&self, round: u64) {
        self.tell(Command::Finished { round });
    }

    /// This node was asked to stop, by a signal say. The answer is `News::RunEnded`.
    pub fn leave(&self, why: String) {
        self.tell(Command::Leave { why });
    }

    /// Sends a letter for the program that the nodes run together: to that node where this one hosts the rendezvous, else to
    /// the host. It comes in the order of sending, or the loss of who should get it is told.
    pub fn post(&self, to: Option<NodeId>, bytes: Vec<u8>) {
        self.tell(Command::Post { to, bytes });
    }

    /// This node neither hears nor says anything for so long, as if the network were cut. Only a guest does.
    pub fn deafen(&self, time: Duration) {
        self.tell(Command::Deafen { time });
    }

    /// A node that is connected does nothing any more: it is lost. Only the host says so.
    pub fn dismiss(&self, node: NodeId, why: String) {
        self.tell(Command::Drop { node, why });
    }

    /// This node leaves the run, and the others go on without it: one of them takes over. Only the host says so; it is told nothing
    /// more. Letters that it sent before come before.
    pub fn bequeath(&self) {
        self.tell(Command::Bequeath);
    }

    /// The supervisor of the run ends this round: another one follows as restart `number`, not before `wait` has passed. A round that is
    /// over already is not ended again. Only the host says so.
    pub fn end_round(&self, round: u64, end: RoundEnd, number: u32, wait: Duration) {
        self.tell(Command::EndRound { round, end: Box::new(end), restart: Restart { number, wait } });
    }

    /// The supervisor of the run ends it. Only the host says so.
    pub fn end_run(&self, end: RunEnd) {
        self.tell(Command::EndRun { end: Box::new(end) });
    }

    /// Asks how many c10d clients have come to the store since the round began. `News::StoreClients` answers. Only the host asks.
    pub fn count_clients(&self) {
        self.tell(Command::CountClients);
    }

    /// Returns the name of this node's agent.
    pub fn node(&self) -> NodeId {
        self.own
    }

    /// Whether this node hosts the rendezvous from the beginning.
    pub fn is_host(&self) -> bool {
        self.is_host
    }

    /// A node of which nothing is heard for so long is lost.
    pub fn silence_max(&self) -> Duration {
        self.silence_max
    }

    /// Host and port of the store as this node reaches it.
    pub fn store(&self) -> (String, u16) {
        self.shared.store()
    }

    fn tell(&self, command: Command) {
        // Both fail only when the thread has ended, and then it has told so.
        let _gone = self.commands.send(command);
        let _gone = self.waker.wake();
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        self.tell(Command::Close);
        // Disconnected by the thread's end. A thread that hangs is left behind: the process is about to end.
        let hangs =
            matches!(self.closed.recv_timeout(CLOSE_WAIT_MAX), Err(crossbeam_channel::RecvTimeoutError::Timeout));
        if let Some(thread) = self.thread.take()
            && !hangs
        {
            let _panicked = thread.join();
        }
    }
}

fn warn_without_token(key: Option<&Key>, (host, port): &(String, u16)) {
    if key.is_none() && !endpoint::is_loopback(host) {
        tracing::warn!(port, "no token is set: whoever reaches the port may join the run (ENN_TOKEN)");
    }
}

fn check(settings: &Settings) -> Result<(), RendezvousError> {
    let nodes = format!("{}:{}", settings.nodes_min, settings.nodes_max);
    if settings.nodes_min == 0 || settings.nodes_min > settings.nodes_max {
        return Err(RendezvousError::Nodes { found: nodes });
    }
    match settings.node_rank {
        Some(rank) if settings.elastic() => {
            Err(RendezvousError::Rank { rank, nodes, hint: "a run with MIN:MAX nodes gives its ranks itself" })
        }
        Some(rank) if rank >= settings.nodes_max => {
            Err(RendezvousError::Rank { rank, nodes, hint: "ranks are 0 to nodes - 1 (--node-rank, --nnodes)" })
        }
        _ => Ok(()),
    }
}

/// Serves the store on `listeners`; connections of nodes go to the thread that reads `commands`.
pub(super) fn serve(
    listeners: Vec<TcpListener>,
    settings: &Settings,
    commands: &Sender<Command>,
    waker: &Arc<Waker>,
) -> Result<StoreHandle, RendezvousError> {
    let commands = commands.clone();
    let waker = Arc::clone(waker);
    let foreign_handler: ForeignHandler = Box::new(move |stranger| {
        // Both fail only when the thread has ended.
        let _gone = commands.send(Command::Stranger(stranger));
        let _gone = waker.wake();
    });
    // With everybody in this process nobody else has a reason to come.
    let foreign_handler = matches!(settings.place, Place::Endpoint { .. }).then_some(foreign_handler);
    let peers = if settings.store_open { PeerPolicy::Open } else { PeerPolicy::Listed };
    Ok(serve_on(listeners, Options { peers, foreign_handler, ..Options::default() })?)
}
