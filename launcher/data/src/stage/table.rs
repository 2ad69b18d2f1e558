//! The configured files as one table, and passes over it.
//!
//! **Invariant:** rows are delivered in reading order for any number of threads; an invalid cell is reported with its line.

use super::{
    Job, Progress,
    error::{Location, Position, StageError},
    ordered_pool::{self, PoolSteps, SavePoint},
    resume_log::ResumeLog,
    source::{
        self, Piece, Pieces, Request, Source,
        block::{Block, CellCounts, ColumnSpec, PieceError},
        clean::MissingTokens,
    },
};
use enn_common::{
    config::data::{DataConfig, SourceFormat},
    staged::unfinished::{Kept, ResumePoint},
};
use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

/// Minimum similarity (normalised Damerau–Levenshtein) of a name that is suggested.
const NEAR: f64 = 0.6;

/// Maximum number of suggested names.
const NEAR_MAX: usize = 3;
/// Maximum number of missing columns that names are compared with.
const NEAR_OF_MAX: usize = 20;

pub(crate) struct Table {
    files: Vec<(PathBuf, Box<dyn Source>)>,
    /// Name of the source of each file, where the configuration names sources.
    sources: Vec<Option<String>>,
    missing: MissingTokens,
    lines: bool,
    bytes: u64,
}

/// Consumer of the blocks of a pass: `work` in parallel, `order` in reading order, `after` in parallel.
pub(crate) trait Sink: Sync {
    type Work: Send;
    type State: Send;
    fn work(&self, block: Block) -> Result<Self::Work, StageError>;
    /// Updates the state with a block whose first row is row `first` of the table.
    fn order(&self, state: &mut Self::State, first: u64, work: &mut Self::Work) -> Result<(), StageError>;
    /// Does the work that only needs the order to be known, in parallel.
    fn after(&self, _work: Self::Work) -> Result<(), StageError> {
        Ok(())
    }
    /// Returns the part of the state that is new since the last resume point.
    fn keep(&self, _state: &mut Self::State) -> Result<Kept, StageError> {
        Ok(Kept::None)
    }
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Tally {
    pub rows: u64,
    pub counts: Vec<CellCounts>,
    pub file_rows: Vec<u64>,
    pub wrong_width: u64,
    /// Line of the first row that was left out.
    pub wrong_width_line: Option<u64>,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.counts.resize(other.counts.len(), CellCounts::default());
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| sum.add(count));
        self.file_rows.extend(&other.file_rows);
        self.wrong_width += other.wrong_width;
        self.wrong_width_line = self.wrong_width_line.or(other.wrong_width_line);
    }
}

impl Table {
    /// Opens all files, which must exist and have a readable header.
    pub(crate) fn open(job: &Job<'_>) -> Result<Self, StageError> {
        let config = job.config;
        if config.files.is_empty() {
            return Err(StageError::NoFiles);
        }
        let mut files = Vec::new();
        let mut lines = true;
        let mut bytes = 0;
        for path in &config.files {
            files.push((path.clone(), source::open(path, config, job.out)?));
            lines &= source::format_of(path, config.format)? == SourceFormat::Csv;
            bytes += bytes_of(path);
        }
        let name = |file| config.source_of(file).map(|source| source.name.clone());
        let sources = (0..files.len()).map(name).collect();
        Ok(Self { files, sources, missing: MissingTokens::new(&config.missing), lines, bytes })
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        self.files.iter().filter_map(|(_, source)| source.warning()).collect()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.files[0].0
    }

    /// Splits the table into one per source; without sources it stays whole.
    pub(crate) fn by_source(self, config: &DataConfig) -> Vec<Self> {
        let counts: Vec<usize> = config.sources.iter().map(|source| source.files).collect();
        if counts.is_empty() {
            return vec![self];
        }
        let mut files = self.files.into_iter();
        let mut sources = self.sources.into_iter();
        let of = |count: usize| {
            let files: Vec<_> = files.by_ref().take(count).collect();
            let bytes = files.iter().map(|(path, _)| bytes_of(path)).sum();
            let sources = sources.by_ref().take(count).collect();
            Self { files, sources, missing: self.missing.clone(), lines: self.lines, bytes }
        };
        counts.into_iter().map(of).collect()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the first file has the column; the pass refuses other files that lack it.
    pub(crate) fn has(&self, column: &str) -> bool {
        self.files[0].1.header().iter().any(|name| name == column)
    }

    pub(crate) fn rows_estimate(&self) -> u64 {
        self.files.iter().map(|(_, source)| source.rows_estimate()).sum()
    }

    /// Refuses files that lack columns; the error names all of them.
    pub(crate) fn require(&self, columns: &[String]) -> Result<(), StageError> {
        for (file, (path, source)) in self.files.iter().enumerate() {
            let header: HashSet<&String> = source.header().iter().collect();
            let lacking: Vec<String> = columns.iter().filter(|name| !header.contains(name)).cloned().collect();
            if !lacking.is_empty() {
                return Err(self
                    .other_columns(file, &lacking)
                    .unwrap_or_else(|| unknown(path.clone(), lacking, source.header())));
            }
        }
        Ok(())
    }

    /// Returns the error of a file that lacks columns which a file of another source has.
    fn other_columns(&self, file: usize, lacking: &[String]) -> Option<StageError> {
        let has_all = |other: &usize| lacking.iter().all(|name| self.files[*other].1.header().contains(name));
        let other = (0..self.files.len()).filter(|other| self.sources[*other] != self.sources[file]).find(has_all)?;
        let path = self.files[file].0.clone();
        let columns = lacking.to_vec();
        let [source, other] = [file, other].map(|file| self.sources[file].clone().unwrap_or_default());
        Some(StageError::OtherColumns { path, source_name: source, columns, other })
    }

    pub(crate) fn pass<S: Sink>(
        &self,
        options: PassOptions<'_>,
        sink: &S,
        state: S::State,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(S::State, Tally), StageError> {
        let requests = self.requests(&options)?;
        let state = PassState::new(state, &options, self.files.len());
        let from = options.resume_log.and_then(ResumeLog::resume_from);
        if from.is_some_and(|point| point.ended) {
            return Ok((state.state, state.tally));
        }
        let mut rows = state.tally.rows;
        let mut bytes = state.bytes;
        let mut files = self.files.iter().zip(requests).skip(state.file);
        let mut at = state.at;
        let mut pieces: Option<Box<dyn Pieces>> = None;
        let next = move || -> Result<Option<Box<dyn Piece>>, StageError> {
            loop {
                if let Some(open) = &mut pieces
                    && let Some(piece) = open.next()?
                {
                    return Ok(Some(piece));
                }
                match files.next() {
                    None => return Ok(None),
                    Some(((_, source), request)) => pieces = Some(source.start(request, at.take())?),
                }
            }
        };
        let mut report = |(more_rows, more_bytes)| {
            rows += more_rows;
            bytes += more_bytes;
            progress(Progress { rows, bytes, bytes_total: self.bytes });
        };
        let pass = TablePass { table: self, sink, resume_log: options.resume_log };
        let began = Instant::now();
        let mut state = ordered_pool::run(options.threads, next, &pass, state, &mut report)?;
        if let Some(resume_log) =
            options.resume_log.filter(|resume_log| resume_log.resume_from().is_some() || resume_log.is_due(began))
        {
            let point = ResumePoint { ended: true, ..state.point() };
            resume_log.save(point, sink.keep(&mut state.state)?)()?;
        }
        Ok((state.state, state.tally))
    }

    fn requests(&self, options: &PassOptions<'_>) -> Result<Vec<Arc<Request>>, StageError> {
        let mut requests = Vec::new();
        for (file, (path, source)) in self.files.iter().enumerate() {
            let mut columns = Vec::new();
            // By name the column's index, and whether the name is repeated.
            let mut places: HashMap<&str, (usize, bool)> = HashMap::new();
            for (place, name) in source.header().iter().enumerate() {
                places.entry(name).and_modify(|found| found.1 = true).or_insert((place, false));
            }
            for spec in options.specs {
                match places.get(spec.column.as_str()) {
                    Some((index, false)) => columns.push(*index),
                    None => return Err(unknown(path.clone(), vec![spec.column.clone()], source.header())),
                    Some(_) => {
                        return Err(StageError::RepeatedColumn { path: path.clone(), column: spec.column.clone() });
                    }
                }
            }
            let specs = options.specs.to_vec();
            let missing = self.missing.clone();
            requests.push(Arc::new(Request { file, specs, columns, missing, hash_rows: options.hash_rows }));
        }
        Ok(requests)
    }
}

pub(crate) struct PassProgress<'a> {
    progress: &'a mut dyn FnMut(Progress),
    bytes: u64,
    rows: u64,
    bytes_total: u64,
}

impl<'a> PassProgress<'a> {
    /// Creates the progress of passes that read `bytes_total` together.
    pub(crate) fn new(progress: &'a mut dyn FnMut(Progress), bytes_total: u64) -> Self {
        Self { progress, bytes: 0, rows: 0, bytes_total }
    }

    /// Reports a scan, after which the same rows are read again: its rows do not count.
    pub(crate) fn show_scan(&mut self, now: Progress) {
        self.show_read(Progress { rows: 0, ..now });
    }

    pub(crate) fn show_read(&mut self, now: Progress) {
        let rows = self.rows + now.rows;
        let bytes = self.bytes + now.bytes;
        (self.progress)(Progress { rows, bytes, bytes_total: self.bytes_total });
    }

    /// Ends a pass over files of `bytes` bytes; a scan has no rows that count.
    pub(crate) fn end_read(&mut self, rows: u64, bytes: u64) {
        self.rows += rows;
        self.bytes += bytes;
    }
}

#[derive(Clone, Copy)]
pub(crate) struct PassOptions<'a> {
    pub specs: &'a [ColumnSpec],
    pub hash_rows: bool,
    pub threads: usize,
    /// Log of resume points; `None` for a pass that is not resumed.
    pub resume_log: Option<&'a ResumeLog<'a>>,
}

struct TablePass<'a, S> {
    table: &'a Table,
    sink: &'a S,
    resume_log: Option<&'a ResumeLog<'a>>,
}

struct PassState<S> {
    state: S,
    file: usize,
    at: Option<u64>,
    before: u64,
    bytes: u64,
    tally: Tally,
    /// Time of the last resume point, or of the start.
    last_point: Instant,
}

impl<S> PassState<S> {
    fn new(state: S, options: &PassOptions<'_>, files: usize) -> Self {
        let point = options.resume_log.and_then(ResumeLog::resume_from).cloned().unwrap_or_default();
        let mut counts: Vec<CellCounts> = point.counts.iter().map(CellCounts::from_array).collect();
        counts.resize(options.specs.len(), CellCounts::default());
        let mut file_rows = point.file_rows;
        file_rows.resize(files, 0);
        let tally = Tally {
            rows: point.rows,
            counts,
            file_rows,
            wrong_width: point.wrong_width,
            wrong_width_line: point.wrong_width_line,
        };
        let ResumePoint { file, at, before, bytes, .. } = point;
        Self { state, file, at, before, bytes, tally, last_point: Instant::now() }
    }

    fn point(&self) -> ResumePoint {
        ResumePoint {
            file: self.file,
            at: self.at,
            before: self.before,
            bytes: self.bytes,
            rows: self.tally.rows,
            file_rows: self.tally.file_rows.clone(),
            counts: self.tally.counts.iter().copied().map(CellCounts::to_array).collect(),
            wrong_width: self.tally.wrong_width,
            wrong_width_line: self.tally.wrong_width_line,
            ..ResumePoint::default()
        }
    }
}

struct WorkedBlock<W> {
    work: W,
    kept: Block,
    end: u64,
}

impl<S: Sink> PoolSteps for TablePass<'_, S> {
    type Item = Box<dyn Piece>;
    type Work = Result<WorkedBlock<S::Work>, PieceError>;
    type State = PassState<S::State>;
    type Placed = S::Work;
    type Report = (u64, u64);

    fn work(&self, piece: Box<dyn Piece>) -> Self::Work {
        let end = piece.end();
        let mut block = piece.decode()?;
        let counts = std::mem::take(&mut block.counts);
        let kept = Block { counts, columns: Vec::new(), hashes: Vec::new(), ..block };
        Ok(WorkedBlock { work: self.sink.work(block)?, kept, end })
    }

    fn order(&self, state: &mut Self::State, work: Self::Work) -> Result<(S::Work, (u64, u64)), StageError> {
        let WorkedBlock { mut work, kept, end } = work.map_err(|error| self.locate(state, error))?;
        if kept.file != state.file {
            state.file = kept.file;
            state.before = 0;
        }
        let tally = &mut state.tally;
        self.sink.order(&mut state.state, tally.rows, &mut work)?;
        tally.rows += kept.rows as u64;
        tally.file_rows[kept.file] += kept.rows as u64;
        tally.counts.iter_mut().zip(&kept.counts).for_each(|(sum, count)| sum.add(count));
        tally.wrong_width += kept.wrong_width;
        if tally.wrong_width_line.is_none() {
            tally.wrong_width_line = kept.wrong_width_at.map(|at| state.before + at + 1);
        }
        state.before += kept.span;
        state.bytes += kept.bytes;
        state.at = Some(end);
        Ok((work, (kept.rows as u64, kept.bytes)))
    }

    fn after(&self, work: S::Work) -> Result<(), StageError> {
        self.sink.after(work)
    }

    fn save_point(&self, state: &mut Self::State) -> Result<Option<SavePoint<'_>>, StageError> {
        let Some(resume_log) = self.resume_log.filter(|resume_log| resume_log.is_due(state.last_point)) else {
            return Ok(None);
        };
        let kept = self.sink.keep(&mut state.state)?;
        state.last_point = Instant::now();
        Ok(Some(resume_log.save(state.point(), kept)))
    }
}

impl<S: Sink> TablePass<'_, S> {
    /// Adds the location in the file to an error of a piece.
    fn locate(&self, state: &PassState<S::State>, error: PieceError) -> StageError {
        match error {
            PieceError::Cell { file, at, column, kind } => {
                let before = if file == state.file { state.before } else { 0 };
                let number = before + at + 1;
                let position = if self.table.lines { Position::Line(number) } else { Position::Row(number) };
                StageError::Cell { place: Location { path: self.table.files[file].0.clone(), position }, column, kind }
            }
            PieceError::Stage(error) => error,
        }
    }
}

fn bytes_of(path: &Path) -> u64 {
    path.metadata().map_or(0, |metadata| metadata.len())
}

fn unknown(path: PathBuf, columns: Vec<String>, header: &[String]) -> StageError {
    let mut near: Vec<(f64, &String)> = header
        .iter()
        .map(|name| {
            let alike =
                |column: &String| strsim::normalized_damerau_levenshtein(&column.to_lowercase(), &name.to_lowercase());
            (columns.iter().take(NEAR_OF_MAX).map(alike).fold(0.0, f64::max), name)
        })
        .filter(|(alike, _)| *alike >= NEAR)
        .collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    let near = near.into_iter().take(NEAR_MAX).map(|(_, name)| name.clone()).collect();
    StageError::UnknownColumn { path, columns, near, found: header.to_vec() }
}
