//! The memory there is for a computation, and what it takes: measured by doing it with a few rows.

use super::{SessionError, autobatch::Meter, host_memory};
use crate::backend::graph;
use enn_common::fs::memory;
use tch::Device;

/// Memory of a device, or of a host that workers share, beside a computation over so many rows that tells the bytes it recorded.
pub(super) struct Room<W> {
    device: Device,
    /// Workers on this host, which have its memory together.
    local: u64,
    /// Bytes there are, where the configuration says so.
    given: Option<u64>,
    work: W,
    /// Free bytes of the device before the first probe.
    first: Option<u64>,
}

impl<W: FnMut(u64) -> Result<u64, SessionError>> Room<W> {
    pub(super) fn new((device, local): (Device, u32), given: Option<u64>, work: W) -> Self {
        Self { device, local: u64::from(local.max(1)), given, work, first: None }
    }
}

impl<W: FnMut(u64) -> Result<u64, SessionError>> Meter for Room<W> {
    type Error = SessionError;

    fn free(&mut self) -> Result<u64, SessionError> {
        let free = match self.device {
            Device::Cuda(index) => graph::memory(index)?.0,
            // Where the system does not say, memory is no reason to cut anything.
            _ => memory::available_bytes().map_or(u64::MAX, |bytes| bytes / self.local),
        };
        self.first = Some(free);
        Ok(self.given.unwrap_or(free))
    }

    fn peak(&mut self, rows: u64) -> Result<Option<u64>, SessionError> {
        // A device keeps what it gave for the probes before, so that its free memory tells the peak of all of them. What a record
        // says holds everywhere; what was measured has workspaces and fragments in it.
        let before = host_memory::resident().filter(|_| host_memory::reset_peak());
        let recorded = match (self.work)(rows) {
            Err(error) if error.is_out_of_memory() => return Ok(None),
            recorded => recorded?,
        };
        let measured = match self.device {
            Device::Cuda(index) => self.first.unwrap_or(0).saturating_sub(graph::memory(index)?.0),
            _ => match (before, host_memory::resident()) {
                (Some((before, _)), Some((_, peak))) => peak.saturating_sub(before),
                _ => 0,
            },
        };
        Ok(Some(recorded.max(measured)))
    }
}
