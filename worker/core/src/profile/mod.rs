//! `train.profile`: a few steps timed operation by operation, as a trace for a viewer and a roofline table.
//!
//! On a CPU an operation's time is that of its launch; on CUDA it is the time between two events on the stream. The
//! timed steps run by their code, one record after the other, and never from a captured graph.
//!
//! **Invariant:** a profile that cannot be written is a warning; training goes on.

mod ceiling;
mod record;
mod roofline;
mod timing;
mod trace;

use crate::autograd::{Observe, Program};
use crate::error::OpErrorKind;
use enn_common::{
    fs::{FileError, atomic},
    profile::{PROGRAM_JSON, ROOFLINE_JSON, RecordedProgram, trace_name},
};
use roofline::OpCosts;
use std::{
    cell::{Cell, RefCell},
    path::{Path, PathBuf},
};
use tch::Device;
use timing::Timing;
use trace::Trace;

/// Steps before the first timed one: by then libraries have chosen their algorithms and memory is taken.
const STEPS_BEFORE: u32 = 5;
const STEPS_TIMED: u32 = 3;

#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the ceiling of {device:?} could not be measured: {source}")]
    Ceiling { device: Device, source: OpErrorKind },
}

/// Times steps and writes trace, program and table.
pub struct Profile {
    folder: PathBuf,
    rank: u32,
    device: Device,
    seen: Cell<u32>,
    step: Cell<u64>,
    timing: RefCell<Timing>,
    trace: RefCell<Trace>,
    costs: RefCell<OpCosts>,
    record: RefCell<Option<RecordedProgram>>,
    written: Cell<bool>,
}

impl Profile {
    /// Returns a profile of `rank` on `device` that is written into `folder`.
    pub fn new(folder: PathBuf, rank: u32, device: Device) -> Self {
        Self {
            folder,
            rank,
            device,
            seen: Cell::new(0),
            step: Cell::new(0),
            timing: RefCell::new(Timing::new(device)),
            trace: RefCell::new(Trace::new(rank)),
            costs: RefCell::default(),
            record: RefCell::default(),
            written: Cell::new(false),
        }
    }

    /// Returns the observer for optimizer step `step`, if the step is timed.
    pub fn next(&self, step: u64) -> Option<&dyn Observe> {
        let seen = self.seen.get();
        self.seen.set(seen.saturating_add(1));
        if seen >= STEPS_BEFORE + STEPS_TIMED {
            self.finish();
        }
        if !(STEPS_BEFORE..STEPS_BEFORE + STEPS_TIMED).contains(&seen) {
            return None;
        }
        self.step.set(step);
        Some(self)
    }

    /// Writes the profile, once.
    pub fn finish(&self) {
        if self.written.replace(true) {
            return;
        }
        if self.costs.borrow().steps == 0 {
            tracing::warn!("no step was profiled: the run ended within its first {STEPS_BEFORE} steps");
            return;
        }
        if let Err(error) = self.write() {
            tracing::warn!(%error, "the profile is not written");
        }
    }

    fn write(&self) -> Result<(), ProfileError> {
        std::fs::create_dir_all(&self.folder).map_err(FileError::of("make", &self.folder))?;
        put(&self.folder.join(trace_name(self.rank)), &self.trace.borrow().json())?;
        if let Some(record) = &*self.record.borrow() {
            put(&self.folder.join(PROGRAM_JSON), &serde_json::to_value(record).unwrap_or_default())?;
        }
        if self.rank == 0 {
            let costs = self.costs.borrow();
            let ceiling = ceiling::measure(self.device, &costs.kinds())
                .map_err(|source| ProfileError::Ceiling { device: self.device, source })?;
            let table = costs.table(self.device, ceiling);
            let json = serde_json::to_value(table).unwrap_or_default();
            put(&self.folder.join(ROOFLINE_JSON), &json)?;
        }
        Ok(())
    }
}

fn put(path: &Path, json: &serde_json::Value) -> Result<(), ProfileError> {
    Ok(atomic::write(path, json.to_string().as_bytes())?)
}

impl Observe for Profile {
    fn begin(&self) {
        self.timing.borrow_mut().begin();
    }

    fn end(&self) {
        self.timing.borrow_mut().end();
    }

    fn step(&self, program: &Program) {
        let spans = self.timing.borrow_mut().take();
        debug_assert_eq!(spans.len(), program.recs().len(), "every operation makes one record");
        self.trace.borrow_mut().add(self.step.get(), program, &spans);
        self.costs.borrow_mut().add(program, &spans);
        if self.rank == 0 && self.record.borrow().is_none() {
            self.record.replace(Some(record::recorded(program)));
        }
    }
}

#[cfg(test)]
mod tests;
