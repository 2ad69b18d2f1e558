//! Where the rendezvous is and whether this node hosts it: addresses, listeners, names.

use super::{
    error::RendezvousError,
    settings::{Place, Settings},
};
use enn_broker::tcpstore::{StoreError, listen};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};

/// What this node begins with.
#[derive(Debug)]
pub(super) enum Opened {
    /// It hosts the rendezvous: listeners, and the address its own workers are given.
    Host { listeners: Vec<TcpListener>, at: (String, u16) },
    /// Another node does: its address, and where this one would serve if it had to.
    Guest { at: (String, u16), standby: Option<Vec<TcpListener>> },
}

/// Finds out who hosts the rendezvous, and listens if it is this node.
pub(super) fn open(settings: &Settings) -> Result<Opened, RendezvousError> {
    match settings.place.clone() {
        Place::Here { listen: at, any_port } => {
            let listeners = match listen(&at.ip().to_string(), at.port()) {
                Err(StoreError::Taken { .. }) if any_port => listen(&at.ip().to_string(), 0),
                other => other,
            }?;
            let ip = if at.ip().is_unspecified() { "127.0.0.1".to_owned() } else { at.ip().to_string() };
            Ok(Opened::Host { at: (ip, port_of(&listeners)), listeners })
        }
        Place::Endpoint { host, port, is_host: Some(true) } => serve(host, port),
        Place::Endpoint { host, port, is_host: Some(false) } => guest(host, port, settings),
        Place::Endpoint { host, port, is_host: None } if is_own(&host, settings) => {
            match serve(host.clone(), port) {
                // Several agents of one machine: the first one hosts.
                Err(RendezvousError::Store(StoreError::Taken { .. })) => guest(host, port, settings),
                other => other,
            }
        }
        Place::Endpoint { host, port, is_host: None } => guest(host, port, settings),
    }
}

fn serve(host: String, port: u16) -> Result<Opened, RendezvousError> {
    // Nobody from outside can come to a loopback address: then nobody from outside may.
    let listeners = listen(if is_loopback(&host) { &host } else { "" }, port)?;
    Ok(Opened::Host { at: (host, port_of(&listeners)), listeners })
}

fn guest(host: String, port: u16, settings: &Settings) -> Result<Opened, RendezvousError> {
    // On one machine several nodes may have loopback addresses of their own.
    let own = settings.local_addr.as_deref().filter(|own| is_loopback(own));
    let inside = if is_loopback(&host) { own.unwrap_or(&host) } else { "" };
    let standby = if settings.elastic() { Some(listen(inside, 0)?) } else { None };
    Ok(Opened::Guest { at: (host, port), standby })
}

/// The port of listeners that share one.
pub(super) fn port_of(listeners: &[TcpListener]) -> u16 {
    listeners.first().and_then(|listener| listener.local_addr().ok()).map_or(0, |addr| addr.port())
}

/// Whether the name or address stands for the machine it is said on.
pub(super) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Whether this machine owns the address: then, without being told, it hosts.
fn is_own(host: &str, settings: &Settings) -> bool {
    if is_loopback(host) || host == settings.host || settings.local_addr.as_deref() == Some(host) {
        return true;
    }
    // An address is this machine's own when something can listen on it.
    let own = |addr: SocketAddr| TcpListener::bind((addr.ip(), 0)).is_ok();
    (host, 0).to_socket_addrs().is_ok_and(|mut addrs| addrs.any(own))
}

/// The addresses of `host`. Blocks as long as the system's resolver does.
pub(super) fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let addrs: Vec<SocketAddr> =
        (host, port).to_socket_addrs().map_err(|error| format!("{host} has no address: {error}"))?.collect();
    if addrs.is_empty() { Err(format!("{host} has no address")) } else { Ok(addrs) }
}

#[cfg(test)]
mod tests {
    use super::{super::settings::tests::settings, *};

    fn at(host: &str, port: u16, is_host: Option<bool>) -> Settings {
        Settings { place: Place::Endpoint { host: host.into(), port, is_host }, ..settings() }
    }

    #[test]
    fn who_owns_the_address_hosts() {
        for host in ["127.0.0.1", "localhost", "n0"] {
            assert!(matches!(open(&at(host, 0, None)).unwrap(), Opened::Host { .. }), "{host}");
        }
        assert!(matches!(open(&at("192.0.2.1", 1, None)).unwrap(), Opened::Guest { standby: None, .. }));
        assert!(matches!(open(&at("127.0.0.1", 1, Some(false))).unwrap(), Opened::Guest { .. }));
        let elastic = Settings { nodes_max: 3, ..at("127.0.0.1", 1, Some(false)) };
        assert!(matches!(open(&elastic).unwrap(), Opened::Guest { standby: Some(_), .. }));
    }

    #[test]
    fn the_second_agent_of_a_machine_is_a_guest_unless_it_must_host() {
        let Opened::Host { listeners, at: (_, port) } = open(&at("127.0.0.1", 0, None)).unwrap() else { panic!() };
        assert!(matches!(open(&at("127.0.0.1", port, None)).unwrap(), Opened::Guest { .. }));
        let error = open(&at("127.0.0.1", port, Some(true))).unwrap_err().to_string();
        assert!(error.contains(&format!("127.0.0.1:{port}")) && error.contains("taken"), "{error}");
        drop(listeners);
    }

    #[test]
    fn here_takes_another_port_only_when_allowed() {
        let held = listen("127.0.0.1", 0).unwrap();
        let listen = SocketAddr::from(([127, 0, 0, 1], port_of(&held)));
        let here = |any_port| Settings { place: Place::Here { listen, any_port }, ..settings() };
        assert!(matches!(open(&here(false)), Err(RendezvousError::Store(StoreError::Taken { .. }))));
        let Opened::Host { at, .. } = open(&here(true)).unwrap() else { panic!() };
        assert_ne!(at.1, listen.port());
    }
}
