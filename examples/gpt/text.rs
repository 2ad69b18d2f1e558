//! A text file as training data: mapped into memory, cut into windows of bytes.
//!
//! The global batch of a step depends on (seed, step) only: with twice the ranks each takes half of it.

use crate::error::GptError;
use enn_worker::{
    data::{Position, ReadMap, Sampler},
    tch::{Device, Tensor},
};
use std::path::Path;

/// The text and the order in which its windows are read.
pub(crate) struct Text {
    map: ReadMap,
    context: usize,
    sampler: Sampler,
}

/// This rank's windows of one step: its micro-batches, one after the other.
pub(crate) struct Windows {
    /// Token ids (B, N).
    pub(crate) ids: Tensor,
    /// The next id after each of them (B, N).
    pub(crate) next: Tensor,
}

/// Division of a global batch among ranks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) rank: u32,
    /// Number of ranks.
    pub(crate) world: u32,
    /// Windows per step over all ranks and micro-batches.
    pub(crate) batch: u64,
    /// Micro-batches of a rank per step.
    pub(crate) accumulation: u64,
    /// Seed of the order.
    pub(crate) seed: u64,
}

impl Text {
    /// Maps the file `path`.
    pub(crate) fn open(path: &Path, context: i64, share: Share) -> Result<Self, GptError> {
        let map = ReadMap::open(path)?;
        let context = context as usize;
        let windows = map.bytes().len().saturating_sub(1) / context;
        let parts = u64::from(share.world) * share.accumulation;
        if share.batch == 0 || !share.batch.is_multiple_of(parts) {
            return Err(GptError::Batch { batch: share.batch, parts });
        }
        if (windows as u64) < share.batch {
            return Err(GptError::Short { path: path.to_owned(), windows, batch: share.batch, context });
        }
        // Only whole batches are used: the last windows of an epoch that do not fill one are left out.
        let rows = windows as u64 / share.batch * share.batch;
        let sampler = Sampler {
            rows,
            batch: share.batch,
            seed: share.seed,
            rank: share.rank.into(),
            world: share.world.into(),
            accumulation: share.accumulation,
            mix: None,
        };
        Ok(Self { map, context, sampler })
    }

    /// Returns all bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.map.bytes()
    }

    /// Returns this rank's windows of step `step`.
    pub(crate) fn windows(&self, step: u64, device: Device) -> Result<Windows, GptError> {
        let per_epoch = self.sampler.steps_per_epoch();
        let share = self.sampler.share(Position { epoch: step / per_epoch, step: step % per_epoch });
        let mut ids = Vec::new();
        let mut next = Vec::new();
        for &ordinal in &share.ordinals {
            let start = ordinal as usize * self.context;
            let window = &self.map.bytes()[start..=start + self.context];
            ids.extend(window[..self.context].iter().map(|&byte| i64::from(byte)));
            next.extend(window[1..].iter().map(|&byte| i64::from(byte)));
        }
        let tensor = |ids: &[i64]| Tensor::f_from_slice(ids)?.f_view([-1, self.context as i64])?.f_to_device(device);
        Ok(Windows { ids: tensor(&ids)?, next: tensor(&next)? })
    }

    /// Returns the first row of micro-batch `micro` in the global batch, which seeds dropout.
    pub(crate) fn first_row(&self, micro: u64) -> u64 {
        self.sampler.rank * self.sampler.slots() + micro * self.sampler.micro_slots()
    }

    /// Returns the nats per byte of the best model that knows only the frequency of each byte.
    pub(crate) fn unigram_nats(&self) -> f64 {
        let mut counts = [0u64; 256];
        for &byte in self.bytes() {
            counts[byte as usize] += 1;
        }
        let all = self.bytes().len() as f64;
        counts.iter().filter(|&&n| n > 0).map(|&n| -(n as f64 / all) * (n as f64 / all).ln()).sum()
    }
}
