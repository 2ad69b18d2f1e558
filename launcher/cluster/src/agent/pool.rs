//! All worker processes that live: those with a seat, those that stand by, those that end.
//!
//! **Invariant:** a name is given once. Whoever has a seat has it in the present round, or in the one that is just over.

use super::{
    child::Child,
    policy,
    seats::{Candidate, Candidates, Home, Slot},
    worker::{Place, Worker},
};
use enn_common::{id::WorkerId, wire::follower::WorkerRequest};
use nix::sys::signal::Signal;
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Time between TERM and KILL for a worker of which nothing is needed any more.
const END_GRACE: Duration = Duration::from_millis(500);

/// The processes.
#[derive(Debug, Default)]
pub(super) struct Pool {
    workers: BTreeMap<WorkerId, Worker>,
    next: u32,
    /// Spares that died in a row without one becoming warm.
    spare_deaths: u32,
    /// No spare is started before.
    spare_not_before: Option<Instant>,
}

impl Pool {
    /// A name that nobody had.
    pub(super) fn name(&mut self) -> WorkerId {
        self.next += 1;
        WorkerId(self.next - 1)
    }

    pub(super) fn add(&mut self, worker: Worker) {
        self.workers.insert(worker.id, worker);
    }

    /// Its end is known and everything it said has been heard.
    pub(super) fn take(&mut self, id: WorkerId) -> Option<Worker> {
        self.workers.remove(&id)
    }

    pub(super) fn get(&self, id: WorkerId) -> Option<&Worker> {
        self.workers.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: WorkerId) -> Option<&mut Worker> {
        self.workers.get_mut(&id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Worker> {
        self.workers.values()
    }

    /// What the agent watches.
    pub(super) fn children(&self) -> Vec<(WorkerId, &Child)> {
        self.all().filter_map(|worker| Some((worker.id, worker.child.here()?))).collect()
    }

    /// Leaves the workers of other nodes to another head.
    pub(super) fn keep_own(&mut self) {
        self.workers.retain(|_, worker| worker.slot.home == Home::OWN);
    }

    /// Those on a node.
    pub(super) fn on(&self, home: Home) -> impl Iterator<Item = &Worker> {
        self.all().filter(move |worker| worker.slot.home == home)
    }

    /// The same, to be changed.
    pub(super) fn on_mut(&mut self, home: Home) -> impl Iterator<Item = &mut Worker> {
        self.workers.values_mut().filter(move |worker| worker.slot.home == home)
    }

    /// One more than the highest name given.
    pub(super) fn names(&self) -> u32 {
        self.next
    }

    /// No name below is given any more.
    pub(super) fn names_from(&mut self, next: u32) {
        self.next = self.next.max(next);
    }

    /// Workers with a seat.
    pub(super) fn seated(&self) -> impl Iterator<Item = &Worker> {
        self.all().filter(|worker| worker.seat().is_some())
    }

    /// Processes without a seat that are not being sent away.
    pub(super) fn spares(&self) -> impl Iterator<Item = &Worker> {
        self.all().filter(|worker| worker.seat().is_none() && worker.kill_at.is_none() && worker.lives())
    }

    /// Whether everybody with a seat has left the round; so it is when nobody has one.
    pub(super) fn all_halted(&self) -> bool {
        self.seated().all(Worker::stands)
    }

    /// Whether everybody with a seat can do steps.
    pub(super) fn all_ready(&self) -> bool {
        self.seated().all(|worker| worker.seat().is_some_and(|seat| seat.ready.is_some()))
    }

    /// The furthest of those who left the round with the state of training: whole steps, and who.
    pub(super) fn furthest(&self) -> Option<(u64, WorkerId)> {
        let stands = self.seated().filter(|worker| worker.keeps_state());
        let halted = stands.filter_map(|worker| Some((worker.seat()?.halted?, worker)));
        let first = halted.max_by_key(|(step, worker)| (*step, std::cmp::Reverse(worker.rank())));
        first.map(|(step, worker)| (step, worker.id))
    }

    /// The furthest step that a page of the round shows.
    pub(super) fn reached(&self) -> u64 {
        self.seated().map(|worker| worker.child.place().1).max().unwrap_or(0)
    }

    /// Who left the round with a share of the state keeps what all shares of one step make up; else it keeps nothing.
    pub(super) fn settle_shares(&mut self) {
        let kept = |worker: &Worker| {
            let seat = worker.seat().filter(|_| worker.keeps_state())?;
            Some((seat.halted?, seat.share?))
        };
        let step = policy::whole_step(&self.seated().filter_map(kept).collect::<Vec<_>>());
        for worker in self.workers.values_mut().filter(|worker| kept(worker).is_some()) {
            let Some(seat) = worker.seat_mut() else { continue };
            match step {
                // Who is ahead goes back.
                Some(step) => seat.halted = seat.halted.map(|halted| halted.min(step)),
                None => seat.stateful = false,
            }
        }
    }

    /// Those who left the round with the state of training.
    pub(super) fn savers(&self) -> Vec<Candidate> {
        self.seated().filter(|worker| worker.keeps_state()).map(Worker::candidate).collect()
    }

    /// Takes the seat from those who never entered a round: they know nothing of the one that is over, and need not leave it.
    pub(super) fn unseat_strangers(&mut self) {
        let strangers = self.workers.values_mut().filter(|worker| !worker.entered && worker.lives());
        for worker in strangers.filter(|worker| worker.kill_at.is_none()) {
            worker.place = Place::Spare;
        }
    }

    /// Everybody who could sit in the next round.
    pub(super) fn candidates(&self) -> Candidates {
        let spares = |warm: bool| {
            let list = self.spares().filter(|worker| worker.is_warm() == warm);
            list.map(Worker::candidate).collect()
        };
        // When there are more than seats, those with the state of training keep theirs.
        let mut standing: Vec<&Worker> = self.seated().filter(|worker| worker.stands()).collect();
        standing.sort_by_key(|worker| (!worker.keeps_state(), worker.slot));
        let kept = standing.into_iter().map(Worker::candidate).collect();
        Candidates { kept, warm: spares(true), warming: spares(false) }
    }

    /// Places of those with a seat, and those that spares are prepared for.
    pub(super) fn slots(&self) -> (Vec<Slot>, Vec<Slot>) {
        (self.seated().map(|worker| worker.slot).collect(), self.spares().map(|worker| worker.slot).collect())
    }

    /// Asks everybody with a seat to finish the step, checkpoint and end.
    pub(super) fn ask_to_stop(&self) {
        self.seated().for_each(|worker| worker.child.wish(WorkerRequest::Stop, true));
    }

    /// Asks everybody with a seat to leave the round, or takes that back.
    pub(super) fn ask_to_regroup(&self, wanted: bool) {
        self.seated().for_each(|worker| worker.child.wish(WorkerRequest::Regroup, wanted));
    }

    pub(super) fn signal_all(&self, signal: Signal) {
        self.all().for_each(|worker| worker.child.signal(signal));
    }

    /// Makes a worker end, with TERM now and KILL soon.
    pub(super) fn send_away(&mut self, id: WorkerId, now: Instant) {
        if let Some(worker) = self.workers.get_mut(&id).filter(|worker| worker.lives()) {
            worker.child.signal(Signal::SIGTERM);
            worker.kill_at.get_or_insert(now + END_GRACE);
        }
    }

    /// Makes those without a seat end; returns who they are.
    pub(super) fn send_spares_away(&mut self, now: Instant) -> Vec<(Home, WorkerId)> {
        let spares: Vec<_> = self.spares().map(|worker| (worker.slot.home, worker.id)).collect();
        spares.iter().for_each(|(_, id)| self.send_away(*id, now));
        spares
    }

    /// When the first of those who were told to end is killed.
    pub(super) fn next_kill(&self) -> Option<Instant> {
        self.all().filter(|worker| worker.lives() && !worker.killed).filter_map(|worker| worker.kill_at).min()
    }

    /// Kills those whose time to end is over.
    pub(super) fn kill_late(&mut self, now: Instant) {
        for worker in self.workers.values_mut() {
            if !worker.killed && worker.kill_at.is_some_and(|at| at <= now) {
                worker.killed = true;
                worker.child.signal(Signal::SIGKILL);
            }
        }
    }

    /// A spare said that it is warm.
    pub(super) fn warmed(&mut self, id: WorkerId) -> bool {
        let Some(worker) = self.workers.get_mut(&id) else { return false };
        let news = !worker.warm && worker.place == Place::Spare;
        worker.warm = true;
        if news {
            self.spare_deaths = 0;
            self.spare_not_before = None;
        }
        news
    }

    /// A spare could not be started or died; true when none is started any more.
    pub(super) fn spare_lost(&mut self, now: Instant) -> bool {
        self.spare_deaths += 1;
        let wait = policy::spare_backoff(self.spare_deaths);
        self.spare_not_before = wait.map(|wait| now + wait);
        wait.is_none()
    }

    /// When the next spare may be started; `None`: never again.
    pub(super) fn spare_from(&self, now: Instant) -> Option<Instant> {
        policy::spare_backoff(self.spare_deaths)?;
        Some(self.spare_not_before.unwrap_or(now))
    }

    /// Workers whose deadline passed, with the accusation.
    pub(super) fn overdue(&self, grace: Duration, now: Instant) -> Vec<(WorkerId, String)> {
        let late = |worker: &Worker| {
            let (at, accusation) = worker.deadline(grace)?;
            (at <= now).then_some((worker.id, accusation))
        };
        self.all().filter_map(late).collect()
    }

    /// The next deadline of a worker.
    pub(super) fn deadline(&self, grace: Duration) -> Option<Instant> {
        self.all().filter_map(|worker| worker.deadline(grace)).map(|(at, _)| at).min()
    }
}
