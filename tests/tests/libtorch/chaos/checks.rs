//! What must hold when a disturbed run is over: its weights, what it left behind, and what its journal says.

use super::{
    driver::{self, Launch},
    schedule::{Schedule, Shape},
};
use enn_common::{
    checkpoint::name,
    event::{Event, EventKind},
    metrics::Metrics,
};
use enn_tests::{data, leavings};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
    rc::Rc,
    time::Instant,
};

/// Relative difference of errors between worlds of different sizes: sums of gradients are rounded in another order, and a
/// hundred steps carry that on.
const ROUNDING: f64 = 2e-3;
/// A recovery takes no longer; seconds.
const RECOVERY_MAX_S: f64 = 60.0;
/// Launches of one run, at most.
const LAUNCHES_MAX: usize = 8;
/// An undisturbed run takes no longer, several of them at once and on two cores; seconds. Where one does, all that is waited for
/// may take so many times longer.
const CALM_S: f64 = 10.0;
/// How many times as slow a machine may be.
const SLOWEST: f64 = 20.0;
/// What training ended with.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Weights {
    split: BTreeMap<String, Metrics>,
    step: u64,
    bytes: BTreeMap<String, Vec<u8>>,
}

/// Undisturbed runs by shape, made when asked for.
#[derive(Default)]
pub(super) struct References {
    made: RefCell<HashMap<Shape, Rc<Weights>>>,
    /// Time of the slowest one, seconds.
    longest: Cell<f64>,
}

impl References {
    fn of(&self, shape: Shape) -> Rc<Weights> {
        let make = || {
            let began = Instant::now();
            let weights = Trial::run(&Schedule::calm(shape), SLOWEST).weights();
            self.longest.set(self.longest.get().max(began.elapsed().as_secs_f64()));
            Rc::new(weights)
        };
        self.made.borrow_mut().entry(shape).or_insert_with(make).clone()
    }

    /// How many times as slow as it may be this machine is found to be, 1 at least, when an undisturbed run of that shape was made.
    pub(super) fn slowness(&self, shape: Shape) -> f64 {
        self.of(shape);
        (self.longest.get() / CALM_S).clamp(1.0, SLOWEST)
    }
}

/// A run that is over, with all its launches.
pub(super) struct Trial {
    schedule: Schedule,
    slowness: f64,
    dir: tempfile::TempDir,
    launches: Vec<Launch>,
}

impl Trial {
    /// Runs a schedule to its end, on a machine that is so slow: what is cut short is resumed.
    pub(super) fn run(schedule: &Schedule, slowness: f64) -> Self {
        let dir = tempfile::Builder::new().prefix("ec").tempdir().unwrap();
        fs::create_dir(dir.path().join("tmp")).unwrap();
        data::write(dir.path());
        let mut trial = Self { schedule: schedule.clone(), slowness, dir, launches: Vec::new() };
        let longest = driver::LAUNCH_MAX.mul_f64(slowness);
        let mut faults = schedule.faults.clone();
        loop {
            let run = trial.run_dir();
            let launch = driver::launch(trial.dir.path(), (schedule, longest), &faults, run.as_deref());
            faults.clone_from(&launch.left);
            let cut = launch.cut && launch.code != Some(0);
            trial.launches.push(launch);
            assert!(leavings::nobody_is_left(trial.dir.path()), "processes outlive the launch: {}", trial.told());
            if !cut {
                return trial;
            }
            assert!(trial.launches.len() < LAUNCHES_MAX, "{}", trial.told());
        }
    }

    fn run_dir(&self) -> Option<PathBuf> {
        leavings::run_in(&self.dir.path().join("runs"))
    }

    /// The longest time in which nothing was told, seconds.
    pub(super) fn longest_silence(&self) -> f64 {
        let gaps = self.launches.iter().flat_map(|launch| launch.events.windows(2));
        gaps.map(|two| two[1].time - two[0].time).fold(0.0, f64::max)
    }

    /// For the message of a failure, or of a run that was slow.
    pub(super) fn told(&self) -> String {
        let launches = self.launches.iter().map(|launch| {
            let lines = launch.events.iter().filter(|event| !matches!(event.what, EventKind::Stepped { .. }));
            let lines: Vec<String> = lines.map(|event| format!("{:.3} {:?}", event.time, event.what)).collect();
            format!("{}\ncode {:?}; killed {:?}\n{}", lines.join("\n"), launch.code, launch.killed, launch.stderr)
        });
        format!("{}\n{}", self.schedule, launches.collect::<Vec<_>>().join("\n--- resumed\n"))
    }

    /// The state of the newest checkpoint, and the errors that the journal tells.
    pub(super) fn weights(&self) -> Weights {
        let last = self.launches.last().unwrap();
        assert_eq!(last.code, Some(0), "{}", self.told());
        let trained = last.events.iter().find_map(|event| match &event.what {
            EventKind::Trained { step, split, .. } => Some((*step, split.clone())),
            _ => None,
        });
        let (step, split) = trained.unwrap_or_else(|| panic!("no end of training: {}", self.told()));
        Weights { split, step, bytes: leavings::weights(&self.run_dir().unwrap()) }
    }

    /// All that must hold.
    pub(super) fn check(&self, references: &References) {
        let own = self.weights();
        leavings::every_row_once_per_epoch(&self.run_dir().unwrap(), data::EPOCHS, || self.told());
        let expected = references.of(self.schedule.shape);
        assert_eq!(own.step, expected.step, "{}", self.told());
        let of_one_size = self.always_of_one_size();
        if of_one_size || self.schedule.fewest.is_none() {
            let other = own.bytes.iter().find(|(name, bytes)| expected.bytes.get(*name) != Some(bytes));
            let differs = other.map(|(name, _)| name);
            assert!(differs.is_none(), "{differs:?} differs: {}", self.told());
        }
        if of_one_size {
            assert!(own == *expected, "the errors differ: {}", self.told());
        } else {
            // Fewer workers may have evaluated what all have trained: survivors of a run that is stopped do.
            self.check_rounding(&own, &expected);
        }
        self.check_nothing_is_left();
        self.check_journal();
    }

    fn always_of_one_size(&self) -> bool {
        let worlds = self.all().filter_map(|event| match event.what {
            EventKind::RoundStarted { world_size, .. } => Some(world_size),
            _ => None,
        });
        worlds.into_iter().all(|world| world == self.schedule.shape.workers)
    }

    fn check_rounding(&self, own: &Weights, expected: &Weights) {
        assert_eq!(own.bytes.keys().collect::<Vec<_>>(), expected.bytes.keys().collect::<Vec<_>>());
        for (split, metrics) in &expected.split {
            let found = own.split[split];
            for (found, expected) in [(found.mae, metrics.mae), (found.rmse, metrics.rmse)] {
                let off = (found / expected - 1.0).abs();
                assert!(off <= ROUNDING, "{split}: {found} for {expected}, off by {off:e}: {}", self.told());
            }
            assert_eq!(found.n, metrics.n);
        }
    }

    fn check_nothing_is_left(&self) {
        let left = names(&self.dir.path().join("tmp"));
        assert!(left.is_empty(), "left where sockets are: {left:?}: {}", self.told());
        let left: Vec<String> = names(&self.run_dir().unwrap().join("checkpoints"))
            .into_iter()
            .filter(|name| name::is_leftover(name))
            .collect();
        assert!(left.is_empty(), "left among the checkpoints: {left:?}: {}", self.told());
    }

    fn all(&self) -> impl Iterator<Item = &Event> {
        self.launches.iter().flat_map(|launch| &launch.events)
    }

    fn check_journal(&self) {
        let mut round_next = None;
        let mut cut_before = false;
        for launch in &self.launches {
            let whole = launch.code.is_some();
            check_processes(launch, whole).unwrap_or_else(|error| panic!("{error}: {}", self.told()));
            check_rounds(launch, &mut round_next, cut_before)
                .unwrap_or_else(|error| panic!("{error}: {}", self.told()));
            cut_before = !whole;
            let recovery_max_s = RECOVERY_MAX_S * self.slowness;
            check_recoveries(launch, recovery_max_s).unwrap_or_else(|error| panic!("{error}: {}", self.told()));
        }
        // What was printed is what is kept; a killed launch may have written a line that nobody read.
        let text = fs::read_to_string(self.run_dir().unwrap().join("events.jsonl")).unwrap();
        let kept: Vec<Event> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        // As text: a rate that is no number equals itself there.
        let text = |event: &Event| serde_json::to_string(event).unwrap();
        if self.launches.iter().all(|launch| launch.code.is_some()) {
            assert!(
                kept.iter().map(text).eq(self.all().map(text)),
                "the journal is not what was told: {}",
                self.told()
            );
        }
    }
}

/// Every process has one beginning and, unless its launcher was killed, one end; those we killed died by it.
fn check_processes(launch: &Launch, whole: bool) -> Result<(), String> {
    let mut living = BTreeSet::new();
    let mut by_kill = BTreeSet::new();
    let mut done = false;
    for event in &launch.events {
        match &event.what {
            EventKind::WorkerStarted { pid, .. } | EventKind::SpareStarted { pid, .. } => {
                let fresh = living.insert(*pid);
                if !fresh {
                    return Err(format!("process {pid} is started twice"));
                }
            }
            EventKind::WorkerExited { pid, signal, .. } | EventKind::SpareEnded { pid, signal, .. } => {
                if !living.remove(pid) {
                    return Err(format!("process {pid} ends without a beginning, or twice"));
                }
                // One that had done its work may end of itself while the signal is on its way.
                by_kill.extend((*signal == Some(9) || done).then_some(*pid));
            }
            EventKind::WorkerDismissed { pid, .. } => {
                let lived = living.remove(pid);
                if !lived {
                    return Err(format!("process {pid} is dismissed without a beginning, or twice"));
                }
            }
            EventKind::Trained { .. } => done = true,
            _ => {}
        }
        if let EventKind::SeatTaken { pid, .. } | EventKind::SpareReady { pid, .. } = &event.what
            && !living.contains(pid)
        {
            return Err(format!("process {pid} has a seat or is warm, and does not live"));
        }
    }
    if whole && !living.is_empty() {
        return Err(format!("no end of {living:?} is told"));
    }
    match launch.killed.iter().find(|pid| whole && !by_kill.contains(pid)) {
        Some(pid) => Err(format!("{pid} was killed, and the journal does not say so")),
        None => Ok(()),
    }
}

/// Rounds are numbered without gaps, and counted at the end as they were. A launch that was killed may have begun one more
/// than it came to tell.
fn check_rounds(launch: &Launch, next: &mut Option<u64>, cut_before: bool) -> Result<(), String> {
    let whole = launch.code.is_some();
    let mut rounds = 0;
    let mut restarts = 0;
    for event in &launch.events {
        match &event.what {
            EventKind::RoundStarted { round, .. } => {
                if next.is_some_and(|next| next != round.0 && !(rounds == 0 && cut_before && next + 1 == round.0)) {
                    return Err(format!("round {round} follows round {:?}", next.map(|next| next - 1)));
                }
                *next = Some(round.0 + 1);
                rounds += 1;
            }
            EventKind::RoundFailed { restarting: true, .. } => restarts += 1,
            EventKind::RunEnded { rounds: told, restarts: told_restarts, code, .. } => {
                if (*told, *told_restarts) != (rounds, restarts) {
                    return Err(format!(
                        "{rounds} rounds and {restarts} restarts, told are {told} and {told_restarts}"
                    ));
                }
                if Some(i32::from(*code)) != launch.code {
                    return Err(format!("code {:?}, told is {code}", launch.code));
                }
            }
            _ => {}
        }
    }
    let ended = launch.events.iter().filter(|event| matches!(event.what, EventKind::RunEnded { .. })).count();
    if whole && ended != 1 {
        return Err(format!("{ended} ends are told"));
    }
    match launch.events.windows(2).find(|two| two[1].time < two[0].time) {
        Some(two) => Err(format!("time goes back: {two:?}")),
        None => Ok(()),
    }
}

/// A recovery belongs to a round that began after a failure, each is told once, and only after one.
fn check_recoveries(launch: &Launch, recovery_max_s: f64) -> Result<(), String> {
    let mut round = None;
    let mut failed = false;
    let mut steps = 0;
    for event in &launch.events {
        match &event.what {
            EventKind::RoundStarted { round: begun, .. } => round = Some(*begun),
            EventKind::WorkerExited { code, .. } if *code != Some(0) => failed = true,
            EventKind::Recovered { round: of, seconds, .. } => {
                if !failed || Some(*of) != round || !(0.0..recovery_max_s).contains(seconds) {
                    return Err(format!(
                        "a recovery without a failure before it, or of another round: {:?}",
                        event.what
                    ));
                }
                failed = false;
            }
            EventKind::Stepped { step, .. } => {
                if *step < steps
                    && launch.events.iter().all(|event| !matches!(event.what, EventKind::RoundFailed { .. }))
                {
                    return Err(format!("step {step} after step {steps}, and nothing was restarted"));
                }
                steps = *step;
            }
            _ => {}
        }
    }
    Ok(())
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
