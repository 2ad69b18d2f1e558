//! The schedule of faults: arrivals of a Poisson process for each kind, from the seed alone.
//!
//! **Invariant:** pure. The arrivals of one kind do not depend on which other kinds are asked for.

use enn_common::mix::{STEP, mix};
use std::fmt;

/// A kind of fault that is injected into a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    Kill,
    /// SIGSTOP, and SIGCONT when the time is over.
    Stop,
    /// Stopped half of the time.
    Slow,
    /// No file may be written.
    Enospc,
}

impl FaultKind {
    /// As in the flag.
    pub fn word(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Slow => "slow",
            Self::Enospc => "enospc",
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// Mean interval between faults of a kind, and their length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Mean time between two faults, seconds, above 0.
    pub mean_s: f64,
    /// Length of a fault, seconds; `None`: the default of its kind.
    pub length_s: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fault {
    /// Seconds after the beginning.
    pub at_s: f64,
    pub kind: FaultKind,
    /// Length, seconds; 0 for a kill.
    pub length_s: f64,
    /// Random number whose remainder by the number of live workers selects the one that is hit.
    pub pick: u64,
}

/// The scheduled faults in order of time; infinite unless `until_s` is given.
#[derive(Debug, Clone)]
pub struct Schedule {
    streams: Vec<FaultArrivals>,
    until_s: f64,
}

/// The Poisson arrivals of one kind of fault.
#[derive(Debug, Clone)]
struct FaultArrivals {
    kind: FaultKind,
    rate: Rate,
    state: u64,
    next_s: f64,
}

impl Schedule {
    /// Schedules the faults of these kinds, each of which is given once; `seed` determines all of them.
    pub fn new(seed: u64, rates: &[(FaultKind, Rate)], until_s: Option<f64>) -> Self {
        let streams = rates.iter().map(|(kind, rate)| FaultArrivals::new(seed, *kind, *rate)).collect();
        Self { streams, until_s: until_s.unwrap_or(f64::INFINITY) }
    }
}

impl Iterator for Schedule {
    type Item = Fault;

    fn next(&mut self) -> Option<Fault> {
        let first = self.streams.iter_mut().min_by(|a, b| a.next_s.total_cmp(&b.next_s))?;
        if first.next_s > self.until_s {
            return None;
        }
        Some(first.take())
    }
}

impl FaultArrivals {
    fn new(seed: u64, kind: FaultKind, rate: Rate) -> Self {
        let mut stream = Self { kind, rate, state: mix(seed ^ mix(kind as u64 + 1)), next_s: 0.0 };
        stream.next_s = stream.gap();
        stream
    }

    fn take(&mut self) -> Fault {
        let length_s = self.rate.length_s.unwrap_or(match self.kind {
            FaultKind::Kill => 0.0,
            FaultKind::Stop => 2.0,
            FaultKind::Slow => 10.0,
            FaultKind::Enospc => 5.0,
        });
        let fault = Fault { at_s: self.next_s, kind: self.kind, length_s, pick: self.random() };
        self.next_s += self.gap();
        fault
    }

    /// Draws the time to the next arrival, seconds: exponentially distributed.
    fn gap(&mut self) -> f64 {
        // The upper 53 bits: all that a double in [0, 1) holds.
        let uniform = (self.random() >> 11) as f64 / (1u64 << 53) as f64;
        -self.rate.mean_s * (1.0 - uniform).ln()
    }

    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn every(mean_s: f64) -> Rate {
        Rate { mean_s, length_s: None }
    }

    proptest! {
        #[test]
        fn faults_come_in_order_within_the_time_and_by_the_seed_alone(
            seed: u64, kill in 0.1f64..100.0, stop in 0.1f64..100.0, until in 0.0f64..500.0,
        ) {
            let rates = [(FaultKind::Kill, every(kill)), (FaultKind::Stop, every(stop))];
            let all: Vec<Fault> = Schedule::new(seed, &rates, Some(until)).collect();
            prop_assert!(all.windows(2).all(|two| two[0].at_s <= two[1].at_s));
            prop_assert!(all.iter().all(|fault| fault.at_s >= 0.0 && fault.at_s <= until));
            let again: Vec<Fault> = Schedule::new(seed, &rates, Some(until)).collect();
            prop_assert_eq!(&all, &again);
            let kills: Vec<Fault> = all.into_iter().filter(|fault| fault.kind == FaultKind::Kill).collect();
            let alone: Vec<Fault> = Schedule::new(seed, &rates[..1], Some(until)).collect();
            prop_assert_eq!(kills, alone, "another kind changes nothing");
        }

        #[test]
        fn the_mean_is_what_was_asked_for(seed: u64, mean in 0.01f64..1000.0) {
            let count = 4_000;
            let faults = Schedule::new(seed, &[(FaultKind::Slow, every(mean))], None);
            let last = faults.take(count).last().unwrap();
            // The sum of n exponentials has a relative spread of 1/sqrt(n); six of these.
            prop_assert!((last.at_s / (mean * count as f64) - 1.0).abs() < 6.0 / (count as f64).sqrt());
        }
    }

    #[test]
    fn seeds_differ_and_victims_are_spread() {
        let faults = |seed| Schedule::new(seed, &[(FaultKind::Kill, every(1.0))], None).take(3_000);
        assert_ne!(faults(1).next(), faults(2).next());
        let mut hits = [0; 3];
        faults(3).for_each(|fault| hits[(fault.pick % 3) as usize] += 1);
        assert!(hits.iter().all(|hits| (850..1150).contains(hits)), "{hits:?}");
    }

    #[test]
    fn a_length_is_the_given_one_or_the_usual_one() {
        let first = |kind, length_s| Schedule::new(0, &[(kind, Rate { mean_s: 1.0, length_s })], None).next().unwrap();
        assert_eq!(first(FaultKind::Stop, None).length_s, 2.0);
        assert_eq!(first(FaultKind::Enospc, Some(0.5)).length_s, 0.5);
        assert_eq!(first(FaultKind::Kill, None).length_s, 0.0);
    }
}
