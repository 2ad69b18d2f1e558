//! The trial whether scripts of a Python can be forked: a server is started once, and ended when it is ready.

use super::{Preload, Starter, server::QUESTION};
use crate::{Guard, wait_ready};
use nix::poll::{PollFd, PollFlags};
use std::{io, path::Path, process::Command};

#[derive(Debug, Clone, PartialEq)]
pub enum Trial {
    Forks {
        modules: Vec<String>,
        /// Duration of the imports in seconds.
        seconds: f64,
    },
    /// Workers would be executed, for this reason.
    Executes(String),
}

/// Starts a server with the Python of `command` and its variables, or finds a warm one; `dir` is a directory of this process.
pub fn try_out(mut command: Command, preload: Preload, dir: &Path) -> io::Result<Trial> {
    let mut guard = Guard::start(None, None)?;
    command.args(QUESTION);
    let mut starter = Starter::fork(preload, &command, dir, &mut guard);
    while starter.is_loading() {
        let deadline = starter.deadline();
        let mut fds: Vec<PollFd<'_>> = starter.fds().into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        wait_ready(&mut fds, deadline)?;
        drop(fds);
        starter.advance(&mut guard);
    }
    let found = match starter.take_ready() {
        Some(ready) => Trial::Forks { modules: ready.modules, seconds: ready.seconds },
        None => Trial::Executes(starter.take_messages().join("; ")),
    };
    starter.end(&mut guard);
    Ok(found)
}
