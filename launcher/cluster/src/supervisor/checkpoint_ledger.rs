//! Checkpoints in the making: which ranks have written their shard of which step, which shards are still in memory, and which
//! checkpoints are being committed.
//!
//! A shard that a worker left in memory is written by its node, at once unless the disk is behind: then it stays in memory, and its worker
//! waits for memory or passes over checkpoints, as it is configured. A step whose ranks have all reported is committed, whatever happens to
//! its workers or its round; one that a rank did not report when the round ends is dropped.
//!
//! On a full disk one step is written at a time: the room that an old checkpoint made is not taken by another one.
//!
//! **Invariant:** a step of an attempt gets at most one verdict, and no commit unless every rank reported exactly once from the same
//! directory. One commit of a step is under way at a time. Each snapshot in memory is persisted or released once; a persist that
//! failed is asked for once more, or ends with a release.

use super::{
    complete_checkpoint::CompleteCheckpoint,
    input::{CommitFailure, CommittedCheckpoint, Time},
    open_step::{OpenStep, ReportedShard, Shard, ShardReport, Snapshot, StepKey},
    seating::NodeIndex,
};
use enn_common::{checkpoint::table::ShardTable, id::WorkerId, wire::node_agent::WriteFailure};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry},
    path::PathBuf,
};

/// Steps that not all ranks have reported at one time.
pub(super) const STEPS_OPEN_MAX: usize = 4;
/// Steps being written and committed at one time, and commits that wait for others.
const COMMITS_MAX: usize = 8;

/// What the ledger asks for, in order.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LedgerAction {
    Persist {
        snapshot: Snapshot,
        dir: PathBuf,
        rank: u32,
    },
    Release(Snapshot),
    Commit(CompleteCheckpoint),
    MakeRoom(CompleteCheckpoint),
    Discard {
        attempt: String,
        below: u64,
    },
    /// The checkpoint of this step is given up.
    Abandoned {
        step: u64,
        error: String,
    },
    /// The checkpoint is on disk.
    Committed {
        step: u64,
        checkpoint: CommittedCheckpoint,
        seconds: f64,
        blocked: f64,
    },
    /// Another leader has the run directory.
    Fenced {
        error: String,
    },
}

/// A commit under way, or one that waits for that of the same step to end.
#[derive(Debug, Clone, PartialEq)]
struct Commit {
    set: CompleteCheckpoint,
    since: Time,
    must: bool,
    retried: bool,
}

/// Use of the room that is being made.
#[derive(Debug, Clone, PartialEq)]
enum RoomFor {
    Shards(StepKey),
    Commit(u64),
}

/// All checkpoints in the making.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct CheckpointLedger {
    attempt: String,
    world: usize,
    open: BTreeMap<StepKey, OpenStep>,
    /// Steps of the present attempt up to this one have had their verdict.
    settled: Option<u64>,
    commits: BTreeMap<u64, Commit>,
    /// Step whose commit the leader carries out.
    committing: Option<u64>,
    /// Steps whose commits wait for it, in order.
    commits_waiting: VecDeque<u64>,
    /// Saved again by a later round while the step is being committed: what counts if that fails.
    held: BTreeMap<u64, Commit>,
    /// Snapshots being written, with the step and the rank that they belong to.
    writes: BTreeMap<(WorkerId, u64), (StepKey, u32, Snapshot)>,
    /// Number of these by step.
    writes_of: BTreeMap<StepKey, usize>,
    /// What of an attempt is to be removed as soon as nobody writes there.
    discards: BTreeMap<String, u64>,
    room_asked: Option<RoomFor>,
    room_wanted: VecDeque<RoomFor>,
    actions: Vec<LedgerAction>,
}

impl CheckpointLedger {
    /// Returns what is to be done since the last call.
    pub(super) fn take_actions(&mut self) -> Vec<LedgerAction> {
        self.flush_discards();
        self.ask_for_room();
        self.begin_writes();
        self.begin_commit();
        std::mem::take(&mut self.actions)
    }

    /// Returns whether no checkpoint that can still be committed is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.commits.is_empty() && self.held.is_empty() && self.open.values().all(|step| step.missing > 0)
    }

    /// The present round is over: steps that a rank has not reported are dropped, and what the attempt left behind is removed.
    pub(super) fn end_round(&mut self) {
        let dropped = self.open.extract_if(.., |_, step| step.missing > 0).collect::<Vec<_>>();
        for (_, step) in dropped {
            self.release_unwritten(&step);
        }
        let attempt = std::mem::take(&mut self.attempt);
        self.discard(attempt, u64::MAX);
        self.world = 0;
    }

    /// A round begins with so many ranks.
    pub(super) fn begin_round(&mut self, attempt: String, world: usize) {
        self.end_round();
        self.attempt = attempt;
        self.world = world;
        self.settled = None;
    }

    /// A rank of the present round has its shard, on disk or in memory.
    pub(super) fn reported(&mut self, report: ShardReport, now: Time) {
        let step = report.step;
        let key = (self.attempt.clone(), step);
        let is_late = self.settled.is_some_and(|settled| step <= settled);
        if is_late && !self.open.contains_key(&key) {
            return self.refuse(&report);
        }
        if !self.open.contains_key(&key) {
            self.make_place();
            self.open.insert(key.clone(), OpenStep::new(&report, self.world));
        }
        let Some(open) = self.open.get_mut(&key) else { return };
        if let Some(error) = open.mismatch(&report) {
            self.refuse(&report);
            return self.abandon(&key, error);
        }
        let ShardReport { rank, metric, blocked, shard, .. } = report;
        open.metric = open.metric.or(metric);
        open.blocked = open.blocked.max(blocked);
        open.missing -= 1;
        match shard {
            ReportedShard::OnDisk(table) => open.set(rank, Shard::Written(table)),
            ReportedShard::InMemory(snapshot) => {
                open.must |= snapshot.must;
                open.set(rank, Shard::Waiting(snapshot));
                open.in_memory += 1;
            }
        }
        if open.missing == 0 {
            open.reported = Some(now);
            self.settled = self.settled.max(Some(step));
        }
        self.advance(&key, now);
    }

    /// A rank of the present round could not write its shard.
    pub(super) fn failed(&mut self, rank: u32, step: u64, error: &str) {
        let key = (self.attempt.clone(), step);
        if self.open.contains_key(&key) || self.settled.is_none_or(|settled| step > settled) {
            self.abandon(&key, format!("rank {rank}: {error}"));
        }
    }

    /// A node wrote a snapshot, or could not.
    pub(super) fn written(
        &mut self,
        worker: WorkerId,
        ticket: u64,
        result: Result<ShardTable, WriteFailure>,
        now: Time,
    ) {
        let Some((key, rank, snapshot)) = self.writes.remove(&(worker, ticket)) else { return };
        if let Some(count) = self.writes_of.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.writes_of.remove(&key);
            }
        }
        let Some(open) = self.open.get_mut(&key) else {
            if result.is_err() {
                self.actions.push(LedgerAction::Release(snapshot));
            }
            return;
        };
        open.in_memory -= 1;
        match result {
            Ok(table) => open.set(rank, Shard::Written(table)),
            Err(failure) => {
                open.set(rank, Shard::Failed(snapshot));
                open.failure.get_or_insert(failure);
            }
        }
        self.advance(&key, now);
    }

    /// A node is gone with the snapshots in its memory.
    pub(super) fn lose_node(&mut self, node: NodeIndex) {
        let lost: Vec<_> = self.writes.extract_if(.., |_, (_, _, snapshot)| snapshot.node == node).collect();
        let mut steps: BTreeSet<StepKey> = lost.into_iter().map(|(_, (key, _, _))| key).collect();
        for key in &steps {
            let left = self.writes.values().filter(|(of, _, _)| of == key).count();
            if left == 0 {
                self.writes_of.remove(key);
            } else {
                self.writes_of.insert(key.clone(), left);
            }
        }
        let is_lost = |shard: &Shard| shard.unwritten().is_some_and(|snapshot| snapshot.node == node);
        steps.extend(self.open.iter().filter(|(_, open)| open.shards.iter().any(is_lost)).map(|(key, _)| key.clone()));
        for key in steps {
            if let Some(open) = self.open.get_mut(&key) {
                open.shards.iter_mut().filter(|shard| is_lost(shard)).for_each(|shard| *shard = Shard::Missing);
                self.abandon(&key, "a node was lost with its shard in memory".to_owned());
            }
        }
    }

    /// A commit ended.
    pub(super) fn commit_ended(&mut self, step: u64, result: Result<CommittedCheckpoint, CommitFailure>, now: Time) {
        let Some(commit) = self.commits.remove(&step) else { return };
        self.committing = None;
        let held = self.held.remove(&step);
        let failure = match result {
            Ok(checkpoint) => {
                let seconds = now.saturating_sub(commit.since).as_secs_f64();
                let blocked = commit.set.blocked;
                self.actions.push(LedgerAction::Committed { step, checkpoint, seconds, blocked });
                self.discard(self.attempt.clone(), step);
                if let Some(held) = held {
                    self.discard(held.set.attempt, step.saturating_add(1));
                }
                return;
            }
            Err(failure) => failure,
        };
        if failure.fenced {
            self.actions.push(LedgerAction::Fenced { error: failure.error });
        } else if !commit.retried && (failure.disk_full || commit.must) {
            self.commits.insert(step, Commit { retried: true, ..commit });
            if let Some(held) = held {
                self.held.insert(step, held);
            }
            if failure.disk_full {
                self.room_wanted.push_back(RoomFor::Commit(step));
            } else {
                self.commits_waiting.push_front(step);
            }
        } else if let Some(held) = held {
            self.discard(commit.set.attempt, step.saturating_add(1));
            self.commits.insert(step, held);
            self.commits_waiting.push_front(step);
        } else {
            self.discard(commit.set.attempt, step.saturating_add(1));
            self.actions.push(LedgerAction::Abandoned { step, error: failure.error });
        }
    }

    /// Old checkpoints were removed, or there was none to remove.
    pub(super) fn room_made(&mut self, removed: bool, now: Time) {
        match self.room_asked.take() {
            Some(RoomFor::Shards(key)) => {
                // A node may have been lost with a shard since.
                let Some(open) = self.open.get(&key) else { return };
                if removed || open.must {
                    self.retry(&key)
                } else {
                    self.abandon_failed(&key)
                }
                self.advance(&key, now);
            }
            Some(RoomFor::Commit(step)) => {
                let Some(commit) = self.commits.get(&step) else { return };
                if removed || commit.must {
                    self.commits_waiting.push_front(step);
                } else {
                    let error = "the disk is full".to_owned();
                    self.commit_ended(step, Err(CommitFailure { error, disk_full: true, fenced: false }), now);
                }
            }
            None => {}
        }
    }

    fn refuse(&mut self, report: &ShardReport) {
        if let ReportedShard::InMemory(snapshot) = report.shard {
            self.actions.push(LedgerAction::Release(snapshot));
        }
    }

    /// Gives up the oldest step when too many are open.
    fn make_place(&mut self) {
        let mut open = self.open.iter().filter(|(_, open)| open.missing > 0).map(|(key, _)| key);
        let oldest = open.next().cloned();
        if let Some(oldest) = oldest.filter(|_| open.count() + 1 >= STEPS_OPEN_MAX) {
            let error = format!("more than {STEPS_OPEN_MAX} checkpoints were begun and not all ranks wrote theirs");
            self.abandon(&oldest, error);
        }
    }

    /// Returns whether a step waits for room or is being tried again. Nothing else is written until that step has ended.
    fn is_short_of_room(&self) -> bool {
        let retried = self.open.values().any(|open| open.retried) || self.commits.values().any(|commit| commit.retried);
        retried || self.room_asked.is_some() || !self.room_wanted.is_empty()
    }

    /// Writes what waits in memory, unless the disk is behind.
    fn begin_writes(&mut self) {
        let tight = self.is_short_of_room();
        let mut busy = self.commits.len() + self.open.values().filter(|open| open.has_begun()).count();
        let mut begun = Vec::new();
        for (key, open) in &mut self.open {
            let may_begin = if tight { open.retried } else { open.has_begun() || busy < COMMITS_MAX };
            if !may_begin || open.in_memory == 0 {
                continue;
            }
            busy += usize::from(!open.has_begun());
            for (rank, shard) in (0..).zip(&mut open.shards) {
                if let Shard::Waiting(snapshot) = *shard {
                    *shard = Shard::Writing(snapshot);
                    begun.push((key.clone(), open.dir.clone(), rank, snapshot));
                }
            }
        }
        for (key, dir, rank, snapshot) in begun {
            self.writes.insert((snapshot.worker, snapshot.ticket), (key.clone(), rank, snapshot));
            *self.writes_of.entry(key).or_default() += 1;
            self.actions.push(LedgerAction::Persist { snapshot, dir, rank });
        }
    }

    /// Commits a step that all ranks have written, or tries again what could not be written.
    fn advance(&mut self, key: &StepKey, now: Time) {
        let Some(open) = self.open.get(key).filter(|open| open.missing == 0 && open.in_memory == 0) else { return };
        match &open.failure {
            None => {
                if let Some(open) = self.open.remove(key) {
                    self.commit(key, open, now);
                }
            }
            Some(_) if self.is_room_wanted(key) => {}
            Some(_) if open.retried => self.abandon_failed(key),
            Some(failure) if failure.disk_full => self.room_wanted.push_back(RoomFor::Shards(key.clone())),
            Some(_) if open.must => self.retry(key),
            Some(_) => self.abandon_failed(key),
        }
    }

    fn is_room_wanted(&self, key: &StepKey) -> bool {
        let wanted = RoomFor::Shards(key.clone());
        self.room_asked.as_ref() == Some(&wanted) || self.room_wanted.contains(&wanted)
    }

    fn retry(&mut self, key: &StepKey) {
        let Some(open) = self.open.get_mut(key) else { return };
        open.retried = true;
        open.failure = None;
        for shard in &mut open.shards {
            if let Shard::Failed(snapshot) = *shard {
                *shard = Shard::Waiting(snapshot);
                open.in_memory += 1;
            }
        }
    }

    fn commit(&mut self, key: &StepKey, open: OpenStep, now: Time) {
        let since = open.reported.unwrap_or(now);
        let must = open.must;
        let retried = open.retried;
        let commit = Commit { set: open.complete(key), since, must, retried };
        let step = key.1;
        match self.commits.entry(step) {
            Entry::Vacant(entry) => {
                entry.insert(commit);
                self.commits_waiting.push_back(step);
            }
            Entry::Occupied(_) => {
                if let Some(before) = self.held.insert(step, commit) {
                    self.discard(before.set.attempt, step.saturating_add(1));
                }
            }
        }
        self.bound_commits();
    }

    /// Gives up the oldest commit that can be, when too many wait: workers that write their shards themselves may be faster than commits.
    fn bound_commits(&mut self) {
        if self.commits_waiting.len() <= COMMITS_MAX {
            return;
        }
        let commits = &self.commits;
        let is_needed = |step: &u64| commits.get(step).is_some_and(|commit| commit.must || commit.retried);
        let oldest = self.commits_waiting.iter().position(|step| !is_needed(step) && !self.held.contains_key(step));
        let Some(step) = oldest.and_then(|index| self.commits_waiting.remove(index)) else { return };
        if let Some(commit) = self.commits.remove(&step) {
            self.discard(commit.set.attempt, step.saturating_add(1));
            let error = "too many commits are under way: the disk is too slow".to_owned();
            self.actions.push(LedgerAction::Abandoned { step, error });
        }
    }

    /// Asks for the next commit when none is under way, unless room is made for another step.
    fn begin_commit(&mut self) {
        if self.committing.is_some() {
            return;
        }
        let tight = self.is_short_of_room();
        let is_next = |step: &u64| self.commits.get(step).is_none_or(|commit| !tight || commit.retried);
        let next = self.commits_waiting.iter().position(is_next);
        let Some(step) = next.and_then(|index| self.commits_waiting.remove(index)) else { return };
        if let Some(commit) = self.commits.get(&step) {
            self.actions.push(LedgerAction::Commit(commit.set.clone()));
            self.committing = Some(step);
        }
    }

    /// Asks for room for the next step that needs it, when nothing else is being written.
    fn ask_for_room(&mut self) {
        let is_retried = self.open.values().any(|open| open.retried && open.in_memory > 0)
            || self.commits.iter().any(|(step, commit)| commit.retried && self.commits_waiting.contains(step));
        if is_retried || self.committing.is_some() || !self.writes.is_empty() {
            return;
        }
        while self.room_asked.is_none()
            && let Some(next) = self.room_wanted.pop_front()
        {
            let set = match &next {
                RoomFor::Shards(key) => self.open.get(key).map(|open| open.clone().complete(key)),
                RoomFor::Commit(step) => self.commits.get(step).map(|commit| commit.set.clone()),
            };
            if let Some(set) = set {
                self.actions.push(LedgerAction::MakeRoom(set));
                self.room_asked = Some(next);
            }
        }
    }

    fn abandon_failed(&mut self, key: &StepKey) {
        let failure = self.open.get(key).and_then(|open| open.failure.clone());
        self.abandon(key, failure.map_or_else(String::new, |failure| failure.error));
    }

    fn abandon(&mut self, key: &StepKey, error: String) {
        let step = key.1;
        let open = self.open.remove(key);
        if key.0 == self.attempt {
            self.settled = self.settled.max(Some(step));
        }
        self.actions.push(LedgerAction::Abandoned { step, error });
        // Workers that have not reported may still write.
        let all_reported = open.as_ref().is_some_and(|open| open.missing == 0);
        if let Some(open) = &open {
            self.release_unwritten(open);
        }
        self.discard(key.0.clone(), if all_reported { step.saturating_add(1) } else { step });
    }

    /// Lets go of what of a dropped step is in memory and is not being written.
    fn release_unwritten(&mut self, open: &OpenStep) {
        self.actions.extend(open.shards.iter().filter_map(Shard::unwritten).map(LedgerAction::Release));
    }

    fn discard(&mut self, attempt: String, below: u64) {
        if attempt.is_empty() || below == 0 {
            return;
        }
        let before = self.discards.entry(attempt).or_default();
        *before = below.max(*before);
    }

    /// Removes what nobody writes or commits any more.
    fn flush_discards(&mut self) {
        if self.discards.is_empty() {
            return;
        }
        let mut busy: BTreeMap<&str, u64> = BTreeMap::new();
        let steps = self.writes_of.keys().chain(self.open.keys()).map(|(attempt, step)| (attempt.as_str(), *step));
        let commits = self.commits.values().chain(self.held.values());
        let commits = commits.map(|commit| (commit.set.attempt.as_str(), commit.set.step));
        for (attempt, step) in steps.chain(commits) {
            let first = busy.entry(attempt).or_insert(step);
            *first = step.min(*first);
        }
        let is_free = |attempt: &String, below: u64| busy.get(attempt.as_str()).is_none_or(|first| *first >= below);
        let free: Vec<(String, u64)> = self
            .discards
            .iter()
            .filter(|(attempt, below)| is_free(attempt, **below))
            .map(|(attempt, below)| (attempt.clone(), *below))
            .collect();
        for (attempt, below) in free {
            self.discards.remove(&attempt);
            self.actions.push(LedgerAction::Discard { attempt, below });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Time = Time::ZERO;

    fn ledger(world: usize) -> CheckpointLedger {
        let mut ledger = CheckpointLedger::default();
        ledger.begin_round("1-a".to_owned(), world);
        ledger
    }

    fn table(rank: u32) -> ShardTable {
        ShardTable { file: format!("__{rank}_0.distcp"), ..ShardTable::default() }
    }

    fn report(rank: u32, step: u64) -> ShardReport {
        let dir = format!("/run/.step-{step}.tmp").into();
        let shard = ReportedShard::OnDisk(table(rank));
        ShardReport { rank, step, epoch: 1, dir, metric: (rank == 0).then_some(2.5), blocked: f64::from(rank), shard }
    }

    fn snapshot(rank: u32, ticket: u64) -> Snapshot {
        Snapshot { node: NodeIndex(rank), worker: WorkerId(rank), ticket, must: false }
    }

    fn in_memory(rank: u32, step: u64) -> ShardReport {
        ShardReport { shard: ReportedShard::InMemory(snapshot(rank, step)), ..report(rank, step) }
    }

    fn full() -> WriteFailure {
        WriteFailure { error: "the disk is full".to_owned(), disk_full: true }
    }

    fn committed(step: u64) -> Result<CommittedCheckpoint, CommitFailure> {
        Ok(CommittedCheckpoint { path: format!("/run/step-{step}").into(), bytes: 1, metric: None })
    }

    fn not_committed() -> Result<CommittedCheckpoint, CommitFailure> {
        Err(CommitFailure { error: "broken".to_owned(), disk_full: false, fenced: false })
    }

    /// Names of the actions, with the step where they have one.
    fn names(actions: &[LedgerAction]) -> Vec<String> {
        let name = |action: &LedgerAction| match action {
            LedgerAction::Persist { rank, .. } => format!("persist {rank}"),
            LedgerAction::Release(snapshot) => format!("release {}", snapshot.worker),
            LedgerAction::Commit(set) => format!("commit {} {}", set.attempt, set.step),
            LedgerAction::MakeRoom(set) => format!("room {}", set.step),
            LedgerAction::Discard { attempt, below } if *below == u64::MAX => format!("discard {attempt}"),
            LedgerAction::Discard { attempt, below } => format!("discard {attempt} below {below}"),
            LedgerAction::Abandoned { step, error } => format!("abandoned {step}: {error}"),
            LedgerAction::Committed { step, .. } => format!("committed {step}"),
            LedgerAction::Fenced { .. } => "fenced".to_owned(),
        };
        actions.iter().map(name).collect()
    }

    fn done(ledger: &mut CheckpointLedger) -> Vec<String> {
        names(&ledger.take_actions())
    }

    #[test]
    fn complete_when_all_ranks_reported_in_rank_order() {
        let mut ledger = ledger(3);
        [2, 0].into_iter().for_each(|rank| ledger.reported(report(rank, 10), NOW));
        assert!(ledger.take_actions().is_empty());
        ledger.reported(report(1, 10), NOW);
        let actions = ledger.take_actions();
        let [LedgerAction::Commit(set)] = &actions[..] else { panic!("{actions:?}") };
        assert_eq!((set.step, set.epoch, set.metric, set.blocked), (10, 1, Some(2.5), 2.0));
        let files: Vec<_> = set.tables.iter().map(|table| table.file.as_str()).collect();
        assert_eq!(files, ["__0_0.distcp", "__1_0.distcp", "__2_0.distcp"]);
        assert!(!ledger.is_idle());
        ledger.commit_ended(10, committed(10), NOW);
        assert_eq!(done(&mut ledger), ["committed 10", "discard 1-a below 10"]);
        assert!(ledger.is_idle());
    }

    #[test]
    fn one_failure_settles_the_step() {
        let mut ledger = ledger(2);
        ledger.reported(report(0, 10), NOW);
        ledger.failed(1, 10, "disk full");
        assert_eq!(done(&mut ledger), ["abandoned 10: rank 1: disk full", "discard 1-a below 10"]);
        ledger.reported(in_memory(1, 10), NOW);
        ledger.failed(0, 10, "again");
        assert_eq!(done(&mut ledger), ["release 1"]);
        [0, 1].into_iter().for_each(|rank| ledger.reported(report(rank, 20), NOW));
        assert_eq!(done(&mut ledger), ["commit 1-a 20"]);
    }

    #[test]
    fn contradictions_abandon() {
        let mut ledger = ledger(2);
        let abandoned = |ledger: &mut CheckpointLedger, what: &str| {
            let found = done(ledger);
            assert!(found.iter().any(|line| line.starts_with("abandoned") && line.contains(what)), "{found:?}");
        };
        [0, 0].into_iter().for_each(|rank| ledger.reported(report(rank, 1), NOW));
        abandoned(&mut ledger, "twice");
        ledger.reported(report(0, 2), NOW);
        ledger.reported(ShardReport { dir: "/elsewhere".into(), ..report(1, 2) }, NOW);
        abandoned(&mut ledger, "/elsewhere");
        ledger.reported(report(7, 3), NOW);
        abandoned(&mut ledger, "not in the round");
    }

    #[test]
    fn open_steps_are_bounded() {
        let mut ledger = ledger(2);
        (1..=STEPS_OPEN_MAX as u64).for_each(|step| ledger.reported(report(0, step), NOW));
        assert!(ledger.take_actions().is_empty());
        ledger.reported(report(0, 100), NOW);
        assert!(done(&mut ledger)[0].starts_with("abandoned 1: more than 4"));
        ledger.reported(report(1, 2), NOW);
        assert_eq!(done(&mut ledger), ["commit 1-a 2"]);
    }

    #[test]
    fn what_is_in_memory_is_written_and_committed_though_the_round_is_over() {
        let mut ledger = ledger(2);
        [0, 1].into_iter().for_each(|rank| ledger.reported(in_memory(rank, 5), NOW));
        ledger.reported(in_memory(0, 6), NOW);
        assert_eq!(done(&mut ledger), ["persist 0", "persist 1", "persist 0"]);
        ledger.end_round();
        assert!(ledger.take_actions().is_empty(), "nodes still write there");
        assert!(!ledger.is_idle());
        ledger.written(WorkerId(0), 5, Ok(table(0)), NOW);
        ledger.written(WorkerId(1), 5, Ok(table(1)), NOW);
        ledger.written(WorkerId(0), 6, Ok(table(0)), NOW);
        assert_eq!(done(&mut ledger), ["commit 1-a 5"]);
        ledger.commit_ended(5, committed(5), NOW);
        assert_eq!(done(&mut ledger), ["committed 5", "discard 1-a"]);
    }

    #[test]
    fn a_full_disk_is_tried_again_when_an_old_checkpoint_went() {
        for (removed, then) in [(true, "persist 1"), (false, "abandoned 5: the disk is full")] {
            let mut ledger = ledger(2);
            [0, 1].into_iter().for_each(|rank| ledger.reported(in_memory(rank, 5), NOW));
            ledger.take_actions();
            ledger.written(WorkerId(1), 5, Err(full()), NOW);
            ledger.take_actions();
            ledger.written(WorkerId(0), 5, Ok(table(0)), NOW);
            assert_eq!(done(&mut ledger), ["room 5"]);
            ledger.room_made(removed, NOW);
            let found = done(&mut ledger);
            assert_eq!(found[0], then);
            assert!(removed || found.contains(&"release 1".to_owned()), "{found:?}");
            ledger.written(WorkerId(1), 5, Err(full()), NOW);
            let found = done(&mut ledger);
            let again = ["abandoned 5: the disk is full", "release 1", "discard 1-a below 6"];
            assert!(if removed { found == again } else { found.is_empty() }, "{found:?}");
        }
    }

    #[test]
    fn the_room_that_was_made_for_a_step_is_not_taken_by_the_next() {
        let mut ledger = ledger(1);
        [5, 6].into_iter().for_each(|step| ledger.reported(in_memory(0, step), NOW));
        assert_eq!(done(&mut ledger), ["persist 0", "persist 0"]);
        ledger.written(WorkerId(0), 5, Ok(table(0)), NOW);
        assert_eq!(done(&mut ledger), ["commit 1-a 5"]);
        let disk_full = Err(CommitFailure { error: "full".to_owned(), disk_full: true, fenced: false });
        ledger.commit_ended(5, disk_full, NOW);
        ledger.reported(in_memory(0, 7), NOW);
        assert!(ledger.take_actions().is_empty(), "step 6 is being written");
        ledger.written(WorkerId(0), 6, Ok(table(0)), NOW);
        assert_eq!(done(&mut ledger), ["room 5"]);
        ledger.room_made(true, NOW);
        assert_eq!(done(&mut ledger), ["commit 1-a 5"]);
        ledger.commit_ended(5, committed(5), NOW);
        assert_eq!(done(&mut ledger), ["committed 5", "discard 1-a below 5", "persist 0", "commit 1-a 6"]);
    }

    #[test]
    fn shards_stay_in_memory_while_the_disk_is_behind() {
        let mut ledger = ledger(1);
        for step in 1..=COMMITS_MAX as u64 + 2 {
            ledger.reported(in_memory(0, step), NOW);
            let found = done(&mut ledger);
            assert_eq!(found.contains(&"persist 0".to_owned()), step <= COMMITS_MAX as u64, "{step}: {found:?}");
            ledger.written(WorkerId(0), step, Ok(table(0)), NOW);
        }
        let mut found = Vec::new();
        for step in 1..=COMMITS_MAX as u64 + 2 {
            ledger.commit_ended(step, committed(step), NOW);
            found.extend(done(&mut ledger));
            ledger.written(WorkerId(0), step + COMMITS_MAX as u64, Ok(table(0)), NOW);
        }
        let saved = found.iter().filter(|line| line.starts_with("committed")).count();
        assert_eq!(saved, COMMITS_MAX + 2, "{found:?}");
        assert!(ledger.is_idle());
    }

    #[test]
    fn of_too_many_commits_the_oldest_is_given_up() {
        let mut ledger = ledger(1);
        for step in 1..=COMMITS_MAX as u64 + 2 {
            ledger.reported(report(0, step), NOW);
            let found = done(&mut ledger);
            let given_up = found.iter().any(|line| line.starts_with("abandoned 2: too many commits"));
            assert_eq!(given_up, step == COMMITS_MAX as u64 + 2, "{step}: {found:?}");
        }
        ledger.commit_ended(1, committed(1), NOW);
        assert_eq!(done(&mut ledger), ["committed 1", "discard 1-a below 3", "commit 1-a 3"]);
    }

    #[test]
    fn a_checkpoint_that_must_be_is_tried_once_more() {
        let mut ledger = ledger(1);
        let must = Snapshot { must: true, ..snapshot(0, 5) };
        ledger.reported(ShardReport { shard: ReportedShard::InMemory(must), ..report(0, 5) }, NOW);
        assert_eq!(done(&mut ledger), ["persist 0"]);
        let broken = WriteFailure { error: "broken".to_owned(), disk_full: false };
        ledger.written(WorkerId(0), 5, Err(broken), NOW);
        assert_eq!(done(&mut ledger), ["persist 0"]);
        ledger.written(WorkerId(0), 5, Ok(table(0)), NOW);
        assert_eq!(done(&mut ledger), ["commit 1-a 5"]);
        ledger.commit_ended(5, not_committed(), NOW);
        assert_eq!(done(&mut ledger), ["abandoned 5: broken", "discard 1-a below 6"]);
    }

    #[test]
    fn a_step_that_a_later_round_saves_again_waits_for_the_first_commit() {
        for (first, then) in [(committed(5), "committed 5"), (not_committed(), "commit 2-a 5")] {
            let mut ledger = ledger(1);
            ledger.reported(report(0, 5), NOW);
            ledger.begin_round("2-a".to_owned(), 1);
            ledger.reported(report(0, 5), NOW);
            assert_eq!(done(&mut ledger), ["commit 1-a 5"]);
            ledger.commit_ended(5, first, NOW);
            let found = done(&mut ledger);
            assert!(found.contains(&then.to_owned()), "{found:?}");
        }
    }

    #[test]
    fn a_node_that_is_lost_takes_its_shards_along() {
        let mut ledger = ledger(2);
        [0, 1].into_iter().for_each(|rank| ledger.reported(in_memory(rank, 5), NOW));
        ledger.take_actions();
        ledger.lose_node(NodeIndex(1));
        assert_eq!(done(&mut ledger), ["abandoned 5: a node was lost with its shard in memory"]);
        ledger.written(WorkerId(0), 5, Ok(table(0)), NOW);
        assert_eq!(done(&mut ledger), ["discard 1-a below 6"]);
    }

    proptest! {
        #[test]
        fn never_two_verdicts_for_a_step(reports in proptest::collection::vec((0u32..3, 1u64..6, any::<bool>()), 0..80)) {
            let mut ledger = ledger(3);
            let mut seen = BTreeSet::new();
            for (rank, step, fails) in reports {
                if fails { ledger.failed(rank, step, "x") } else { ledger.reported(report(rank, step), NOW) }
                for action in ledger.take_actions() {
                    let step = match action {
                        LedgerAction::Commit(set) => {
                            prop_assert_eq!(set.tables.len(), 3);
                            set.step
                        }
                        LedgerAction::Abandoned { step, .. } => step,
                        _ => continue,
                    };
                    prop_assert!(seen.insert(step));
                }
                prop_assert!(ledger.open.len() <= STEPS_OPEN_MAX);
            }
        }
    }
}
