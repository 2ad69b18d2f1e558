//! What the group of this node holds of the rendezvous.

use super::{
    coordinator::Coordinator,
    error::RendezvousError,
    member::{Command, Member, Shared, WAKER},
    news::News,
    settings::{Place, Settings},
    state::State,
};
use crossbeam_channel::{Receiver, Sender, unbounded};
use enn_broker::store::{Door, Options, StoreError, StoreHandle, listen, serve_on};
use enn_common::{failure::Failure, wire::node::NodeId};
use mio::{Poll, Waker};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::{
    hash::{BuildHasher, Hasher, RandomState},
    io,
    net::{SocketAddr, TcpListener},
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
        let (store, at) = host(&settings)?;
        let shared = Shared {
            wake,
            progress: Arc::new(AtomicU64::new(0)),
            origin: Instant::now(),
            store: Arc::new(Mutex::new(at)),
        };
        let state = State::open(own, &settings, shared.now());
        let coordinator = Some(Coordinator::new(state, Arc::clone(&settings), store));
        let (commands, orders) = unbounded();
        let (news_out, news) = unbounded();
        let (closing, closed) = crossbeam_channel::bounded::<()>(0);
        let member = Member {
            settings,
            own,
            poll,
            commands: orders,
            news: news_out,
            shared: shared.clone(),
            coordinator,
            roster: None,
            over: false,
        };
        let run = move || {
            member.run();
            drop(closing);
        };
        let thread = Builder::new().name("enn-rendezvous".into()).spawn(run).map_err(system("thread"))?;
        Ok(Self { commands, waker, news, shared, closed, thread: Some(thread) })
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
        self.news.try_recv().ok()
    }

    /// No worker of the last round lives here any more; this node wants to be in the next.
    pub fn join(&self) {
        self.tell(Command::Join);
    }

    /// A worker of this node failed in `round`.
    pub fn failed(&self, round: u64, failure: Failure) {
        self.tell(Command::Failed { round, failure: Box::new(failure) });
    }

    /// All workers of this node exited 0 in `round`.
    pub fn finished(&self, round: u64) {
        self.tell(Command::Finished { round });
    }

    /// A worker of this node made progress. Costs next to nothing; call it as often as there is some.
    pub fn progress(&self) {
        let now = u64::try_from(self.shared.now().as_millis()).unwrap_or(u64::MAX);
        self.shared.progress.store(now, Ordering::Relaxed);
    }

    /// This node was asked to stop, by a signal say. The answer is `News::RunEnded`.
    pub fn leave(&self, why: String) {
        self.tell(Command::Leave { why });
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

/// Listens where this node hosts the rendezvous: the store, and where it is.
fn host(settings: &Settings) -> Result<(StoreHandle, (String, u16)), RendezvousError> {
    let Place::Here { listen, any_port } = settings.place.clone() else {
        return Err(RendezvousError::System { what: "endpoint", source: io::ErrorKind::Unsupported.into() });
    };
    let listeners = listen_here(listen, any_port)?;
    let door = if settings.store_open { Door::Open } else { Door::Listed };
    let store = serve_on(listeners, Options { door, ..Options::default() })?;
    let port = store.addr().port();
    let ip = if listen.ip().is_unspecified() { "127.0.0.1".to_owned() } else { listen.ip().to_string() };
    Ok((store, (ip, port)))
}

fn listen_here(at: SocketAddr, any_port: bool) -> Result<Vec<TcpListener>, StoreError> {
    let host = at.ip().to_string();
    match listen(&host, at.port()) {
        Err(StoreError::Taken { .. }) if any_port => listen(&host, 0),
        other => other,
    }
}
