//! The arrays layout: inputs (N, F) and targets (N, S[, T[, U]]) from files of arrays. NaN means "missing".

use super::{
    Job, Progress, bound,
    complete::{self, Draft, Input},
    duplicates::Hashes,
    error::StageError,
    ordered_pool::{self, PoolSteps, SavePoint},
    output::{self, Extras, Output, PlacedSamples, Samples},
    resume_log::ResumeLog,
    source::{
        self,
        array::{self, NamedArray},
        block::{CellCounts, ColumnSpec},
        clean::{self, Cell, CellOutcome},
    },
    split,
};
use enn_common::{
    config::data::{ArraysLayout, DataConfig, DuplicatePolicy, SourceFormat, SplitKind},
    fs::{FileError, mmap::bytes_of, space},
    staged::{
        StagedWriter,
        meta::CleaningReport,
        unfinished::{Kept, ResumePoint},
    },
};
use std::{
    ops::Range,
    path::{Path, PathBuf},
    time::Instant,
};
use twox_hash::XxHash3_128;

const GRID_AXES_MAX: usize = 3;

const CHUNK_BYTES: u64 = 2 * 1024 * 1024;

pub(crate) fn draft(
    job: &Job<'_>,
    layout: &ArraysLayout,
    progress: &mut dyn FnMut(Progress),
) -> Result<Draft, StageError> {
    if matches!(job.config.split.kind, SplitKind::Group | SplitKind::Column) {
        let expected = "chronological, blocked or random: arrays have no columns to divide by";
        let found = format!("{:?}", job.config.split.kind).to_lowercase();
        return Err(StageError::config("data.split.kind", found, expected));
    }
    let set = ArraySet::open(job, layout)?;
    let features = set.x.width;
    let out_shape = set.out_shape(job)?;
    let outputs: usize = out_shape.iter().product();
    std::fs::create_dir_all(job.out).map_err(FileError::of("make the directory", job.out))?;
    let (writer, points) = StagedWriter::resume(job.out, &job.digest)?;
    let needed = set.x.rows * (Output::sample_bytes(features, outputs) + 16);
    space::require(job.out, needed.saturating_sub(writer.taken_bytes()))?;
    let extras = Extras { targets: set.y.is_some(), weight: false };
    let (mut output, points) = Output::resume(writer, points, features, &out_shape, extras)?;
    let sync = || output.sync();
    let resume_log = ResumeLog::new(output.writer(), &sync, 0, job.resume_policy, &points);
    let state = ConversionState::resume(output.dir(), resume_log.resume_from())?;
    let mut rows = state.rows;
    let mut chunks = output::chunks(rows..set.x.rows, CHUNK_BYTES / Output::sample_bytes(features, outputs).max(1));
    let convert = Convert { job, set: &set, output: &output, resume_log: &resume_log };
    let per_row = set.bytes as f64 / set.x.rows as f64;
    let mut report = |done: u64| {
        rows += done;
        progress(Progress { rows, bytes: (rows as f64 * per_row) as u64, bytes_total: set.bytes });
    };
    let state = ordered_pool::run(job.threads, || Ok(chunks.next()), &convert, state, &mut report)?;
    output.rows = set.x.rows;
    let mut report = CleaningReport { rows_read: set.x.rows, ..CleaningReport::default() };
    complete::count(&mut report, &layout.x, &state.x);
    complete::count(&mut report, &layout.y, &state.y);
    let name = |index| format!("{}[{index}]", layout.x);
    let input = |index| Input { name: name(index), source: layout.x.clone(), ..Input::default() };
    let mut draft = Draft {
        output,
        inputs: (0..features).map(input).collect(),
        targets: vec![layout.y.clone()],
        out_labels: out_shape.iter().map(|size| (0..*size).map(|index| index.to_string()).collect()).collect(),
        out_shape,
        persistence: None,
        classes: None,
        names: Vec::new(),
        starts: Vec::new(),
        times: Vec::new(),
        sources: super::source_rows(job.config, &set.x.file_rows(&job.config.files)),
        report,
    };
    let what = if layout.row_id.is_some() { "the row id" } else { "all cells" };
    draft.drop_repeated(job, state.hashes, what)?;
    Ok(draft)
}

/// One array, stacked along the row axis from all files that have it.
#[derive(Debug)]
struct Stack {
    parts: Vec<NamedArray>,
    rows: u64,
    width: usize,
}

impl Stack {
    /// Stacks the arrays of this name; `None` when no file has one.
    fn of(config: &DataConfig, arrays: &[NamedArray], name: &str) -> Result<Option<Self>, StageError> {
        let parts: Vec<NamedArray> = arrays.iter().filter(|array| array.name == name).cloned().collect();
        let Some(first) = parts.first() else { return Ok(None) };
        if let Some(other) = parts.iter().find(|part| part.shape.is_empty() || part.shape[1..] != first.shape[1..]) {
            let file = config.files.iter().position(|file| *file == other.path);
            let source = file.and_then(|file| config.source_of(file));
            let of = source.map_or_else(String::new, |source| format!(" in source {:?}", source.name));
            let shape = first.shape.get(1..).unwrap_or_default();
            let expected = format!("rows of shape {shape:?}{of} like the files before");
            return Err(wrong_shape(other, expected));
        }
        let rows = parts.iter().map(NamedArray::rows).sum();
        let width = first.width();
        Ok(Some(Self { parts, rows, width }))
    }

    fn file_rows(&self, files: &[PathBuf]) -> Vec<u64> {
        let of = |file: &PathBuf| self.parts.iter().filter(|part| part.path == *file).map(NamedArray::rows).sum();
        files.iter().map(of).collect()
    }

    fn read(&self, rows: Range<u64>) -> Result<Vec<Cell<'static>>, StageError> {
        let mut cells = Vec::with_capacity((rows.end - rows.start) as usize * self.width);
        let mut first = 0;
        for part in &self.parts {
            let start = rows.start.max(first);
            let end = rows.end.min(first + part.rows());
            if start < end {
                cells.extend(part.read(start - first..end - first)?.cells());
            }
            first += part.rows();
        }
        Ok(cells)
    }
}

fn wrong_shape(array: &NamedArray, expected: String) -> StageError {
    StageError::Shape { path: array.path.clone(), array: array.name.clone(), found: array.shape.clone(), expected }
}

/// The arrays of the layout, which have equal numbers of rows.
struct ArraySet {
    x: Stack,
    y: Option<Stack>,
    row_id: Option<Stack>,
    bytes: u64,
}

impl ArraySet {
    fn open(job: &Job<'_>, layout: &ArraysLayout) -> Result<Self, StageError> {
        let mut arrays = Vec::new();
        let mut bytes = 0;
        for path in &job.config.files {
            let format = source::format_of(path, job.config.format)?;
            if !matches!(format, SourceFormat::Npy | SourceFormat::Npz | SourceFormat::Safetensors) {
                let expected = "an .npy, .npz or .safetensors file; use data.rows for a table";
                return Err(StageError::config("data.arrays", path.display().to_string(), expected));
            }
            arrays.extend(array::open(path, format, job.out)?);
            bytes += path.metadata().map_err(FileError::of("measure", path))?.len();
        }
        let names: Vec<String> = arrays.iter().map(|array| array.name.clone()).collect();
        let first = job.config.files.first().cloned().unwrap_or_default();
        let need = |name: &String| {
            let path = PathBuf::clone(&first);
            Stack::of(job.config, &arrays, name)?.ok_or_else(|| StageError::NoArray {
                path,
                array: name.clone(),
                found: names.clone(),
            })
        };
        let x = need(&layout.x)?;
        let y = match job.training {
            None => Some(need(&layout.y)?),
            Some(_) => Stack::of(job.config, &arrays, &layout.y)?,
        };
        let row_id = layout.row_id.as_ref().map(need).transpose()?;
        let set = Self { x, y, row_id, bytes };
        set.check(job)?;
        set.check_sources(job)?;
        Ok(set)
    }

    fn check(&self, job: &Job<'_>) -> Result<(), StageError> {
        let x = &self.x.parts[0];
        if x.shape.len() > 2 || self.x.width == 0 {
            return Err(wrong_shape(x, "(rows, inputs)".into()));
        }
        for stack in [&self.x].into_iter().chain(&self.y) {
            bound::width(&stack.parts[0].path, &stack.parts[0].name, stack.width as u64)?;
        }
        if let Some(training) = job.training.filter(|training| training.features.len() > self.x.width) {
            return Err(wrong_shape(
                x,
                format!("(rows, {}), the inputs the model was trained with", training.features.len()),
            ));
        }
        if let Some(other) = self.y.iter().chain(&self.row_id).find(|other| other.rows != self.x.rows) {
            let expected = format!("{} rows like {:?}", self.x.rows, x.name);
            return Err(wrong_shape(&other.parts[0], expected));
        }
        if let Some(ids) =
            self.row_id.as_ref().filter(|ids| ids.width != 1 || !ids.parts.iter().all(NamedArray::is_integer))
        {
            return Err(wrong_shape(&ids.parts[0], "(rows) of integers".into()));
        }
        if self.x.rows == 0 {
            return Err(StageError::zero_rows(&x.path, format!("array {:?} has no rows", x.name)));
        }
        Ok(())
    }

    /// Refuses sources whose arrays have different numbers of rows, or none.
    fn check_sources(&self, job: &Job<'_>) -> Result<(), StageError> {
        let rows = |stack: &Stack| stack.file_rows(&job.config.files);
        let expected = rows(&self.x);
        let sum = |rows: &[u64], files: &Range<usize>| rows[files.clone()].iter().sum::<u64>();
        for other in [&self.x].into_iter().chain(&self.y).chain(&self.row_id) {
            let found = rows(other);
            for (source, files) in job.config.source_files() {
                let found = sum(&found, &files);
                let expected = sum(&expected, &files);
                if found != expected || found == 0 {
                    let path = job.config.files[files.start].clone();
                    let array = other.parts[0].name.clone();
                    return Err(StageError::SourceRows {
                        path,
                        source_name: source.name.clone(),
                        array,
                        found,
                        expected,
                    });
                }
            }
        }
        Ok(())
    }

    /// Returns the shape of one target; the model's when the data have no targets.
    fn out_shape(&self, job: &Job<'_>) -> Result<Vec<usize>, StageError> {
        let Some(y) = &self.y else {
            return Ok(job.training.map_or_else(Vec::new, |training| training.out_shape.clone()));
        };
        let shape = &y.parts[0].shape;
        let grid: Vec<usize> = shape.iter().skip(1).map(|size| *size as usize).collect();
        match grid.len() {
            0 => Ok(vec![1]),
            axes if axes <= GRID_AXES_MAX && !grid.contains(&0) => Ok(grid),
            _ => Err(wrong_shape(&y.parts[0], format!("rows of 1 to {GRID_AXES_MAX} axes"))),
        }
    }
}

struct ConversionState {
    hashes: Hashes,
    x: CellCounts,
    y: CellCounts,
    rows: u64,
    last_point: Instant,
}

impl ConversionState {
    fn resume(dir: &Path, point: Option<&ResumePoint>) -> Result<Self, StageError> {
        let ResumePoint { rows, counts, kept, .. } = point.cloned().unwrap_or_default();
        let hashes = if let Kept::Arrays { hashes } = kept { hashes } else { 0 };
        let count = |at: usize| counts.get(at).map_or_else(CellCounts::default, CellCounts::from_array);
        Ok(Self { hashes: Hashes::kept(dir, hashes)?, x: count(0), y: count(1), rows, last_point: Instant::now() })
    }
}

struct Convert<'a> {
    job: &'a Job<'a>,
    set: &'a ArraySet,
    output: &'a Output,
    resume_log: &'a ResumeLog<'a>,
}

struct Converted {
    first: u64,
    samples: Samples,
    hashes: Vec<u128>,
    x: CellCounts,
    y: CellCounts,
}

impl PoolSteps for Convert<'_> {
    type Item = Range<u64>;
    type Work = Result<Converted, StageError>;
    type State = ConversionState;
    type Placed = PlacedSamples;
    type Report = u64;

    fn work(&self, rows: Range<u64>) -> Self::Work {
        let (x, x_counts) = numbers(&self.set.x.read(rows.clone())?, None);
        let (y, y_counts) = match &self.set.y {
            Some(y) => {
                let cells = y.read(rows.clone())?;
                let real = |cell: &Cell<'_>| if let Cell::Real(value) = cell { Some(*value) } else { None };
                self.output.look_for_rounding(cells.iter().filter_map(real));
                numbers(&cells, self.job.config.mask.sentinel())
            }
            None => (Vec::new(), CellCounts::default()),
        };
        let ids: Vec<i64> = match &self.set.row_id {
            Some(ids) => ids.read(rows.clone())?.into_iter().map(row_id).collect::<Result<_, _>>()?,
            None => rows.clone().map(|row| row as i64).collect(),
        };
        let mut hashes = Vec::new();
        // Rows without an id are identified by all of their cells, if the configuration asks for it.
        let is_distinguished = self.set.row_id.is_some() || self.job.config.duplicates != DuplicatePolicy::Keep;
        if self.job.training.is_none() && is_distinguished {
            let width = self.set.y.as_ref().map_or(0, |y| y.width);
            hashes = match self.set.row_id {
                Some(_) => ids.iter().map(|id| XxHash3_128::oneshot(&id.to_le_bytes())).collect(),
                None => (0..ids.len())
                    .map(|row| {
                        let x = bytes_of(&x[row * self.set.x.width..][..self.set.x.width]);
                        XxHash3_128::oneshot(&[x, bytes_of(&y[row * width..][..width])].concat())
                    })
                    .collect(),
            };
        }
        let config = &self.job.config.split;
        let mut split = Vec::new();
        if config.kind == SplitKind::Random && self.job.training.is_none() {
            split = ids.iter().map(|id| split::by_hash(config, &id.to_le_bytes()) as u8).collect();
        }
        let samples = Samples { x, y, ids, split, weight: Vec::new() };
        Ok(Converted { first: rows.start, samples, hashes, x: x_counts, y: y_counts })
    }

    fn order(&self, state: &mut ConversionState, work: Self::Work) -> Result<(PlacedSamples, u64), StageError> {
        let converted = work?;
        state.hashes.push(&converted.hashes)?;
        state.x.add(&converted.x);
        state.y.add(&converted.y);
        let rows = converted.samples.ids.len() as u64;
        state.rows += rows;
        Ok((PlacedSamples { first: converted.first, samples: converted.samples }, rows))
    }

    fn save_point(&self, state: &mut ConversionState) -> Result<Option<SavePoint<'_>>, StageError> {
        if !self.resume_log.is_due(state.last_point) {
            return Ok(None);
        }
        state.hashes.spill()?;
        state.last_point = Instant::now();
        let counts = vec![state.x.to_array(), state.y.to_array()];
        let point = ResumePoint { rows: state.rows, counts, ..ResumePoint::default() };
        Ok(Some(self.resume_log.save(point, Kept::Arrays { hashes: state.hashes.rows() })))
    }

    fn after(&self, placed: PlacedSamples) -> Result<(), StageError> {
        self.output.put(placed.first, &placed.samples)
    }
}

fn row_id(cell: Cell<'_>) -> Result<i64, StageError> {
    let Cell::Integer(id) = cell else {
        let found = if let Cell::Wide(id) = cell { id.to_string() } else { "another kind of number".to_owned() };
        let expected = format!("integers up to {}; leave it out, and rows are numbered", i64::MAX);
        return Err(StageError::config("data.arrays.row_id", found, expected));
    };
    Ok(id)
}

/// Converts cells to numbers, NaN where missing: in an array only NaN and the sentinel mean "missing".
fn numbers(cells: &[Cell<'_>], sentinel: Option<f64>) -> (Vec<f32>, CellCounts) {
    let spec = ColumnSpec { sentinel, ..ColumnSpec::new("", source::block::ColumnKind::Number) };
    let mut counts = CellCounts::default();
    let number = |cell: &Cell<'_>| {
        let exact = match cell {
            Cell::Real(value) | Cell::Short(value, _) => *value,
            Cell::Truth(value) => f64::from(u8::from(*value)),
            Cell::Integer(value) => *value as f64,
            Cell::Wide(value) => *value as f64,
            _ => f64::NAN,
        };
        let comparable =
            if let Cell::Short(value, digits) = cell { digits.comparable(*value, &spec, false) } else { exact };
        let (number, found) = clean::number(comparable, &spec);
        counts.count(if comparable.is_nan() { CellOutcome::Missing } else { found });
        (if found == CellOutcome::Valid { exact } else { number }) as f32
    };
    (cells.iter().map(number).collect(), counts)
}
