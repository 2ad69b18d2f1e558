//! What a seed stands for: the shape of a run, and the faults it meets.

use enn_tests::data::mix;
use std::fmt;

/// When a fault comes: a happening, and a little later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    /// The first workers are started; they are not ready.
    Starting,
    /// A step with at least this number was done.
    Step(u64),
    /// An epoch with at least this number ended: it was validated, and is being saved.
    Saving(u64),
    /// One step before the end of an epoch: validation comes.
    Validating(u64),
    /// A round was left, or a round but the first begins: the others meet again.
    Regrouping,
    /// A spare is warm.
    SpareWarm,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    KillOne,
    KillTwo,
    KillFirst,
    KillSpare,
    KillAll,
    /// SIGSTOP for so many milliseconds.
    Pause(u64),
    /// SIGKILL of enn itself; the run is then resumed.
    KillEnn,
    /// SIGTERM or SIGINT to enn; the run is then resumed.
    Interrupt(bool),
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) moment: Moment,
    /// Milliseconds after it.
    pub(super) delay_ms: u64,
    pub(super) deed: Deed,
    /// Chooses the victims.
    pub(super) pick: u64,
}

/// Runs with the same of these have the same weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) workers: u32,
    pub(super) gloo: bool,
}

/// A run and its faults, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Schedule {
    pub(super) seed: u64,
    pub(super) shape: Shape,
    pub(super) spares: u32,
    /// The fewest workers with which a round goes on at once; `None`: all.
    pub(super) fewest: Option<u32>,
    pub(super) faults: Vec<Fault>,
}

struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(mix(self.0)) % end
    }
}

/// Seeds from this one on are of runs that are stopped in a recovery.
pub(super) const STOPS_IN_RECOVERY: u64 = 1_000_000;

impl Schedule {
    pub(super) fn of(seed: u64) -> Self {
        let mut draw = Draw(mix(seed) << 16);
        let workers = [2, 2, 3, 4][draw.below(4) as usize];
        let shape = Shape { workers, gloo: draw.below(3) == 0 };
        let spares = draw.below(3) as u32;
        let fewest = (draw.below(3) == 0).then(|| 1 + draw.below(workers.into()) as u32);
        let count = 1 + draw.below(3);
        if seed >= STOPS_IN_RECOVERY {
            return Self { seed, shape, spares, fewest: None, faults: stop_in_recovery(&mut draw) };
        }
        // By turns, so that each kind is there whatever the draws are.
        let mut faults: Vec<Fault> = Vec::new();
        for which in 0..count {
            let turn = seed.wrapping_mul(5).wrapping_add(which * 3);
            faults.push(fault(&mut draw, turn, faults.last()));
        }
        Self { seed, shape, spares, fewest, faults }
    }

    /// An undisturbed run.
    pub(super) fn calm(shape: Shape) -> Self {
        Self { seed: 0, shape, spares: 0, fewest: None, faults: Vec::new() }
    }
}

fn fault(draw: &mut Draw, turn: u64, before: Option<&Fault>) -> Fault {
    let deed = match turn % 12 {
        0..=2 => Deed::KillOne,
        3 => Deed::KillTwo,
        4 | 5 => Deed::KillFirst,
        6 => Deed::KillSpare,
        7 => Deed::KillAll,
        8 | 9 => Deed::Pause(50 + draw.below(350)),
        10 => Deed::KillEnn,
        _ => Deed::Interrupt(draw.below(2) == 0),
    };
    let moment = match draw.below(12) {
        _ if deed == Deed::KillSpare => Moment::SpareWarm,
        0 if before.is_none_or(|before| before.moment != Moment::Starting) => Moment::Starting,
        0 => Moment::Step(1 + draw.below(10)),
        1..=4 => Moment::Step(1 + draw.below(70)),
        5..=7 => Moment::Saving(1 + draw.below(6)),
        8 | 9 => Moment::Validating(1 + draw.below(6)),
        // Nobody meets again before somebody was disturbed; and workers that twice die before one is ready are given up,
        // rightly.
        _ if before.is_none_or(|before| before.moment == Moment::Starting) => Moment::Step(1 + draw.below(30)),
        _ => Moment::Regrouping,
    };
    Fault { moment, delay_ms: [0, 0, 1, 3, 10, 40][draw.below(6) as usize], deed, pick: draw.below(1 << 20) }
}

/// A worker dies, and the run is told to stop while the others meet again. Survivors save where they stand.
fn stop_in_recovery(draw: &mut Draw) -> Vec<Fault> {
    let moment = match draw.below(3) {
        0 => Moment::Saving(1 + draw.below(6)),
        1 => Moment::Validating(1 + draw.below(6)),
        _ => Moment::Step(1 + draw.below(70)),
    };
    let death = Fault { moment, delay_ms: draw.below(4), deed: Deed::KillOne, pick: draw.below(1 << 20) };
    let delay_ms = [0, 1, 10, 30, 100, 300][draw.below(6) as usize];
    let stop = Fault { moment: Moment::Regrouping, delay_ms, deed: Deed::Interrupt(draw.below(2) == 0), pick: 0 };
    vec![death, stop]
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { workers, gloo } = self.shape;
        let fewest = self.fewest.map_or_else(String::new, |fewest| format!("{fewest}:"));
        write!(f, "{fewest}{workers} workers, {} spares, {}", self.spares, if gloo { "gloo" } else { "shm" })?;
        self.faults.iter().try_for_each(|fault| {
            write!(f, "; {:?} + {} ms: {:?} #{}", fault.moment, fault.delay_ms, fault.deed, fault.pick % 100)
        })
    }
}
