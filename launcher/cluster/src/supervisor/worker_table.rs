//! Worker processes of all nodes, from their start to their end, through all rounds in which they have a seat.
//!
//! **Invariant:** what the table counts and indexes equals what a count over all workers gives; `edit` keeps it so. Events cost
//! O(log n).

use super::{
    exit_classification::FailureEvidence,
    input::Time,
    seating::{NodeIndex, SeatCandidate, SeatCandidates, Slot},
    state_shares,
};
use enn_common::{
    id::{LocalRank, Rank, Round, WorkerId},
    wire::{
        control::Phase as WorkerPhase,
        node_agent::{StateShare, WorkerEvidence, WorkerExit, WorkerProgress},
    },
};
use enn_process::Exit;
use nix::sys::signal::Signal;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Longest time from start to connection: loading libtorch from a cold network disk.
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(180);
/// Longest time from the connection, or from a new seat, until the worker is ready: mapping data, making a device context, meeting the
/// others. A spare has as long to become warm.
const READY_WAIT_MAX: Duration = Duration::from_secs(900);

/// WorkerPlace of a worker in the run.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum WorkerPlace {
    Spare,
    /// It has a seat in the present round, or in the one that is just over.
    Seat(Seat),
    /// It lost the seat that it had in this round, and is to end.
    Dismissed {
        round: Round,
        rank: Rank,
    },
}

/// A seat in a round.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Seat {
    pub(super) round: Round,
    pub(super) rank: Rank,
    /// Time when it was given.
    pub(super) since: Time,
    /// The worker has the state of training, kept from rounds before or made in this one.
    pub(super) stateful: bool,
    /// Time when the worker could do its first step.
    pub(super) ready: Option<Time>,
    /// Whole steps after which the worker left the round and waits.
    pub(super) halted: Option<u64>,
    /// Step to which it goes back to be at one with the others, where the state is shared.
    pub(super) rewound: Option<u64>,
    /// Part of the state that it has; `None`: all of it.
    pub(super) share: Option<StateShare>,
}

impl Seat {
    pub(super) fn new(round: Round, rank: Rank, stateful: bool, since: Time) -> Self {
        Self { round, rank, since, stateful, ready: None, halted: None, rewound: None, share: None }
    }
}

/// When a worker said that its work is done, and whether it was asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WorkDone {
    pub(super) at: Time,
    pub(super) stopped: bool,
}

/// Last reading of a control page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageReading {
    pub(super) phase: WorkerPhase,
    pub(super) step: u64,
    /// Time waited for others since the round began.
    pub(super) waited: Duration,
    /// Time since the last sign of progress when it was read.
    idle: Duration,
    read_at: Time,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Worker {
    pub(super) id: WorkerId,
    /// Slot of its seat, or the one that it is prepared for.
    pub(super) slot: Slot,
    /// It is late when it does not connect. A script need not, unless the others count on it.
    pub(super) has_to_connect: bool,
    /// `None` until its node reported its start.
    pub(super) pid: Option<u32>,
    pub(super) place: WorkerPlace,
    pub(super) exit: Option<WorkerExit>,
    /// It lives long after SIGKILL; nobody waits for its end.
    pub(super) unkillable: bool,
    pub(super) started: Time,
    pub(super) connected: Option<Time>,
    /// It has loaded all that it can without a seat.
    pub(super) warm: bool,
    /// It had a seat in its slot, and waits for another one there.
    pub(super) parked: bool,
    pub(super) entered: bool,
    pub(super) done: Option<WorkDone>,
    /// Error that it sent, or what is wrong with it.
    pub(super) error: Option<String>,
    /// It is not needed any more: that it was killed is no failure.
    pub(super) forgiven: bool,
    /// It was told to end.
    pub(super) ending: bool,
    pub(super) warnings: u32,
    pub(super) page: PageReading,
}

impl Worker {
    pub(super) fn new(id: WorkerId, slot: Slot, place: WorkerPlace, now: Time) -> Self {
        let idle = Duration::ZERO;
        let page = PageReading { phase: WorkerPhase::Boot, step: 0, waited: Duration::ZERO, idle, read_at: now };
        Self {
            id,
            slot,
            has_to_connect: true,
            pid: None,
            place,
            exit: None,
            unkillable: false,
            started: now,
            connected: None,
            warm: false,
            parked: false,
            entered: false,
            done: None,
            error: None,
            forgiven: false,
            ending: false,
            warnings: 0,
            page,
        }
    }

    /// Returns whether its end has not been reported.
    pub(super) fn lives(&self) -> bool {
        self.exit.is_none()
    }

    pub(super) fn seat(&self) -> Option<&Seat> {
        let WorkerPlace::Seat(seat) = &self.place else { return None };
        (!self.unkillable).then_some(seat)
    }

    pub(super) fn seat_mut(&mut self) -> Option<&mut Seat> {
        let WorkerPlace::Seat(seat) = &mut self.place else { return None };
        (!self.unkillable).then_some(seat)
    }

    pub(super) fn rank(&self) -> Option<Rank> {
        self.seat().map(|seat| seat.rank)
    }

    /// Returns whether it has left its round whole and can go on in the next.
    pub(super) fn stands(&self) -> bool {
        self.lives() && !self.ending && self.seat().is_some_and(|seat| seat.halted.is_some())
    }

    /// Returns the step of the state of training that it keeps, if it stands and does.
    pub(super) fn kept_step(&self) -> Option<u64> {
        let seat = self.seat().filter(|seat| seat.stateful && self.stands())?;
        seat.rewound.or(seat.halted)
    }

    fn candidate(&self) -> SeatCandidate {
        SeatCandidate { worker: self.id, slot: self.slot, is_bound: self.parked }
    }

    /// Notes what its control page showed. A page older than its seat says nothing of the new round.
    pub(super) fn note_page(&mut self, progress: &WorkerProgress, now: Time) {
        let phase = WorkerPhase::ALL.into_iter().find(|phase| *phase as u32 == progress.phase);
        let WorkerProgress { step, waited, idle, .. } = *progress;
        self.page = PageReading { phase: phase.unwrap_or(WorkerPhase::Boot), step, waited, idle, read_at: now };
    }

    /// Returns the time since its last sign of progress. Only time in which its node was heard, the last time at `heard`, counts: a
    /// slow link is no silence of the worker. A new seat and readiness are signs, too.
    pub(super) fn idle(&self, heard: Time, now: Time) -> Duration {
        let silent = self.page.idle + heard.saturating_sub(self.page.read_at);
        let seat = self.seat().map_or(Time::ZERO, |seat| seat.ready.unwrap_or(seat.since).max(seat.since));
        let last = seat.max(self.started).max(self.connected.unwrap_or_default());
        silent.min(heard.min(now).saturating_sub(last))
    }

    /// Returns what there is to classify it by, as the holder of its seat.
    pub(super) fn evidence(&self, rank: Rank, last: WorkerEvidence) -> FailureEvidence {
        let error = self.error.clone();
        let exit = self.exit.as_ref().map(|exit| match (exit.code, exit.signal) {
            (Some(code), _) => Exit::Code(code),
            (None, signal) => Exit::Signal(signal.unwrap_or(Signal::SIGKILL as i32)),
        });
        let done = self.done.is_some();
        let PageReading { phase, step, .. } = self.page;
        FailureEvidence { rank, error, exit, done, phase, step, last }
    }

    /// Returns when the worker must have come further, and what it is accused of then.
    fn deadline(&self, grace: Duration) -> Option<(Time, Overdue)> {
        if !self.lives() || self.forgiven || self.ending || self.unkillable {
            return None;
        }
        if let Some(done) = self.done {
            return Some((done.at + grace, Overdue::DoesNotEnd));
        }
        let Some(connected) = self.connected else {
            return self.has_to_connect.then_some((self.started + CONNECT_WAIT_MAX, Overdue::NotConnected));
        };
        match &self.place {
            WorkerPlace::Spare if self.warm => None,
            WorkerPlace::Spare => Some((connected + READY_WAIT_MAX, Overdue::NotWarm)),
            WorkerPlace::Seat(Seat { ready: None, halted: None, since, .. }) => {
                Some((connected.max(*since) + READY_WAIT_MAX, Overdue::NotReady))
            }
            WorkerPlace::Seat(_) | WorkerPlace::Dismissed { .. } => None,
        }
    }
}

/// Accusation of a worker that is late.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Overdue {
    NotConnected,
    NotWarm,
    NotReady,
    /// It did its work.
    DoesNotEnd,
}

impl Overdue {
    /// Returns the accusation in words; empty for a worker that did its work.
    pub(super) fn words(self) -> String {
        let late = |what: &str, wait: Duration, after: &str| format!("{what} within {} s of {after}", wait.as_secs());
        match self {
            Self::NotConnected => late("did not connect", CONNECT_WAIT_MAX, "its start"),
            Self::NotWarm => late("was not warm", READY_WAIT_MAX, "its connection"),
            Self::NotReady => late("was not ready", READY_WAIT_MAX, "its connection"),
            Self::DoesNotEnd => String::new(),
        }
    }
}

/// Sets and counts of workers by their state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct WorkerIndex {
    seated: BTreeSet<WorkerId>,
    not_ready: BTreeSet<WorkerId>,
    not_standing: BTreeSet<WorkerId>,
    /// Seated workers whose work is done.
    done: usize,
    warm: BTreeSet<WorkerId>,
    warming: BTreeSet<WorkerId>,
    /// All whose end is waited for.
    living: BTreeSet<WorkerId>,
    by_node: BTreeMap<NodeIndex, BTreeSet<WorkerId>>,
    seated_on: BTreeMap<NodeIndex, usize>,
    /// Slots of workers that lost their seat, or end in it, and have not settled.
    leaving: BTreeMap<Slot, usize>,
    /// Slots of processes that cannot be killed.
    blocked: BTreeMap<Slot, usize>,
    deadlines: BTreeSet<(Time, WorkerId, Overdue)>,
}

fn put<T: Ord>(set: &mut BTreeSet<T>, value: T, is_in: bool, on: bool) {
    if is_in && on {
        set.insert(value);
    } else if is_in {
        set.remove(&value);
    }
}

fn count<T: Ord>(counts: &mut BTreeMap<T, usize>, key: T, is_in: bool, on: bool) {
    if !is_in {
        return;
    }
    if on {
        *counts.entry(key).or_default() += 1;
    } else if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

impl WorkerIndex {
    /// Enters a worker, or takes it out.
    fn set(&mut self, worker: &Worker, grace: Duration, on: bool) {
        let id = worker.id;
        let Slot { node, .. } = worker.slot;
        let seat = worker.seat();
        put(&mut self.seated, id, seat.is_some(), on);
        // One that need not connect does not say that it is ready.
        let says_ready = worker.has_to_connect || worker.connected.is_some();
        put(&mut self.not_ready, id, says_ready && seat.is_some_and(|seat| seat.ready.is_none()), on);
        put(&mut self.not_standing, id, seat.is_some() && !worker.stands(), on);
        if seat.is_some() && worker.done.is_some() {
            self.done = if on { self.done + 1 } else { self.done - 1 };
        }
        let spare = worker.place == WorkerPlace::Spare && worker.lives() && !worker.ending && !worker.unkillable;
        put(&mut self.warm, id, spare && worker.warm, on);
        put(&mut self.warming, id, spare && !worker.warm, on);
        put(&mut self.living, id, !worker.unkillable, on);
        count(&mut self.seated_on, node, seat.is_some(), on);
        let lost_seat = match worker.place {
            WorkerPlace::Dismissed { .. } => true,
            WorkerPlace::Seat(_) => worker.ending || !worker.lives(),
            WorkerPlace::Spare => worker.parked && (worker.ending || !worker.lives()),
        };
        count(&mut self.leaving, worker.slot, lost_seat && !worker.unkillable, on);
        count(&mut self.blocked, worker.slot, worker.unkillable, on);
        let here = self.by_node.entry(node).or_default();
        put(here, id, true, on);
        if here.is_empty() {
            self.by_node.remove(&node);
        }
        if let Some((at, overdue)) = worker.deadline(grace) {
            put(&mut self.deadlines, (at, id, overdue), true, on);
        }
    }
}

#[derive(Debug)]
pub(super) struct WorkerTable {
    grace: Duration,
    workers: BTreeMap<WorkerId, Worker>,
    index: WorkerIndex,
}

impl WorkerTable {
    /// Makes the table of a run whose workers have `grace` to end when their work is done.
    pub(super) fn new(grace: Duration) -> Self {
        Self { grace, workers: BTreeMap::new(), index: WorkerIndex::default() }
    }

    pub(super) fn add(&mut self, worker: Worker) {
        self.index.set(&worker, self.grace, true);
        self.workers.insert(worker.id, worker);
    }

    /// Takes out a worker that settled, or never started.
    pub(super) fn remove(&mut self, id: WorkerId) -> Option<Worker> {
        let worker = self.workers.remove(&id)?;
        self.index.set(&worker, self.grace, false);
        Some(worker)
    }

    pub(super) fn get(&self, id: WorkerId) -> Option<&Worker> {
        self.workers.get(&id)
    }

    pub(super) fn edit<T>(&mut self, id: WorkerId, change: impl FnOnce(&mut Worker) -> T) -> Option<T> {
        let worker = self.workers.get_mut(&id)?;
        self.index.set(worker, self.grace, false);
        let result = change(worker);
        self.index.set(worker, self.grace, true);
        Some(result)
    }

    /// Notes what the control page of a worker showed; returns the time of its last sign of progress.
    pub(super) fn note_page(&mut self, progress: &WorkerProgress, now: Time) -> Option<Time> {
        let worker = self.workers.get_mut(&progress.worker)?;
        // No index depends on a page.
        worker.note_page(progress, now);
        worker.seat().map(|_| now.saturating_sub(progress.idle))
    }

    /// Returns the workers whose end is waited for, and those that cannot be killed.
    pub(super) fn all(&self) -> impl Iterator<Item = &Worker> {
        self.workers.values()
    }

    /// Returns whether no worker's end is waited for.
    pub(super) fn are_gone(&self) -> bool {
        self.index.living.is_empty()
    }

    /// Returns the workers whose end is waited for.
    pub(super) fn living(&self) -> Vec<WorkerId> {
        self.index.living.iter().copied().collect()
    }

    /// Returns the same without the spares.
    pub(super) fn living_but_spares(&self) -> Vec<WorkerId> {
        let is_spare = |id: &&WorkerId| self.index.warm.contains(id) || self.index.warming.contains(id);
        self.index.living.iter().filter(|id| !is_spare(id)).copied().collect()
    }

    fn pick<'a>(&'a self, ids: &'a BTreeSet<WorkerId>) -> impl Iterator<Item = &'a Worker> {
        ids.iter().filter_map(|id| self.workers.get(id))
    }

    pub(super) fn on(&self, node: NodeIndex) -> Vec<WorkerId> {
        self.index.by_node.get(&node).into_iter().flatten().copied().collect()
    }

    pub(super) fn is_any_on(&self, node: NodeIndex) -> bool {
        self.index.by_node.contains_key(&node)
    }

    /// Returns whether a worker on the node has a seat.
    pub(super) fn is_any_seated_on(&self, node: NodeIndex) -> bool {
        self.index.seated_on.contains_key(&node)
    }

    /// Returns the workers with a seat.
    pub(super) fn seated(&self) -> impl Iterator<Item = &Worker> {
        self.pick(&self.index.seated)
    }

    pub(super) fn seated_ids(&self) -> Vec<WorkerId> {
        self.index.seated.iter().copied().collect()
    }

    pub(super) fn count_seated(&self) -> usize {
        self.index.seated.len()
    }

    /// Returns the workers with a seat that have not left the round whole.
    pub(super) fn not_standing(&self) -> impl Iterator<Item = &Worker> {
        self.pick(&self.index.not_standing)
    }

    /// Returns whether all workers with a seat have left the round; so it is when none has one.
    pub(super) fn all_stand(&self) -> bool {
        self.index.not_standing.is_empty()
    }

    /// Returns whether all workers with a seat can do steps.
    pub(super) fn all_ready(&self) -> bool {
        self.index.not_ready.is_empty()
    }

    /// Returns whether a worker with a seat did its work.
    pub(super) fn is_any_done(&self) -> bool {
        self.index.done > 0
    }

    /// Returns the processes without a seat that are not ending.
    pub(super) fn spares(&self) -> impl Iterator<Item = &Worker> {
        self.pick(&self.index.warm).chain(self.pick(&self.index.warming))
    }

    pub(super) fn count_warm(&self) -> usize {
        self.index.warm.len()
    }

    pub(super) fn count_warming(&self) -> usize {
        self.index.warming.len()
    }

    /// Returns the slots of processes that cannot be killed.
    pub(super) fn blocked(&self) -> BTreeSet<Slot> {
        self.index.blocked.keys().copied().collect()
    }

    /// Returns whether a worker that had a seat there still holds the device.
    pub(super) fn is_being_left(&self, slot: Slot) -> bool {
        self.index.leaving.contains_key(&slot)
    }

    /// Returns the processes that could have a seat in the next round: workers that count, and spares.
    pub(super) fn candidates(&self, counts: impl Fn(&Worker) -> bool) -> SeatCandidates {
        // When there are more than seats, those with the furthest state of training keep theirs.
        let mut standing: Vec<&Worker> = self.seated().filter(|worker| counts(worker)).collect();
        standing.sort_by_key(|worker| (Reverse(worker.kept_step()), worker.slot));
        let kept = standing.into_iter().map(Worker::candidate).collect();
        let mut warm: Vec<SeatCandidate> = self.pick(&self.index.warm).map(Worker::candidate).collect();
        // Others can sit elsewhere.
        warm.sort_by_key(|spare| !spare.is_bound);
        let warming = self.pick(&self.index.warming).map(Worker::candidate).collect();
        SeatCandidates { kept, warm, warming }
    }

    /// Returns the workers that left the round with the state of training and stand after the same, furthest, step: together they have the
    /// whole state of it.
    pub(super) fn savers(&self) -> Vec<SeatCandidate> {
        let step = self.furthest().map(|(step, _)| step);
        let at_step =
            |worker: &&Worker| worker.kept_step().is_some() && worker.seat().and_then(|seat| seat.halted) == step;
        self.seated().filter(at_step).map(Worker::candidate).collect()
    }

    /// Returns the furthest step whose whole state the workers that count keep together.
    pub(super) fn whole_step(&self, counts: impl Fn(&Worker) -> bool) -> Option<u64> {
        let kept = || self.seated().filter(|worker| worker.kept_step().is_some() && counts(worker));
        let share = |worker: &Worker| worker.seat().and_then(|seat| seat.share);
        let alone = kept().filter(|worker| share(worker).is_none()).filter_map(Worker::kept_step).max();
        let halted = |worker: &Worker| Some((worker.seat()?.halted?, share(worker)?));
        alone.max(state_shares::whole_step(kept().filter_map(halted)))
    }

    /// Returns the furthest step whose state a worker keeps, and the worker.
    pub(super) fn furthest(&self) -> Option<(u64, WorkerId)> {
        let kept = self.seated().filter_map(|worker| Some((worker.kept_step()?, worker)));
        let first = kept.max_by_key(|(step, worker)| (*step, Reverse(worker.rank())));
        first.map(|(step, worker)| (step, worker.id))
    }

    /// Returns the furthest step that a page of a worker with a seat shows.
    pub(super) fn pages_reached(&self) -> u64 {
        self.seated().map(|worker| worker.page.step).max().unwrap_or(0)
    }

    /// A worker that left the round with a share of the state keeps what all shares of one step make up; else it keeps nothing.
    pub(super) fn settle_shares(&mut self) {
        let kept = |worker: &Worker| {
            let seat = worker.seat().filter(|_| worker.kept_step().is_some())?;
            Some((seat.halted?, seat.share?))
        };
        let holders: Vec<WorkerId> =
            self.seated().filter(|worker| kept(worker).is_some()).map(|worker| worker.id).collect();
        let step = state_shares::whole_step(self.seated().filter_map(kept));
        for id in holders {
            self.edit(id, |worker| {
                let Some(seat) = worker.seat_mut() else { return };
                match step {
                    Some(step) => seat.rewound = seat.halted.map(|halted| halted.min(step)),
                    None => seat.stateful = false,
                }
            });
        }
    }

    /// Takes the seat from the workers that never entered a round: they know nothing of the one that is over, and need not leave it.
    pub(super) fn unseat_strangers(&mut self) {
        let stranger = |worker: &&Worker| !worker.entered && worker.lives() && !worker.ending;
        let strangers: Vec<WorkerId> = self.seated().filter(stranger).map(|worker| worker.id).collect();
        for id in strangers {
            self.edit(id, |worker| {
                worker.place = WorkerPlace::Spare;
                worker.has_to_connect = true;
            });
        }
    }

    /// Returns the time of the first deadline of a worker.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.index.deadlines.first().map(|(at, _, _)| *at)
    }

    /// Returns the workers whose deadline has passed.
    pub(super) fn overdue(&self, now: Time) -> Vec<(WorkerId, Overdue)> {
        self.index
            .deadlines
            .iter()
            .take_while(|(at, _, _)| *at <= now)
            .map(|(_, id, overdue)| (*id, *overdue))
            .collect()
    }

    /// Counts again; one sentence when a count differs.
    #[cfg(test)]
    pub(super) fn recount(&self) -> Result<(), String> {
        let mut index = WorkerIndex::default();
        self.workers.values().for_each(|worker| index.set(worker, self.grace, true));
        if index == self.index { Ok(()) } else { Err(format!("found {:?}, counted {index:?}", self.index)) }
    }
}

/// Returns the slot with this index on a node.
pub(super) fn slot(node: NodeIndex, index: u32) -> Slot {
    Slot { node, index: LocalRank(index) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::ZERO;

    fn seated(id: u32, halted: Option<u64>, share: Option<StateShare>) -> Worker {
        let seat = Seat { halted, share, ..Seat::new(Round(1), Rank(id), true, NOW) };
        Worker::new(WorkerId(id), slot(NodeIndex::OWN, id), WorkerPlace::Seat(seat), NOW)
    }

    fn table(workers: impl IntoIterator<Item = Worker>) -> WorkerTable {
        let mut table = WorkerTable::new(Duration::from_secs(30));
        workers.into_iter().for_each(|worker| table.add(worker));
        table
    }

    #[test]
    fn counts_follow_every_change() {
        let mut table = table([seated(0, None, None), seated(1, None, None)]);
        table.add(Worker::new(WorkerId(2), slot(NodeIndex(1), 0), WorkerPlace::Spare, NOW));
        assert!(!table.all_stand() && !table.all_ready() && table.count_warming() == 1);
        assert_eq!(table.deadline(), Some(CONNECT_WAIT_MAX));
        table.edit(WorkerId(2), |worker| {
            worker.connected = Some(NOW);
            worker.warm = true;
        });
        assert_eq!((table.count_warm(), table.count_warming()), (1, 0));
        for id in [0, 1] {
            table.edit(WorkerId(id), |worker| {
                worker.seat_mut().unwrap().ready = Some(NOW);
                worker.seat_mut().unwrap().halted = Some(7 + u64::from(id));
            });
        }
        assert!(table.all_stand() && table.all_ready());
        assert_eq!(
            (table.furthest(), table.savers().len(), table.whole_step(|_| true)),
            (Some((8, WorkerId(1))), 1, Some(8))
        );
        table.edit(WorkerId(1), |worker| worker.unkillable = true);
        assert_eq!((table.count_seated(), table.blocked().len()), (1, 1));
        table.recount().unwrap();
        table.remove(WorkerId(1));
        table.recount().unwrap();
        assert!(table.blocked().is_empty() && !table.are_gone());
    }

    #[test]
    fn shares_that_are_not_whole_are_nothing() {
        let share = |index| Some(StateShare { index, of: 2 });
        let mut whole =
            table([seated(0, Some(7), share(0)), seated(1, Some(7), share(1)), seated(2, Some(8), share(0))]);
        whole.settle_shares();
        assert_eq!((whole.furthest(), whole.savers().len()), (Some((7, WorkerId(0))), 2));
        let mut broken = table([seated(0, Some(7), share(0)), seated(1, Some(8), share(1))]);
        broken.settle_shares();
        assert_eq!((broken.furthest(), broken.savers().len()), (None, 0));
        broken.recount().unwrap();
    }

    #[test]
    fn a_slow_link_is_no_silence() {
        let mut worker = seated(0, None, None);
        let at = Duration::from_secs;
        let progress = WorkerProgress { worker: WorkerId(0), phase: 3, step: 1, waited: NOW, idle: at(2) };
        worker.note_page(&progress, at(10));
        assert_eq!(worker.idle(at(13), at(99)), at(5));
        // Nothing has come since, for whatever reason.
        assert_eq!(worker.idle(at(10), at(99)), at(2));
    }
}
