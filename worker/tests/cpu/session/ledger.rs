//! Every training row counts exactly once per epoch, in the steps of an undisturbed training, whatever happens to workers: proved
//! from the ledgers of real processes that are killed at random moments, replaced, joined by others, stopped and resumed.

use crate::session::{
    data::{commit_last, config, divide, weighted},
    process::{Run, Worker},
};
use enn_common::{
    config::RunConfig,
    ledger::{FOLDER, Line},
    staged::{Split, Staged},
    wire::message::{Assignment, FromWorker, Standby, ToWorker, WorkerTask},
};
use enn_worker::{
    data::{Position, RowIndex, Sampler},
    session::dataset::Dataset,
};
use nix::sys::signal::Signal;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// Longest time a round is left alone, milliseconds.
const QUIET_MAX: u64 = 300;

/// A launcher that knows no mercy.
pub(crate) struct Chaos {
    pub(crate) run: Run,
    pub(crate) workers: Vec<Worker>,
    random: u64,
    names: u32,
    round: u64,
    task: WorkerTask,
}

impl Chaos {
    pub(crate) fn of(config: &RunConfig, seed: u64) -> Self {
        let run = Run::of(config);
        let task = WorkerTask::Train { staged: run.staged.clone(), resume: None, attempt: "first".to_owned() };
        Self { run, workers: Vec::new(), random: seed, names: 0, round: 0, task }
    }

    /// A number below `end`.
    fn random(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.random >> 33) % end
    }

    pub(crate) fn fork(&mut self) -> Worker {
        self.names += 1;
        Worker::fork(self.run.dir.path(), self.names)
    }

    fn spare(&mut self) -> Worker {
        let mut spare = self.fork();
        let run_dir = self.run.dir.path().to_owned();
        let staged = self.run.staged.clone();
        let store_host = "127.0.0.1".into();
        let store_port = self.run.store.addr().port();
        let local_rank = 1;
        let world_size = 2;
        let threads = 1;
        let device = "cpu".into();
        let standby = Standby { device, local_rank, world_size, store_host, store_port, threads, run_dir, staged };
        spare.send(&ToWorker::Stand(Box::new(standby)));
        assert_eq!(spare.next(), Some(FromWorker::Warm));
        spare
    }

    /// Begins the next round with all workers.
    pub(crate) fn begin(&mut self) {
        let world = self.workers.len() as u32;
        for (rank, worker) in (0..).zip(&mut self.workers) {
            let seat = self.run.assignment(rank, world);
            // Micro-batches cut in two, as after a loss of workers, change nothing.
            let split = 1 + (self.round % 2) as u32;
            worker.seat(&Assignment { round: self.round, task: self.task.clone(), split, ..seat });
        }
    }

    /// Lets the round run: to its first step, or from the very beginning, and then for a random time.
    fn let_run(&mut self) {
        if self.random(4) > 0 {
            self.step();
        }
        let end = Instant::now() + Duration::from_millis(self.random(QUIET_MAX));
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            let told = self.workers[0].next_within(left);
            assert!(!matches!(told, Some(FromWorker::Failed { .. } | FromWorker::Trained { .. })), "{told:?}");
        }
    }

    /// Until a step is done.
    pub(crate) fn step(&mut self) {
        self.workers[0].until(|m| matches!(m, FromWorker::Stepped { .. }));
    }

    /// Kills a worker and ends the round for the others.
    pub(crate) fn kill(&mut self) {
        let victim = self.random(self.workers.len() as u64) as usize;
        let worker = self.workers.remove(victim);
        worker.signal(Signal::SIGKILL);
        drop(worker);
        let steps: BTreeSet<u64> = self.workers.iter_mut().map(|worker| worker.end_round(self.round)).collect();
        assert!(steps.last().unwrap() - steps.first().unwrap() <= 1, "{steps:?}");
        self.round += 1;
    }

    /// All workers die; new ones go on from `resume`.
    pub(crate) fn restart(&mut self, resume: PathBuf, attempt: &str) {
        self.workers.clear();
        self.workers = vec![self.fork(), self.fork()];
        let resume = Some(resume);
        let attempt = attempt.to_owned();
        self.task = WorkerTask::Train { staged: self.run.staged.clone(), resume, attempt };
        self.round += 1;
    }

    /// The next round saves where the workers that are left stand, and trains no further.
    pub(crate) fn save(&mut self, attempt: &str) {
        self.task = WorkerTask::Save { attempt: attempt.to_owned() };
    }

    /// All leave, at the same step; the next round begins with one more.
    fn grow(&mut self) {
        let asked = self.random(self.workers.len() as u64) as usize;
        self.workers[asked].ask_to_leave(true);
        let steps: BTreeSet<u64> = self.workers.iter_mut().map(|worker| worker.halted(self.round)).collect();
        assert_eq!(steps.len(), 1, "{steps:?}");
        self.workers[asked].ask_to_leave(false);
        let newcomer = self.fork();
        self.workers.push(newcomer);
        self.round += 1;
    }

    /// What the workers tell until they end.
    pub(crate) fn ends(&mut self) -> Vec<FromWorker> {
        let told = self.workers.iter_mut().flat_map(Worker::rest).collect();
        assert!(self.workers.iter_mut().all(|worker| worker.status().success()));
        told
    }

    fn lines(&self) -> Vec<Line> {
        let files = std::fs::read_dir(self.run.dir.path().join(FOLDER)).unwrap();
        let text = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        text.flat_map(|text| Line::decode_all(&text).unwrap()).collect()
    }
}

/// The rows of each step in each round in which it was done.
fn used(lines: &[Line]) -> BTreeMap<u64, BTreeMap<u64, Vec<i64>>> {
    let mut all: BTreeMap<u64, BTreeMap<u64, Vec<i64>>> = BTreeMap::new();
    for line in lines {
        if let Line::Done { done, round, .. } = line {
            all.entry(*done).or_default().entry(*round).or_default();
        }
    }
    for line in lines {
        if let Line::Begun { round, step, rows, .. } = line
            && let Some(used) = all.get_mut(step).and_then(|rounds| rounds.get_mut(round))
        {
            used.extend(rows);
        }
    }
    all
}

/// Proves that every step was done with the rows of the undisturbed training, and every row once per epoch, or every source as often
/// as it weighs.
pub(crate) fn prove(config: &RunConfig, chaos: &Chaos) {
    let staged = Staged::open(&chaos.run.staged).unwrap();
    let index = RowIndex::of_split(staged.split(), Split::Train as u8);
    let rows = index.len();
    let batch = config.train.batch as u64;
    let mix = Dataset::open(&chaos.run.staged).unwrap().mix(config).unwrap();
    let order = Sampler { rows, batch, seed: config.seed, rank: 0, world: 1, accumulation: 1, mix };
    let mut used = used(&chaos.lines());
    let steps = config.train.epochs * order.steps_per_epoch();
    assert_eq!(used.keys().copied().collect::<Vec<_>>(), (1..=steps).collect::<Vec<_>>());
    let mut position = Position::default();
    let mut epoch: Vec<i64> = Vec::new();
    for step in 1..=steps {
        let id = |ordinal: u64| staged.row_id()[index.at(ordinal) as usize];
        let mut expected: Vec<i64> = order.global(position).into_iter().map(id).collect();
        expected.sort_unstable();
        let rounds = used.get_mut(&step).unwrap();
        for (round, found) in &mut *rounds {
            found.sort_unstable();
            assert_eq!(*found, expected, "step {step} in round {round}");
        }
        epoch.extend(rounds.last_entry().unwrap().get());
        position = order.after(position);
        if position.step == 0 {
            epoch.sort_unstable();
            let mut all: Vec<i64> = (0..rows).map(id).collect();
            all.sort_unstable();
            if let Some(mix) = &order.mix {
                // Of the rows of the second source, which come last, two thirds of the epoch.
                let [first, _, _, draws] = mix.numbers()[..] else { panic!("two sources") };
                let second: BTreeSet<i64> = (first as u64..rows).map(id).collect();
                assert_eq!(epoch.iter().filter(|id| second.contains(id)).count() as i64, draws);
                assert_eq!((epoch.len(), draws), (all.len(), 2 * rows as i64 / 3));
            } else {
                assert_eq!(epoch, all, "every row once in epoch {}", position.epoch);
            }
            epoch.clear();
        }
    }
}

#[test]
fn every_row_counts_once_per_epoch_whatever_happens_to_workers() {
    for seed in [1, 2, 3] {
        let mut config = config(90);
        config.train.ledger = true;
        let has_sources = seed == 3;
        if has_sources {
            config = weighted(config, [1.0, 2.0]);
        }
        let mut chaos = Chaos::of(&config, seed);
        if has_sources {
            divide(&chaos.run.staged);
        }
        // Two and a spare, which takes the seat of one that dies.
        chaos.workers = vec![chaos.fork(), chaos.fork()];
        chaos.begin();
        let spare = chaos.spare();
        chaos.let_run();
        chaos.kill();
        let seat = chaos.random(2) as usize;
        chaos.workers.insert(seat, spare);
        chaos.begin();
        chaos.let_run();
        // Three, then two.
        chaos.grow();
        chaos.begin();
        chaos.let_run();
        chaos.kill();
        chaos.begin();
        chaos.let_run();
        // Stopped with a checkpoint, and resumed.
        chaos.workers[0].page.word32(8).unwrap().store(1, Ordering::Relaxed);
        let told = chaos.ends();
        let checkpoint = commit_last(&told, &config, &chaos.run.staged);
        chaos.restart(checkpoint.clone(), "second");
        chaos.begin();
        chaos.step();
        chaos.let_run();
        chaos.kill();
        chaos.begin();
        chaos.let_run();
        // The last one dies, too: what was done since the checkpoint is done again.
        chaos.restart(checkpoint, "third");
        chaos.begin();
        chaos.let_run();
        chaos.kill();
        chaos.begin();
        chaos.ends();
        let again = used(&chaos.lines()).values().any(|rounds| rounds.len() > 1);
        assert!(again, "steps since the checkpoint were done again");
        prove(&config, &chaos);
    }
}

#[test]
fn without_a_wish_for_it_there_is_no_ledger() {
    let config = config(1);
    let mut chaos = Chaos::of(&config, 1);
    chaos.workers = vec![chaos.fork()];
    chaos.begin();
    chaos.ends();
    assert!(!chaos.run.dir.path().join(FOLDER).exists());
}
