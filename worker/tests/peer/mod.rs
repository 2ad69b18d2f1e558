//! Peers of a test of collectives: the test's own binary started again as another rank, and the store where they meet.

#![expect(clippy::unwrap_used, reason = "a test ends where something is wrong")]
#![expect(clippy::disallowed_methods, reason = "the environment is how a test names its child's part")]

use crate::again;
use enn_broker::tcpstore::{Limits, StoreHandle, serve};
use enn_worker::comm::{Store, StoreAddr};
use std::{
    env,
    net::Ipv4Addr,
    process::{Child, Stdio},
    time::Duration,
};

/// How long anything that ends well may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Tells a child its part: port, rank, size, and a word.
const PART: &str = "ENN_TEST_PEER";

/// A store of the test's own.
pub(crate) fn store() -> StoreHandle {
    serve((Ipv4Addr::LOCALHOST, 0).into(), Limits::default()).unwrap()
}

/// A client of the store at `port`, with the keys of a round.
pub(crate) fn connect(port: u16, round: u32) -> Store {
    let addr = StoreAddr { host: "127.0.0.1".into(), port, prefix: format!("round-{round}") };
    Store::connect(addr, PATIENCE).unwrap()
}

/// A peer that is killed when the test ends, however it ends.
pub(crate) struct Peer(pub(crate) Child);

impl Peer {
    /// Waits for its end, which must be a good one.
    pub(crate) fn ends_well(&mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the test `child` of a module of this binary (`module_path!()`) as `rank` of `size`.
pub(crate) fn peer(module: &str, port: u16, rank: u32, size: u32, part: &str) -> Peer {
    let mut command = again::command(module, "child");
    command.env(PART, format!("{port} {rank} {size} {part}")).stdout(Stdio::null());
    Peer(command.spawn().unwrap())
}

/// What this process was started for: port, rank, size, and a word; nothing in a process that is no peer.
pub(crate) fn part() -> Option<(u16, u32, u32, String)> {
    let part = env::var(PART).ok()?;
    let words: Vec<&str> = part.split(' ').collect();
    Some((words[0].parse().unwrap(), words[1].parse().unwrap(), words[2].parse().unwrap(), words[3..].join(" ")))
}
