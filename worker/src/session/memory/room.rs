//! The memory there is for a computation, and what it takes: measured by doing it with a few rows.

use super::{autobatch::MemoryMeter, host_memory};
use crate::session::SessionError;
use crate::sharding::{REPLICATED, configured};
use enn_common::{
    config::train::{Averaging, TrainConfig},
    fs::memory,
};
use enn_core::{backend::graph, params::ParamBuilder};
use tch::Device;

/// Memory of a device, or of a host that workers share, beside a computation over so many rows that tells the bytes it recorded.
pub(crate) struct Room<W> {
    device: Device,
    /// Workers on this host, which have its memory together.
    local: u64,
    /// Bytes there are, where the configuration says so.
    given: Option<u64>,
    /// Bytes that are taken at most, where the configuration says nothing.
    most: u64,
    work: W,
    /// Free bytes of the device before the first probe.
    first: Option<u64>,
}

impl<W: FnMut(u64) -> Result<u64, SessionError>> Room<W> {
    pub(crate) fn new(device: Device, local: u32, given: Option<u64>, work: W) -> Self {
        Self { device, local: u64::from(local.max(1)), given, most: u64::MAX, work, first: None }
    }

    /// Taking at most so many bytes, where the configuration says nothing.
    pub(crate) fn at_most(self, most: u64) -> Self {
        Self { most, ..self }
    }
}

impl<W: FnMut(u64) -> Result<u64, SessionError>> MemoryMeter for Room<W> {
    type Error = SessionError;

    fn free(&mut self) -> Result<u64, SessionError> {
        let free = match self.device {
            Device::Cuda(index) => graph::memory(index)?.0,
            // Where the system does not say, memory is no reason to cut anything.
            _ => memory::available_bytes().map_or(u64::MAX, |bytes| bytes / self.local),
        };
        self.first = Some(free);
        Ok(self.given.unwrap_or(free.min(self.most)))
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

/// Bytes that a process keeps of every weight at least.
fn weight_bytes(train: &TrainConfig) -> u64 {
    let averages = u64::from(train.ema_decay().is_some()) + u64::from(train.averaging == Averaging::SwaTail);
    let sharding = configured(train.strategy).unwrap_or(REPLICATED);
    size_of::<f32>() as u64 * sharding.values_min(averages)
}

/// Refuses a model that this host has no room to train. A device says so itself.
///
/// # Errors
/// [`SessionError::NoRoomForState`] with what is needed and what there is.
pub(crate) fn for_training(builder: &ParamBuilder, train: &TrainConfig, device: Device) -> Result<(), SessionError> {
    let free = memory::available_bytes().filter(|_| device == Device::Cpu);
    fits(builder, weight_bytes(train), free.unwrap_or(u64::MAX))
}

fn fits(builder: &ParamBuilder, each: u64, free: u64) -> Result<(), SessionError> {
    const GIB: f64 = (1u64 << 30) as f64;
    let (weights, largest) = builder.sizes();
    let needed = weights.saturating_mul(each);
    let Some((largest, part)) = largest.filter(|_| needed > free) else { return Ok(()) };
    let share = 100.0 * part as f64 / weights as f64;
    let [needed, free] = [needed, free].map(|bytes| bytes as f64 / GIB);
    Err(SessionError::NoRoomForState { weights, each, needed, free, largest: largest.to_owned(), share })
}

#[cfg(test)]
mod tests {
    use super::*;
    use enn_common::config::train::Strategy;
    use enn_core::params::{Group, Init};

    #[test]
    fn a_model_without_room_is_refused_with_what_it_needs() {
        let mut builder = ParamBuilder::new();
        builder.param("small", &[10], Init::Zeros, Group::Decay);
        builder.param("large", &[1000, 3, 30], Init::Zeros, Group::Decay);
        assert!(fits(&builder, 24, 90_010 * 24).is_ok());
        let told = fits(&builder, 24, 90_010 * 24 - 1).unwrap_err().to_string();
        assert!(told.starts_with("training 90010 weights keeps 0.00 GiB (24 bytes of each), and 0.00 GiB"), "{told}");
        assert!(told.contains("large has 100 % of them"), "{told}");
        let all = |train: TrainConfig| weight_bytes(&train);
        assert_eq!(all(TrainConfig::default()), 24);
        assert_eq!(all(TrainConfig { strategy: Strategy::Fsdp, ..TrainConfig::default() }), 8);
        assert_eq!(all(TrainConfig { averaging: Averaging::None, ..TrainConfig::default() }), 20);
    }
}
