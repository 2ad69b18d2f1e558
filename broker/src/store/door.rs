//! From where plain c10d clients may come. They present no token, so their address is all there is to go by.

use nix::ifaddrs::getifaddrs;
use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr, SocketAddrV6},
    time::{Duration, Instant},
};

/// The addresses of this host are read again for an unlisted client at most this often.
const OWN_ADDRESSES_AGE: Duration = Duration::from_secs(1);
/// Addresses that were turned away and are remembered, so that each is reported once.
const REPORTED_MAX: usize = 1024;

/// From where c10d clients are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Door {
    /// From everywhere.
    Open,
    /// From loopback, from the addresses of this host, and from those that were admitted.
    #[default]
    Listed,
}

/// What the door says to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Come,
    /// Turned away; `first`: nobody from this address was before.
    Go {
        first: bool,
    },
}

/// The door with its list.
#[derive(Debug)]
pub(super) struct Doorkeeper {
    door: Door,
    admitted: HashSet<IpAddr>,
    own: HashSet<IpAddr>,
    own_read_at: Option<Instant>,
    read_own: fn() -> HashSet<IpAddr>,
    turned_away: HashSet<IpAddr>,
}

impl Doorkeeper {
    pub(super) fn new(door: Door) -> Self {
        Self::with_own(door, own_addresses)
    }

    fn with_own(door: Door, read_own: fn() -> HashSet<IpAddr>) -> Self {
        Self {
            door,
            admitted: HashSet::new(),
            own: HashSet::new(),
            own_read_at: None,
            read_own,
            turned_away: HashSet::new(),
        }
    }

    pub(super) fn admit(&mut self, ip: IpAddr) {
        self.admitted.insert(ip.to_canonical());
    }

    pub(super) fn dismiss(&mut self, ip: IpAddr) {
        self.admitted.remove(&ip.to_canonical());
    }

    /// Whether a client from `ip` may come in.
    pub(super) fn ask(&mut self, ip: IpAddr, now: Instant) -> Answer {
        let ip = ip.to_canonical();
        if self.lets_in(ip, now) {
            return Answer::Come;
        }
        let first = self.turned_away.len() < REPORTED_MAX && self.turned_away.insert(ip);
        Answer::Go { first }
    }

    fn lets_in(&mut self, ip: IpAddr, now: Instant) -> bool {
        if self.door == Door::Open || ip.is_loopback() || self.admitted.contains(&ip) || self.own.contains(&ip) {
            return true;
        }
        let fresh = self.own_read_at.is_some_and(|read_at| now.duration_since(read_at) < OWN_ADDRESSES_AGE);
        if fresh {
            return false;
        }
        self.own = (self.read_own)();
        self.own_read_at = Some(now);
        self.own.contains(&ip)
    }
}

/// The addresses of this host's interfaces; none when the system does not tell.
fn own_addresses() -> HashSet<IpAddr> {
    let Ok(interfaces) = getifaddrs() else { return HashSet::new() };
    interfaces
        .filter_map(|interface| interface.address)
        .filter_map(|address| {
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddr::from(SocketAddrV6::from(*v6)).ip()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn listed_lets_in_loopback_own_and_admitted_addresses_only() {
        let mut keeper = Doorkeeper::with_own(Door::Listed, || HashSet::from([IpAddr::from([10, 0, 0, 1])]));
        let now = Instant::now();
        for known in ["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "::ffff:10.0.0.1"] {
            assert_eq!(keeper.ask(ip(known), now), Answer::Come, "{known}");
        }
        assert_eq!(keeper.ask(ip("10.0.0.2"), now), Answer::Go { first: true });
        assert_eq!(keeper.ask(ip("::ffff:10.0.0.2"), now), Answer::Go { first: false }, "reported once");
        keeper.admit(ip("::ffff:10.0.0.2"));
        assert_eq!(keeper.ask(ip("10.0.0.2"), now), Answer::Come);
        keeper.dismiss(ip("10.0.0.2"));
        assert_eq!(keeper.ask(ip("10.0.0.2"), now), Answer::Go { first: false });
    }

    #[test]
    fn open_lets_in_everybody() {
        assert_eq!(Doorkeeper::new(Door::Open).ask(ip("203.0.113.9"), Instant::now()), Answer::Come);
    }

    #[test]
    fn a_flood_of_addresses_is_reported_a_bounded_number_of_times() {
        let mut keeper = Doorkeeper::with_own(Door::Listed, HashSet::new);
        let now = Instant::now();
        let reported = (0..100_000u32)
            .filter(|n| keeper.ask(Ipv4Addr::from(0x0B00_0000 + n).into(), now) == Answer::Go { first: true })
            .count();
        assert_eq!(reported, REPORTED_MAX);
    }

    #[test]
    fn this_host_knows_its_own_addresses() {
        assert!(own_addresses().contains(&ip("127.0.0.1")));
    }
}
