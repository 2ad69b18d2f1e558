//! Decisions of the leader, and their reasons as sentences.

use super::{Elapsed, partition::PartitionSide};
use enn_common::wire::node::{RoundEnd, RunEnd};
use std::fmt;

/// Decision of the leader.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Decision {
    /// Wait for an event, or until this time.
    Wait(Option<Elapsed>),
    /// Begin a round with the nodes that are ready.
    Begin,
    /// After the leader was lost, enough nodes of the last round are connected: gather for the next one.
    Resume,
    /// End the round; nodes gather for the next.
    EndRound(RoundEnd),
    EndRun(RunEnd),
}

/// Reason of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reason {
    /// There are too few nodes.
    Gathering { here: usize, names: Vec<String>, wanted: usize, min: u32, until: Elapsed },
    /// Nodes with these fixed ranks are missing.
    Ranks { here: usize, wanted: u32, missing: Vec<u32>, more: usize, until: Elapsed },
    /// There are enough nodes; more may come.
    LastCall { here: usize, max: u32, until: Elapsed },
    /// Workers of the last round still live on these nodes.
    Stopping { names: Vec<String>, more: usize, until: Elapsed },
    /// The next restart is delayed.
    Backoff { restart: u32, until: Elapsed },
    /// The last leader was lost, and this node took over.
    TakingOver { side: PartitionSide, round: u64, until: Elapsed },
    /// A round runs and has the largest number of nodes.
    Full { nodes: usize, waiting: usize },
    /// A round runs.
    Running { nodes: usize },
    /// All nodes that are needed are connected.
    Complete { nodes: usize },
    /// The run has a fixed number of nodes.
    NodesFixed,
    /// The nodes on this side of the network are no quorum of the last round.
    NoQuorum(PartitionSide),
    /// Too few nodes are left, or the whole run was asked to stop.
    TooFew { left: usize, min: u32 },
    /// Enough nodes are left.
    NodesLeft { left: usize },
    /// A node waits, and the round has fewer nodes than it may have.
    Room { nodes: usize, max: u32 },
    /// The run has ended.
    Over,
}

impl Reason {
    /// Returns the reason as a sentence, with the time left at `now`.
    pub(super) fn at(&self, now: Elapsed) -> String {
        Sentence { reason: self, now }.to_string()
    }
}

struct Sentence<'a> {
    reason: &'a Reason,
    now: Elapsed,
}

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The time is rounded up: the last second is "1 s left".
        let left = |until: &Elapsed| until.saturating_sub(self.now).as_millis().div_ceil(1000);
        match self.reason {
            Reason::Gathering { here, names, wanted, min, until } => {
                let names = list(names, here - names.len());
                let missing = (*min as usize).saturating_sub(*here);
                write!(
                    f,
                    "{here} of {wanted} nodes are here{names}; waiting for {missing} more, {} s left",
                    left(until)
                )
            }
            Reason::Ranks { here, wanted, missing, more, until } => {
                let ranks = missing.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
                let more = if *more > 0 { format!(" and {more} more") } else { String::new() };
                let word = if missing.len() > 1 { "ranks" } else { "rank" };
                write!(
                    f,
                    "{here} of {wanted} nodes are here; waiting for node {word} {ranks}{more}, {} s left",
                    left(until)
                )
            }
            Reason::LastCall { here, max, until } => {
                write!(f, "{here} of {max} nodes are here, which is enough; last call for more, {} s left", left(until))
            }
            Reason::Stopping { names, more, until } => {
                let names = list(names, *more);
                write!(f, "waiting for the workers of the last round to end{names}, {} s left", left(until))
            }
            Reason::Backoff { restart, until } => write!(f, "restart {restart} begins in {} s", left(until)),
            Reason::TakingOver { side, round, until } => write!(
                f,
                "the host of the rendezvous is gone and this node takes over: {} of {} nodes of round {round} are here \
                 ({} known dead), {} s left",
                side.here,
                side.nodes,
                side.dead,
                left(until)
            ),
            Reason::Full { nodes, waiting } => {
                write!(f, "the run has all its {nodes} nodes; {waiting} wait in case one is lost")
            }
            Reason::Running { nodes } => write!(f, "a round of {nodes} nodes is on"),
            Reason::Complete { nodes } => write!(f, "{nodes} nodes are here"),
            Reason::NodesFixed => {
                write!(f, "the run needs all its nodes and no restarts are allowed (--nnodes MIN:MAX, --max-restarts)")
            }
            Reason::NoQuorum(side) => write!(
                f,
                "only {} of {} nodes of the last round are on this side ({} known dead): the others may go on without them",
                side.here, side.nodes, side.dead
            ),
            Reason::TooFew { left, min } => write!(f, "{left} nodes are left of {min} needed"),
            Reason::NodesLeft { left } => write!(f, "{left} nodes are left"),
            Reason::Room { nodes, max } => write!(f, "there is room: {nodes} of {max} nodes"),
            Reason::Over => write!(f, "the run is over"),
        }
    }
}

/// " (a, b and 3 more)".
fn list(names: &[String], more: usize) -> String {
    match (names.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!(" ({})", names.join(", ")),
        (false, _) => format!(" ({} and {more} more)", names.join(", ")),
    }
}
