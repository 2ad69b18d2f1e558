//! Endpoint of the rendezvous: addresses, listeners, and whether this node leads.

use super::{
    error::RendezvousError,
    settings::{Settings, StoreLocation},
};
use enn_broker::tcpstore::{StoreError, listen};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};

/// Role of this node at the start of the run.
#[derive(Debug)]
pub(super) enum EndpointRole {
    /// This node leads: listeners, and the address for its own workers.
    Leader { listeners: Vec<TcpListener>, at: (String, u16) },
    /// Another node leads: its address, and listeners for the case that this node takes over.
    Follower { at: (String, u16), standby: Option<Vec<TcpListener>> },
}

/// Determines whether this node leads, and listens if it does.
pub(super) fn open(settings: &Settings) -> Result<EndpointRole, RendezvousError> {
    match settings.location.clone() {
        StoreLocation::Local { listen: at, any_port } => {
            let listeners = match listen(&at.ip().to_string(), at.port()) {
                Err(StoreError::Taken { .. }) if any_port => listen(&at.ip().to_string(), 0),
                other => other,
            }?;
            let ip = if at.ip().is_unspecified() { "127.0.0.1".to_owned() } else { at.ip().to_string() };
            Ok(EndpointRole::Leader { at: (ip, port_of(&listeners)), listeners })
        }
        StoreLocation::Endpoint { host, port, is_host: Some(true) } => lead(host, port),
        StoreLocation::Endpoint { host, port, is_host: Some(false) } => follow(host, port, settings),
        StoreLocation::Endpoint { host, port, is_host: None } if is_own(&host, settings) => {
            match lead(host.clone(), port) {
                // Of several agents on one machine the first one leads.
                Err(RendezvousError::Store(StoreError::Taken { .. })) => follow(host, port, settings),
                other => other,
            }
        }
        StoreLocation::Endpoint { host, port, is_host: None } => follow(host, port, settings),
    }
}

fn lead(host: String, port: u16) -> Result<EndpointRole, RendezvousError> {
    // A loopback endpoint is for this machine only.
    let listeners = listen(if is_loopback(&host) { &host } else { "" }, port)?;
    Ok(EndpointRole::Leader { at: (host, port_of(&listeners)), listeners })
}

fn follow(host: String, port: u16, settings: &Settings) -> Result<EndpointRole, RendezvousError> {
    // On one machine several nodes may have loopback addresses of their own.
    let own = settings.local_addr.as_deref().filter(|own| is_loopback(own));
    let inside = if is_loopback(&host) { own.unwrap_or(&host) } else { "" };
    let standby = if settings.elastic() { Some(listen(inside, 0)?) } else { None };
    Ok(EndpointRole::Follower { at: (host, port), standby })
}

/// Returns the port that the listeners share.
pub(super) fn port_of(listeners: &[TcpListener]) -> u16 {
    listeners.first().and_then(|listener| listener.local_addr().ok()).map_or(0, |addr| addr.port())
}

/// Whether the name or address is a loopback one.
pub(super) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Whether this machine owns the address. A node without `is_host` leads in this case.
fn is_own(host: &str, settings: &Settings) -> bool {
    if is_loopback(host) || host == settings.host || settings.local_addr.as_deref() == Some(host) {
        return true;
    }
    // An address is this machine's own when something can listen on it.
    let own = |addr: SocketAddr| TcpListener::bind((addr.ip(), 0)).is_ok();
    (host, 0).to_socket_addrs().is_ok_and(|mut addrs| addrs.any(own))
}

/// Returns the addresses of `host`. Blocks as long as the system's resolver does.
pub(super) fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let addrs: Vec<SocketAddr> =
        (host, port).to_socket_addrs().map_err(|error| format!("{host} has no address: {error}"))?.collect();
    if addrs.is_empty() { Err(format!("{host} has no address")) } else { Ok(addrs) }
}

#[cfg(test)]
mod tests {
    use super::{super::settings::tests::settings, *};

    fn at(host: &str, port: u16, is_host: Option<bool>) -> Settings {
        Settings { location: StoreLocation::Endpoint { host: host.into(), port, is_host }, ..settings() }
    }

    #[test]
    fn who_owns_the_address_leads() {
        for host in ["127.0.0.1", "localhost", "n0"] {
            assert!(matches!(open(&at(host, 0, None)).unwrap(), EndpointRole::Leader { .. }), "{host}");
        }
        assert!(matches!(open(&at("192.0.2.1", 1, None)).unwrap(), EndpointRole::Follower { standby: None, .. }));
        assert!(matches!(open(&at("127.0.0.1", 1, Some(false))).unwrap(), EndpointRole::Follower { .. }));
        let elastic = Settings { nodes_max: 3, ..at("127.0.0.1", 1, Some(false)) };
        assert!(matches!(open(&elastic).unwrap(), EndpointRole::Follower { standby: Some(_), .. }));
    }

    #[test]
    fn the_second_agent_of_a_machine_follows_unless_it_must_lead() {
        let EndpointRole::Leader { listeners, at: (_, port) } = open(&at("127.0.0.1", 0, None)).unwrap() else {
            panic!()
        };
        assert!(matches!(open(&at("127.0.0.1", port, None)).unwrap(), EndpointRole::Follower { .. }));
        let error = open(&at("127.0.0.1", port, Some(true))).unwrap_err().to_string();
        assert!(error.contains(&format!("127.0.0.1:{port}")) && error.contains("taken"), "{error}");
        drop(listeners);
    }

    #[test]
    fn here_takes_another_port_only_when_allowed() {
        let held = listen("127.0.0.1", 0).unwrap();
        let listen = SocketAddr::from(([127, 0, 0, 1], port_of(&held)));
        let here = |any_port| Settings { location: StoreLocation::Local { listen, any_port }, ..settings() };
        assert!(matches!(open(&here(false)), Err(RendezvousError::Store(StoreError::Taken { .. }))));
        let EndpointRole::Leader { at, .. } = open(&here(true)).unwrap() else { panic!() };
        assert_ne!(at.1, listen.port());
    }
}
