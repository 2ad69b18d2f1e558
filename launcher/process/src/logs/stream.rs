//! One stream of one worker: where its bytes go.

use super::{
    filter::LineFilter,
    lines::LineBuffer,
    stream_name::{PipeContents, StreamName},
    tail_writer::TailWriter,
};
use std::{os::fd::OwnedFd, path::PathBuf, time::Instant};

/// A pipe or terminal and the destinations of its bytes.
#[derive(Debug)]
pub(super) struct Stream {
    /// The end that is read, without blocking.
    pub(super) source: OwnedFd,
    pub(super) contents: PipeContents,
    /// Whether the worker writes to a terminal, so that a person may wait for a partial line such as a prompt.
    pub(super) terminal: bool,
    pub(super) tail: TailWriter,
    pub(super) file: Option<PathBuf>,
    /// Whether the file is a copy that no flag asked for and that may end before the stream.
    pub(super) copy: bool,
    pub(super) shown: bool,
    /// Prefix of each line on the console; may be empty.
    pub(super) prefix: Vec<u8>,
    pub(super) filter: Option<(LineFilter, PathBuf)>,
    pub(super) lines: LineBuffer,
    /// When the partial line is shown.
    pub(super) show_part_at: Option<Instant>,
    /// Whether the stream is in the queue of streams with a partial line.
    pub(super) queued: bool,
    /// Bytes that may have been in the pipe when a caller asked for the output so far.
    pub(super) owed: usize,
    /// Whether the stream is not read because its console is full.
    pub(super) paused: bool,
}

impl Stream {
    /// Returns the stream whose console and file the bytes go to.
    pub(super) fn name(&self) -> StreamName {
        self.contents.name()
    }
}
