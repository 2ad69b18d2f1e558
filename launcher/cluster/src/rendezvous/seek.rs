//! Looking for the host of the rendezvous: at first by its endpoint, later, when it died, among those who may take over.
//!
//! **Invariant:** every search has a deadline, and every attempt within it too.

use super::{link::Link, state::Time};
use enn_common::wire::node::Roster;
use std::{collections::VecDeque, net::SocketAddr, time::Duration};

/// Time for one address to take the connection.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(2);
/// Time for the endpoint to answer the greeting when the run starts: thousands may be greeted at once.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Time for one that may take over to do so: it has to notice the host's death itself.
const TAKE_OVER_MAX: Duration = Duration::from_secs(2);
/// Time to find the next host, from when the old one was missed. With the longest silence of 5 s before it that makes
/// less than 10 s in which a run without a host ends.
pub(super) const SUCCESSION_MAX: Duration = Duration::from_millis(4500);
/// Pauses between attempts at the endpoint, doubled from the first to the last.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Who to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// Its rank in the last round; `None`: the endpoint.
    pub(super) rank: Option<u32>,
    pub(super) at: (String, u16),
    /// Whether it is this node itself.
    pub(super) own: bool,
    /// Whether it is the host that was lost, which may live after all.
    pub(super) again: bool,
}

/// One attempt.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) target: Target,
    /// Addresses not tried; `None` while the name is being resolved.
    pub(super) addrs: Option<VecDeque<SocketAddr>>,
    pub(super) link: Option<Link>,
    /// Whether every address refused.
    pub(super) refused: bool,
    until: Time,
}

#[derive(Debug)]
pub(super) struct Search {
    targets: VecDeque<Target>,
    /// Tried again and again.
    endpoint: Option<Target>,
    pub(super) attempt: Option<Attempt>,
    pub(super) deadline: Time,
    pub(super) began: Time,
    pause_until: Time,
    pause: Duration,
    /// Ranks of the last round known to be dead.
    pub(super) dead: Vec<u32>,
    /// What the last attempt ended with.
    pub(super) error: String,
    /// Why the old host was given up, and nothing but the old host may be found.
    pub(super) lost: Option<String>,
    /// Counts attempts, so that an answer of the resolver finds its question.
    pub(super) number: u64,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Wait,
    /// Resolve this name.
    Resolve(String, u16),
    /// Connect there.
    Connect(SocketAddr),
    /// Become the host.
    TakeOver,
    /// There is nobody left, or no time.
    GiveUp,
}

impl Search {
    /// For the host of a run that starts.
    pub(super) fn endpoint(now: Time, at: (String, u16), join_timeout: Duration) -> Self {
        let target = Target { rank: None, at, own: false, again: false };
        Self { endpoint: Some(target), ..Self::among(now, VecDeque::new(), now + join_timeout) }
    }

    /// For the host after the last one was lost because of `why`: itself first when its system said so (then it may only
    /// have dropped this node), then those who may take over, up to this node itself.
    pub(super) fn successor(now: Time, last: Last<'_>, why: String) -> Self {
        let Last { at, host_rank, roster, own_rank, fate } = last;
        let mut targets = VecDeque::new();
        if fate == Fate::Closed {
            targets.push_back(Target { rank: host_rank, at, own: false, again: true });
        }
        for heir in roster.map(|roster| roster.successors.as_slice()).unwrap_or_default() {
            let own = heir.node_rank == own_rank;
            let at = (heir.at.host.clone(), heir.at.port);
            targets.push_back(Target { rank: Some(heir.node_rank), at, own, again: false });
            if own {
                break;
            }
        }
        let dead = host_rank.filter(|_| fate != Fate::Unknown).into_iter().collect();
        Self { dead, lost: Some(why), ..Self::among(now, targets, now + SUCCESSION_MAX) }
    }

    fn among(now: Time, targets: VecDeque<Target>, deadline: Time) -> Self {
        Self {
            targets,
            endpoint: None,
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
    pub(super) fn next(&mut self, now: Time) -> Next {
        loop {
            if now >= self.deadline {
                return Next::GiveUp;
            }
            let Some(attempt) = &mut self.attempt else {
                if now < self.pause_until {
                    return Next::Wait;
                }
                match self.targets.pop_front().or_else(|| self.endpoint.clone()) {
                    None => return Next::GiveUp,
                    Some(target) if target.own => return Next::TakeOver,
                    Some(target) => return self.begin(now, target),
                }
            };
            match (&attempt.link, &mut attempt.addrs) {
                _ if now >= attempt.until => {
                    attempt.refused = false;
                    self.fail(now, "no answer".into());
                }
                (None, Some(addrs)) => match addrs.pop_front() {
                    Some(addr) => return Next::Connect(addr),
                    None => {
                        let error = self.error.clone();
                        self.fail(now, error);
                    }
                },
                (Some(link), Some(addrs))
                    if !addrs.is_empty() && !link.is_answered() && now >= link.since + CONNECT_MAX =>
                {
                    attempt.link = None;
                    attempt.refused = false;
                }
                _ => return Next::Wait,
            }
        }
    }

    fn begin(&mut self, now: Time, target: Target) -> Next {
        let resolve = Next::Resolve(target.at.0.clone(), target.at.1);
        let time = if self.lost.is_some() { TAKE_OVER_MAX } else { ANSWER_MAX };
        self.number += 1;
        self.attempt =
            Some(Attempt { target, addrs: None, link: None, refused: true, until: (now + time).min(self.deadline) });
        resolve
    }

    /// The connection of the attempt was refused, or ended before this node was let in.
    pub(super) fn refused(&mut self, error: String, refused: bool) {
        self.error = error;
        if let Some(attempt) = &mut self.attempt {
            attempt.link = None;
            attempt.refused &= refused;
        }
    }

    /// The attempt failed.
    pub(super) fn fail(&mut self, now: Time, error: String) {
        let Some(attempt) = self.attempt.take() else { return };
        self.error = error;
        match attempt.target.rank {
            Some(rank) if attempt.refused && !self.dead.contains(&rank) => self.dead.push(rank),
            _ => {}
        }
        if self.endpoint.is_some() {
            self.pause_until = now + self.pause;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }

    /// When `next` must be asked again, if nothing happens before.
    pub(super) fn wake_at(&self) -> Time {
        let soon = match &self.attempt {
            None => self.pause_until,
            Some(attempt) => {
                let more = attempt.addrs.as_ref().is_some_and(|addrs| !addrs.is_empty());
                let link = attempt.link.as_ref().filter(|link| more && !link.is_answered());
                link.map_or(attempt.until, |link| attempt.until.min(link.since + CONNECT_MAX))
            }
        };
        soon.min(self.deadline)
    }
}

/// What is known of the host that was lost.
#[derive(Debug)]
pub(super) struct Last<'a> {
    /// Where it was.
    pub(super) at: (String, u16),
    /// Its rank in the last round, when it was in it.
    pub(super) host_rank: Option<u32>,
    /// The last round, when it had one and another node may take over.
    pub(super) roster: Option<&'a Roster>,
    /// This node's rank in it.
    pub(super) own_rank: u32,
    /// What became of it.
    pub(super) fate: Fate,
}

/// What became of a host that was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It may live, out of reach.
    Unknown,
    /// Its system closed the connection: it is dead, or has only dropped this node.
    Closed,
    /// It said that it leaves.
    Left,
}
