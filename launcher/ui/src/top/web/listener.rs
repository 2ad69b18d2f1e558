//! The port of the page: the default one if it is free, and who has a port that is not.

use crate::error::TopError;
use std::{
    fs, io,
    net::{Ipv4Addr, TcpListener},
    path::PathBuf,
};

/// The port unless another one is asked for, so that a tunnel to it can be made in advance.
pub(super) const PORT: u16 = 7007;
/// State of a listening socket in /proc/net/tcp.
const LISTENS: &str = "0A";

/// Listens on the loopback address: on `port`, or else on the default port, or on any free one if that is taken.
pub(super) fn bind(port: Option<u16>) -> Result<TcpListener, TopError> {
    let listen = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let taken = |port| {
        move |source: io::Error| {
            let user = if source.kind() == io::ErrorKind::AddrInUse { listening_on(port) } else { None };
            TopError::Port { port, user, source }
        }
    };
    match port {
        Some(port) => listen(port).map_err(taken(port)),
        None => listen(PORT).or_else(|_| listen(0)).map_err(taken(PORT)),
    }
}

/// Names the program that listens on a port of this host, if it is this user's.
fn listening_on(port: u16) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    let inodes: Vec<&str> =
        tables.iter().flat_map(|table| table.lines()).filter_map(|line| inode(line, port)).collect();
    let links: Vec<PathBuf> = inodes.iter().map(|inode| PathBuf::from(format!("socket:[{inode}]"))).collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|_| !links.is_empty()).find_map(|pid| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut targets = open.filter_map(|entry| fs::read_link(entry.path()).ok());
        targets.any(|target| links.contains(&target)).then_some(())?;
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Some(format!("{}, pid {pid}", name.trim()))
    })
}

/// The inode of a line of /proc/net/tcp that is about a socket which listens on `port`.
fn inode(line: &str, port: u16) -> Option<&str> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (_, own) = fields.get(1)?.rsplit_once(':')?;
    let listens = *fields.get(3)? == LISTENS && u16::from_str_radix(own, 16).ok()? == port;
    fields.get(9).copied().filter(|_| listens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_named_with_its_program_and_the_default_gives_way() {
        let first = bind(Some(0)).unwrap();
        let port = first.local_addr().unwrap().port();
        let error = bind(Some(port)).unwrap_err().to_string();
        let own = format!(", pid {})", std::process::id());
        assert!(error.contains(&format!("port {port} of 127.0.0.1")) && error.contains(&own), "{error}");
        assert!(error.contains("hint: `--port 0`"), "{error}");
        let both = [bind(None).unwrap(), bind(None).unwrap()].map(|one| one.local_addr().unwrap());
        assert!(both[0] != both[1] && both.iter().all(|address| address.ip().is_loopback()), "{both:?}");
    }

    #[test]
    fn lines_of_other_sockets_are_passed_over() {
        let line = "   0: 0100007F:1B5F 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000 0 4242 1 0 100 0";
        assert_eq!(inode(line, 7007), Some("4242"));
        assert_eq!(inode(line, 7008), None);
        assert_eq!(inode(&line.replace(" 0A ", " 01 "), 7007), None);
        assert_eq!(inode("  sl  local_address rem_address", 7007), None);
    }
}
