//! The windows layout: a long table of entity × time becomes samples whose input is the history before a window, and whose target
//! is the window itself.
//!
//! ```text
//! pass 1: entities and time span → pass 2: cells scattered into a dense grid [step][entity][channel] → samples cut from the grid
//! ```
//! Each source has a time span, a grid and two passes of its own; their samples follow one another.
//!
//! The grid's order is the order of the inputs, so that the history of a sample is one run of the grid. Beyond a bound the grid
//! lives in a file. Interrupted staging resumes in either pass of any source; samples are cut again.

mod grid;
mod keys;
mod labels;
mod plan;
mod samples;
mod span;
mod steps;

use super::{
    Job, Progress,
    column_bounds::{self, InputBounds},
    complete::{self, Draft},
    duplicates,
    error::StageError,
    input::{lift_inputs, places_in},
    outlier_limits::Limits,
    output::{Extras, Output},
    resume_log::ResumeLog,
    source::{
        block::{Block, NO_TIME, NO_WORD},
        clean::MissingTokens,
    },
    table::{PassOptions, PassProgress, Sink, Table, Tally},
};
use enn_common::{
    config::data::{DataSource, DuplicatePolicy, SplitKind, WindowsLayout},
    fs::space,
    staged::{
        StagedMeta, StagedWriter,
        meta::CleaningReport,
        unfinished::{Kept, ResumePoint},
    },
};
use grid::{GridWriter, MEMORY_BYTES_MAX};
use keys::{Entities, Keys, TableKeys};
use plan::{ChannelTransform, WindowsPlan};
use samples::{SampleCutter, WindowSamples};
use span::Span;
use std::collections::BTreeSet;

/// Stages a long table as windows. With several sources no window spans two of them, and all have the same entities.
#[expect(clippy::too_many_lines, reason = "it fills the fields of one struct in order")]
pub(crate) fn draft(
    job: &Job<'_>,
    layout: &WindowsLayout,
    progress: &mut dyn FnMut(Progress),
) -> Result<Draft, StageError> {
    check(job, layout)?;
    let table = Table::open(job)?;
    let plan = WindowsPlan::new(job, layout);
    table.require(&plan.specs.iter().map(|spec| spec.column.clone()).collect::<Vec<String>>())?;
    let mut passes = PassProgress::new(progress, table.bytes() * 2);
    let tables = table.by_source(job.config);
    let (kept, points) = begin(job)?;
    let mut keys = Vec::new();
    for (source, table) in (0..).zip(&tables) {
        // A point of the first pass holds all its state: there is nothing to sync.
        let resume_log = ResumeLog::new(&kept, &|| Ok(()), first_pass(source), job.resume_policy, &points);
        keys.push(keys::read(job, layout, table, &resume_log, &mut |now| passes.show_scan(now))?);
        passes.end_read(0, table.bytes());
    }
    let keys = Entities::resolve(job, keys);
    keys.all.check(layout)?;
    keys.by_source.iter().try_for_each(|keys| keys.gaps.check(layout, keys.filled()))?;
    let entities = entities(job, &keys.all);
    let span = |(table, keys): (&Table, &Keys)| Span::new(table, layout, keys, &entities);
    let spans = tables.iter().zip(&keys.by_source).map(span).collect::<Result<Vec<Span>, StageError>>()?;
    let channels = plan.channels.len();
    let width = plan.width(layout, &entities);
    let windows: u64 = spans.iter().map(|span| span.steps / layout.steps as u64 + 1).sum();
    let grids =
        grid::disk_bytes(spans.iter().zip(&keys.by_source).map(|(span, keys)| (span.cells(), keys.rows)), channels);
    let needed = windows * Output::sample_bytes(width, entities.len() * layout.steps) + grids;
    space::require(job.out, needed.saturating_sub(kept.taken_bytes()))?;
    let out_shape = vec![entities.len(), layout.steps];
    let mut output = Output::create(kept, width, &out_shape, Extras { targets: true, weight: false })?;
    let resumed = |source| points.iter().filter(|point| source_of(point) == source).map(|point| point.rows).max();
    output.resumed_rows = (0..tables.len() as u32).filter_map(resumed).sum();
    let (mut made, mut tally, mut sources, mut found): (WindowSamples, Tally, Vec<u64>, CleaningReport) =
        Default::default();
    for (source, ((table, span), own_keys)) in (0..).zip(tables.iter().zip(&spans).zip(&keys.by_source)) {
        let spool = grid::spool(output.dir(), source);
        let sync = || grid::sync(&spool);
        let resume_log = ResumeLog::new(output.writer(), &sync, first_pass(source) + 1, job.resume_policy, &points);
        let kept = output.writer().is_kept().then(|| (spool.as_path(), resume_log.points()));
        let policy = job.config.duplicates;
        let writer = GridWriter::new(output.dir(), span.cells(), channels, policy, kept, MEMORY_BYTES_MAX)?;
        let options =
            PassOptions { specs: &plan.specs, hash_rows: false, threads: job.threads, resume_log: Some(&resume_log) };
        let sink = Scatter { plan: &plan, layout, span, names: &keys.names };
        let (writer, own) = table.pass(options, &sink, writer, &mut |now| passes.show_read(now))?;
        passes.end_read(own.rows, table.bytes());
        tally.add(&own);
        let grid = writer.finish()?;
        let refused = grid.counts.first_repeat.filter(|_| job.config.duplicates == DuplicatePolicy::Error);
        refused.map_or(Ok(()), |(row, cell)| Err(span.repeated(layout, table, row, cell)))?;
        own_keys.gaps.check_clashes(layout, grid.counts.clashes, own_keys.rows)?;
        found.duplicates += grid.counts.repeats;
        found.absent_cells += span.observed_cells() - grid.counts.occupied;
        let before = made.starts.len();
        made = SampleCutter { job, layout, plan: &plan, span, grid: &grid, output: &output }.run(made)?;
        sources.push((made.starts.len() - before) as u64);
    }
    output.rows = made.starts.len() as u64;
    account(&mut found, &made, &tables);
    Ok(Draft {
        output,
        inputs: plan.inputs(layout, &entities),
        targets: vec![layout.target.clone()],
        out_shape,
        out_labels: vec![entities.clone(), labels::steps(layout)],
        classes: None,
        persistence: Some(plan.persistence(layout, &entities)),
        names: names(job, &made.starts, &sources),
        starts: made.starts,
        times: Vec::new(),
        sources: if job.config.sources.is_empty() { Vec::new() } else { sources },
        report: report(job, &plan, layout, found, &keys, &tally, &entities),
    })
}

fn account(found: &mut CleaningReport, made: &WindowSamples, tables: &[Table]) {
    let what = "windows of single series have no history, or too few valid targets: these targets are excluded";
    found.dropped_samples = made.dropped;
    found.notes.extend((made.excluded_targets > 0).then(|| format!("{} {what}", made.excluded_targets)));
    found.warnings = tables.iter().flat_map(Table::warnings).collect();
}

/// Returns the name of each sample: its start, and its source where there are several.
fn names(job: &Job<'_>, starts: &[i64], rows: &[u64]) -> Vec<String> {
    let mut starts = starts.iter().map(|start| super::timestamp::text(*start));
    if job.config.sources.is_empty() {
        return starts.collect();
    }
    let of = |(source, rows): (&DataSource, &u64)| {
        let own = starts.by_ref().take(*rows as usize);
        own.map(|start| format!("{start} {}", source.name)).collect::<Vec<String>>()
    };
    job.config.sources.iter().zip(rows).flat_map(of).collect()
}

/// Returns the entities of the grid in their order; when predicting, those of the model.
fn entities(job: &Job<'_>, all: &Keys) -> Vec<String> {
    match job.training {
        Some(meta) => meta.out_labels.first().cloned().unwrap_or_default(),
        None => all.entities.keys().cloned().collect(),
    }
}

/// Returns the number of the first pass over a source in resume points; the second pass has the next number.
fn first_pass(source: u32) -> u32 {
    source * 2
}

fn source_of(point: &ResumePoint) -> u32 {
    point.pass / 2
}

/// Opens the unfinished directory with its resume points; without them where a spool is incomplete.
fn begin(job: &Job<'_>) -> Result<(StagedWriter, Vec<ResumePoint>), StageError> {
    let (mut kept, mut points) = StagedWriter::resume(job.out, &job.digest)?;
    if !points.iter().all(|point| grid::has(&grid::spool(kept.dir(), source_of(point)), point)) {
        kept.start_over()?;
        points.clear();
    }
    Ok((kept, points))
}

fn report(
    job: &Job<'_>,
    plan: &WindowsPlan,
    layout: &WindowsLayout,
    found: CleaningReport,
    table_keys: &TableKeys,
    tally: &Tally,
    entities: &[String],
) -> CleaningReport {
    let keys = &table_keys.all;
    // Every row that repeats a cell is left out, or the earlier row is.
    let repeated = duplicates::warning(found.duplicates, keys.rows, "entity and time");
    let mut report = CleaningReport {
        warnings: found.warnings.iter().cloned().chain(repeated).collect(),
        rows_read: tally.rows + tally.wrong_width,
        wrong_width: tally.wrong_width,
        wrong_width_line: tally.wrong_width_line,
        ..found
    };
    plan.specs.iter().zip(&tally.counts).for_each(|(spec, counts)| complete::count(&mut report, &spec.column, counts));
    let notes = [
        (keys.unkeyed, format!("rows without {} or {} were left out", layout.entity, layout.time)),
        (
            keys.unaligned,
            format!("rows are not at a multiple of {} s and count for the step they fall in", layout.step_s),
        ),
        (
            keys.unknown_rows,
            format!(
                "rows are of an entity the model does not know ({}) and were left out",
                keys.unknown_entities.join(", ")
            ),
        ),
    ];
    report
        .notes
        .extend(notes.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
    let column = report.columns.entry(layout.entity.clone()).or_default();
    column.words = keys.rows + keys.unknown_rows;
    column.unseen_category = keys.unknown_rows;
    column.strangers.clone_from(&keys.unknown_entities);
    let names = job.config.sources.iter().map(|source| format!(" of source {:?}", source.name));
    for (keys, name) in table_keys.by_source.iter().zip(names.chain(std::iter::once(String::new()))) {
        let is_silent = |entity: &&String| !keys.entities.contains_key(*entity);
        let silent: Vec<&str> = entities.iter().filter(is_silent).map(String::as_str).collect();
        if !silent.is_empty() {
            report.notes.push(format!("no row{name} is of {}: those inputs are missing", silent.join(", ")));
        }
    }
    report
}

fn check(job: &Job<'_>, layout: &WindowsLayout) -> Result<(), StageError> {
    let wrong = |key, found: String, expected: &str| Err(StageError::config(key, found, expected));
    if layout.step_s < 1 || i64::try_from(layout.steps).is_ok_and(|steps| layout.step_s.checked_mul(steps).is_none()) {
        return wrong("data.windows.step_s", layout.step_s.to_string(), "a number of seconds of at least 1");
    }
    if layout.steps == 0 {
        return wrong("data.windows.steps", "0".into(), "at least 1");
    }
    if layout.history == 0 {
        return wrong("data.windows.history", "0".into(), "at least 1: the last window is the one before the target's");
    }
    if job.config.duplicates == DuplicatePolicy::Keep {
        return wrong("data.duplicates", "keep".into(), "first, last or error: one entity and time name one cell");
    }
    if matches!(job.config.split.kind, SplitKind::Group | SplitKind::Column | SplitKind::InOrder) {
        let found = format!("{:?}", job.config.split.kind).to_lowercase();
        return wrong("data.split.kind", found, "chronological, blocked or random: a window has no column of its own");
    }
    Ok(())
}

/// Returns the valid ranges of a model's inputs. Rules of an angle cannot be applied to its sine and cosine: their columns are `unseen`.
pub(crate) fn input_bounds(job: &Job<'_>, layout: &WindowsLayout, training: &StagedMeta) -> InputBounds {
    let plan = WindowsPlan::new(job, layout);
    let tokens = MissingTokens::new(&job.config.missing);
    let inputs = plan.inputs(layout, &entities(job, &Keys::default()));
    let places = places_in(training, &inputs);
    let [Limits { x: mut limits, .. }, _] = Limits::of_model(training, &places, false);
    lift_inputs(&inputs, &job.config.ranges, &mut limits);
    let history = inputs.len() - plan.calendar.len();
    let channel = |at: usize| (at < history).then(|| &plan.channels[at % plan.channels.len()]);
    let plain = |at: usize| channel(at).filter(|channel| channel.transform == ChannelTransform::None);
    let spec = |at: usize| plain(at).map(|channel| &plan.specs[channel.spec]);
    let kept = || (0..inputs.len()).filter(|at| places[*at].is_some());
    let turned = plan
        .channels
        .iter()
        .filter(|channel| channel.transform != ChannelTransform::None)
        .map(|channel| &plan.specs[channel.spec]);
    let hidden = turned.filter(|spec| column_bounds::has_rules(spec, &tokens)).map(|spec| spec.column.as_str());
    InputBounds {
        bounds: kept().map(|at| column_bounds::bounds(spec(at), 0.0, &tokens, limits[at])).collect(),
        unseen: hidden.collect::<BTreeSet<_>>().into_iter().map(str::to_owned).collect(),
    }
}

struct Scatter<'a> {
    plan: &'a WindowsPlan,
    layout: &'a WindowsLayout,
    span: &'a Span,
    names: &'a Entities,
}

struct GridCells {
    /// Index of each cell in the grid, and its row within the block.
    places: Vec<(u64, u32)>,
    /// Time of each cell, microseconds since 1970.
    times: Vec<i64>,
    /// Channel values, cell by cell.
    values: Vec<f32>,
}

impl Sink for Scatter<'_> {
    type Work = GridCells;
    type State = GridWriter;

    fn work(&self, block: Block) -> Result<GridCells, StageError> {
        let mut cells = GridCells { places: Vec::with_capacity(block.rows), times: Vec::new(), values: Vec::new() };
        let Some(words) = block.columns[0].words() else { return Ok(cells) };
        let known = |word: &String| {
            let name = self.names.name(word);
            self.span.entities.iter().position(|entity| *entity == name)
        };
        let entities: Vec<Option<usize>> = words.list.iter().map(known).collect();
        let count = self.span.entities.len() as u64;
        for (row, (id, time)) in (0..).zip(words.ids.iter().zip(block.columns[1].times())) {
            if *id == NO_WORD || *time == NO_TIME {
                continue;
            }
            let Some(entity) = entities[*id as usize] else { continue };
            let step = (steps::step_of(self.layout, *time) - self.span.first) as u64;
            cells.places.push((step * count + entity as u64, row));
            cells.times.push(*time);
        }
        let width = self.plan.channels.len();
        cells.values = vec![f32::NAN; cells.places.len() * width];
        for (index, channel) in self.plan.channels.iter().enumerate() {
            let numbers = block.columns[channel.spec].numbers();
            for (value, (_, row)) in cells.values.iter_mut().skip(index).step_by(width).zip(&cells.places) {
                *value = channel.transform.of(numbers[*row as usize]);
            }
        }
        Ok(cells)
    }

    fn order(&self, grid: &mut GridWriter, first: u64, cells: &mut GridCells) -> Result<(), StageError> {
        let width = self.plan.channels.len();
        let rows = cells.places.iter().zip(&cells.times);
        for (((cell, row), time), values) in rows.zip(cells.values.chunks_exact(width)) {
            grid.put(*cell, first + u64::from(*row), *time, values)?;
        }
        Ok(())
    }

    fn keep(&self, grid: &mut GridWriter) -> Result<Kept, StageError> {
        grid.keep()
    }
}

#[cfg(test)]
mod tests;
