//! Listening sockets: both address families on one port, a deep backlog, and an error that names the process on a taken port.

use super::{StoreError, holder::holder_of};
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen as start_listening, setsockopt,
        socket,
        sockopt::{Ipv6V6Only, ReuseAddr},
    },
};
use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs},
    os::fd::AsRawFd,
};

/// A listening socket that the server polls.
pub(super) struct ListenSocket {
    pub(super) listener: mio::net::TcpListener,
    pub(super) token: mio::Token,
    /// Connections may be waiting for which no event will come.
    pub(super) pending: bool,
}

/// Attempts to find a port that is free on all addresses of a host.
const FREE_PORT_TRIES: usize = 16;

/// Listens on `port` (0: a free one) of `host`: a name, an address, or "" for every address of this machine in both
/// families. All listeners have one port.
pub fn listen(host: &str, port: u16) -> Result<Vec<TcpListener>, StoreError> {
    if host.is_empty() {
        return match listener((Ipv6Addr::UNSPECIFIED, port).into()) {
            Ok(both) => Ok(vec![both]),
            Err(taken @ StoreError::Taken { .. }) => Err(taken),
            // This machine has no IPv6.
            Err(_) => Ok(vec![listener((Ipv4Addr::UNSPECIFIED, port).into())?]),
        };
    }
    let resolve = |source| StoreError::Resolve { host: host.into(), source };
    let mut addrs: Vec<SocketAddr> = Vec::new();
    for addr in (host, port).to_socket_addrs().map_err(resolve)? {
        if !addrs.contains(&addr) {
            addrs.push(addr);
        }
    }
    if addrs.is_empty() {
        return Err(resolve(io::Error::from(io::ErrorKind::NotFound)));
    }
    listen_on_all(&addrs, port == 0)
}

/// Listens on all `addrs`; an address that this machine lacks is skipped as long as another one works.
fn listen_on_all(addrs: &[SocketAddr], free_port: bool) -> Result<Vec<TcpListener>, StoreError> {
    let mut tries = if free_port { FREE_PORT_TRIES } else { 1 };
    loop {
        tries -= 1;
        let mut listeners: Vec<TcpListener> = Vec::new();
        let mut failed = None;
        for addr in addrs {
            let mut addr = *addr;
            if let Some(first) = listeners.first() {
                addr.set_port(port_of(first)?);
            }
            match listener(addr) {
                Ok(listener) => listeners.push(listener),
                Err(taken @ StoreError::Taken { .. }) => {
                    failed = Some(taken);
                    listeners.clear();
                    break;
                }
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(StoreError::Taken { .. }) if tries > 0 => {}
            Some(error) if listeners.is_empty() => return Err(error),
            _ => return Ok(listeners),
        }
    }
}

fn port_of(listener: &TcpListener) -> Result<u16, StoreError> {
    let local = listener.local_addr().map_err(|source| StoreError::Start { what: "listener", source })?;
    Ok(local.port())
}

/// Listens on one address; the unspecified IPv6 address accepts IPv4 as well.
pub(super) fn listener(addr: SocketAddr) -> Result<TcpListener, StoreError> {
    open(addr).map_err(|errno| match errno {
        Errno::EADDRINUSE => StoreError::Taken { addr, holder: holder_of(addr.port()) },
        errno => StoreError::Bind { addr, source: errno.into() },
    })
}

fn open(addr: SocketAddr) -> nix::Result<TcpListener> {
    let family = if addr.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(family, SockType::Stream, flags, None)?;
    setsockopt(&listener, ReuseAddr, &true)?;
    if addr.is_ipv6() {
        setsockopt(&listener, Ipv6V6Only, &!addr.ip().is_unspecified())?;
    }
    bind(listener.as_raw_fd(), &SockaddrStorage::from(addr))?;
    start_listening(&listener, Backlog::MAXCONN)?;
    Ok(listener.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn every_address_is_served_by_one_port() {
        let listeners = listen("", 0).unwrap();
        let port = port_of(&listeners[0]).unwrap();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        if listeners[0].local_addr().unwrap().is_ipv6() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
        }
    }

    #[test]
    fn all_addresses_of_a_name_get_the_same_port() {
        let listeners = listen("localhost", 0).unwrap();
        let ports: Vec<u16> = listeners.iter().map(|listener| port_of(listener).unwrap()).collect();
        assert!(ports.iter().all(|port| *port == ports[0] && *port != 0), "{ports:?}");
    }

    #[test]
    fn a_taken_port_names_who_holds_it() {
        let held = listen("127.0.0.1", 0).unwrap();
        let port = port_of(&held[0]).unwrap();
        for host in ["127.0.0.1", ""] {
            let error = listen(host, port).unwrap_err().to_string();
            assert!(error.contains(&format!(":{port}")), "{error}");
            assert!(error.contains(&format!("(pid {})", std::process::id())), "{error}");
            assert!(error.contains("hint: "), "{error}");
        }
    }

    #[test]
    fn an_address_of_another_machine_and_a_wrong_name_are_told() {
        let error = listen("192.0.2.1", 0).unwrap_err();
        assert!(matches!(error, StoreError::Bind { .. }) && error.to_string().contains("192.0.2.1"), "{error}");
        let error = listen("no host", 0).unwrap_err();
        assert!(matches!(error, StoreError::Resolve { .. }) && error.to_string().contains("no host"), "{error}");
    }
}
