//! Messages between the nodes of a run and the leader of their rendezvous: frames over TCP, behind `PREFIX`.
//!
//! The leader serves c10d clients on the same port; their first byte is 0. Requests are imperative, reports past tense.
//! Add a variant at the end; bump `PROTOCOL` when one changes.
//!
//! **Invariant:** before a node has proved that it knows the run's token, only `Hello` and `Proof` of it are read,
//! within `HANDSHAKE_BYTES_MAX`, and nothing of the run is sent to it. The token itself is never sent.

use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};

/// Version that all nodes of a run must share.
pub const PROTOCOL: u32 = 7;
/// First bytes of a node's connection.
pub const PREFIX: [u8; 3] = *b"ENN";
/// Limit on the bytes that an unauthenticated peer may send.
pub const HANDSHAKE_BYTES_MAX: usize = 4 << 10;
/// Limit on the bytes of a message of an authenticated peer: a failure has the last output of its worker.
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// Bytes of a nonce and of a proof.
pub const PROOF_BYTES: usize = 32;

/// One agent process; random, so that two agents of one host differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct NodeId(pub u64);

/// Message of a node to the leader.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToLeader {
    /// First message, right behind `PREFIX`.
    Hello { protocol: u32, nonce: [u8; PROOF_BYTES] },
    /// Answer to `Challenge`; zeros when the node has no token.
    Proof { proof: [u8; PROOF_BYTES] },
    /// Answer to `Welcome`: who the node is.
    Join(Box<NodeDescription>),
    /// No worker of the last round lives here any more; the node wants to be in the next.
    Ready,
    /// All workers of the node exited 0.
    Finished { round: u64 },
    /// The node was asked to stop.
    Leave { why: String },
    /// The node lives; it reports the last round that it received.
    Alive { round: Option<u64> },
    /// The node received nothing from the leader for too long and looks for another one: it lives, but not here.
    Abandon,
    /// Message of the program that the nodes run together; the rendezvous does not read it.
    Message(Vec<u8>),
}

/// Message of the leader to a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromLeader {
    /// Answer to `Hello`; `token` says whether a proof is required.
    Challenge { nonce: [u8; PROOF_BYTES], token: bool },
    /// The node's proof is right; the answer is the leader's.
    Welcome { proof: [u8; PROOF_BYTES] },
    /// The node may not take part.
    Refused { reason: String },
    /// Why no round begins yet, and the seconds left.
    Waiting { reason: String },
    /// Members of the round that `Begin` is about to start; the same bytes for all.
    Roster(Box<Roster>),
    /// A round begins, with this rank for the node.
    Begin { node_rank: u32 },
    /// The round is over before its work was done.
    RoundEnded(RoundEnd),
    /// The run is over for good.
    RunEnded(RunEnd),
    /// The leader lives.
    Alive,
    /// The leader received nothing from the node for too long and has removed it; the leader lives.
    Dismissed { reason: String },
    /// Message of the program that the nodes run together, like `ToLeader::Message`.
    Message(Vec<u8>),
    /// The leader leaves the run. The others go on without it: one of these takes over.
    Left { successors: Vec<Successor> },
}

/// A node as it introduces itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDescription {
    pub node: NodeId,
    pub host: String,
    pub local_world: u32,
    pub role: String,
    /// Rank of the node when it is fixed.
    pub node_rank: Option<u32>,
    /// Endpoint at which the node would serve as the leader.
    pub standby: Option<StandbyEndpoint>,
    /// Settings that all nodes of a run share.
    pub terms: Terms,
    /// Last round of the node, after the loss of the leader.
    pub last: Option<LastRound>,
}

/// Settings that all nodes of a run share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    pub run_id: String,
    pub nodes_min: u32,
    pub nodes_max: u32,
    /// Whether every node was given its rank.
    pub ranks_fixed: bool,
    pub restarts_max: u32,
    /// A node silent for so long is lost.
    pub silence_max: Duration,
    /// No progress for so long is a hang.
    pub hang_timeout: Option<Duration>,
    /// A worker that fails is replaced while the others live.
    pub replaces: bool,
}

/// Endpoint at which a member would serve as the leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandbyEndpoint {
    /// Name or address; empty: that of its connection.
    pub host: String,
    pub port: u16,
}

/// Round that a member reports to the successor of the leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRound {
    pub round: u64,
    pub node_rank: u32,
    /// Ranks of nodes that are known to be dead, not only silent.
    pub dead: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    /// Number of the round, counted from 0.
    pub round: u64,
    pub members: Members,
    pub leader_rank: u32,
    /// Agent of the leader.
    pub leader: NodeId,
    /// Members that take over when the leader is lost, in this order; a bounded number.
    pub successors: Vec<Successor>,
}

/// A member that may take over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Successor {
    pub node_rank: u32,
    pub at: StandbyEndpoint,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub host: String,
    pub local_world: u32,
    pub role: String,
}

/// Members, packed: each of 10,000 nodes receives all of them, and neighbours look alike.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Members {
    /// (bytes the name shares with the one before, the rest of it) for each host.
    hosts: Vec<(u8, String)>,
    /// (how many in a row, workers, role).
    kinds: Vec<(u32, u32, String)>,
}

impl Members {
    pub fn pack<'a>(members: impl Iterator<Item = (&'a str, u32, &'a str)>) -> Self {
        let mut packed = Self::default();
        let mut before = "";
        for (host, local_world, role) in members {
            let same = host.bytes().zip(before.bytes()).take(usize::from(u8::MAX)).take_while(|(a, b)| a == b).count();
            let shared = (0..=same).rev().find(|at| host.is_char_boundary(*at)).unwrap_or(0);
            packed.hosts.push((u8::try_from(shared).unwrap_or(0), host[shared..].to_owned()));
            match packed.kinds.last_mut() {
                Some((count, workers, name)) if *workers == local_world && name == role => *count += 1,
                _ => packed.kinds.push((1, local_world, role.to_owned())),
            }
            before = host;
        }
        packed
    }

    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// All of them by rank, or `None` when what came over the wire does not fit together.
    pub fn unpack(&self) -> Option<Vec<Member>> {
        let mut members: Vec<Member> = Vec::with_capacity(self.hosts.len());
        let mut hosts = self.hosts.iter();
        for (count, local_world, role) in &self.kinds {
            for _ in 0..*count {
                let (shared, rest) = hosts.next()?;
                let before = members.last().map_or("", |member| &member.host);
                let host = format!("{}{rest}", before.get(..usize::from(*shared))?);
                members.push(Member { host, local_world: *local_world, role: role.clone() });
            }
        }
        hosts.next().is_none().then_some(members)
    }
}

/// Why a round ended before its work was done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum RoundEnd {
    /// A worker failed, here or elsewhere.
    Failed(Box<Failure>),
    /// A node was lost or left; how that is known.
    NodeLost { host: String, reason: String },
    /// A node wants to join and there is room for it.
    NodeWaiting { host: String },
    /// No worker of any node made progress for so long.
    Hung { idle: Duration },
}

/// How the run ended for good.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum RunEnd {
    /// All workers of all nodes finished.
    Finished,
    /// The round ended, and why no other follows.
    Failed { end: RoundEnd, reason: String },
    /// Somebody asked the whole run to stop: host and signal.
    Stopped { by: String },
    /// Not enough nodes came in time; the last reason for waiting says who is missing.
    TimedOut { reason: String },
    /// The leader is gone, and no node may take over: one sentence with the endpoint and the reason.
    LeaderLost { reason: String },
    /// This node may not take part: one sentence with the setting that does not fit, and a hint.
    Refused { reason: String },
}

impl fmt::Display for RoundEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(failure) => write!(f, "rank {} on {} failed", failure.rank, failure.host),
            Self::NodeLost { host, reason } => write!(f, "node {host} was lost: {reason}"),
            Self::NodeWaiting { host } => write!(f, "node {host} wants to join"),
            Self::Hung { idle } => write!(f, "no worker made progress for {} s", idle.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::{self, FrameBuffer};
    use proptest::prelude::*;

    /// A change here is a change of protocol.
    #[test]
    fn golden_bytes_of_protocol_7() {
        assert_eq!(PROTOCOL, 7);
        let golden: [(ToLeader, &[u8]); 3] = [
            (ToLeader::Ready, &[1, 0, 0, 0, 3]),
            (ToLeader::Finished { round: 300 }, &[4, 0, 0, 0, 4, 251, 44, 1]),
            (ToLeader::Leave { why: "x".into() }, &[3, 0, 0, 0, 5, 1, b'x']),
        ];
        for (message, bytes) in golden {
            let mut out = Vec::new();
            frame::encode(&message, &mut out).unwrap();
            assert_eq!(out, bytes, "{message:?}");
        }
        let mut out = Vec::new();
        frame::encode(&FromLeader::Begin { node_rank: 7 }, &mut out).unwrap();
        assert_eq!(out, [2, 0, 0, 0, 5, 7]);
    }

    #[test]
    fn ten_thousand_members_are_small() {
        let hosts: Vec<String> = (0..10_000).map(|n| format!("gpu-{n:05}.cluster.example")).collect();
        let members = Members::pack(hosts.iter().map(|host| (host.as_str(), 8, "default")));
        let mut out = Vec::new();
        frame::encode(&members, &mut out).unwrap();
        assert!(out.len() < 300_000, "{} bytes", out.len());
        assert_eq!(members.unpack().unwrap()[9_999].host, hosts[9_999]);
    }

    #[test]
    fn members_that_do_not_fit_together_are_seen() {
        let counts = Members { hosts: vec![(0, "a".into())], kinds: vec![(2, 1, "r".into())] };
        assert_eq!(counts.unpack(), None);
        let prefix = Members { hosts: vec![(3, "a".into())], kinds: vec![(1, 1, "r".into())] };
        assert_eq!(prefix.unpack(), None);
    }

    proptest! {
        #[test]
        fn members_come_back_as_they_were(list in proptest::collection::vec(("[a-cß]{0,6}", 1u32..4, "[xy]"), 0..30)) {
            let packed = Members::pack(list.iter().map(|(host, world, role)| (host.as_str(), *world, role.as_str())));
            let mut out = Vec::new();
            frame::encode(&packed, &mut out).unwrap();
            let mut buffer = FrameBuffer::new();
            buffer.extend(&out);
            let back = buffer.decode::<Members>().unwrap().unwrap().unpack().unwrap();
            let expected: Vec<Member> = list
                .into_iter()
                .map(|(host, local_world, role)| Member { host, local_world, role })
                .collect();
            prop_assert_eq!(back, expected);
        }
    }
}
