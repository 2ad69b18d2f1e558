//! The agent of a node that does not host the rendezvous: it starts, signals and reaps the workers of its node as the head says,
//! and reports what they do.
//!
//! **Invariant:** it decides nothing, but for this: workers whose head is gone leave their round at once, and die when this side
//! of the network may not go on.

use super::{
    child::Child,
    dispatcher::Means,
    env::Identity,
    error::AgentError,
    letter,
    spec::{HandEnd, HandSpec, Signal},
};
use crate::rendezvous::{News, Rendezvous, RoundPlan as Membership, RunEnd};
use enn_broker::{Broker, BrokerEvent, RoundPlan};
use enn_common::{
    checkpoint::latest,
    event::EventKind,
    id::{Round, WorkerId},
    wire::{
        follower::{
            Ending, LiveSeat, LiveWorker, NodeIntroduction, Order, Report, RunDescription, RunSnapshot, SeatFacts,
            StatusSnapshot,
        },
        message::{Assignment, FromWorker, Standby},
    },
};
use enn_process::{Guard, Signals, run_dir, wait_ready};
use nix::{
    poll::{PollFd, PollFlags},
    sys::signal::Signal as Posix,
};
use std::{
    collections::BTreeMap,
    fs,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

/// Control pages that changed are told at most this often.
const GLANCE_PERIOD: Duration = Duration::from_millis(50);
/// And that none did, this often.
const ALIVE_PERIOD: Duration = Duration::from_secs(1);
/// Longest wait of a node that was asked to stop for another one to lead.
const HEADLESS_STOP_MAX: Duration = Duration::from_secs(20);
/// Longest wait for the rendezvous to hear that this node is done.
const FAREWELL_MAX: Duration = Duration::from_secs(2);

/// A worker process of this node, and what a head that takes over must know of it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) child: Child,
    pub(super) living: LiveWorker,
}

/// What a hand that becomes the head brings along.
#[derive(Debug)]
pub struct Heritage {
    pub(super) signals: Option<Signals>,
    /// The first signal to stop that came to this node.
    pub(super) signalled: Option<Signal>,
    pub(super) broker: Broker,
    pub(super) children: BTreeMap<WorkerId, Held>,
    pub(super) standing: RunSnapshot,
    pub(super) plan: Membership,
    /// The run.
    pub work: RunDescription,
}

/// What a descriptor that is ready belongs to.
#[derive(Clone, Copy)]
enum Source {
    Rendezvous,
    Broker,
    Signals,
    Child(WorkerId),
}

struct Hand<'a> {
    spec: &'a HandSpec,
    emit: &'a mut dyn FnMut(EventKind),
    rendezvous: Rc<Rendezvous>,
    broker: Broker,
    guard: Guard,
    signals: Option<Signals>,
    work: Option<RunDescription>,
    children: BTreeMap<WorkerId, Held>,
    /// The present membership; `None`: there is no head, or the nodes have to agree again.
    membership: Option<u64>,
    /// Whether the head can be written to.
    linked: bool,
    /// What the head said last of the run, with the round under way.
    standing: Option<RunSnapshot>,
    /// Control pages as the head knows them; when they were looked at, and when the head last heard of them.
    told: BTreeMap<u32, StatusSnapshot>,
    glanced: Instant,
    reported: Instant,
    stop: Option<Signal>,
    /// Nobody leads the run; if nobody does by then, this node leaves it, for it was asked to stop.
    stop_by: Option<Instant>,
    end: Option<HandEnd>,
    /// This node hosts the rendezvous now: what it knows of the run, and who takes part.
    succession: Option<(RunSnapshot, RunDescription, Membership)>,
}

/// Does what the head of the run says until that is over for this node.
///
/// The calling thread must live until this returns: workers die with the thread that forked them.
///
/// # Errors
/// When the machine refuses something the agent itself needs.
pub fn serve(
    spec: &HandSpec,
    guard: Guard,
    rendezvous: &Rc<Rendezvous>,
    emit: &mut dyn FnMut(EventKind),
) -> Result<HandEnd, AgentError> {
    let Means { guard, signals } = Means::new(guard, spec.handle_signals)?;
    let broker = Broker::serve(&spec.socket_parent)?;
    let hand = Hand {
        spec,
        emit,
        rendezvous: Rc::clone(rendezvous),
        broker,
        guard,
        signals,
        work: None,
        children: BTreeMap::new(),
        membership: None,
        linked: false,
        standing: None,
        told: BTreeMap::new(),
        glanced: Instant::now(),
        reported: Instant::now(),
        stop: None,
        stop_by: None,
        end: None,
        succession: None,
    };
    hand.run()
}

impl Hand<'_> {
    fn run(mut self) -> Result<HandEnd, AgentError> {
        loop {
            if let Some((standing, work, plan)) = self.succession.take() {
                let signals = self.signals;
                let signalled = self.stop;
                let broker = self.broker;
                let children = self.children;
                let heritage = Box::new(Heritage { signals, signalled, broker, children, standing, plan, work });
                return Ok(HandEnd::TookOver(self.guard, heritage));
            }
            if let Some(end) = self.end.take_if(|_| self.children.is_empty()) {
                self.farewell(&end);
                return Ok(end);
            }
            for source in self.wait()? {
                match source {
                    Source::Rendezvous => self.hear()?,
                    Source::Broker => self.listen(),
                    Source::Signals => self.signalled(),
                    Source::Child(worker) => self.ended(worker),
                }
            }
            self.glance();
            if let (Some(_), Some(signal)) = (self.stop_by.take_if(|at| *at <= Instant::now()), self.to_stop()) {
                self.leave(signal);
            }
        }
    }

    fn wait(&mut self) -> Result<Vec<Source>, AgentError> {
        let mut watched: Vec<(Source, BorrowedFd<'_>)> =
            vec![(Source::Rendezvous, self.rendezvous.fd()), (Source::Broker, self.broker.wake_fd())];
        watched.extend(self.signals.as_ref().map(|signals| (Source::Signals, signals.fd())));
        watched.extend(self.children.iter().map(|(worker, held)| (Source::Child(*worker), held.child.pidfd())));
        let mut fds: Vec<PollFd<'_>> = watched.iter().map(|(_, fd)| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        let glance = (self.linked && !self.children.is_empty()).then(|| self.glanced + GLANCE_PERIOD);
        let deadline = [glance, self.stop_by].into_iter().flatten().min();
        wait_ready(&mut fds, deadline).map_err(|source| AgentError::System { what: "wait for events", source })?;
        let ready = watched.iter().zip(&fds).filter(|(_, fd)| fd.any().unwrap_or(false));
        Ok(ready.map(|((source, _), _)| *source).collect())
    }

    fn report(&self, report: &Report) {
        if self.linked {
            letter::post(&self.rendezvous, None, report);
        }
    }

    fn hear(&mut self) -> Result<(), AgentError> {
        self.rendezvous.clear();
        while let Some(news) = self.rendezvous.news() {
            match news {
                News::Waiting(reason) => (self.emit)(EventKind::Waiting { reason }),
                News::Round(plan) if plan.nodes.is_empty() => {
                    self.membership = Some(plan.round);
                    self.linked = true;
                    self.stop_by = None;
                    self.told.clear();
                    self.here(plan.round);
                }
                News::Round(plan) => {
                    // Nothing is decided before somebody has read what comes next.
                    match (&self.standing, &self.work) {
                        (Some(standing), Some(work)) => {
                            self.succession = Some((standing.clone(), work.clone(), plan));
                            return Ok(());
                        }
                        _ => {
                            self.fail("the head of the run is gone, and this node had not heard what the run is".into())
                        }
                    }
                }
                News::RoundEnded(_) => {
                    self.membership = None;
                    self.rendezvous.join();
                }
                News::HostLost(why) => {
                    self.linked = false;
                    // When it was drained all have left the round.
                    if self.standing.as_ref().is_none_or(|standing| standing.drained.is_none()) {
                        if self.end.is_none() {
                            let message = format!("the head of the run is out of reach: {why}");
                            (self.emit)(EventKind::Warned { message });
                        }
                        self.broker.end_round(format!("the head of the run is gone: {why}"))?;
                    }
                    self.await_head();
                }
                News::RunEnded(end) => self.over(end),
                News::NodeJoined { .. } | News::NodeLost { .. } => {}
                // Orders of a head that is gone are void: its workers stand.
                News::Letter { bytes, .. } => {
                    if let Some(order) = letter::open(&bytes).filter(|_| self.linked) {
                        self.obey(order)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The rendezvous is over for this node.
    fn over(&mut self, end: RunEnd) {
        let end = match end {
            // The head tells its hands more; this node only waited for a place.
            RunEnd::Finished => HandEnd::Ended(Ending::Finished),
            RunEnd::Stopped { by } => {
                HandEnd::Stopped(self.stop.unwrap_or(Signal::named(by.split(' ').next().unwrap_or_default())))
            }
            RunEnd::Failed { end, reason } => HandEnd::Failed(format!("{end} ({reason})")),
            RunEnd::HostLost { reason } => HandEnd::Failed(format!("{reason}{}", self.saved())),
            RunEnd::TimedOut { reason } | RunEnd::Refused { reason } => HandEnd::Failed(reason),
        };
        if let (None, HandEnd::Failed(reason)) = (&self.end, &end) {
            (self.emit)(EventKind::GaveUp { reason: reason.clone() });
        }
        self.end.get_or_insert(end);
        self.kill();
    }

    /// What is left of a run whose head is gone, for people.
    fn saved(&self) -> String {
        let Some(RunDescription { run_dir, .. }) = &self.work else { return String::new() };
        let newest = latest(&run_dir::checkpoints(run_dir)).found;
        let newest = newest.as_ref().and_then(|found| found.dir().file_name()).map(|name| name.to_string_lossy());
        let newest = newest.unwrap_or("none".into());
        let dir = run_dir.display();
        format!(
            "\n  hint: the newest checkpoint is {newest}; when no node leads the run any more, `enn train --resume {dir}` goes on from it"
        )
    }

    fn fail(&mut self, reason: String) {
        self.report(&Report::Unfit { reason: reason.clone() });
        (self.emit)(EventKind::GaveUp { reason: reason.clone() });
        self.end.get_or_insert(HandEnd::Failed(reason));
        self.kill();
    }

    fn kill(&self) {
        self.children.values().for_each(|held| held.child.signal(Posix::SIGKILL));
    }

    fn here(&self, membership: u64) {
        let workers = self.children.values().map(|held| held.living.clone()).collect();
        let room = self.spec.world;
        let room_max = self.spec.workers_most;
        let host = self.spec.host.clone();
        let snapshot = self.standing.clone();
        self.report(&Report::Introduced(Box::new(NodeIntroduction {
            membership,
            host,
            room,
            room_max,
            workers,
            snapshot,
        })));
    }

    fn obey(&mut self, order: Order) -> Result<(), AgentError> {
        match order {
            Order::TakePart(work) => self.take(*work),
            Order::Expect { worker, standby } => {
                let standby = standby.map(|standby| self.reached(*standby));
                self.broker.expect(WorkerId(worker), standby)?;
            }
            // Who is about to end starts nobody.
            Order::Spawn { .. } if self.end.is_some() => {}
            Order::Spawn { worker, seat, logs } => self.spawn(worker, seat, &logs),
            Order::Begin { round, seats, snapshot } => self.begin(round, seats, *snapshot)?,
            Order::LogAlso { worker, logs } => {
                let held = self.children.get(&WorkerId(worker));
                if let Some(Err(error)) = held.map(|held| held.child.log_also_in(&logs)) {
                    // The log is where it was; only `enn logs` of this round does not show it.
                    tracing::debug!("{}: {error}", logs.display());
                }
            }
            Order::EndRound { reason } => self.broker.end_round(reason)?,
            Order::Dismiss { worker } => self.broker.dismiss(WorkerId(worker))?,
            Order::Tell(message) => self.broker.tell_all(*message)?,
            Order::Sync { worker } => self.broker.sync(worker.into())?,
            Order::CloseAll => self.broker.close_all()?,
            Order::Request { worker, request, wanted } => {
                if let Some(held) = self.children.get(&WorkerId(worker)) {
                    held.child.wish(request, wanted);
                }
            }
            Order::Signal { worker, signal } => {
                let held = self.children.get(&WorkerId(worker));
                if let (Some(held), Ok(signal)) = (held, Posix::try_from(signal)) {
                    held.child.signal(signal);
                }
            }
            Order::Leave { why } => {
                self.end.get_or_insert(HandEnd::Drained);
                self.rendezvous.leave(why);
            }
            Order::Cut { seconds } => self.rendezvous.deafen(Duration::from_secs(seconds.into())),
            Order::Snapshot(snapshot) => {
                let requests = snapshot.requests;
                self.learn(*snapshot);
                self.report(&Report::SnapshotReceived { requests });
            }
            Order::End(ending) => {
                self.end = Some(HandEnd::Ended(ending));
                self.kill();
            }
        }
        Ok(())
    }

    /// The run that this node takes part in.
    fn take(&mut self, work: RunDescription) {
        match sees(&work) {
            Ok(()) => self.work = Some(work),
            Err(found) => {
                let host = &self.spec.host;
                let dir = work.run_dir.display();
                self.fail(format!(
                    "node {host} does not see the run directory {dir} as the head of the run does: {found} (the run and \
                     its staged data must be on a file system that all nodes share: --runs-dir, or for runs at an address \
                     XDG_CACHE_HOME)"
                ));
            }
        }
    }

    /// The store as this node reaches it.
    fn reached(&self, standby: Standby) -> Standby {
        let (store_host, store_port) = self.rendezvous.store();
        Standby { store_host, store_port, threads: self.spec.worker.threads, ..standby }
    }

    fn begin(&mut self, round: u64, seats: BTreeMap<u32, Assignment>, standing: RunSnapshot) -> Result<(), AgentError> {
        let (store_host, store_port) = self.rendezvous.store();
        for held in self.children.values_mut() {
            let seat = seats.get(&held.living.worker);
            held.living.seat = seat.map(|seat| LiveSeat::new(seat.rank));
            held.living.local_rank = seat.map_or(held.living.local_rank, |seat| seat.local_rank);
        }
        let reached = |(worker, seat): (u32, Assignment)| {
            let threads = self.spec.worker.threads;
            let seat = Assignment { store_host: store_host.clone(), store_port, threads, ..seat };
            (WorkerId(worker), seat)
        };
        let seats = seats.into_iter().map(reached).collect();
        self.learn(standing);
        Ok(self.broker.begin_round(RoundPlan { round: Round(round), seats })?)
    }

    fn spawn(&mut self, worker: u32, seat: Option<SeatFacts>, logs: &Path) {
        let Some(work) = &self.work else { return };
        let store = self.rendezvous.store();
        let identity = Identity {
            worker,
            seat,
            control_fd: -1,
            broker: self.broker.socket(),
            run_dir: &work.run_dir,
            store: Some((&store.0, store.1)),
        };
        match Child::spawn(&self.spec.worker, identity, logs, &mut self.guard) {
            Ok(child) => {
                let pid = child.pid();
                let (local_rank, seat) =
                    seat.map_or((0, None), |seat| (seat.local_rank, Some(LiveSeat::new(seat.rank))));
                let joined = false;
                let warm = false;
                let stateful = false;
                let living = LiveWorker { worker, pid, local_rank, seat, joined, warm, stateful };
                self.children.insert(WorkerId(worker), Held { child, living });
                self.report(&Report::Started { worker, pid });
            }
            Err(error) => self.report(&Report::NotStarted { worker, error: error.to_string() }),
        }
    }

    /// What the head says of the run.
    fn learn(&mut self, standing: RunSnapshot) {
        // It may have been on its way when this node was asked to stop.
        let stop = standing.stop.or(self.stop.map(|signal| signal.name().to_owned()));
        self.standing = Some(RunSnapshot { stop, ..standing });
    }

    /// The workers say something.
    fn listen(&mut self) {
        self.broker.clear_wake();
        while let Some(event) = self.broker.event() {
            let report = match event {
                BrokerEvent::Joined { worker, .. } => {
                    self.note(worker, |living| living.joined = true);
                    Report::Joined { worker: worker.0 }
                }
                BrokerEvent::Reported { round, worker, message } => {
                    self.heard(worker, &message);
                    let round = round.map(|round| round.0);
                    let message = Box::new(message);
                    Report::Message { worker: worker.0, round, message }
                }
                BrokerEvent::Left { worker, error } => Report::Left { worker: worker.0, error },
                BrokerEvent::Refused { error } => Report::Refused { error },
                BrokerEvent::Synced { token } => Report::Synced { worker: u32::try_from(token).unwrap_or(u32::MAX) },
                BrokerEvent::Broke { error } => {
                    self.fail(format!("the broker broke: {error}"));
                    continue;
                }
            };
            self.report(&report);
        }
    }

    fn note(&mut self, worker: WorkerId, note: impl FnOnce(&mut LiveWorker)) {
        if let Some(held) = self.children.get_mut(&worker) {
            note(&mut held.living);
        }
    }

    fn heard(&mut self, worker: WorkerId, message: &FromWorker) {
        match message {
            FromWorker::Warm => self.note(worker, |living| living.warm = true),
            FromWorker::Ready { .. } => self.note(worker, |living| living.stateful = true),
            FromWorker::ShareKept { share, of, .. } => self.note(worker, |living| {
                living.seat = living.seat.map(|seat| LiveSeat { share: Some((*share, *of)), ..seat });
            }),
            FromWorker::Halted { step, kept, .. } => {
                self.note(worker, |living| {
                    living.seat = living.seat.map(|seat| LiveSeat { halted: Some(*step), ..seat });
                    living.stateful &= kept;
                });
            }
            _ => {}
        }
    }

    fn signalled(&mut self) {
        let taken = self.signals.as_mut().map(Signals::take).unwrap_or_default();
        for signal in taken {
            let second = Signal::is_second(self.stop);
            let name = signal.as_str();
            (self.emit)(EventKind::StopRequested { signal: name.into(), second });
            let signal = *self.stop.get_or_insert(Signal::named(name));
            if let Some(standing) = self.standing.take() {
                self.learn(standing);
            }
            if self.linked && self.work.is_some() {
                self.report(&Report::Signalled { signal: name.into(), second });
            } else if second || self.standing.is_none() {
                self.leave(signal);
            }
            self.await_head();
            if second {
                self.kill();
            }
        }
    }

    /// Nobody leads. Whoever does next has the workers save when the run is to stop; that is not waited for without end.
    fn await_head(&mut self) {
        if !self.linked && self.to_stop().is_some() {
            self.stop_by.get_or_insert(Instant::now() + HEADLESS_STOP_MAX);
        }
    }

    /// The signal by which the run is to stop, as far as this node knows.
    fn to_stop(&self) -> Option<Signal> {
        self.standing.as_ref()?.stop.as_deref().map(Signal::named)
    }

    /// Leaves the run, as after this signal.
    fn leave(&mut self, signal: Signal) {
        self.rendezvous.leave(signal.name().to_owned());
        self.end.get_or_insert(HandEnd::Stopped(signal));
        self.kill();
    }

    fn ended(&mut self, worker: WorkerId) {
        let began = Instant::now();
        let Some(held) = self.children.get_mut(&worker) else { return };
        let Some(exit) = held.child.reap(&mut self.guard) else { return };
        let Some(held) = self.children.remove(&worker) else { return };
        let end = Box::new(held.child.end(worker.0, exit, began.elapsed()));
        self.report(&Report::Ended { worker: worker.0, exit: end });
    }

    /// Tells the head of control pages that changed.
    fn glance(&mut self) {
        if !self.linked || self.children.is_empty() || self.glanced.elapsed() < GLANCE_PERIOD {
            return;
        }
        let mut changed = Vec::new();
        for (worker, held) in &self.children {
            let now = held.child.glance(worker.0);
            let same = |before: &StatusSnapshot| StatusSnapshot { silent: now.silent, ..*before } == now;
            if !self.told.get(&worker.0).is_some_and(same) {
                self.told.insert(worker.0, now);
                changed.push(now);
            }
        }
        self.glanced = Instant::now();
        if !changed.is_empty() || self.reported.elapsed() >= ALIVE_PERIOD {
            self.report(&Report::StatusChanged(changed));
            self.reported = self.glanced;
        }
    }

    /// The others hear that this node is done, if somebody listens.
    fn farewell(&self, end: &HandEnd) {
        let (Some(membership), HandEnd::Ended(_)) = (self.membership, end) else { return };
        self.rendezvous.finished(membership);
        self.rendezvous.await_end(FAREWELL_MAX);
    }
}

/// Whether the node sees the run as its head does; else what it found.
fn sees(work: &RunDescription) -> Result<(), String> {
    let at = |path: &Path| path.display().to_string();
    let config = work.run_dir.join(run_dir::RUN_JSON);
    let text = fs::read(&config).map_err(|error| format!("{}: {error}", at(&config)))?;
    if blake3::hash(&text).to_hex().as_str() != work.config {
        return Err(format!("{} holds something else", at(&config)));
    }
    let meta: PathBuf = work.staged.join("meta.json");
    fs::metadata(&meta).map(|_| ()).map_err(|error| format!("{}: {error}", at(&meta)))
}
