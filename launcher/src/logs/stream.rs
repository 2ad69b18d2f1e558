//! One stream of one worker: where its bytes go.

use super::{filter::Filter, lines::Lines, tail::Said};
use std::{io::PipeReader, path::PathBuf, time::Instant};

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

/// A pipe and the destinations of what comes through it.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) pipe: PipeReader,
    pub(super) name: Name,
    pub(super) said: Said,
    pub(super) file: Option<PathBuf>,
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
    /// Bytes that may have been in the pipe when somebody asked for everything written so far.
    pub(super) owed: usize,
    /// Not read, because its console takes nothing.
    pub(super) paused: bool,
}
