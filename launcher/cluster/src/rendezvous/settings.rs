//! How the nodes of a run meet.

use enn_common::wire::node::Terms;
use std::{fmt, net::SocketAddr, path::PathBuf, time::Duration};

/// Which nodes belong to the run, and where they meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Name of the run; nodes with another name are refused.
    pub run_id: String,
    /// Nodes needed.
    pub nodes_min: u32,
    /// Nodes wanted.
    pub nodes_max: u32,
    /// Where the store and the rendezvous are.
    pub place: Place,
    /// Rank of this node when it is fixed (static, slurm).
    pub node_rank: Option<u32>,
    /// Workers of this node.
    pub local_world: u32,
    /// Whether nodes may run different numbers of workers of one role; the host of the rendezvous decides.
    pub uneven: bool,
    /// Role of this node's workers.
    pub role: String,
    /// Name or address at which the other nodes reach this one (`--local-addr`); `None`: found out.
    pub local_addr: Option<String>,
    /// Name of this host.
    pub host: String,
    /// Restarts allowed over the whole run.
    pub restarts_max: u32,
    /// Longest wait for `nodes_min` nodes (join_timeout, 600 s).
    pub join_timeout: Duration,
    /// Wait for more once `nodes_min` are there (last_call_timeout, 30 s).
    pub last_call: Duration,
    /// A node that is silent for so long is lost (keep_alive_interval × keep_alive_max_attempt; 5 s).
    pub silence_max: Duration,
    /// No progress of any worker for so long is a hang; `None`: never.
    pub hang_timeout: Option<Duration>,
    /// Secret shared by the nodes; `None`: none is asked for.
    pub token: Option<Token>,
    /// Whether plain c10d clients may come from hosts that are no node of the run.
    pub store_open: bool,
    /// Whether the store keeps its keys when nodes come or go: those who meet there have names of their own for every round.
    pub store_kept: bool,
}

/// Where the store and the rendezvous are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In this process; nobody else comes. Port 0 takes a free one.
    Here {
        /// Address to listen on.
        listen: SocketAddr,
        /// When `listen` is taken: take any free port instead.
        any_port: bool,
    },
    /// At an endpoint that all nodes were given: `host` decides who serves it.
    Endpoint {
        /// Host name or address.
        host: String,
        port: u16,
        /// Whether this node serves it; `None`: the node that owns the address does.
        is_host: Option<bool>,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here { listen, .. } => write!(f, "{listen}"),
            Self::Endpoint { host, port, .. } => write!(f, "{host}:{port}"),
        }
    }
}

/// A secret. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub secret: Vec<u8>,
    /// Where it was found, for messages.
    pub from: TokenSource,
}

/// Where a token was found.
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

    /// What all nodes must have in common.
    pub(super) fn terms(&self) -> Terms {
        Terms {
            run_id: self.run_id.clone(),
            nodes_min: self.nodes_min,
            nodes_max: self.nodes_max,
            ranks_fixed: self.node_rank.is_some(),
            restarts_max: self.restarts_max,
            silence_max: self.silence_max,
            hang_timeout: self.hang_timeout,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// One node that asks nobody.
    pub(crate) fn settings() -> Settings {
        Settings {
            run_id: "run".into(),
            nodes_min: 1,
            nodes_max: 1,
            place: Place::Here { listen: (Ipv4Addr::LOCALHOST, 0).into(), any_port: false },
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
