//! The rendezvous of the nodes, from `--nnodes`, `--standalone`, `--rdzv-*`, `--master-*` and `--node-rank`. Pure, except for the name
//! of a standalone run.

use super::{
    Flags, RunError, endpoint,
    values::{self, Expected},
};
use enn_cluster::rendezvous::StoreLocation;
use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

/// Port of a static rendezvous.
const MASTER_PORT: u16 = 29500;
/// Port of a c10d rendezvous.
const RDZV_PORT: u16 = 29400;
/// Longest wait for the nodes of a static rendezvous.
const STATIC_TIMEOUT: Duration = Duration::from_secs(900);
/// Longest wait for the nodes of an elastic rendezvous.
const JOIN_TIMEOUT: Duration = Duration::from_secs(600);
/// Wait for more nodes once MIN have joined.
const LAST_CALL: Duration = Duration::from_secs(30);
/// A node silent for this long is lost, unless --rdzv-conf sets another time.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// torchrun's own defaults, for a --rdzv-conf that sets only one of the two.
const KEEP_ALIVE_S: u32 = 5;
const KEEP_ALIVE_ATTEMPTS: u32 = 3;
/// Keys of --rdzv-conf that have an effect in torchrun and none here.
const CONF_IDLE: [&str; 5] = ["close_timeout", "read_timeout", "heartbeat_timeout", "store_type", "rank"];

/// Address and time limits of the rendezvous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RendezvousChoice {
    pub(super) nodes: (u32, u32),
    pub(super) location: StoreLocation,
    pub(super) node_rank: Option<u32>,
    pub(super) run_id: String,
    pub(super) join_timeout: Duration,
    pub(super) last_call: Duration,
    pub(super) silence_max: Duration,
    /// Notes for the user, one line each.
    pub(super) notes: Vec<String>,
}

/// Parses the flags of the rendezvous. `name` makes the name of a standalone run.
pub(super) fn rendezvous_choice(flags: &Flags, name: impl FnOnce() -> String) -> Result<RendezvousChoice, RunError> {
    let given = &flags.rendezvous;
    let nodes = flags.read("--nnodes", given.nnodes.as_deref(), (1, 1), values::nodes)?;
    let conf = flags.read("--rdzv-conf", given.rdzv_conf.as_deref(), BTreeMap::new(), values::conf)?;
    let node_rank = flags.parsed("--node-rank", given.node_rank.as_deref(), 0, values::count)?;
    let mut choice = RendezvousChoice {
        nodes,
        location: here(0, true),
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
        choice.nodes = (1, 1);
        choice.run_id = name();
    } else {
        match given.rdzv_backend.as_deref().unwrap_or("static") {
            "static" => fixed(flags, node_rank, &conf, &mut choice)?,
            "c10d" => elastic(flags, &conf, &mut choice)?,
            other => {
                let place = flags.place("--rdzv-backend");
                return Err(RunError::Backend { place, found: other.to_owned() });
            }
        }
    }
    times(flags, &conf, &mut choice)?;
    Ok(choice)
}

/// Sets up a static rendezvous: ranks are given, and the node of rank 0 serves.
fn fixed(
    flags: &Flags,
    rank: u32,
    conf: &BTreeMap<String, String>,
    choice: &mut RendezvousChoice,
) -> Result<(), RunError> {
    let given = &flags.rendezvous;
    if choice.nodes.0 < choice.nodes.1 {
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
    if rank >= choice.nodes.1 {
        let place = flags.place("--node-rank");
        return Err(RunError::NodeRank { place, found: rank, nodes: choice.nodes.1 });
    }
    // Without a given port any free one will do, so that two runs on one machine do not collide.
    let any_port = given.master_port.is_none() && given.rdzv_endpoint.is_none();
    choice.node_rank = Some(rank);
    choice.location = match endpoint::loopback(&host) {
        Some(address) if choice.nodes.1 == 1 => {
            StoreLocation::Local { listen: SocketAddr::new(address, port), any_port }
        }
        _ => StoreLocation::Endpoint { host, port, is_host: Some(rank == 0) },
    };
    let timeout = conf.get("timeout").map(String::as_str);
    choice.join_timeout = flags.read("--rdzv-conf", timeout, STATIC_TIMEOUT, values::seconds)?;
    Ok(())
}

/// Sets up an elastic rendezvous: ranks are assigned, and the node that owns the endpoint serves.
fn elastic(flags: &Flags, conf: &BTreeMap<String, String>, choice: &mut RendezvousChoice) -> Result<(), RunError> {
    let text = flags.rendezvous.rdzv_endpoint.as_deref().filter(|text| !text.trim().is_empty());
    let default = ("localhost".to_owned(), RDZV_PORT);
    let read = |text: &str| endpoint::parse(text, Some(RDZV_PORT));
    let (host, port) = flags.read("--rdzv-endpoint", text, default, read)?;
    let is_host = conf.get("is_host").map(String::as_str);
    let is_host = flags.read("--rdzv-conf", is_host, None, |text| values::truth(text).map(Some))?;
    if choice.nodes.1 == 1 && is_host != Some(false) {
        // No other node joins, so that no other node needs the port.
        choice.location = here(port, true);
        return Ok(());
    }
    if port == 0 {
        let expected =
            Expected { what: "a port that all nodes know", hint: "--rdzv-endpoint HOST:29400 on every node" };
        return Err(flags.wrong("--rdzv-endpoint", text.unwrap_or_default(), expected));
    }
    choice.location = StoreLocation::Endpoint { host, port, is_host };
    Ok(())
}

fn times(flags: &Flags, conf: &BTreeMap<String, String>, choice: &mut RendezvousChoice) -> Result<(), RunError> {
    let value = |key: &str| conf.get(key).map(String::as_str);
    let seconds = |key: &str, default| flags.read("--rdzv-conf", value(key), default, values::seconds);
    choice.join_timeout = seconds("join_timeout", choice.join_timeout)?;
    choice.last_call = seconds("last_call_timeout", choice.last_call)?;
    let attempts = value("keep_alive_max_attempt");
    if value("keep_alive_interval").is_some() || attempts.is_some() {
        let interval = seconds("keep_alive_interval", Duration::from_secs(KEEP_ALIVE_S.into()))?;
        let attempts = flags.read("--rdzv-conf", attempts, KEEP_ALIVE_ATTEMPTS, values::count)?;
        choice.silence_max = interval.saturating_mul(attempts);
        if choice.silence_max.is_zero() {
            let expected = Expected { what: "a keep-alive time above zero", hint: "keep_alive_interval=1" };
            return Err(flags.wrong(
                "--rdzv-conf",
                flags.rendezvous.rdzv_conf.as_deref().unwrap_or_default(),
                expected,
            ));
        }
    }
    let known =
        ["timeout", "join_timeout", "last_call_timeout", "keep_alive_interval", "keep_alive_max_attempt", "is_host"];
    for key in conf.keys().filter(|key| !known.contains(&key.as_str()) && !CONF_IDLE.contains(&key.as_str())) {
        choice.notes.push(format!("{}: the key {key} is not known and has no effect", flags.place("--rdzv-conf")));
    }
    Ok(())
}

fn here(port: u16, any_port: bool) -> StoreLocation {
    StoreLocation::Local { listen: SocketAddr::from(([127, 0, 0, 1], port)), any_port }
}
