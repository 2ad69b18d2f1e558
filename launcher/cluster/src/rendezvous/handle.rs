//! Handle of the rendezvous, for the owner loop of this node.

use super::{
    authentication::{Key, Nonces},
    coordinator::Coordinator,
    discovery::Discovery,
    endpoint::{self, EndpointRole},
    error::RendezvousError,
    member_thread::{MemberCommand, MemberThread, Role, Shared, WAKER},
    notification::{Notification, RoundEnd, RunEnd},
    peer_sessions::PeerSessions,
    settings::{Settings, StoreLocation},
    state::{Restart, State},
    unread_messages::UnreadMessages,
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

/// Longest wait for the end of the thread.
const CLOSE_WAIT_MAX: Duration = Duration::from_secs(2);

/// This node's part in the rendezvous of a run. Dropping it closes the connections to the other nodes.
#[derive(Debug)]
pub struct Rendezvous {
    commands: Sender<MemberCommand>,
    waker: Arc<Waker>,
    notifications: Receiver<Notification>,
    /// Number behind that of the last round that `next_notification` returned; 0: none.
    seen: AtomicU64,
    own: NodeId,
    is_host: bool,
    silence_max: Duration,
    shared: Shared,
    closed: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Rendezvous {
    /// Opens the rendezvous or discovers its leader. If this node leads, it listens at once, so that a port in use is
    /// an error here; everything else happens on a thread, and notifications report it.
    pub fn start(settings: Settings) -> Result<Self, RendezvousError> {
        let system = |what| move |source: io::Error| RendezvousError::System { what, source };
        check(&settings)?;
        let settings = Arc::new(settings);
        let poll = Poll::new().map_err(system("poll"))?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(system("waker"))?);
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let wake = Arc::new(wake.map_err(|error| system("eventfd")(error.into()))?);
        // A RandomState has a key from the operating system.
        let own = NodeId(RandomState::new().build_hasher().finish());
        let key = settings.token.as_ref().map(Key::of);
        let (to_self, commands) = unbounded();
        let (notifications_out, notifications) = unbounded();
        let opened = endpoint::open(&settings)?;
        let (EndpointRole::Leader { at, .. } | EndpointRole::Follower { at, .. }) = &opened;
        let is_host = matches!(opened, EndpointRole::Leader { .. });
        let silence_max = settings.silence_max;
        let shared = Shared {
            wake,
            origin: Instant::now(),
            store: Arc::new(Mutex::new(at.clone())),
            unread: UnreadMessages::default(),
        };
        let now = shared.now();
        let (role, standby) = match opened {
            EndpointRole::Leader { listeners, at } => {
                warn_without_token(key.as_ref(), &at);
                let store = serve(listeners, &settings, &to_self, &waker)?;
                let registry = poll.registry().try_clone().map_err(system("poll"))?;
                let sessions = PeerSessions::new(registry, key.clone()).map_err(system("random numbers"))?;
                let state = State::open(own, &settings, now);
                let coordinator = Coordinator::new(now, state, Arc::clone(&settings), store, sessions);
                (Role::Leader(Box::new(coordinator)), None)
            }
            EndpointRole::Follower { at, standby } => {
                (Role::discovering(Discovery::endpoint(now, at, settings.join_timeout)), standby)
            }
        };
        let (closing, closed) = crossbeam_channel::bounded::<()>(0);
        let member = MemberThread {
            settings,
            own,
            key,
            nonces: Nonces::open().map_err(system("random numbers"))?,
            poll,
            waker: Arc::clone(&waker),
            commands,
            to_self: to_self.clone(),
            notifications: notifications_out,
            shared: shared.clone(),
            role,
            standby,
            roster: None,
            rank: 0,
            leader_rank: None,
            way_back: None,
            running: false,
            ready: false,
            abandoned: Vec::new(),
            reported: String::new(),
            over: false,
            link_cut: None,
        };
        let thread = spawn(member, closing).map_err(system("thread"))?;
        let commands = to_self;
        let seen = AtomicU64::new(0);
        let thread = Some(thread);
        Ok(Self { commands, waker, notifications, seen, own, is_host, silence_max, shared, closed, thread })
    }

    /// Returns a descriptor that is readable when notifications wait. Call `clear` before draining them.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }

    /// Makes `fd` unreadable until the next notification.
    pub fn clear(&self) {
        // Nothing to read means nothing to clear.
        let _empty = self.shared.wake.read();
    }

    /// Returns the next notification, if one waits.
    pub fn next_notification(&self) -> Option<Notification> {
        let notification = self.notifications.try_recv().ok();
        match &notification {
            Some(Notification::Round(plan)) => self.seen.store(plan.round + 1, Ordering::Relaxed),
            Some(Notification::Message { from, bytes }) => self.shared.unread.remove(*from, bytes),
            _ => {}
        }
        notification
    }

    /// Waits for the end of the run or the loss of the leader, at most `limit`. Other notifications are dropped.
    pub fn await_end(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while let Ok(notification) = self.notifications.recv_deadline(deadline) {
            if matches!(notification, Notification::RunEnded(_) | Notification::LeaderLost(_)) {
                return;
            }
        }
    }

    /// Asks for the next round: no worker of the last round in a notification lives on this node. A second call changes
    /// nothing.
    pub fn join(&self) {
        self.command(MemberCommand::Join { seen: self.seen.load(Ordering::Relaxed) });
    }

    /// All workers of this node exited 0 in `round`.
    pub fn finished(&self, round: u64) {
        self.command(MemberCommand::Finished { round });
    }

    /// Leaves the run, because of a signal for example. `Notification::RunEnded` answers.
    pub fn leave(&self, why: String) {
        self.command(MemberCommand::Leave { why });
    }

    /// Sends a message of the program that the nodes run together: the leader to that node, a follower to the leader.
    /// Messages arrive in order, or the loss of the receiver is a notification.
    pub fn send_message(&self, to: Option<NodeId>, bytes: Vec<u8>) {
        self.command(MemberCommand::SendMessage { to, bytes });
    }

    /// Sends and receives nothing for this time, as if the network were cut. Only followers do.
    pub fn cut_link(&self, time: Duration) {
        self.command(MemberCommand::CutLink { time });
    }

    /// Removes a node that is connected and does nothing any more. Only the leader may call this.
    pub fn dismiss(&self, node: NodeId, why: String) {
        self.command(MemberCommand::Dismiss { node, why });
    }

    /// Leaves the run, and another node takes over. Only the leader may call this; it receives no further notification.
    /// Messages that it sent before arrive before.
    pub fn hand_off(&self) {
        self.command(MemberCommand::HandOff);
    }

    /// Ends this round: another one follows as restart `number`, not before `wait` has passed. A round that has ended
    /// is left alone. Only the leader may call this.
    pub fn end_round(&self, round: u64, end: RoundEnd, number: u32, wait: Duration) {
        self.command(MemberCommand::EndRound { round, end: Box::new(end), restart: Restart { number, wait } });
    }

    /// Ends the run. Only the leader may call this.
    pub fn end_run(&self, end: RunEnd) {
        self.command(MemberCommand::EndRun { end: Box::new(end) });
    }

    /// Asks for the number of c10d clients that have connected to the store since the round began. `Notification::StoreClients`
    /// answers. Only the leader may call this.
    pub fn count_clients(&self) {
        self.command(MemberCommand::CountClients);
    }

    /// Returns the name of this node's agent.
    pub fn node(&self) -> NodeId {
        self.own
    }

    /// Whether this node leads from the beginning.
    pub fn is_host(&self) -> bool {
        self.is_host
    }

    /// Returns the longest silence of a node that is not lost.
    pub fn silence_max(&self) -> Duration {
        self.silence_max
    }

    /// Returns host and port at which this node reaches the store.
    pub fn store(&self) -> (String, u16) {
        self.shared.store()
    }

    fn command(&self, command: MemberCommand) {
        // Both fail only after the end of the thread, which sends a last notification.
        let _gone = self.commands.send(command);
        let _gone = self.waker.wake();
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        self.command(MemberCommand::Close);
        // The end of the thread disconnects the channel. A thread that hangs is left behind: the process is about to
        // end.
        let hangs =
            matches!(self.closed.recv_timeout(CLOSE_WAIT_MAX), Err(crossbeam_channel::RecvTimeoutError::Timeout));
        if let Some(thread) = self.thread.take()
            && !hangs
        {
            let _panicked = thread.join();
        }
    }
}

/// Runs the thread of this node; `closing` is dropped at its end.
fn spawn(member: MemberThread, closing: Sender<()>) -> io::Result<JoinHandle<()>> {
    Builder::new().name("enn-rendezvous".into()).spawn(move || {
        member.run();
        drop(closing);
    })
}

fn warn_without_token(key: Option<&Key>, at: &(String, u16)) {
    let (host, port) = at;
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
    commands: &Sender<MemberCommand>,
    waker: &Arc<Waker>,
) -> Result<StoreHandle, RendezvousError> {
    let commands = commands.clone();
    let waker = Arc::clone(waker);
    let foreign_handler: ForeignHandler = Box::new(move |connection| {
        // Both fail only when the thread has ended.
        let _gone = commands.send(MemberCommand::Accept(connection));
        let _gone = waker.wake();
    });
    // With all workers in this process no other node has a reason to connect.
    let foreign_handler = matches!(settings.location, StoreLocation::Endpoint { .. }).then_some(foreign_handler);
    let peers = if settings.store_open { PeerPolicy::Open } else { PeerPolicy::Listed };
    Ok(serve_on(listeners, Options { peers, foreign_handler, ..Options::default() })?)
}
