//! Cutting of samples from the grid: the history before a window is the input, the window is the target.

use super::{grid::Grid, plan::WindowsPlan, span::Span};
use crate::stage::{
    Job, calendar,
    error::StageError,
    ordered_pool::{self, PoolSteps},
    output::{self, Output, PlacedSamples, Samples},
    split,
};
use enn_common::config::data::{SplitKind, WindowsLayout};
use std::ops::Range;

const CUT_BYTES: u64 = 4 * 1024 * 1024;

#[derive(Debug, Default)]
pub(crate) struct WindowSamples {
    /// Start of every sample's target window: Unix seconds with the offset added, ascending within a source.
    pub starts: Vec<i64>,
    /// Number of windows in which no series has a valid history and enough valid targets.
    pub dropped: u64,
    /// Number of series in other windows whose targets are left out for the same reason.
    pub excluded_targets: u64,
}

/// Cuts the samples of one source from its grid.
///
/// A window becomes a sample if at least one series qualifies. In training a series qualifies with a valid cell in its history and a
/// target of which at least `target_valid_min` is valid; in prediction a valid cell in its history is enough. Samples to predict extend
/// one window beyond the last row.
pub(super) struct SampleCutter<'a> {
    pub job: &'a Job<'a>,
    pub layout: &'a WindowsLayout,
    pub plan: &'a WindowsPlan,
    pub span: &'a Span,
    pub grid: &'a Grid,
    pub output: &'a Output,
}

pub(super) struct Cut {
    samples: Samples,
    dropped: u64,
    excluded_targets: u64,
}

impl PoolSteps for SampleCutter<'_> {
    type Item = Range<u64>;
    type Work = Result<Cut, StageError>;
    type State = WindowSamples;
    type Placed = PlacedSamples;
    type Report = ();

    fn work(&self, windows: Range<u64>) -> Result<Cut, StageError> {
        let steps = self.layout.steps as u64;
        let history = self.layout.history as u64;
        let from = (windows.start - history) * steps;
        let to = (windows.end * steps).min(self.span.steps);
        let entities = self.span.entities.len() as u64;
        let mut grid = self.grid.read(from * entities..to * entities)?;
        let per_step = self.span.entities.len() * self.plan.channels.len();
        // The window to predict may lie after the last row, where all cells are missing.
        grid.resize((windows.end * steps - from) as usize * per_step, f32::NAN);
        let mut cut = Cut { samples: Samples::default(), dropped: 0, excluded_targets: 0 };
        let window = self.layout.steps * per_step;
        for number in windows.clone() {
            let at = (number - windows.start) as usize * window;
            let (past, target) = grid[at..].split_at(self.layout.history * window);
            match self.add(number, past, &target[..window], &mut cut.samples) {
                Some(excluded_targets) => cut.excluded_targets += excluded_targets,
                None => cut.dropped += 1,
            }
        }
        Ok(cut)
    }

    fn order(&self, made: &mut WindowSamples, work: Self::Work) -> Result<(PlacedSamples, ()), StageError> {
        let cut = work?;
        let first = made.starts.len() as u64;
        made.starts.extend_from_slice(&cut.samples.ids);
        made.dropped += cut.dropped;
        made.excluded_targets += cut.excluded_targets;
        Ok((PlacedSamples { first, samples: cut.samples }, ()))
    }

    fn after(&self, placed: PlacedSamples) -> Result<(), StageError> {
        self.output.put(placed.first, &placed.samples)
    }
}

impl SampleCutter<'_> {
    /// Writes all samples of the source to the output, behind the samples that are `made` already.
    pub(super) fn run(&self, made: WindowSamples) -> Result<WindowSamples, StageError> {
        let whole = self.span.steps / self.layout.steps as u64;
        let end = whole + u64::from(self.job.training.is_some());
        let first = (self.layout.history as u64).min(end);
        let sample = Output::sample_bytes(self.plan.width(self.layout, &self.span.entities), self.output.outputs);
        let mut ranges = output::chunks(first..end, CUT_BYTES / sample.max(1));
        ordered_pool::run(self.job.threads, || Ok(ranges.next()), self, made, &mut |()| {})
    }

    /// Appends the sample of a window and returns the number of series whose targets were left out; `None` if the window has no sample.
    fn add(&self, window: u64, past: &[f32], target: &[f32], samples: &mut Samples) -> Option<u64> {
        let entities = self.span.entities.len();
        let channels = self.plan.channels.len();
        let cell = |entity: usize, step: usize| target[(step * entities + entity) * channels + self.plan.target];
        let cells = (0..entities).flat_map(|entity| (0..self.layout.steps).map(move |step| (entity, step)));
        let is_training = self.job.training.is_none();
        let valid = |entity: &usize| (0..self.layout.steps).filter(|step| !cell(*entity, *step).is_nan()).count();
        let enough = self.layout.target_valid_min * self.layout.steps as f64;
        let is_taught = |entity: &usize| valid(entity) > 0 && valid(entity) as f64 >= enough;
        let has_history = |entity: usize| {
            let own = past.chunks_exact(channels).skip(entity).step_by(entities);
            own.flatten().any(|value| !value.is_nan())
        };
        let stays: Vec<bool> =
            (0..entities).map(|entity| has_history(entity) && (!is_training || is_taught(&entity))).collect();
        if !stays.contains(&true) {
            return None;
        }
        let excluded_targets =
            (0..entities).filter(|entity| is_training && !stays[*entity] && valid(entity) > 0).count();
        let step = self.span.first + (window * self.layout.steps as u64) as i64;
        let start = step * self.layout.step_s;
        samples.x.extend_from_slice(past);
        calendar::values(&self.layout.calendar, start, &mut samples.x);
        let has_target = |entity: usize| !is_training || stays[entity];
        let target = |(entity, step)| if has_target(entity) { cell(entity, step) } else { f32::NAN };
        samples.y.extend(cells.map(target));
        samples.ids.push(start);
        let config = &self.job.config.split;
        if is_training && config.kind == SplitKind::Random {
            samples.split.push(split::by_hash(config, &start.to_le_bytes()) as u8);
        }
        Some(excluded_targets as u64)
    }
}
