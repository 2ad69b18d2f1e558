//! The addresses from which plain c10d clients may connect. They present no token, so their address is the only criterion.

use nix::ifaddrs::getifaddrs;
use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr, SocketAddrV6},
    time::{Duration, Instant},
};

/// Shortest time between two reads of this host's addresses for unlisted clients.
const OWN_ADDRESSES_AGE: Duration = Duration::from_secs(1);
/// Limit on the refused addresses that are remembered, so that each is reported once.
const REPORTED_MAX: usize = 1024;

/// Policy for the addresses from which c10d clients are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PeerPolicy {
    /// Every address is accepted.
    Open,
    /// Loopback, the addresses of this host and admitted addresses are accepted.
    #[default]
    Listed,
}

/// Decision about a client's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    Admitted,
    /// `first`: no client from this address was refused before.
    Refused {
        first: bool,
    },
}

/// The policy with its list of admitted addresses.
#[derive(Debug)]
pub(super) struct AllowList {
    peers: PeerPolicy,
    admitted: HashSet<IpAddr>,
    own: HashSet<IpAddr>,
    own_read_at: Option<Instant>,
    read_own: fn() -> HashSet<IpAddr>,
    refused: HashSet<IpAddr>,
}

impl AllowList {
    pub(super) fn new(peers: PeerPolicy) -> Self {
        Self::with_own(peers, own_addresses)
    }

    fn with_own(peers: PeerPolicy, read_own: fn() -> HashSet<IpAddr>) -> Self {
        Self {
            peers,
            admitted: HashSet::new(),
            own: HashSet::new(),
            own_read_at: None,
            read_own,
            refused: HashSet::new(),
        }
    }

    pub(super) fn admit(&mut self, ip: IpAddr) {
        self.admitted.insert(ip.to_canonical());
    }

    pub(super) fn dismiss(&mut self, ip: IpAddr) {
        self.admitted.remove(&ip.to_canonical());
    }

    /// Decides whether a client from `ip` may connect.
    pub(super) fn check(&mut self, ip: IpAddr, now: Instant) -> Admission {
        let ip = ip.to_canonical();
        if self.is_admitted(ip, now) {
            return Admission::Admitted;
        }
        let first = self.refused.len() < REPORTED_MAX && self.refused.insert(ip);
        Admission::Refused { first }
    }

    fn is_admitted(&mut self, ip: IpAddr, now: Instant) -> bool {
        if self.peers == PeerPolicy::Open || ip.is_loopback() || self.admitted.contains(&ip) || self.own.contains(&ip) {
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

/// Returns the addresses of this host's interfaces; none when the system cannot list them.
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
        let mut list = AllowList::with_own(PeerPolicy::Listed, || HashSet::from([IpAddr::from([10, 0, 0, 1])]));
        let now = Instant::now();
        for known in ["127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "::ffff:10.0.0.1"] {
            assert_eq!(list.check(ip(known), now), Admission::Admitted, "{known}");
        }
        assert_eq!(list.check(ip("10.0.0.2"), now), Admission::Refused { first: true });
        assert_eq!(list.check(ip("::ffff:10.0.0.2"), now), Admission::Refused { first: false }, "reported once");
        list.admit(ip("::ffff:10.0.0.2"));
        assert_eq!(list.check(ip("10.0.0.2"), now), Admission::Admitted);
        list.dismiss(ip("10.0.0.2"));
        assert_eq!(list.check(ip("10.0.0.2"), now), Admission::Refused { first: false });
    }

    #[test]
    fn open_lets_in_everybody() {
        assert_eq!(AllowList::new(PeerPolicy::Open).check(ip("203.0.113.9"), Instant::now()), Admission::Admitted);
    }

    #[test]
    fn a_flood_of_addresses_is_reported_a_bounded_number_of_times() {
        let mut list = AllowList::with_own(PeerPolicy::Listed, HashSet::new);
        let now = Instant::now();
        let reported = (0..100_000u32)
            .filter(|n| list.check(Ipv4Addr::from(0x0B00_0000 + n).into(), now) == Admission::Refused { first: true })
            .count();
        assert_eq!(reported, REPORTED_MAX);
    }

    #[test]
    fn this_host_knows_its_own_addresses() {
        assert!(own_addresses().contains(&ip("127.0.0.1")));
    }
}
