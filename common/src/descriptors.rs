//! The descriptors of this process: for how many connections they suffice, and what a server does when there are none left.
//!
//! **Invariant:** a server that runs out of descriptors goes on. A connection that nobody can accept would keep its listener ready, and
//! its client waiting: it is accepted with a descriptor that was kept for this, and closed.

use nix::{
    errno::Errno,
    sys::resource::{Resource, getrlimit},
};
use std::{
    fs::{self, File},
    io,
};

/// Descriptors that connections leave to the rest of the process.
const LEFT: usize = 32;
/// Connections that a server takes however few descriptors there are.
const CONNECTIONS_MIN: usize = 4;

/// Whether the system has no descriptor, or no memory, for another connection: waiting for the next one does not change that.
pub fn are_exhausted(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM))
}

/// For how many connections the descriptors of this process suffice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    pub connections: usize,
    /// The limit of open files, where it allows fewer connections than wanted.
    pub open_files: Option<u64>,
}

/// For how many of `wanted` connections there are descriptors, beside those that are open now and some for the rest of the process.
pub fn capacity(wanted: usize) -> Capacity {
    let enough = Capacity { connections: wanted, open_files: None };
    // A limit that the system does not tell shows itself when it is reached.
    let Ok((limit, _)) = getrlimit(Resource::RLIMIT_NOFILE) else { return enough };
    let limit_count = usize::try_from(limit).unwrap_or(usize::MAX);
    let open = match fs::read_dir("/proc/self/fd") {
        Ok(entries) => entries.count(),
        // Looking takes a descriptor: there is none.
        Err(error) if are_exhausted(&error) => limit_count,
        Err(_) => 0,
    };
    let free = limit_count.saturating_sub(open.saturating_add(LEFT)).max(CONNECTIONS_MIN);
    if free < wanted { Capacity { connections: free, open_files: Some(limit) } } else { enough }
}

#[derive(Debug)]
pub struct Reserve(Option<File>);

impl Default for Reserve {
    fn default() -> Self {
        Self::new()
    }
}

impl Reserve {
    /// Takes a descriptor, when there is one.
    pub fn new() -> Self {
        Self(File::open("/dev/null").ok())
    }

    /// Accepts a connection in place of the reserve and closes it, so that its client hears that there is no room. `accept` must not
    /// wait. Whether a connection was closed; if not, accepting is to be tried again later.
    pub fn refuse<T>(&mut self, accept: impl FnOnce() -> io::Result<T>) -> bool {
        self.0 = None;
        let refused = accept().is_ok();
        *self = Self::new();
        refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::resource::setrlimit;
    use std::{
        io::Read,
        net::{TcpListener, TcpStream},
    };

    /// The limit is this process's: run each test in a process of its own.
    #[test]
    fn a_client_hears_that_there_is_no_descriptor_for_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut reserve = Reserve::new();
        let mut clients: Vec<TcpStream> =
            (0..3).map(|_| TcpStream::connect(listener.local_addr().unwrap()).unwrap()).collect();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 200.min(hard), hard).unwrap();
        assert!(capacity(100_000).connections < 200 && capacity(100_000).open_files.is_some());
        let mut held = Vec::new();
        let full = loop {
            match File::open("/dev/null") {
                Ok(file) => held.push(file),
                Err(error) => break error,
            }
        };
        assert!(are_exhausted(&full) && are_exhausted(&listener.accept().unwrap_err()));
        assert_eq!(capacity(9).connections, CONNECTIONS_MIN);
        for client in &mut clients {
            assert!(reserve.refuse(|| listener.accept()));
            assert_eq!(client.read(&mut [0]).unwrap(), 0, "it is closed");
        }
        assert!(!reserve.refuse(|| listener.accept()), "nobody is left");
        drop(held);
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        assert_eq!(capacity(1), Capacity { connections: 1, open_files: None });
        assert!(!are_exhausted(&io::ErrorKind::WouldBlock.into()));
    }
}
