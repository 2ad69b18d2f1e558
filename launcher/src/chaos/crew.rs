//! The workers of a run that live, as its journal tells.
//!
//! **Invariant:** pure. Whether a process is there is for the caller to see: an end is told a moment after it.

use enn_common::event::{Event, What};
use std::collections::BTreeMap;

/// A worker with a seat.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Member {
    pub(super) rank: u32,
    pub(super) pid: u32,
}

/// Workers with a seat on one host.
#[derive(Debug)]
pub(super) struct Crew {
    host: String,
    /// It trains: the first node of a round is that of the launcher whose workers are hit.
    trains: bool,
    ranks: BTreeMap<u32, u32>,
}

impl Crew {
    /// Nobody yet, on `host`.
    pub(super) fn new(host: &str) -> Self {
        Self { host: host.to_owned(), trains: false, ranks: BTreeMap::new() }
    }

    pub(super) fn apply(&mut self, event: &Event) {
        match &event.what {
            What::RunStarted { mode, .. } => {
                self.trains = mode == "train";
                self.ranks.clear();
            }
            What::RunEnded { .. } => self.ranks.clear(),
            What::RoundFormed { nodes, .. } if self.trains => {
                if let Some(own) = nodes.first() {
                    self.host.clone_from(&own.host);
                }
            }
            What::WorkerStarted { pid, rank, host, .. } if host.is_empty() || *host == self.host => {
                self.ranks.insert(*pid, rank.0);
            }
            What::SeatTaken { pid, rank, host, .. } if host.is_empty() || *host == self.host => {
                self.ranks.insert(*pid, rank.0);
            }
            What::WorkerExited { pid, .. } | What::SpareEnded { pid, .. } | What::WorkerDismissed { pid, .. } => {
                self.ranks.remove(pid);
            }
            _ => {}
        }
    }

    /// Those who live, in order of their ranks; of one rank only, when it is given.
    pub(super) fn living(&self, rank: Option<u32>) -> Vec<Member> {
        let all = self.ranks.iter().map(|(pid, rank)| Member { rank: *rank, pid: *pid });
        let mut all: Vec<Member> = all.filter(|member| rank.is_none_or(|rank| rank == member.rank)).collect();
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::id::{LocalRank, Rank, Round};

    fn living(events: &[What], rank: Option<u32>) -> Vec<(u32, u32)> {
        let mut crew = Crew::new("here");
        events.iter().for_each(|what| crew.apply(&Event { time: 0.0, what: what.clone() }));
        crew.living(rank).into_iter().map(|member| (member.rank, member.pid)).collect()
    }

    fn started(rank: u32, pid: u32, host: &str) -> What {
        What::WorkerStarted {
            round: Round(0),
            local_rank: LocalRank(rank),
            rank: Rank(rank),
            pid,
            host: host.into(),
            forked: false,
        }
    }

    fn exited(rank: u32, pid: u32) -> What {
        let code = None;
        let signal = Some(9);
        What::WorkerExited { round: Round(0), rank: Rank(rank), pid, code, signal, seconds_to_notice: 0.0 }
    }

    fn seat(rank: u32, pid: u32) -> What {
        let (round, rank, local_rank) = (Round(1), Rank(rank), LocalRank(rank));
        What::SeatTaken { round, rank, local_rank, pid, spare: true, host: String::new() }
    }

    #[test]
    fn seats_are_followed_through_deaths_and_rounds() {
        let spare = What::SpareStarted { pid: 30, local_rank: LocalRank(2), host: String::new() };
        let mut events = vec![started(0, 10, ""), started(1, 20, "here"), started(2, 21, "there"), spare];
        assert_eq!(living(&events, None), [(0, 10), (1, 20)], "a spare has no seat, another host's are not ours");
        events.extend([exited(0, 10), seat(0, 30)]);
        assert_eq!(living(&events, None), [(0, 30), (1, 20)]);
        assert_eq!(living(&events, Some(1)), [(1, 20)]);
        // A process that went on under another rank is one worker still.
        events.extend([exited(1, 20), seat(1, 30)]);
        assert_eq!(living(&events, None), [(1, 30)]);
    }
}
