//! One stream of one worker: where its bytes go.

use super::{filter::Filter, lines::Lines, tail::Said};
use std::{os::fd::OwnedFd, path::PathBuf, time::Instant};

/// Which of the launcher's own streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl Name {
    /// Position in arrays of two.
    pub(super) fn index(self) -> usize {
        usize::from(self == Self::Err)
    }
}

/// What of a worker comes through one pipe or terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carries {
    /// Its standard output.
    Out,
    /// Its standard error.
    Err,
    /// Both, in the order in which they were written.
    Both,
}

impl Carries {
    /// Whose console and file it goes to.
    pub(super) fn name(self) -> Name {
        if self == Self::Err { Name::Err } else { Name::Out }
    }
}

/// A pipe or terminal and the destinations of what comes through it.
#[derive(Debug)]
pub(super) struct Stream {
    /// The end that is read. It does not block.
    pub(super) source: OwnedFd,
    pub(super) carries: Carries,
    /// Whether the worker writes to a terminal: somebody may be waiting for part of a line.
    pub(super) terminal: bool,
    pub(super) said: Said,
    pub(super) file: Option<PathBuf>,
    /// Whether nobody asked for the file: it is a copy that may end before the stream.
    pub(super) copy: bool,
    /// Whether it is shown on the console of its name.
    pub(super) shown: bool,
    /// Before each line on the console; empty: none.
    pub(super) prefix: Vec<u8>,
    pub(super) filter: Option<(Filter, PathBuf)>,
    pub(super) lines: Lines,
    /// When the part of a line that waits is shown.
    pub(super) show_part_at: Option<Instant>,
    /// Whether it waits in the queue of streams with such a moment.
    pub(super) queued: bool,
    /// Bytes that may have been on their way when somebody asked for everything written so far.
    pub(super) owed: usize,
    /// Not read, because its console takes nothing.
    pub(super) paused: bool,
}

impl Stream {
    /// Whose console and file it goes to.
    pub(super) fn name(&self) -> Name {
        self.carries.name()
    }
}
