//! Passes descriptors between ranks. Each rank listens at an address that only the ranks know, and accepts processes of its own user only.

use crate::shm::mmap::nonce;
use enn_common::descriptors;
use nix::{
    cmsg_space,
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{
        ControlMessage, ControlMessageOwned, MsgFlags, getsockopt, recvmsg, sendmsg, sockopt::PeerCredentials,
    },
    unistd::geteuid,
};
use std::{
    cell::Cell,
    io::{self, IoSlice, IoSliceMut},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    thread,
    time::{Duration, Instant},
};

/// Longest time that a rank waits for the descriptors of the others.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Pause while the system has no free descriptor.
const REST: Duration = Duration::from_millis(10);
/// Bytes of a message: the receiver's address (16), the sender's rank (4), and the number of the exchange (4).
const MESSAGE_BYTES: usize = 24;

/// Address at which a rank listens: 128 random bits.
pub(super) type Address = [u64; 2];

/// A rank's socket for descriptors.
#[derive(Debug)]
pub(super) struct DescriptorSocket {
    listener: UnixListener,
    passed: Cell<u32>,
    pub(super) address: Address,
}

fn name(address: Address) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("enn-links-{:016x}{:016x}", address[0], address[1]))
}

impl DescriptorSocket {
    pub(super) fn open() -> io::Result<Self> {
        let address = nonce()?;
        let listener = UnixListener::bind_addr(&name(address)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, passed: Cell::new(0), address })
    }

    /// Sends `own` to every other rank and receives theirs. Returns the descriptors by rank, `None` for this rank and for ranks that have
    /// none. All ranks must call it.
    pub(super) fn pass(
        &self,
        rank: usize,
        addresses: &[Address],
        own: Option<BorrowedFd<'_>>,
    ) -> io::Result<Vec<Option<OwnedFd>>> {
        let time = self.passed.replace(self.passed.get().wrapping_add(1));
        let deadline = Instant::now() + WAIT_MAX;
        for (other, address) in addresses.iter().enumerate() {
            if other != rank {
                patient(deadline, || send(*address, rank as u32, time, own))?;
            }
        }
        let mut taken: Vec<Option<Option<OwnedFd>>> = addresses.iter().map(|_| None).collect();
        taken[rank] = Some(None);
        while taken.iter().any(Option::is_none) {
            let stream = self.accept(deadline)?;
            if getsockopt(&stream, PeerCredentials)?.uid() != geteuid().as_raw() {
                continue;
            }
            // A sender that does not know the address is no member; a message of an earlier exchange is late.
            let Some(([from, when], descriptor)) = self.receive(&stream, deadline)? else { continue };
            if when != time {
                continue;
            }
            match taken.get_mut(from as usize) {
                Some(place @ None) => *place = Some(descriptor),
                _ => return Err(io::Error::other(format!("a descriptor of rank {from}, which has none to give"))),
            }
        }
        Ok(taken.into_iter().flatten().collect())
    }

    fn accept(&self, deadline: Instant) -> io::Result<UnixStream> {
        loop {
            match patient(deadline, || self.listener.accept()) {
                Ok((stream, _)) => return Ok(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => until_readable(&self.listener, deadline)?,
                Err(error) => return Err(error),
            }
        }
    }

    fn receive(&self, stream: &UnixStream, deadline: Instant) -> io::Result<Option<([u32; 2], Option<OwnedFd>)>> {
        until_readable(stream, deadline)?;
        let mut message = [0; MESSAGE_BYTES];
        let (bytes, descriptor) = patient(deadline, || look(stream, &mut message))?;
        let word = |at: usize| message.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        let half = |at: usize| message.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        let known = bytes == MESSAGE_BYTES && [word(0), word(8)] == self.address.map(Some);
        let from = half(16).zip(half(20)).filter(|_| known);
        Ok(from.map(|(from, time)| ([from, time], descriptor)))
    }
}

/// Peeks at the message that waits in a connection; returns its length and its descriptor. The message stays in the connection, so that the
/// caller can look again: where this process has no free descriptor, a message that is taken loses its own.
fn look(stream: &UnixStream, message: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = cmsg_space!(RawFd);
    let mut into = [IoSliceMut::new(message)];
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let received = recvmsg::<()>(stream.as_raw_fd(), &mut into, Some(&mut space), flags)?;
    let mut descriptor = None;
    // ENOBUFS where the descriptor was left out.
    for control in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = control {
            for number in numbers {
                // SAFETY: the kernel made this descriptor for us.
                descriptor = Some(unsafe { OwnedFd::from_raw_fd(number) });
            }
        }
    }
    Ok((received.bytes, descriptor))
}

/// Tries again while the system has no descriptor, which others may give back, until the deadline.
fn patient<T>(deadline: Instant, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match attempt() {
            Err(error) if descriptors::are_exhausted(&error) && Instant::now() < deadline => thread::park_timeout(REST),
            other => return other,
        }
    }
}

fn send(to: Address, rank: u32, time: u32, own: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let stream = UnixStream::connect_addr(&name(to)?)?;
    let mut message = [0; MESSAGE_BYTES];
    message[..8].copy_from_slice(&to[0].to_le_bytes());
    message[8..16].copy_from_slice(&to[1].to_le_bytes());
    message[16..20].copy_from_slice(&rank.to_le_bytes());
    message[20..].copy_from_slice(&time.to_le_bytes());
    let number = own.map(|fd| [fd.as_raw_fd()]);
    let rights = number.as_ref().map(|number| ControlMessage::ScmRights(number));
    // A message this short is taken whole or not at all.
    sendmsg::<()>(stream.as_raw_fd(), &[IoSlice::new(&message)], rights.as_slice(), MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

fn until_readable(socket: &impl AsFd, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left.as_millis()).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], timeout) {
        Ok(0) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("nothing came within {WAIT_MAX:?}"))),
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    use std::{
        fs::File,
        io::{Read, Write},
    };

    #[test]
    fn every_rank_gets_what_the_others_gave_and_strangers_are_not_heard() {
        let posts: Vec<DescriptorSocket> = (0..3).map(|_| DescriptorSocket::open().unwrap()).collect();
        let addresses: Vec<Address> = posts.iter().map(|post| post.address).collect();
        // Somebody who found the socket, but does not know what it is called inside.
        UnixStream::connect_addr(&name(addresses[1]).unwrap()).unwrap().write_all(&[7; 64]).unwrap();
        let ranks = posts.into_iter().enumerate().map(|(rank, post)| {
            let addresses = addresses.clone();
            thread::spawn(move || {
                let (mut reader, writer) = io::pipe().unwrap();
                // Rank 2 has nothing to give.
                let own = (rank != 2).then_some(writer.as_fd());
                let taken = post.pass(rank, &addresses, own).unwrap();
                let there: Vec<bool> = taken.iter().map(Option::is_some).collect();
                for fd in taken.into_iter().flatten() {
                    File::from(fd).write_all(&[rank as u8]).unwrap();
                }
                drop(writer);
                let mut event = Vec::new();
                reader.read_to_end(&mut event).unwrap();
                event.sort_unstable();
                (there, event)
            })
        });
        let ranks: Vec<_> = ranks.collect();
        let ended: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        assert_eq!(ended[0], (vec![false, true, false], vec![1, 2]));
        assert_eq!(ended[1], (vec![true, false, false], vec![0, 2]));
        assert_eq!(ended[2], (vec![true, true, false], vec![]));
    }

    /// Tests may share a process, and a limit is a process's: the test proper runs in one of its own.
    #[test]
    fn ranks_without_descriptors_wait_for_some() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        alone.args(["links::unix::tests::ranks_below_a_limit_of_descriptors", "--exact", "--ignored"]);
        let done = alone.output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("1 passed"), "{}: {said}", done.status);
    }

    #[test]
    #[ignore = "ranks_without_descriptors_wait_for_some starts it"]
    fn ranks_below_a_limit_of_descriptors() {
        let posts: Vec<DescriptorSocket> = (0..3).map(|_| DescriptorSocket::open().unwrap()).collect();
        let addresses: Vec<Address> = posts.iter().map(|post| post.address).collect();
        let (_reader, writer) = io::pipe().unwrap();
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();
        let mut crowd: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        assert!(crowd.len() > 20, "{}", crowd.len());
        thread::scope(|scope| {
            let ranks = posts.into_iter().enumerate().map(|(rank, post)| {
                let addresses = &addresses;
                let own = writer.as_fd();
                scope.spawn(move || post.pass(rank, addresses, Some(own)))
            });
            let ranks: Vec<_> = ranks.collect();
            // One by one they come back, fewer at first than all ranks need at once.
            while let Some(one) = crowd.pop() {
                thread::park_timeout(Duration::from_millis(20));
                drop(one);
            }
            for (rank, taken) in ranks.into_iter().enumerate() {
                let taken: Vec<bool> = taken.join().unwrap().unwrap().iter().map(Option::is_some).collect();
                assert_eq!(taken, [rank != 0, rank != 1, rank != 2]);
            }
        });
    }
}
