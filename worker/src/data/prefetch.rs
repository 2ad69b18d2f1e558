//! A thread that gathers the batches of the coming steps during the current one.

use super::{
    batch::{Batch, View},
    error::DataError,
    rows::RowIndex,
    sampler::{Position, Sampler},
};
use crossbeam_channel::{Receiver, Sender, bounded};
use std::{sync::Arc, thread::JoinHandle};
use tch::Device;

/// Minimum length of the queue in batches: two hide a page fault.
const QUEUE_BATCHES_MIN: usize = 2;
/// Maximum length of the queue for small batches: on a machine with busy cores they hide that this thread waits for
/// one.
const QUEUE_BATCHES_MAX: usize = 16;
/// Maximum size of the queue in bytes, when it is longer than the minimum.
const QUEUE_BYTES: usize = 64 << 20;

/// Arrays that outlive the thread that reads them.
pub trait Arrays: Send + Sync + 'static {
    /// Returns the arrays as slices.
    ///
    /// # Errors
    /// [`DataError::Length`] when an array does not have the size its metadata says.
    fn view(&self) -> Result<View<'_>, DataError>;
}

pub struct Plan {
    pub arrays: Arc<dyn Arrays>,
    pub rows: Arc<RowIndex>,
    pub sampler: Sampler,
    /// Epoch at which the thread ends.
    pub epochs: u64,
    /// Device of the batches; host buffers are pinned when it is CUDA.
    pub device: Device,
}

/// Batches in order. Dropping the value ends the thread.
#[derive(Debug)]
pub struct Prefetch {
    batches: Option<Receiver<Delivery>>,
    thread: Option<JoinHandle<()>>,
}

type Delivery = Result<(Position, Batch), DataError>;

impl Prefetch {
    /// Starts the thread at position `from`.
    ///
    /// # Errors
    /// [`DataError::Thread`] when the system refuses a thread; [`DataError::Length`] when an array is not what its metadata says.
    pub fn start(plan: Plan, from: Position) -> Result<Self, DataError> {
        let batch = plan.arrays.view()?.row_bytes() * plan.sampler.slots() as usize;
        let batches = (QUEUE_BYTES / batch.max(1)).clamp(QUEUE_BATCHES_MIN, QUEUE_BATCHES_MAX);
        let (sender, receiver) = bounded(batches);
        let thread = std::thread::Builder::new()
            .name("prefetch".to_owned())
            .spawn(move || read_ahead(&plan, from, &sender))
            .map_err(DataError::Thread)?;
        Ok(Self { batches: Some(receiver), thread: Some(thread) })
    }

    /// Returns the batch of the next step, which must be at `expected`.
    ///
    /// # Errors
    /// Errors of reading the batch, or [`DataError::Ended`] when there is none left.
    pub fn next(&self, expected: Position) -> Result<Batch, DataError> {
        let ended = DataError::Ended { epoch: expected.epoch, step: expected.step };
        let Some(batches) = &self.batches else { return Err(ended) };
        match batches.recv() {
            Ok(Ok((position, batch))) if position == expected => Ok(batch),
            Ok(Err(error)) => Err(error),
            Ok(Ok(_)) | Err(_) => Err(ended),
        }
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        // The receiver is dropped first: a thread blocked on a full queue wakes and ends.
        self.batches = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread that reads batches ahead panicked");
        }
    }
}

fn read_ahead(plan: &Plan, from: Position, sender: &Sender<Delivery>) {
    let mut position = from;
    while position.epoch < plan.epochs {
        let delivery = read(plan, position).map(|batch| (position, batch));
        let failed = delivery.is_err();
        if sender.send(delivery).is_err() || failed {
            return;
        }
        position = plan.sampler.after(position);
    }
}

fn read(plan: &Plan, position: Position) -> Result<Batch, DataError> {
    let share = plan.sampler.share(position);
    let rows: Vec<u64> = share.ordinals.iter().map(|&ordinal| plan.rows.at(ordinal)).collect();
    plan.arrays.view()?.gather(&rows, share.real, plan.device)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Table(Vec<f32>);

    impl Arrays for Table {
        fn view(&self) -> Result<View<'_>, DataError> {
            const ONES: [u8; 64] = [1; 64];
            View::inputs(self.0.len(), 1, &self.0, &ONES[..self.0.len()])?.with_targets(
                1,
                &self.0,
                &ONES[..self.0.len()],
            )
        }
    }

    fn plan(rows: usize, epochs: u64) -> Plan {
        Plan {
            arrays: Arc::new(Table((0..rows).map(|v| v as f32).collect())),
            rows: Arc::new(RowIndex::Range { start: 0, len: rows as u64 }),
            sampler: Sampler { rows: rows as u64, batch: 4, seed: 5, rank: 0, world: 1, accumulation: 1, mix: None },
            epochs,
            device: Device::Cpu,
        }
    }

    #[test]
    fn delivers_every_step_then_ends() {
        let sampler = plan(10, 2).sampler;
        let prefetch = Prefetch::start(plan(10, 2), Position::default()).unwrap();
        let mut position = Position::default();
        while position.epoch < 2 {
            let batch = prefetch.next(position).unwrap();
            let expected: Vec<f32> = sampler.share(position).ordinals.iter().map(|&o| o as f32).collect();
            assert_eq!(Vec::<f32>::try_from(batch.x.flatten(0, 1)).unwrap(), expected);
            position = sampler.after(position);
        }
        assert!(matches!(prefetch.next(position), Err(DataError::Ended { epoch: 2, step: 0 })));
    }

    #[test]
    fn resumes_in_the_middle_and_drops_at_once() {
        let from = Position { epoch: 1, step: 1 };
        let prefetch = Prefetch::start(plan(10, 1000), from).unwrap();
        assert!(prefetch.next(from).is_ok());
        drop(prefetch);
    }
}
