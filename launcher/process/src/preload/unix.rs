//! Descriptor passing for tests that act as the server.

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use std::{
    io::{self, IoSliceMut},
    os::{
        fd::{AsRawFd, FromRawFd, RawFd},
        unix::net::UnixStream,
    },
};

/// Receives the stream that was sent with a byte.
pub(super) fn received_stream(control: &UnixStream) -> io::Result<UnixStream> {
    let mut byte = [0; 1];
    let mut space = nix::cmsg_space!([RawFd; 4]);
    let mut parts = [IoSliceMut::new(&mut byte)];
    let message = recvmsg::<()>(control.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let rights = |message| match message {
        ControlMessageOwned::ScmRights(fds) => fds,
        _ => Vec::new(),
    };
    let fds: Vec<RawFd> = message.cmsgs()?.flat_map(rights).collect();
    let [fd] = fds[..] else { return Err(io::Error::other(format!("one descriptor was expected, found {fds:?}"))) };
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { UnixStream::from_raw_fd(fd) })
}
