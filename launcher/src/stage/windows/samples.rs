//! Cuts samples from the grid: the history before a window as input, the window as target.

use super::{Plan, Span, grid::Grid};
use crate::stage::{
    Job, calendar,
    crew::{self, Steps},
    error::StageError,
    output::{self, Output, Samples},
    split,
};
use enn_common::config::data::{SplitKind, WindowsLayout};
use std::ops::Range;

/// Bytes of the samples that are cut at once.
const CUT_BYTES: u64 = 4 * 1024 * 1024;

/// What was cut.
#[derive(Debug, Default)]
pub(crate) struct Made {
    /// Begin of every sample's target window: Unix seconds with the offset added. Ascending within a source.
    pub starts: Vec<i64>,
    /// Windows that make no sample: too little valid target, or no valid history, of every series.
    pub dropped: u64,
    /// Windows of single series whose targets are left out of their samples for that.
    pub untaught: u64,
}

/// Writes all samples of a source to `output`, behind those that are `made`.
///
/// What a series needs is decided for each series: to train a target of which at least `target_valid_min` is valid, and a valid cell of
/// history; to be predicted a valid cell of history only. A window makes a sample where a series has what it needs. Samples to predict go
/// one window beyond the last row.
pub(crate) fn cut(
    (job, layout): (&Job<'_>, &WindowsLayout),
    (plan, span): (&Plan, &Span),
    (grid, output): (&Grid, &Output),
    made: Made,
) -> Result<Made, StageError> {
    let whole = span.steps / layout.steps as u64;
    let end = whole + u64::from(job.training.is_some());
    let first = (layout.history as u64).min(end);
    let sample = Output::sample_bytes(plan.width(layout, &span.entities), output.outputs);
    let mut ranges = output::chunks(first..end, CUT_BYTES / sample.max(1));
    let cutter = Cutter { job, layout, plan, span, grid, output };
    crew::run(job.threads, || Ok(ranges.next()), &cutter, made, &mut |()| {})
}

struct Cutter<'a> {
    job: &'a Job<'a>,
    layout: &'a WindowsLayout,
    plan: &'a Plan,
    span: &'a Span,
    grid: &'a Grid,
    output: &'a Output,
}

/// Samples of some windows and the number of windows that make none.
struct Cut {
    samples: Samples,
    dropped: u64,
    untaught: u64,
}

impl Steps for Cutter<'_> {
    type Item = Range<u64>;
    type Work = Result<Cut, StageError>;
    type State = Made;
    type Placed = (u64, Samples);
    type Report = ();

    fn work(&self, windows: Range<u64>) -> Result<Cut, StageError> {
        let steps = self.layout.steps as u64;
        let history = self.layout.history as u64;
        let from = (windows.start - history) * steps;
        let to = (windows.end * steps).min(self.span.steps);
        let entities = self.span.entities.len() as u64;
        let mut grid = self.grid.read(from * entities..to * entities)?;
        let per_step = self.span.entities.len() * self.plan.channels.len();
        // The window to predict may lie behind the last row: nothing is known of it.
        grid.resize((windows.end * steps - from) as usize * per_step, f32::NAN);
        let mut cut = Cut { samples: Samples::default(), dropped: 0, untaught: 0 };
        let window = self.layout.steps * per_step;
        for number in windows.clone() {
            let at = (number - windows.start) as usize * window;
            let (past, target) = grid[at..].split_at(self.layout.history * window);
            match self.add(number, past, &target[..window], &mut cut.samples) {
                Some(untaught) => cut.untaught += untaught,
                None => cut.dropped += 1,
            }
        }
        Ok(cut)
    }

    fn order(&self, made: &mut Made, work: Self::Work) -> Result<((u64, Samples), ()), StageError> {
        let cut = work?;
        let first = made.starts.len() as u64;
        made.starts.extend_from_slice(&cut.samples.ids);
        made.dropped += cut.dropped;
        made.untaught += cut.untaught;
        Ok(((first, cut.samples), ()))
    }

    fn after(&self, (first, samples): (u64, Samples)) -> Result<(), StageError> {
        self.output.put(first, &samples)
    }
}

impl Cutter<'_> {
    /// Appends a sample, unless its window makes none; the series of it that have targets and are not taught.
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
        let untaught = (0..entities).filter(|entity| is_training && !stays[*entity] && valid(entity) > 0).count();
        let step = self.span.first + (window * self.layout.steps as u64) as i64;
        let start = step * self.layout.step_s;
        samples.x.extend_from_slice(past);
        calendar::values(&self.layout.calendar, start, &mut samples.x);
        let is_told = |entity: usize| !is_training || stays[entity];
        let told = |(entity, step)| if is_told(entity) { cell(entity, step) } else { f32::NAN };
        samples.y.extend(cells.map(told));
        samples.ids.push(start);
        let config = &self.job.config.split;
        if is_training && config.kind == SplitKind::Random {
            samples.split.push(split::by_hash(config, &start.to_le_bytes()) as u8);
        }
        Some(untaught as u64)
    }
}
