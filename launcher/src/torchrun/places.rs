//! How the nodes meet: from `--nnodes`, `--standalone`, `--rdzv-*`, `--master-*` and `--node-rank`. Pure but for the name of a
//! standalone run.

use super::{
    Flags, RunError, endpoint,
    values::{self, Expected},
};
use crate::rendezvous::Place;
use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

/// Port of a static rendezvous.
const MASTER_PORT: u16 = 29500;
/// Port of a c10d rendezvous.
const RDZV_PORT: u16 = 29400;
/// Longest wait for the nodes of a static rendezvous.
const STATIC_TIMEOUT: Duration = Duration::from_secs(900);
/// Longest wait for the nodes of an elastic rendezvous.
const JOIN_TIMEOUT: Duration = Duration::from_secs(600);
/// Wait for more nodes once MIN are there.
const LAST_CALL: Duration = Duration::from_secs(30);
/// A node silent for so long is lost, unless --rdzv-conf says otherwise.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// torchrun's own defaults, for a --rdzv-conf that gives only one of the two.
const KEEP_ALIVE_S: u32 = 5;
const KEEP_ALIVE_ATTEMPTS: u32 = 3;
/// Keys of --rdzv-conf that mean something to torchrun and nothing to us.
const CONF_IDLE: [&str; 5] = ["close_timeout", "read_timeout", "heartbeat_timeout", "store_type", "rank"];

/// Where and when the nodes meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Meeting {
    pub(super) nodes: (u32, u32),
    pub(super) place: Place,
    pub(super) node_rank: Option<u32>,
    pub(super) run_id: String,
    pub(super) join_timeout: Duration,
    pub(super) last_call: Duration,
    pub(super) silence_max: Duration,
    /// One line each, for the user.
    pub(super) notes: Vec<String>,
}

/// Reads all of it. `name` names a standalone run.
pub(super) fn meeting(flags: &Flags, name: impl FnOnce() -> String) -> Result<Meeting, RunError> {
    let given = &flags.meeting;
    let nodes = flags.read("--nnodes", given.nnodes.as_deref(), (1, 1), values::nodes)?;
    let conf = flags.read("--rdzv-conf", given.rdzv_conf.as_deref(), BTreeMap::new(), values::conf)?;
    let node_rank = flags.parsed("--node-rank", given.node_rank.as_deref(), 0, values::count)?;
    let mut meeting = Meeting {
        nodes,
        place: here(0, true),
        node_rank: None,
        run_id: given.rdzv_id.clone().unwrap_or_else(|| "none".to_owned()),
        join_timeout: JOIN_TIMEOUT,
        last_call: LAST_CALL,
        silence_max: SILENCE_MAX,
        notes: Vec::new(),
    };
    if given.standalone {
        if nodes.0 > 1 {
            return Err(RunError::StandaloneNodes { found: nodes.0 });
        }
        meeting.nodes = (1, 1);
        meeting.run_id = name();
    } else {
        match given.rdzv_backend.as_deref().unwrap_or("static") {
            "static" => fixed(flags, node_rank, &conf, &mut meeting)?,
            "c10d" => elastic(flags, &conf, &mut meeting)?,
            other => {
                let place = flags.place("--rdzv-backend");
                return Err(RunError::Backend { place, found: other.to_owned() });
            }
        }
    }
    times(flags, &conf, &mut meeting)?;
    Ok(meeting)
}

/// Ranks are given; the node of rank 0 serves.
fn fixed(flags: &Flags, rank: u32, conf: &BTreeMap<String, String>, meeting: &mut Meeting) -> Result<(), RunError> {
    let given = &flags.meeting;
    if meeting.nodes.0 < meeting.nodes.1 {
        return Err(flags.wrong(
            "--nnodes",
            given.nnodes.as_deref().unwrap_or_default(),
            Expected {
                what: "one number, for static rendezvous cannot shrink or grow",
                hint: "--rdzv-backend c10d --rdzv-endpoint HOST:PORT for an elastic run",
            },
        ));
    }
    let port = |text: &str| {
        text.trim().parse::<u16>().map_err(|_| Expected { what: "a port, 0 to 65535", hint: "--master-port 29500" })
    };
    let master_port = flags.parsed("--master-port", given.master_port.as_deref(), MASTER_PORT, port)?;
    let (host, port) = match given.rdzv_endpoint.as_deref().filter(|text| !text.is_empty()) {
        Some(text) => {
            flags.read("--rdzv-endpoint", Some(text), Default::default(), |text| endpoint::parse(text, None))?
        }
        None => {
            let address = given.master_addr.as_deref().unwrap_or("127.0.0.1");
            // A bare IPv6 address has colons too.
            let whole = format!("{address}:{master_port}");
            flags.read("--master-addr", Some(&whole), Default::default(), |text| endpoint::parse(text, None))?
        }
    };
    if rank >= meeting.nodes.1 {
        let place = flags.place("--node-rank");
        return Err(RunError::NodeRank { place, found: rank, nodes: meeting.nodes.1 });
    }
    // Nobody relies on a port that nobody gave: two runs on one machine need not be told apart by hand.
    let any_port = given.master_port.is_none() && given.rdzv_endpoint.is_none();
    meeting.node_rank = Some(rank);
    meeting.place = match endpoint::loopback(&host) {
        Some(address) if meeting.nodes.1 == 1 => Place::Here { listen: SocketAddr::new(address, port), any_port },
        _ => Place::Endpoint { host, port, is_host: Some(rank == 0) },
    };
    meeting.join_timeout = match conf.get("timeout") {
        Some(text) => flags.read("--rdzv-conf", Some(text), STATIC_TIMEOUT, values::seconds)?,
        None => STATIC_TIMEOUT,
    };
    Ok(())
}

/// Ranks are found; the node that owns the endpoint serves.
fn elastic(flags: &Flags, conf: &BTreeMap<String, String>, meeting: &mut Meeting) -> Result<(), RunError> {
    let text = flags.meeting.rdzv_endpoint.as_deref().filter(|text| !text.trim().is_empty());
    let default = ("localhost".to_owned(), RDZV_PORT);
    let read = |text: &str| endpoint::parse(text, Some(RDZV_PORT));
    let (host, port) = flags.read("--rdzv-endpoint", text, default, read)?;
    let is_host = match conf.get("is_host") {
        Some(text) => Some(flags.read("--rdzv-conf", Some(text), false, values::truth)?),
        None => None,
    };
    if meeting.nodes.1 == 1 && is_host != Some(false) {
        // Nobody else comes, so nobody else need know where.
        meeting.place = here(port, true);
        return Ok(());
    }
    if port == 0 {
        let expected =
            Expected { what: "a port that all nodes know", hint: "--rdzv-endpoint HOST:29400 on every node" };
        return Err(flags.wrong("--rdzv-endpoint", text.unwrap_or_default(), expected));
    }
    meeting.place = Place::Endpoint { host, port, is_host };
    Ok(())
}

fn times(flags: &Flags, conf: &BTreeMap<String, String>, meeting: &mut Meeting) -> Result<(), RunError> {
    let seconds = |key: &str, default: Duration| match conf.get(key) {
        Some(text) => flags.read("--rdzv-conf", Some(text), default, values::seconds),
        None => Ok(default),
    };
    meeting.join_timeout = seconds("join_timeout", meeting.join_timeout)?;
    meeting.last_call = seconds("last_call_timeout", meeting.last_call)?;
    let interval = conf.get("keep_alive_interval");
    let attempts = conf.get("keep_alive_max_attempt");
    if interval.is_some() || attempts.is_some() {
        let interval = seconds("keep_alive_interval", Duration::from_secs(KEEP_ALIVE_S.into()))?;
        let attempts = match attempts {
            Some(text) => flags.read("--rdzv-conf", Some(text), KEEP_ALIVE_ATTEMPTS, values::count)?,
            None => KEEP_ALIVE_ATTEMPTS,
        };
        meeting.silence_max = interval.saturating_mul(attempts);
        if meeting.silence_max.is_zero() {
            let expected = Expected { what: "a keep-alive time above zero", hint: "keep_alive_interval=1" };
            return Err(flags.wrong("--rdzv-conf", flags.meeting.rdzv_conf.as_deref().unwrap_or_default(), expected));
        }
    }
    let known =
        ["timeout", "join_timeout", "last_call_timeout", "keep_alive_interval", "keep_alive_max_attempt", "is_host"];
    for key in conf.keys().filter(|key| !known.contains(&key.as_str()) && !CONF_IDLE.contains(&key.as_str())) {
        meeting.notes.push(format!("{}: the key {key} is not known and has no effect", flags.place("--rdzv-conf")));
    }
    Ok(())
}

fn here(port: u16, any_port: bool) -> Place {
    Place::Here { listen: SocketAddr::from(([127, 0, 0, 1], port)), any_port }
}
