//! Names of the streams of a worker, and of what passes through one pipe.

/// One of the launcher's own standard streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamName {
    Out,
    Err,
}

impl StreamName {
    /// Returns the position in arrays of two.
    pub(super) fn index(self) -> usize {
        usize::from(self == Self::Err)
    }
}

/// The streams of a worker that pass through one pipe or terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PipeContents {
    Out,
    Err,
    /// Both streams, in the order in which they were written.
    Both,
}

impl PipeContents {
    /// Returns the stream whose console and file the bytes go to.
    pub(super) fn name(self) -> StreamName {
        if self == Self::Err { StreamName::Err } else { StreamName::Out }
    }
}
