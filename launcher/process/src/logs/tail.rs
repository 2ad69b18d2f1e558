//! The last lines of a worker's standard error, for a failure's report.

use super::{pump_link::PumpHandle, tail_writer::TailWriter};
use std::{sync::Arc, time::Duration};

/// Longest time that a report waits for output in the pipes.
const CATCH_UP_MAX: Duration = Duration::from_millis(100);

/// The last output of a worker. Cheap to clone, and readable after the worker and the pump have ended.
#[derive(Debug, Clone)]
pub struct Tail {
    tail_writer: TailWriter,
    handle: Arc<PumpHandle>,
}

impl Tail {
    pub(super) fn new(tail_writer: TailWriter, handle: Arc<PumpHandle>) -> Self {
        Self { tail_writer, handle }
    }

    /// Returns the last 20 lines of standard error, at most 16 KiB, without the end of the last line. A line that was
    /// redrawn with carriage returns is given as it stood last.
    ///
    /// What the worker wrote before this call is read first, so this may take a moment, a tenth of a second at most.
    pub fn stderr(&self) -> String {
        self.handle.catch_up(CATCH_UP_MAX);
        self.tail_writer.last_lines()
    }

    /// Returns whether the worker wrote to standard output, as far as that passed through the pump.
    pub fn printed(&self) -> bool {
        self.tail_writer.printed()
    }
}
