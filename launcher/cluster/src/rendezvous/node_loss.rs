//! Reasons for the loss of a node.

use std::{fmt, time::Duration};

/// Reason for the loss of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NodeLoss {
    /// The node's system closed the connection: the agent is dead.
    Closed,
    /// The node was silent for this time: it may be dead, or only out of reach.
    Silent(Duration),
    /// The network broke the connection, or the node did not keep to the protocol.
    Broken(String),
    /// The node received nothing from this leader for too long, and looks for another one.
    Abandoned,
    /// The node is connected and does not do its part.
    Stuck(String),
    /// The node was asked to stop.
    Left(String),
}

impl NodeLoss {
    /// Whether the node cannot go on elsewhere.
    pub(super) fn is_death(&self) -> bool {
        matches!(self, Self::Closed | Self::Left(_))
    }
}

impl fmt::Display for NodeLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(f, "its connection was closed; the agent there ended"),
            Self::Silent(time) => write!(f, "nothing was heard of it for {:.1} s", time.as_secs_f64()),
            Self::Broken(why) | Self::Stuck(why) => write!(f, "{why}"),
            Self::Abandoned => write!(f, "it heard nothing of this host for too long"),
            Self::Left(why) => write!(f, "it was asked to stop ({why})"),
        }
    }
}

/// Loss of a node that the next decision has to handle.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PendingLoss {
    pub(super) host: String,
    pub(super) loss: NodeLoss,
}
