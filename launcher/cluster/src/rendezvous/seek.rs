//! Search for the host of the rendezvous: at first by its endpoint, later, when it died, among those who may take over. Pure: who
//! searches resolves names and connects as `next` says, and tells what came of it.
//!
//! **Invariant:** every search has a deadline, and every attempt within it too.

use super::{settings::Settings, state::Time};
use enn_common::wire::node::{Roster, Successor};
use std::{collections::VecDeque, net::SocketAddr, time::Duration};

/// Time for one address to take the connection.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Time for the endpoint to answer the greeting when the run starts: thousands may be greeted at once.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Time for one that may take over to do so: it has to notice the host's death itself.
const TAKE_OVER_MAX: Duration = Duration::from_secs(2);
/// Time to find the next host, from when the old one was missed. With the longest silence of 5 s before it that makes
/// less than 10 s in which a run without a host ends.
const SUCCESSION_MAX: Duration = Duration::from_millis(4500);
/// Time to come back to a host that was out of reach, from when it was missed: so many times the silence after which it was, and not more
/// than this.
const RETURN_SILENCES: u32 = 4;
const RETURN_MAX: Duration = Duration::from_secs(30);
/// Pauses between attempts at the endpoint, doubled from the first to the last.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Who to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// Its rank in the last round; `None`: the endpoint.
    pub(crate) rank: Option<u32>,
    pub(crate) at: (String, u16),
    /// Whether it is this node itself.
    own: bool,
    /// Whether it is the host that was lost, which may live after all.
    again: bool,
}

impl Target {
    fn successor(successor: &Successor, own_rank: u32) -> Self {
        let at = (successor.at.host.clone(), successor.at.port);
        let rank = successor.node_rank;
        Self { rank: Some(rank), at, own: rank == own_rank, again: false }
    }
}

/// A host that is out of reach and may live.
#[derive(Debug)]
pub(crate) struct WayBack {
    host: (String, u16),
    until: Time,
}

impl WayBack {
    /// Begins when the host is missed, of which nothing was heard for `silence_max`. Without what the store keeps there is no way back: the
    /// workers end with the link.
    pub(crate) fn to(host: (String, u16), now: Time, settings: &Settings) -> Self {
        let wait = (settings.silence_max * RETURN_SILENCES).min(RETURN_MAX);
        Self { host, until: if settings.store_kept { now + wait } else { now } }
    }

    /// Whether there is time to come back.
    pub(crate) fn is_open(&self, now: Time) -> bool {
        now < self.until
    }
}

/// One attempt.
#[derive(Debug)]
struct Attempt {
    target: Target,
    /// Addresses not tried; `None` while the name is being resolved.
    addrs: Option<VecDeque<SocketAddr>>,
    connection: Option<Connection>,
    /// Whether every address refused.
    refused: bool,
    until: Time,
}

/// The connection of an attempt.
#[derive(Debug)]
struct Connection {
    since: Time,
    /// Whether somebody answered the greeting.
    answered: bool,
}

#[derive(Debug)]
pub(crate) struct Search {
    targets: VecDeque<Target>,
    /// Tried again and again, in turn.
    endpoints: VecDeque<Target>,
    attempt: Option<Attempt>,
    pub(crate) deadline: Time,
    pub(crate) began: Time,
    pause_until: Time,
    pause: Duration,
    /// Ranks of the last round known to be dead.
    dead: Vec<u32>,
    /// What the last attempt ended with.
    pub(crate) error: String,
    /// Why the old host was given up, and nothing but the old host may be found.
    pub(crate) lost: Option<String>,
    /// Counts attempts, so that an answer finds its question.
    number: u64,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Wait,
    /// Resolve this name for an attempt. Answered by `resolved`.
    Resolve {
        attempt: u64,
        host: String,
        port: u16,
    },
    /// Connect there, and close the connection before. Answered by `answered`, then `found`, or by `refused`.
    Connect(SocketAddr),
    /// Become the host, knowing that these ranks of the last round are dead. Others may come until then.
    TakeOver {
        dead: Vec<u32>,
        until: Time,
    },
    /// There is nobody left, or no time.
    GiveUp,
}

/// The host that let this node in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) target: Target,
    /// Ranks of the last round known to be dead, when it is another host than the one that was lost.
    pub(crate) dead: Option<Vec<u32>>,
}

impl Search {
    /// For the host of a run that starts.
    pub(crate) fn endpoint(now: Time, at: (String, u16), join_timeout: Duration) -> Self {
        let target = Target { rank: None, at, own: false, again: false };
        Self { endpoints: [target].into(), ..Self::among(now, VecDeque::new(), now + join_timeout) }
    }

    /// For the host after the last one was lost because of `why`: itself first when its system said so (then it may only
    /// have dropped this node), then those who may take over, up to this node itself.
    pub(crate) fn successor(now: Time, last: Last<'_>, why: String) -> Self {
        let Last { at, host_rank, roster, own_rank, fate } = last;
        let mut targets = VecDeque::new();
        if fate == Fate::Closed {
            targets.push_back(Target { rank: host_rank, at, own: false, again: true });
        }
        for heir in roster.map(|roster| roster.successors.as_slice()).unwrap_or_default() {
            let target = Target::successor(heir, own_rank);
            let own = target.own;
            targets.push_back(target);
            if own {
                break;
            }
        }
        let dead = host_rank.filter(|_| fate != Fate::Unknown).into_iter().collect();
        Self { dead, lost: Some(why), ..Self::among(now, targets, now + SUCCESSION_MAX) }
    }

    /// For a host that was out of reach, or the one that took over from it, when nobody else let this node in because of `why`.
    pub(crate) fn way_back(now: Time, back: WayBack, roster: Option<&Roster>, own_rank: u32, why: String) -> Self {
        let host = Target { rank: None, at: back.host, own: false, again: true };
        let others = roster.into_iter().flat_map(|roster| &roster.successors).filter(|heir| heir.node_rank != own_rank);
        let endpoints = std::iter::once(host).chain(others.map(|heir| Target::successor(heir, own_rank))).collect();
        Self { endpoints, lost: Some(why), ..Self::among(now, VecDeque::new(), back.until) }
    }

    /// Whether it is for a host that was out of reach.
    pub(crate) fn is_way_back(&self) -> bool {
        self.lost.is_some() && !self.endpoints.is_empty()
    }

    fn among(now: Time, targets: VecDeque<Target>, deadline: Time) -> Self {
        Self {
            targets,
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

    /// What to do now.
    pub(crate) fn next(&mut self, now: Time) -> Next {
        loop {
            if now >= self.deadline {
                return Next::GiveUp;
            }
            let Some(attempt) = &mut self.attempt else {
                if now < self.pause_until {
                    return Next::Wait;
                }
                match self.targets.pop_front().or_else(|| self.next_endpoint()) {
                    None => return Next::GiveUp,
                    Some(target) if target.own => {
                        // Others may come until everybody's time to search is over.
                        return Next::TakeOver { dead: self.dead.clone(), until: self.began + SUCCESSION_MAX };
                    }
                    Some(target) => return self.begin(now, target),
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
                        return Next::Connect(addr);
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
                _ => return Next::Wait,
            }
        }
    }

    fn next_endpoint(&mut self) -> Option<Target> {
        let target = self.endpoints.pop_front()?;
        self.endpoints.push_back(target.clone());
        Some(target)
    }

    fn begin(&mut self, now: Time, target: Target) -> Next {
        let (host, port) = target.at.clone();
        let time = if self.lost.is_some() { TAKE_OVER_MAX } else { ANSWER_MAX };
        let until = (now + time).min(self.deadline);
        self.number += 1;
        self.attempt = Some(Attempt { target, addrs: None, connection: None, refused: true, until });
        Next::Resolve { attempt: self.number, host, port }
    }

    /// The name was resolved, or cannot be.
    pub(crate) fn resolved(&mut self, now: Time, number: u64, addrs: Result<Vec<SocketAddr>, String>) {
        let Some(attempt) = self.attempt.as_mut().filter(|_| self.number == number) else { return };
        match addrs {
            Ok(addrs) => attempt.addrs = Some(addrs.into()),
            Err(error) => {
                attempt.refused = false;
                self.fail(now, error);
            }
        }
    }

    /// Somebody answered the greeting on the connection.
    pub(crate) fn answered(&mut self) {
        if let Some(connection) = self.attempt.as_mut().and_then(|attempt| attempt.connection.as_mut()) {
            connection.answered = true;
        }
    }

    /// Whether the last connection is still wanted.
    pub(crate) fn is_connecting(&self) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.connection.is_some())
    }

    /// The host let this node in: the search is over.
    pub(crate) fn found(&mut self) -> Option<Found> {
        let Attempt { target, .. } = self.attempt.take()?;
        let succeeds = self.lost.is_some() && !target.again;
        let dead = std::mem::take(&mut self.dead);
        Some(Found { target, dead: succeeds.then_some(dead) })
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
    fn fail(&mut self, now: Time, error: String) {
        let Some(attempt) = self.attempt.take() else { return };
        self.error = error;
        match attempt.target.rank {
            Some(rank) if attempt.refused && !self.dead.contains(&rank) => self.dead.push(rank),
            _ => {}
        }
        if !self.endpoints.is_empty() {
            self.pause_until = now + self.pause;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }

    /// When `next` must be asked again, if nothing happens before.
    pub(crate) fn wake_at(&self) -> Time {
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

/// What is known of the host that was lost.
#[derive(Debug)]
pub(crate) struct Last<'a> {
    /// Where it was.
    pub(crate) at: (String, u16),
    /// Its rank in the last round, when it was in it.
    pub(crate) host_rank: Option<u32>,
    /// The last round, when it had one and another node may take over.
    pub(crate) roster: Option<&'a Roster>,
    /// This node's rank in it.
    pub(crate) own_rank: u32,
    /// What became of it.
    pub(crate) fate: Fate,
}

/// What became of a host that was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It may live, out of reach.
    Unknown,
    /// Its system closed the connection: it is dead, or has only dropped this node.
    Closed,
    /// It said that it leaves.
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
        Roster { round: 0, members: Members::default(), host_rank: 0, host: NodeId(0), successors }
    }

    /// A search of rank 2 after the host, rank 0, was lost.
    fn after_loss(roster: &Roster, fate: Fate) -> Search {
        let at = ("n0".to_owned(), 1);
        let last = Last { at, host_rank: Some(0), roster: Some(roster), own_rank: 2, fate };
        Search::successor(Time::ZERO, last, "closed".into())
    }

    /// The host that an attempt is about, and its number.
    fn attempted(next: Next) -> (String, u64) {
        match next {
            Next::Resolve { attempt, host, .. } => (host, attempt),
            other => panic!("{other:?}"),
        }
    }

    fn addr(last: u8) -> SocketAddr {
        ([127, 0, 0, last], 1).into()
    }

    /// The next attempt gets as far as a connection.
    fn connect(search: &mut Search) {
        let (_, number) = attempted(search.next(Time::ZERO));
        search.resolved(Time::ZERO, number, Ok(vec![addr(1)]));
        assert_eq!(search.next(Time::ZERO), Next::Connect(addr(1)));
    }

    #[test]
    fn the_host_then_the_successors_then_this_node() {
        let roster = roster(&[1, 2, 3]);
        let mut search = after_loss(&roster, Fate::Closed);
        for _ in ["n0", "n1"] {
            connect(&mut search);
            assert!(search.is_connecting());
            search.refused("refused".into(), true);
        }
        assert_eq!(search.next(Time::ZERO), Next::TakeOver { dead: vec![0, 1], until: SUCCESSION_MAX });
    }

    #[test]
    fn one_that_does_not_answer_may_live() {
        let roster = roster(&[1, 2]);
        let mut search = after_loss(&roster, Fate::Unknown);
        let (host, number) = attempted(search.next(Time::ZERO));
        assert_eq!(host, "n1");
        // An answer to a question that was not asked.
        search.resolved(Time::ZERO, number + 1, Err("nobody".into()));
        assert_eq!(search.next(Time::ZERO), Next::Wait);
        search.resolved(Time::ZERO, number, Ok(vec![addr(1)]));
        search.next(Time::ZERO);
        assert_eq!(search.wake_at(), TAKE_OVER_MAX);
        assert_eq!(search.next(TAKE_OVER_MAX - MILLISECOND), Next::Wait);
        let until = SUCCESSION_MAX;
        assert_eq!(search.next(TAKE_OVER_MAX), Next::TakeOver { dead: Vec::new(), until });
        assert!(!search.is_connecting());
    }

    #[test]
    fn another_host_hears_who_is_dead_and_the_old_one_does_not() {
        let roster = roster(&[1, 2]);
        let mut search = after_loss(&roster, Fate::Closed);
        connect(&mut search);
        let found = search.found().unwrap();
        assert_eq!((found.target.rank, found.dead), (Some(0), None));
        let mut search = after_loss(&roster, Fate::Left);
        connect(&mut search);
        search.answered();
        let found = search.found().unwrap();
        assert_eq!((found.target.rank, found.dead), (Some(1), Some(vec![0])));
        assert_eq!(search.found(), None);
    }

    #[test]
    fn an_address_that_is_silent_gives_way_to_the_next_unless_somebody_answers() {
        let mut search = Search::endpoint(Time::ZERO, ("e".into(), 1), 60 * CONNECT_MAX);
        let (_, number) = attempted(search.next(Time::ZERO));
        search.resolved(Time::ZERO, number, Ok(vec![addr(1), addr(2), addr(3)]));
        assert_eq!(search.next(Time::ZERO), Next::Connect(addr(1)));
        assert_eq!(search.wake_at(), CONNECT_MAX);
        assert_eq!(search.next(CONNECT_MAX), Next::Connect(addr(2)));
        search.answered();
        assert_eq!(search.next(3 * CONNECT_MAX), Next::Wait);
        assert_eq!(search.wake_at(), ANSWER_MAX);
    }

    #[test]
    fn the_endpoint_is_tried_again_until_the_time_is_over() {
        let end = Duration::from_secs(10);
        let mut search = Search::endpoint(Time::ZERO, ("e".into(), 1), end);
        let mut now = Time::ZERO;
        let mut attempts = 0;
        loop {
            match search.next(now) {
                Next::Resolve { attempt, .. } => {
                    attempts += 1;
                    search.resolved(now, attempt, Err("unknown host".into()));
                }
                Next::Wait => now = search.wake_at(),
                Next::GiveUp => break,
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
        let to_host = || WayBack::to(("n0".to_owned(), 1), Time::ZERO, &settings);
        let back = to_host();
        assert!(back.is_open(RETURN_MAX - MILLISECOND) && !back.is_open(RETURN_MAX));
        let mut search = Search::way_back(MILLISECOND, back, Some(&roster), 2, "silent".into());
        assert!(search.is_way_back() && !after_loss(&roster, Fate::Unknown).is_way_back());
        let mut now = MILLISECOND;
        let mut tried = Vec::new();
        loop {
            match search.next(now) {
                Next::Resolve { attempt, host, .. } => {
                    tried.push(host);
                    search.resolved(now, attempt, Err("unknown host".into()));
                }
                Next::Wait => now = search.wake_at(),
                Next::GiveUp => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((now, &tried[..5]), (RETURN_MAX, &["n0", "n1", "n3", "n0", "n1"].map(String::from)[..]));
        let mut search = Search::way_back(Time::ZERO, to_host(), Some(&roster), 2, "silent".into());
        connect(&mut search);
        // It comes as any other node.
        assert_eq!(search.found().unwrap().dead, None);
    }

    #[test]
    fn nobody_else_takes_over_when_only_the_old_host_may_be_found() {
        let last = Last { at: ("n0".into(), 1), host_rank: Some(0), roster: None, own_rank: 2, fate: Fate::Closed };
        let mut search = Search::successor(Time::ZERO, last, "dismissed".into());
        let (host, number) = attempted(search.next(Time::ZERO));
        assert_eq!(host, "n0");
        search.resolved(Time::ZERO, number, Err("unknown host".into()));
        assert_eq!(search.next(Time::ZERO), Next::GiveUp);
        assert_eq!(search.error, "unknown host");
    }
}
