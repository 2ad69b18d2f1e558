//! Discovery of the leader: at the start by its endpoint, after its loss among its successors. Pure: the caller
//! resolves names and connects as `next` says, and passes the outcome in.
//!
//! **Invariant:** every discovery has a deadline, and every attempt has one within it.

use super::{Elapsed, settings::Settings};
use enn_common::wire::node::{Roster, Successor};
use std::{collections::VecDeque, net::SocketAddr, time::Duration};

/// Time for one address to accept the connection.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Time for the endpoint to answer the handshake at the start of the run, where thousands may connect at once.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Time for a successor to take over: it has to detect the loss of the leader itself.
const TAKE_OVER_MAX: Duration = Duration::from_secs(2);
/// Time to find the next leader, from the loss of the old one. With the longest silence of 5 s before it, a run without
/// a leader ends within 10 s.
const SUCCESSION_MAX: Duration = Duration::from_millis(4500);
/// Time to come back to a host that was out of reach, from when it was missed: so many times the silence after which it was, and not more
/// than this.
const RETURN_SILENCES: u32 = 4;
const RETURN_MAX: Duration = Duration::from_secs(30);
/// Pauses between attempts at the endpoint, doubled from the first to the last.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Candidate of a discovery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Rank in the last round; `None`: the endpoint.
    pub(crate) rank: Option<u32>,
    pub(crate) at: (String, u16),
    /// Whether the candidate is this node itself.
    is_own: bool,
    /// Whether the candidate is the leader that was lost, which may live after all.
    is_lost_leader: bool,
}

impl Candidate {
    fn successor(successor: &Successor, own_rank: u32) -> Self {
        let at = (successor.at.host.clone(), successor.at.port);
        let rank = successor.node_rank;
        Self { rank: Some(rank), at, is_own: rank == own_rank, is_lost_leader: false }
    }
}

/// A host that is out of reach and may live.
#[derive(Debug)]
pub(crate) struct WayBack {
    host: (String, u16),
    until: Elapsed,
}

impl WayBack {
    /// Begins when the host is missed, of which nothing was heard for `silence_max`. Without what the store keeps there is no way back: the
    /// workers end with the link.
    pub(crate) fn to(host: (String, u16), now: Elapsed, settings: &Settings) -> Self {
        let wait = (settings.silence_max * RETURN_SILENCES).min(RETURN_MAX);
        Self { host, until: if settings.store_kept { now + wait } else { now } }
    }

    /// Whether there is time to come back.
    pub(crate) fn is_open(&self, now: Elapsed) -> bool {
        now < self.until
    }
}

/// Attempt to reach a candidate.
#[derive(Debug)]
struct Attempt {
    candidate: Candidate,
    /// Addresses that were not tried; `None` while the name is being resolved.
    addrs: Option<VecDeque<SocketAddr>>,
    connection: Option<Connection>,
    /// Whether every address refused.
    refused: bool,
    until: Elapsed,
}

/// The connection of an attempt.
#[derive(Debug)]
struct Connection {
    since: Elapsed,
    /// Whether the other side answered the handshake.
    answered: bool,
}

#[derive(Debug)]
pub(crate) struct Discovery {
    candidates: VecDeque<Candidate>,
    /// Tried again and again, in turn.
    endpoints: VecDeque<Candidate>,
    attempt: Option<Attempt>,
    pub(crate) deadline: Elapsed,
    pub(crate) began: Elapsed,
    pause_until: Elapsed,
    pause: Duration,
    /// Ranks of the last round known to be dead.
    dead: Vec<u32>,
    /// Error of the last attempt.
    pub(crate) error: String,
    /// Reason for the loss of the last leader; `None` at the start of the run.
    pub(crate) lost: Option<String>,
    /// Number of attempts: it identifies the attempt that an answer belongs to.
    number: u64,
}

/// Next step of the caller.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DiscoveryStep {
    Wait,
    /// Resolve this name for an attempt; `resolved` takes the outcome.
    Resolve {
        attempt: u64,
        host: String,
        port: u16,
    },
    /// Connect to this address, and close the connection before. The outcome is `answered`, then `found`, or `refused`.
    Connect(SocketAddr),
    /// Become the leader; these ranks of the last round are known to be dead. Others may join until this time.
    TakeOver {
        dead: Vec<u32>,
        until: Elapsed,
    },
    /// End the discovery: there is no candidate left, or no time.
    GiveUp,
}

/// Leader that accepted this node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FoundLeader {
    pub(crate) candidate: Candidate,
    /// Ranks of the last round known to be dead, if the leader is another one than the lost one.
    pub(crate) dead: Option<Vec<u32>>,
}

impl Discovery {
    /// Begins the discovery of the leader of a run that starts.
    pub(crate) fn endpoint(now: Elapsed, at: (String, u16), join_timeout: Duration) -> Self {
        let candidate = Candidate { rank: None, at, is_own: false, is_lost_leader: false };
        Self { endpoints: [candidate].into(), ..Self::among(now, VecDeque::new(), now + join_timeout) }
    }

    /// Begins the discovery after the last leader was lost because of `why`. If its system closed the connection, it
    /// comes first, for it may only have dropped this node; then the successors up to this node follow.
    pub(crate) fn successor(now: Elapsed, last: LostLeader<'_>, why: String) -> Self {
        let LostLeader { at, leader_rank, roster, own_rank, fate } = last;
        let mut candidates = VecDeque::new();
        if fate == LeaderFate::Closed {
            candidates.push_back(Candidate { rank: leader_rank, at, is_own: false, is_lost_leader: true });
        }
        for successor in roster.map(|roster| roster.successors.as_slice()).unwrap_or_default() {
            let candidate = Candidate::successor(successor, own_rank);
            let is_own = candidate.is_own;
            candidates.push_back(candidate);
            if is_own {
                break;
            }
        }
        let dead = leader_rank.filter(|_| fate != LeaderFate::Unknown).into_iter().collect();
        Self { dead, lost: Some(why), ..Self::among(now, candidates, now + SUCCESSION_MAX) }
    }

    /// For a host that was out of reach, or the one that took over from it, when nobody else let this node in because of `why`.
    pub(crate) fn way_back(now: Elapsed, back: WayBack, roster: Option<&Roster>, own_rank: u32, why: String) -> Self {
        let host = Candidate { rank: None, at: back.host, is_own: false, is_lost_leader: true };
        let others = roster
            .into_iter()
            .flat_map(|roster| &roster.successors)
            .filter(|successor| successor.node_rank != own_rank);
        let endpoints =
            std::iter::once(host).chain(others.map(|successor| Candidate::successor(successor, own_rank))).collect();
        Self { endpoints, lost: Some(why), ..Self::among(now, VecDeque::new(), back.until) }
    }

    /// Whether it is for a host that was out of reach.
    pub(crate) fn is_way_back(&self) -> bool {
        self.lost.is_some() && !self.endpoints.is_empty()
    }

    fn among(now: Elapsed, candidates: VecDeque<Candidate>, deadline: Elapsed) -> Self {
        Self {
            candidates,
            endpoints: VecDeque::new(),
            attempt: None,
            deadline,
            began: now,
            pause_until: now,
            pause: PAUSE_MIN,
            dead: Vec::new(),
            error: "nobody was asked yet".into(),
            lost: None,
            number: 0,
        }
    }

    /// Returns the next step.
    pub(crate) fn next(&mut self, now: Elapsed) -> DiscoveryStep {
        loop {
            if now >= self.deadline {
                return DiscoveryStep::GiveUp;
            }
            let Some(attempt) = &mut self.attempt else {
                if now < self.pause_until {
                    return DiscoveryStep::Wait;
                }
                match self.candidates.pop_front().or_else(|| self.next_endpoint()) {
                    None => return DiscoveryStep::GiveUp,
                    Some(candidate) if candidate.is_own => {
                        // Other nodes may join until the end of their discovery.
                        return DiscoveryStep::TakeOver { dead: self.dead.clone(), until: self.began + SUCCESSION_MAX };
                    }
                    Some(candidate) => return self.begin(now, candidate),
                }
            };
            match (&attempt.connection, &mut attempt.addrs) {
                _ if now >= attempt.until => {
                    attempt.refused = false;
                    self.fail(now, "no answer".into());
                }
                (None, Some(addrs)) => match addrs.pop_front() {
                    Some(addr) => {
                        attempt.connection = Some(Connection { since: now, answered: false });
                        return DiscoveryStep::Connect(addr);
                    }
                    None => {
                        let error = self.error.clone();
                        self.fail(now, error);
                    }
                },
                (Some(connection), Some(addrs))
                    if !addrs.is_empty() && !connection.answered && now >= connection.since + CONNECT_MAX =>
                {
                    attempt.connection = None;
                    attempt.refused = false;
                }
                _ => return DiscoveryStep::Wait,
            }
        }
    }

    fn next_endpoint(&mut self) -> Option<Candidate> {
        let candidate = self.endpoints.pop_front()?;
        self.endpoints.push_back(candidate.clone());
        Some(candidate)
    }

    fn begin(&mut self, now: Elapsed, candidate: Candidate) -> DiscoveryStep {
        let (host, port) = candidate.at.clone();
        let time = if self.lost.is_some() { TAKE_OVER_MAX } else { ANSWER_MAX };
        let until = (now + time).min(self.deadline);
        self.number += 1;
        self.attempt = Some(Attempt { candidate, addrs: None, connection: None, refused: true, until });
        DiscoveryStep::Resolve { attempt: self.number, host, port }
    }

    /// Takes the addresses of a name, or the error.
    pub(crate) fn resolved(&mut self, now: Elapsed, number: u64, addrs: Result<Vec<SocketAddr>, String>) {
        let Some(attempt) = self.attempt.as_mut().filter(|_| self.number == number) else { return };
        match addrs {
            Ok(addrs) => attempt.addrs = Some(addrs.into()),
            Err(error) => {
                attempt.refused = false;
                self.fail(now, error);
            }
        }
    }

    /// The other side answered the handshake.
    pub(crate) fn answered(&mut self) {
        if let Some(connection) = self.attempt.as_mut().and_then(|attempt| attempt.connection.as_mut()) {
            connection.answered = true;
        }
    }

    /// Whether the last connection is still needed.
    pub(crate) fn is_connecting(&self) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.connection.is_some())
    }

    /// The leader accepted this node: the discovery ends.
    pub(crate) fn found(&mut self) -> Option<FoundLeader> {
        let Attempt { candidate, .. } = self.attempt.take()?;
        let succeeds = self.lost.is_some() && !candidate.is_lost_leader;
        let dead = std::mem::take(&mut self.dead);
        Some(FoundLeader { candidate, dead: succeeds.then_some(dead) })
    }

    /// The connection of the attempt was refused, or ended before this node was let in.
    pub(crate) fn refused(&mut self, error: String, refused: bool) {
        self.error = error;
        if let Some(attempt) = &mut self.attempt {
            attempt.connection = None;
            attempt.refused &= refused;
        }
    }

    /// The attempt failed.
    fn fail(&mut self, now: Elapsed, error: String) {
        let Some(attempt) = self.attempt.take() else { return };
        self.error = error;
        match attempt.candidate.rank {
            Some(rank) if attempt.refused && !self.dead.contains(&rank) => self.dead.push(rank),
            _ => {}
        }
        if !self.endpoints.is_empty() {
            self.pause_until = now + self.pause;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }

    /// Returns the time at which `next` must be called again, if nothing happens before.
    pub(crate) fn wake_at(&self) -> Elapsed {
        let soon = match &self.attempt {
            None => self.pause_until,
            Some(attempt) => {
                let more = attempt.addrs.as_ref().is_some_and(|addrs| !addrs.is_empty());
                let connection = attempt.connection.as_ref().filter(|connection| more && !connection.answered);
                connection.map_or(attempt.until, |connection| attempt.until.min(connection.since + CONNECT_MAX))
            }
        };
        soon.min(self.deadline)
    }
}

/// Facts about a leader that was lost.
#[derive(Debug)]
pub(crate) struct LostLeader<'a> {
    /// Host and port of the leader.
    pub(crate) at: (String, u16),
    /// Rank in the last round, if the node was a member.
    pub(crate) leader_rank: Option<u32>,
    /// Roster of the last round, if there was one and another node may take over.
    pub(crate) roster: Option<&'a Roster>,
    /// Rank of this node in the last round.
    pub(crate) own_rank: u32,
    /// Cause of the loss.
    pub(crate) fate: LeaderFate,
}

/// Cause of the loss of a leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaderFate {
    /// The leader may live, out of reach.
    Unknown,
    /// The leader's system closed the connection: it is dead, or has only dropped this node.
    Closed,
    /// The leader left the run.
    Left,
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::wire::node::{Members, NodeId, StandbyEndpoint, Successor};

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn roster(ranks: &[u32]) -> Roster {
        let successor =
            |rank: &u32| Successor { node_rank: *rank, at: StandbyEndpoint { host: format!("n{rank}"), port: 1 } };
        let successors = ranks.iter().map(successor).collect();
        Roster { round: 0, members: Members::default(), leader_rank: 0, leader: NodeId(0), successors }
    }

    /// A discovery of rank 2 after the leader, rank 0, was lost.
    fn after_loss(roster: &Roster, fate: LeaderFate) -> Discovery {
        let at = ("n0".to_owned(), 1);
        let last = LostLeader { at, leader_rank: Some(0), roster: Some(roster), own_rank: 2, fate };
        Discovery::successor(Elapsed::ZERO, last, "closed".into())
    }

    /// The host name that an attempt is about, and its number.
    fn attempted(next: DiscoveryStep) -> (String, u64) {
        match next {
            DiscoveryStep::Resolve { attempt, host, .. } => (host, attempt),
            other => panic!("{other:?}"),
        }
    }

    fn addr(last: u8) -> SocketAddr {
        ([127, 0, 0, last], 1).into()
    }

    /// The next attempt gets as far as a connection.
    fn connect(discovery: &mut Discovery) {
        let (_, number) = attempted(discovery.next(Elapsed::ZERO));
        discovery.resolved(Elapsed::ZERO, number, Ok(vec![addr(1)]));
        assert_eq!(discovery.next(Elapsed::ZERO), DiscoveryStep::Connect(addr(1)));
    }

    #[test]
    fn the_leader_then_the_successors_then_this_node() {
        let roster = roster(&[1, 2, 3]);
        let mut discovery = after_loss(&roster, LeaderFate::Closed);
        for _ in ["n0", "n1"] {
            connect(&mut discovery);
            assert!(discovery.is_connecting());
            discovery.refused("refused".into(), true);
        }
        assert_eq!(discovery.next(Elapsed::ZERO), DiscoveryStep::TakeOver { dead: vec![0, 1], until: SUCCESSION_MAX });
    }

    #[test]
    fn one_that_does_not_answer_may_live() {
        let roster = roster(&[1, 2]);
        let mut discovery = after_loss(&roster, LeaderFate::Unknown);
        let (host, number) = attempted(discovery.next(Elapsed::ZERO));
        assert_eq!(host, "n1");
        // An answer to a question that was not asked.
        discovery.resolved(Elapsed::ZERO, number + 1, Err("nobody".into()));
        assert_eq!(discovery.next(Elapsed::ZERO), DiscoveryStep::Wait);
        discovery.resolved(Elapsed::ZERO, number, Ok(vec![addr(1)]));
        discovery.next(Elapsed::ZERO);
        assert_eq!(discovery.wake_at(), TAKE_OVER_MAX);
        assert_eq!(discovery.next(TAKE_OVER_MAX - MILLISECOND), DiscoveryStep::Wait);
        let until = SUCCESSION_MAX;
        assert_eq!(discovery.next(TAKE_OVER_MAX), DiscoveryStep::TakeOver { dead: Vec::new(), until });
        assert!(!discovery.is_connecting());
    }

    #[test]
    fn another_leader_learns_who_is_dead_and_the_old_one_does_not() {
        let roster = roster(&[1, 2]);
        let mut discovery = after_loss(&roster, LeaderFate::Closed);
        connect(&mut discovery);
        let found = discovery.found().unwrap();
        assert_eq!((found.candidate.rank, found.dead), (Some(0), None));
        let mut discovery = after_loss(&roster, LeaderFate::Left);
        connect(&mut discovery);
        discovery.answered();
        let found = discovery.found().unwrap();
        assert_eq!((found.candidate.rank, found.dead), (Some(1), Some(vec![0])));
        assert_eq!(discovery.found(), None);
    }

    #[test]
    fn an_address_that_is_silent_gives_way_to_the_next_unless_somebody_answers() {
        let mut discovery = Discovery::endpoint(Elapsed::ZERO, ("e".into(), 1), 60 * CONNECT_MAX);
        let (_, number) = attempted(discovery.next(Elapsed::ZERO));
        discovery.resolved(Elapsed::ZERO, number, Ok(vec![addr(1), addr(2), addr(3)]));
        assert_eq!(discovery.next(Elapsed::ZERO), DiscoveryStep::Connect(addr(1)));
        assert_eq!(discovery.wake_at(), CONNECT_MAX);
        assert_eq!(discovery.next(CONNECT_MAX), DiscoveryStep::Connect(addr(2)));
        discovery.answered();
        assert_eq!(discovery.next(3 * CONNECT_MAX), DiscoveryStep::Wait);
        assert_eq!(discovery.wake_at(), ANSWER_MAX);
    }

    #[test]
    fn the_endpoint_is_tried_again_until_the_time_is_over() {
        let end = Duration::from_secs(10);
        let mut discovery = Discovery::endpoint(Elapsed::ZERO, ("e".into(), 1), end);
        let mut now = Elapsed::ZERO;
        let mut attempts = 0;
        loop {
            match discovery.next(now) {
                DiscoveryStep::Resolve { attempt, .. } => {
                    attempts += 1;
                    discovery.resolved(now, attempt, Err("unknown host".into()));
                }
                DiscoveryStep::Wait => now = discovery.wake_at(),
                DiscoveryStep::GiveUp => break,
                other => panic!("{other:?}"),
            }
        }
        // Pauses of 50, 100, 200, 400 and 800 ms, then of a second.
        assert_eq!((now, attempts), (end, 14));
    }

    #[test]
    fn a_host_that_was_out_of_reach_and_its_successors_are_tried_in_turn_until_the_time_is_over() {
        let roster = roster(&[1, 2, 3]);
        let settings =
            Settings { silence_max: RETURN_MAX, store_kept: true, ..crate::rendezvous::settings_for_tests() };
        let to_host = || WayBack::to(("n0".to_owned(), 1), Elapsed::ZERO, &settings);
        let back = to_host();
        assert!(back.is_open(RETURN_MAX - MILLISECOND) && !back.is_open(RETURN_MAX));
        let mut discovery = Discovery::way_back(MILLISECOND, back, Some(&roster), 2, "silent".into());
        assert!(discovery.is_way_back() && !after_loss(&roster, LeaderFate::Unknown).is_way_back());
        let mut now = MILLISECOND;
        let mut tried = Vec::new();
        loop {
            match discovery.next(now) {
                DiscoveryStep::Resolve { attempt, host, .. } => {
                    tried.push(host);
                    discovery.resolved(now, attempt, Err("unknown host".into()));
                }
                DiscoveryStep::Wait => now = discovery.wake_at(),
                DiscoveryStep::GiveUp => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((now, &tried[..5]), (RETURN_MAX, &["n0", "n1", "n3", "n0", "n1"].map(String::from)[..]));
        let mut discovery = Discovery::way_back(Elapsed::ZERO, to_host(), Some(&roster), 2, "silent".into());
        connect(&mut discovery);
        // It comes as any other node.
        assert_eq!(discovery.found().unwrap().dead, None);
    }

    #[test]
    fn nobody_else_takes_over_when_only_the_old_leader_may_be_found() {
        let last = LostLeader {
            at: ("n0".into(), 1),
            leader_rank: Some(0),
            roster: None,
            own_rank: 2,
            fate: LeaderFate::Closed,
        };
        let mut discovery = Discovery::successor(Elapsed::ZERO, last, "dismissed".into());
        let (host, number) = attempted(discovery.next(Elapsed::ZERO));
        assert_eq!(host, "n0");
        discovery.resolved(Elapsed::ZERO, number, Err("unknown host".into()));
        assert_eq!(discovery.next(Elapsed::ZERO), DiscoveryStep::GiveUp);
        assert_eq!(discovery.error, "unknown host");
    }
}
