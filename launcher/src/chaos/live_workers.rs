//! The live workers of a run, according to its journal.
//!
//! **Invariant:** pure. The caller checks whether a process still exists: the journal records an exit a moment after it.

use enn_common::event::{Event, EventKind};
use std::collections::BTreeMap;

/// A worker process that holds a rank of the current round.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LiveWorker {
    pub(super) rank: u32,
    pub(super) pid: u32,
}

/// The workers on one host that hold a rank, by their process ids.
#[derive(Debug)]
pub(super) struct LiveWorkers {
    host: String,
    /// Whether the run is a training. The first node of its round is then the host whose workers are hit.
    trains: bool,
    ranks: BTreeMap<u32, u32>,
}

impl LiveWorkers {
    /// Begins without workers; only those on `host` will be taken in.
    pub(super) fn new(host: &str) -> Self {
        Self { host: host.to_owned(), trains: false, ranks: BTreeMap::new() }
    }

    pub(super) fn apply(&mut self, event: &Event) {
        match &event.what {
            EventKind::RunStarted { mode, .. } => {
                self.trains = mode == "train";
                self.ranks.clear();
            }
            EventKind::RunEnded { .. } => self.ranks.clear(),
            EventKind::RoundFormed { nodes, .. } if self.trains => {
                if let Some(own) = nodes.first() {
                    self.host.clone_from(&own.host);
                }
            }
            EventKind::WorkerStarted { pid, rank, host, .. } | EventKind::SeatTaken { pid, rank, host, .. }
                if host.is_empty() || *host == self.host =>
            {
                self.ranks.insert(*pid, rank.0);
            }
            EventKind::WorkerExited { pid, .. }
            | EventKind::SpareEnded { pid, .. }
            | EventKind::WorkerDismissed { pid, .. } => {
                self.ranks.remove(pid);
            }
            _ => {}
        }
    }

    /// Returns the live workers in order of their ranks; only those of `rank` when it is given.
    pub(super) fn living(&self, rank: Option<u32>) -> Vec<LiveWorker> {
        let all = self.ranks.iter().map(|(pid, rank)| LiveWorker { rank: *rank, pid: *pid });
        let mut all: Vec<LiveWorker> = all.filter(|member| rank.is_none_or(|rank| rank == member.rank)).collect();
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::id::{LocalRank, Rank, Round};

    fn living(events: &[EventKind], rank: Option<u32>) -> Vec<(u32, u32)> {
        let mut live_workers = LiveWorkers::new("here");
        events.iter().for_each(|what| live_workers.apply(&Event { time: 0.0, what: what.clone() }));
        live_workers.living(rank).into_iter().map(|member| (member.rank, member.pid)).collect()
    }

    fn started(rank: u32, pid: u32, host: &str) -> EventKind {
        EventKind::WorkerStarted {
            round: Round(0),
            local_rank: LocalRank(rank),
            rank: Rank(rank),
            pid,
            host: host.into(),
            forked: false,
        }
    }

    fn exited(rank: u32, pid: u32) -> EventKind {
        let code = None;
        let signal = Some(9);
        EventKind::WorkerExited { round: Round(0), rank: Rank(rank), pid, code, signal, seconds_to_notice: 0.0 }
    }

    fn seat(rank: u32, pid: u32) -> EventKind {
        let (round, rank, local_rank) = (Round(1), Rank(rank), LocalRank(rank));
        EventKind::SeatTaken { round, rank, local_rank, pid, spare: true, host: String::new() }
    }

    #[test]
    fn seats_are_followed_through_deaths_and_rounds() {
        let spare = EventKind::SpareStarted { pid: 30, local_rank: LocalRank(2), host: String::new(), forked: false };
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
