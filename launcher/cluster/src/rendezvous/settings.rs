//! Settings of the rendezvous.

use enn_common::wire::node::Terms;
use std::{fmt, net::SocketAddr, path::PathBuf, time::Duration};

/// Settings of the rendezvous of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Name of the run; nodes with another name are refused.
    pub run_id: String,
    /// Smallest number of nodes.
    pub nodes_min: u32,
    /// Largest number of nodes.
    pub nodes_max: u32,
    /// Location of the store and of the rendezvous.
    pub location: StoreLocation,
    /// Rank of this node when it is fixed (static, slurm).
    pub node_rank: Option<u32>,
    /// Number of workers of this node.
    pub local_world: u32,
    /// Whether nodes may run different numbers of workers of one role; the leader's setting holds.
    pub uneven: bool,
    /// Role of this node's workers.
    pub role: String,
    /// Name or address at which the other nodes reach this one (`--local-addr`); `None`: found out.
    pub local_addr: Option<String>,
    /// Host name of this node.
    pub host: String,
    /// Restarts allowed over the whole run.
    pub restarts_max: u32,
    /// Longest wait for `nodes_min` nodes (`join_timeout`, 600 s).
    pub join_timeout: Duration,
    /// Wait for more nodes once there are `nodes_min` (`last_call_timeout`, 30 s).
    pub last_call: Duration,
    /// Longest silence of a node that is not lost (`keep_alive_interval` × `keep_alive_max_attempt`, 5 s).
    pub silence_max: Duration,
    /// Time without progress of any worker that is a hang; `None`: never.
    pub hang_timeout: Option<Duration>,
    /// Secret shared by the nodes; `None`: none is required.
    pub token: Option<Token>,
    /// Whether plain c10d clients may connect from hosts that are no node of the run.
    pub store_open: bool,
    /// Whether the store keeps its keys when a round begins: the workers use keys of their own in each round.
    pub store_kept: bool,
}

/// Location of the store and of the rendezvous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreLocation {
    /// In this process: the run has one node. Port 0 takes a free one.
    Local {
        /// Address to listen on.
        listen: SocketAddr,
        /// When `listen` is taken: take any free port instead.
        any_port: bool,
    },
    /// At an endpoint that all nodes know; `host` decides which node serves it.
    Endpoint {
        /// Host name or address.
        host: String,
        port: u16,
        /// Whether this node serves it; `None`: the node that owns the address does.
        is_host: Option<bool>,
    },
}

impl fmt::Display for StoreLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local { listen, .. } => write!(f, "{listen}"),
            Self::Endpoint { host, port, .. } => write!(f, "{host}:{port}"),
        }
    }
}

/// Secret of a run, which is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub secret: Vec<u8>,
    /// Source of the token, for messages.
    pub from: TokenSource,
}

/// Source of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// `ENN_TOKEN`.
    Variable,
    /// `--token-file`, or the user's own file.
    File(PathBuf),
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token(from {:?})", self.from)
    }
}

impl Settings {
    /// Whether the number of nodes may change while the run goes on.
    pub(super) fn elastic(&self) -> bool {
        self.nodes_min < self.nodes_max
    }

    /// Returns the settings that all nodes of a run share.
    pub(super) fn terms(&self) -> Terms {
        Terms {
            run_id: self.run_id.clone(),
            nodes_min: self.nodes_min,
            nodes_max: self.nodes_max,
            ranks_fixed: self.node_rank.is_some(),
            restarts_max: self.restarts_max,
            silence_max: self.silence_max,
            hang_timeout: self.hang_timeout,
            replaces: self.store_kept,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// Settings of a single node.
    pub(crate) fn settings() -> Settings {
        Settings {
            run_id: "run".into(),
            nodes_min: 1,
            nodes_max: 1,
            location: StoreLocation::Local { listen: (Ipv4Addr::LOCALHOST, 0).into(), any_port: false },
            node_rank: None,
            local_world: 2,
            uneven: true,
            role: "default".into(),
            local_addr: None,
            host: "n0".into(),
            restarts_max: 0,
            join_timeout: Duration::from_secs(600),
            last_call: Duration::from_secs(30),
            silence_max: Duration::from_secs(5),
            hang_timeout: None,
            token: None,
            store_open: false,
            store_kept: false,
        }
    }

    #[test]
    fn a_token_is_never_shown() {
        let token = Token { secret: b"hush".to_vec(), from: TokenSource::Variable };
        let shown = format!("{:?}", Settings { token: Some(token), ..settings() });
        assert!(shown.contains("from Variable") && !shown.contains("hush") && !shown.contains("104"), "{shown}");
    }
}
