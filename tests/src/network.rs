//! Nodes as network namespaces: three hosts on one machine, with a switch between them whose cables can be pulled.
//!
//! Needs root and iproute2. What is made here is removed at the end. What goes wrong here is a failed test, so everything panics.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "it is part of tests: what goes wrong panics, what is skipped is said"
)]

use crate::launch::copy;
use std::{
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

static NETWORKS: AtomicU32 = AtomicU32::new(0);

/// Runs `ip` with these arguments.
///
/// # Errors
/// What it says when it fails.
pub fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output().map_err(|error| error.to_string())?;
    let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(format!("ip {arguments}: {error}")) }
}

/// A switch and three nodes, 10.`x`.`y`.1 to .3.
pub struct Network {
    name: String,
    net: String,
}

impl Network {
    /// `None`, with a line that says so, where namespaces cannot be made.
    pub fn here() -> Option<Self> {
        let made = if nix::unistd::geteuid().is_root() { Self::make() } else { Err("not root".into()) };
        made.inspect_err(|error| println!("skipped: no network namespaces here ({error})")).ok()
    }

    fn make() -> Result<Self, String> {
        let number = NETWORKS.fetch_add(1, Ordering::SeqCst);
        let pid = std::process::id();
        let network = Self { name: format!("enn{pid}x{number}"), net: format!("10.{}.{}", 64 + pid % 64, number) };
        ip(&format!("netns add {}", network.switch()))?;
        let inside = format!("-n {}", network.switch());
        ip(&format!("{inside} link add br0 type bridge"))?;
        ip(&format!("{inside} link set br0 up"))?;
        for node in 1..=3 {
            let host = network.node(node);
            ip(&format!("netns add {host}"))?;
            ip(&format!("-n {host} link add eth0 type veth peer name port{node} netns {}", network.switch()))?;
            ip(&format!("-n {host} addr add {}/24 dev eth0", network.address(node)))?;
            ip(&format!("-n {host} link set lo up"))?;
            ip(&format!("-n {host} link set eth0 up"))?;
            ip(&format!("{inside} link set port{node} master br0"))?;
            ip(&format!("{inside} link set port{node} up"))?;
        }
        Ok(network)
    }

    fn switch(&self) -> String {
        format!("{}s", self.name)
    }

    /// Name of a node's namespace.
    pub fn node(&self, node: u32) -> String {
        format!("{}n{node}", self.name)
    }

    /// Address of a node.
    pub fn address(&self, node: u32) -> String {
        format!("{}.{node}", self.net)
    }

    /// Pulls a node's cable.
    pub fn pull(&self, node: u32) {
        ip(&format!("-n {} link set port{node} down", self.switch())).unwrap();
    }

    /// Puts it back.
    pub fn plug(&self, node: u32) {
        ip(&format!("-n {} link set port{node} up", self.switch())).unwrap();
    }

    /// The same command on a node, with its streams for the test.
    pub fn inside(&self, node: u32, plain: &Command) -> Command {
        let mut command = copy(plain, &["ip", "netns", "exec", &self.node(node)]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in (1..=3).map(|node| self.node(node)).chain([self.switch()]) {
            let _absent = ip(&format!("netns del {name}"));
        }
    }
}
