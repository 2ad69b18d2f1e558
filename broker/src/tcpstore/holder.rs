//! Finds the process that listens on a port, as far as /proc shows this user. For an error message, never for a decision.

use std::{
    collections::HashSet,
    fmt, fs,
    path::{Path, PathBuf},
};

/// State of a listening socket in /proc/net/tcp.
const LISTENING: &str = "0A";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub pid: u32,
    /// Process name, as the kernel keeps it.
    pub program: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.program, self.pid)
    }
}

/// Returns the first process found that listens on `port`; `None` when there is none or it belongs to another user.
pub(super) fn holder_of(port: u16) -> Option<Holder> {
    let sockets: HashSet<PathBuf> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listeners(&table, port))
        .map(|inode| PathBuf::from(format!("socket:[{inode}]")))
        .collect();
    if sockets.is_empty() {
        return None;
    }
    fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let holds = fs::read_dir(process.path().join("fd"))
            .ok()?
            .flatten()
            .any(|descriptor| fs::read_link(descriptor.path()).is_ok_and(|target| sockets.contains(&target)));
        holds.then(|| Holder { pid, program: program(&process.path()) })
    })
}

fn program(process: &Path) -> String {
    fs::read_to_string(process.join("comm")).map_or_else(|_| "a program".into(), |name| name.trim_end().into())
}

/// Returns the inodes of the sockets in `table` that listen on `port`.
fn listeners(table: &str, port: u16) -> Vec<u64> {
    let inode = |line: &str| {
        let mut fields = line.split_whitespace();
        let local = fields.nth(1)?;
        let state = fields.nth(1)?;
        let (_, number) = local.rsplit_once(':')?;
        let here = u16::from_str_radix(number, 16) == Ok(port) && state == LISTENING;
        if here { fields.nth(5)?.parse().ok() } else { None }
    };
    table.lines().skip(1).filter_map(inode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_port_of_ours_is_held_by_us() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let holder = holder_of(listener.local_addr().unwrap().port()).unwrap();
        assert_eq!(holder.pid, std::process::id());
        assert!(!holder.program.is_empty());
    }

    #[test]
    fn only_listening_sockets_of_the_port_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0\n\
            1: 0100007F:733C 0100007F:8000 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 100 0 0 10 0\n\
            2: 0100007F:733D 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0 100 0 0 10 0\n";
        assert_eq!(listeners(table, 29500), [4711]);
        assert!(listeners(table, 1).is_empty());
    }
}
