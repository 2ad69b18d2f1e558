//! When which fault comes: arrivals of a Poisson process for each kind, from the seed alone.
//!
//! **Invariant:** pure. The arrivals of one kind do not depend on which other kinds are asked for.

use enn_common::mix::{STEP, mix};
use std::fmt;

/// What is done to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Kill,
    /// SIGSTOP, and SIGCONT when the time is over.
    Stop,
    /// Stopped half of the time.
    Slow,
    /// No file may be written.
    Enospc,
}

impl Kind {
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

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// How often, and how long each time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Mean time between two, seconds, above 0.
    pub mean_s: f64,
    /// How long one lasts, seconds; `None`: as is usual for the kind.
    pub length_s: Option<f64>,
}

/// One fault to come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fault {
    /// Seconds after the beginning.
    pub at_s: f64,
    pub kind: Kind,
    /// How long, seconds; 0 for a kill.
    pub length_s: f64,
    /// Chooses among the workers that live then: the remainder by their number.
    pub pick: u64,
}

/// All faults to come, in order; without end unless `until_s` is given.
#[derive(Debug, Clone)]
pub struct Schedule {
    streams: Vec<Stream>,
    until_s: f64,
}

/// The arrivals of one kind.
#[derive(Debug, Clone)]
struct Stream {
    kind: Kind,
    rate: Rate,
    state: u64,
    next_s: f64,
}

impl Schedule {
    /// The faults of these kinds, each named once, that `seed` decides.
    pub fn new(seed: u64, rates: &[(Kind, Rate)], until_s: Option<f64>) -> Self {
        let streams = rates.iter().map(|(kind, rate)| Stream::new(seed, *kind, *rate)).collect();
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

impl Stream {
    fn new(seed: u64, kind: Kind, rate: Rate) -> Self {
        let mut stream = Self { kind, rate, state: mix(seed ^ mix(kind as u64 + 1)), next_s: 0.0 };
        stream.next_s = stream.gap();
        stream
    }

    fn take(&mut self) -> Fault {
        let length_s = self.rate.length_s.unwrap_or(match self.kind {
            Kind::Kill => 0.0,
            Kind::Stop => 2.0,
            Kind::Slow => 10.0,
            Kind::Enospc => 5.0,
        });
        let fault = Fault { at_s: self.next_s, kind: self.kind, length_s, pick: self.random() };
        self.next_s += self.gap();
        fault
    }

    /// Time to the next arrival: exponential.
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
            let rates = [(Kind::Kill, every(kill)), (Kind::Stop, every(stop))];
            let all: Vec<Fault> = Schedule::new(seed, &rates, Some(until)).collect();
            prop_assert!(all.windows(2).all(|two| two[0].at_s <= two[1].at_s));
            prop_assert!(all.iter().all(|fault| fault.at_s >= 0.0 && fault.at_s <= until));
            let again: Vec<Fault> = Schedule::new(seed, &rates, Some(until)).collect();
            prop_assert_eq!(&all, &again);
            let kills: Vec<Fault> = all.into_iter().filter(|fault| fault.kind == Kind::Kill).collect();
            let alone: Vec<Fault> = Schedule::new(seed, &rates[..1], Some(until)).collect();
            prop_assert_eq!(kills, alone, "another kind changes nothing");
        }

        #[test]
        fn the_mean_is_what_was_asked_for(seed: u64, mean in 0.01f64..1000.0) {
            let count = 4_000;
            let faults = Schedule::new(seed, &[(Kind::Slow, every(mean))], None);
            let last = faults.take(count).last().unwrap();
            // The sum of n exponentials has a relative spread of 1/sqrt(n); six of these.
            prop_assert!((last.at_s / (mean * count as f64) - 1.0).abs() < 6.0 / (count as f64).sqrt());
        }
    }

    #[test]
    fn seeds_differ_and_victims_are_spread() {
        let faults = |seed| Schedule::new(seed, &[(Kind::Kill, every(1.0))], None).take(3_000);
        assert_ne!(faults(1).next(), faults(2).next());
        let mut hits = [0; 3];
        faults(3).for_each(|fault| hits[(fault.pick % 3) as usize] += 1);
        assert!(hits.iter().all(|hits| (850..1150).contains(hits)), "{hits:?}");
    }

    #[test]
    fn a_length_is_the_given_one_or_the_usual_one() {
        let first = |kind, length_s| Schedule::new(0, &[(kind, Rate { mean_s: 1.0, length_s })], None).next().unwrap();
        assert_eq!(first(Kind::Stop, None).length_s, 2.0);
        assert_eq!(first(Kind::Enospc, Some(0.5)).length_s, 0.5);
        assert_eq!(first(Kind::Kill, None).length_s, 0.0);
    }
}
