//! The configured files as one table, and passes over it.
//!
//! **Invariant:** rows are handed over in reading order, whatever the number of threads; a bad cell is named by its line.

use super::{
    Job, Progress,
    crew::{self, Keep, Steps},
    error::{Place, Spot, StageError},
    keeper::Keeper,
    source::{
        self, Piece, Pieces, Request, Source,
        block::{Block, CellCounts, PieceError, Want},
        clean::MissingTokens,
    },
};
use enn_common::{
    config::data::{DataConfig, SourceFormat},
    staged::unfinished::{Kept, Mark},
};
use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

/// Names within this edit distance, relative to their length, are offered as what was meant.
const NEAR: f64 = 0.6;

/// Similar names offered.
const NEAR_MAX: usize = 3;
/// Columns that others are compared with.
const NEAR_OF_MAX: usize = 20;

/// Open files that are read as one table.
pub(crate) struct Table {
    files: Vec<(PathBuf, Box<dyn Source>)>,
    /// Name of the source of each file, where the configuration names sources.
    sources: Vec<Option<String>>,
    missing: MissingTokens,
    lines: bool,
    bytes: u64,
}

/// What a pass does with blocks: `work` in parallel, `order` in reading order, `after` in parallel.
pub(crate) trait Sink: Sync {
    /// A block, worked on.
    type Work: Send;
    /// What may only be touched in order.
    type State: Send;
    /// Does the bulk of the work.
    fn work(&self, block: Block) -> Result<Self::Work, StageError>;
    /// Takes the block in; its first row is row `first` of the table.
    fn order(&self, state: &mut Self::State, first: u64, work: &mut Self::Work) -> Result<(), StageError>;
    /// Does what only needed the order to be known.
    fn after(&self, work: Self::Work) -> Result<(), StageError>;
    /// What it takes to go on from here, beside what was kept before.
    fn keep(&self, _state: &mut Self::State) -> Result<Kept, StageError> {
        Ok(Kept::None)
    }
}

/// What a pass counted.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Tally {
    /// Rows delivered.
    pub rows: u64,
    /// Per wanted column.
    pub counts: Vec<CellCounts>,
    /// Rows delivered of each file.
    pub file_rows: Vec<u64>,
    /// Rows left out for their width.
    pub wrong_width: u64,
    /// Line of the first of them.
    pub wrong_width_line: Option<u64>,
}

impl Tally {
    /// Adds what a pass over other files counted.
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
    /// Opens all files; they must exist and have a readable header.
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

    /// What people should know of the files.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.files.iter().filter_map(|(_, source)| source.warning()).collect()
    }

    /// The first file, to name the table by.
    pub(crate) fn path(&self) -> PathBuf {
        self.files[0].0.clone()
    }

    /// A table of the files of each source; one of all files where there are no sources.
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

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the first file has the column. A file that lacks a column others have is found by the pass.
    pub(crate) fn has(&self, column: &str) -> bool {
        self.files[0].1.header().iter().any(|name| name == column)
    }

    /// About how many rows there are.
    pub(crate) fn rows_estimate(&self) -> u64 {
        self.files.iter().map(|(_, source)| source.rows_estimate()).sum()
    }

    /// Says no, naming all of them, when columns are not there.
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

    /// What is wrong with a file that lacks columns which a file of another source has.
    fn other_columns(&self, file: usize, lacking: &[String]) -> Option<StageError> {
        let has_all = |other: &usize| lacking.iter().all(|name| self.files[*other].1.header().contains(name));
        let other = (0..self.files.len()).filter(|other| self.sources[*other] != self.sources[file]).find(has_all)?;
        let path = self.files[file].0.clone();
        let columns = lacking.to_vec();
        let [source, other] = [file, other].map(|file| self.sources[file].clone().unwrap_or_default());
        Some(StageError::OtherColumns { path, source_name: source, columns, other })
    }

    /// Reads all rows once and hands them to `sink`.
    pub(crate) fn pass<S: Sink>(
        &self,
        ask: Ask<'_>,
        sink: &S,
        state: S::State,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(S::State, Tally), StageError> {
        let requests = self.requests(&ask)?;
        let ordered = Ordered::new(state, &ask, self.files.len());
        let from = ask.keeper.and_then(Keeper::from);
        if from.is_some_and(|mark| mark.ended) {
            return Ok((ordered.state, ordered.tally));
        }
        let mut rows = ordered.tally.rows;
        let mut bytes = ordered.bytes;
        let mut files = self.files.iter().zip(requests).skip(ordered.file);
        let mut at = ordered.at;
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
        let pass = Pass { table: self, sink, keeper: ask.keeper };
        let began = Instant::now();
        let mut ordered = crew::run(ask.threads, next, &pass, ordered, &mut report)?;
        if let Some(keeper) = ask.keeper.filter(|keeper| keeper.from().is_some() || keeper.is_due(began)) {
            let mark = Mark { ended: true, ..ordered.mark() };
            keeper.keep(mark, sink.keep(&mut ordered.state)?)()?;
        }
        Ok((ordered.state, ordered.tally))
    }

    fn requests(&self, ask: &Ask<'_>) -> Result<Vec<Arc<Request>>, StageError> {
        let mut requests = Vec::new();
        for (file, (path, source)) in self.files.iter().enumerate() {
            let mut columns = Vec::new();
            // By name where it is, and whether it is there again.
            let mut places: HashMap<&str, (usize, bool)> = HashMap::new();
            for (place, name) in source.header().iter().enumerate() {
                places.entry(name).and_modify(|found| found.1 = true).or_insert((place, false));
            }
            for want in ask.wants {
                match places.get(want.column.as_str()) {
                    Some((index, false)) => columns.push(*index),
                    None => return Err(unknown(path.clone(), vec![want.column.clone()], source.header())),
                    Some(_) => {
                        return Err(StageError::RepeatedColumn { path: path.clone(), column: want.column.clone() });
                    }
                }
            }
            let wants = ask.wants.to_vec();
            let missing = self.missing.clone();
            requests.push(Arc::new(Request { file, wants, columns, missing, hash_rows: ask.hash_rows }));
        }
        Ok(requests)
    }
}

/// Shows several passes as one.
pub(crate) struct Passes<'a> {
    progress: &'a mut dyn FnMut(Progress),
    /// Of the passes that are over.
    bytes: u64,
    rows: u64,
    bytes_total: u64,
}

impl<'a> Passes<'a> {
    /// All of them together read so many bytes.
    pub(crate) fn new(progress: &'a mut dyn FnMut(Progress), bytes_total: u64) -> Self {
        Self { progress, bytes: 0, rows: 0, bytes_total }
    }

    /// A pass after which the same rows are read again is so far.
    pub(crate) fn looks(&mut self, now: Progress) {
        (self.progress)(Progress { rows: self.rows, bytes: self.bytes + now.bytes, bytes_total: self.bytes_total });
    }

    /// A pass is so far.
    pub(crate) fn reads(&mut self, now: Progress) {
        let rows = self.rows + now.rows;
        let bytes = self.bytes + now.bytes;
        (self.progress)(Progress { rows, bytes, bytes_total: self.bytes_total });
    }

    /// A pass that looks, over files of so many bytes, is over.
    pub(crate) fn ended(&mut self, bytes: u64) {
        self.read(0, bytes);
    }

    /// A pass over so many rows is over.
    pub(crate) fn read(&mut self, rows: u64, bytes: u64) {
        self.rows += rows;
        self.bytes += bytes;
    }
}

/// What a pass asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
    /// Wanted columns.
    pub wants: &'a [Want],
    /// Whether blocks carry a hash of each whole row.
    pub hash_rows: bool,
    /// Threads to read with.
    pub threads: usize,
    /// What keeps marks of how far the pass is, and knows where it goes on.
    pub keeper: Option<&'a Keeper<'a>>,
}

struct Pass<'a, S> {
    table: &'a Table,
    sink: &'a S,
    keeper: Option<&'a Keeper<'a>>,
}

struct Ordered<S> {
    state: S,
    file: usize,
    /// Where the next piece of the file begins.
    at: Option<u64>,
    /// Lines or rows of the file before the piece whose turn it is.
    before: u64,
    bytes: u64,
    tally: Tally,
    /// When the last mark was made, or the pass began.
    marked: Instant,
}

impl<S> Ordered<S> {
    /// At the beginning, or behind the mark where the pass goes on.
    fn new(state: S, ask: &Ask<'_>, files: usize) -> Self {
        let mark = ask.keeper.and_then(Keeper::from).cloned().unwrap_or_default();
        let mut counts: Vec<CellCounts> = mark.counts.iter().map(CellCounts::from_array).collect();
        counts.resize(ask.wants.len(), CellCounts::default());
        let mut file_rows = mark.file_rows;
        file_rows.resize(files, 0);
        let tally = Tally {
            rows: mark.rows,
            counts,
            file_rows,
            wrong_width: mark.wrong_width,
            wrong_width_line: mark.wrong_width_line,
        };
        let Mark { file, at, before, bytes, .. } = mark;
        Self { state, file, at, before, bytes, tally, marked: Instant::now() }
    }

    /// How far the pass is.
    fn mark(&self) -> Mark {
        Mark {
            file: self.file,
            at: self.at,
            before: self.before,
            bytes: self.bytes,
            rows: self.tally.rows,
            file_rows: self.tally.file_rows.clone(),
            counts: self.tally.counts.iter().copied().map(CellCounts::to_array).collect(),
            wrong_width: self.tally.wrong_width,
            wrong_width_line: self.tally.wrong_width_line,
            ..Mark::default()
        }
    }
}

/// A block on its way: what the sink made of it and what the table keeps of it.
struct Passed<W> {
    work: W,
    kept: Block,
    end: u64,
}

impl<S: Sink> Steps for Pass<'_, S> {
    type Item = Box<dyn Piece>;
    type Work = Result<Passed<S::Work>, PieceError>;
    type State = Ordered<S::State>;
    type Placed = S::Work;
    type Report = (u64, u64);

    fn work(&self, piece: Box<dyn Piece>) -> Self::Work {
        let end = piece.end();
        let mut block = piece.decode()?;
        let counts = std::mem::take(&mut block.counts);
        let kept = Block { counts, columns: Vec::new(), hashes: Vec::new(), ..block };
        Ok(Passed { work: self.sink.work(block)?, kept, end })
    }

    fn order(&self, ordered: &mut Self::State, work: Self::Work) -> Result<(S::Work, (u64, u64)), StageError> {
        let Passed { mut work, kept, end } = work.map_err(|error| self.place(ordered, error))?;
        if kept.file != ordered.file {
            ordered.file = kept.file;
            ordered.before = 0;
        }
        let tally = &mut ordered.tally;
        self.sink.order(&mut ordered.state, tally.rows, &mut work)?;
        tally.rows += kept.rows as u64;
        tally.file_rows[kept.file] += kept.rows as u64;
        tally.counts.iter_mut().zip(&kept.counts).for_each(|(sum, count)| sum.add(count));
        tally.wrong_width += kept.wrong_width;
        if tally.wrong_width_line.is_none() {
            tally.wrong_width_line = kept.wrong_width_at.map(|at| ordered.before + at + 1);
        }
        ordered.before += kept.span;
        ordered.bytes += kept.bytes;
        ordered.at = Some(end);
        Ok((work, (kept.rows as u64, kept.bytes)))
    }

    fn after(&self, work: S::Work) -> Result<(), StageError> {
        self.sink.after(work)
    }

    fn note(&self, ordered: &mut Self::State) -> Result<Option<Keep<'_>>, StageError> {
        let Some(keeper) = self.keeper.filter(|keeper| keeper.is_due(ordered.marked)) else { return Ok(None) };
        let kept = self.sink.keep(&mut ordered.state)?;
        ordered.marked = Instant::now();
        Ok(Some(keeper.keep(ordered.mark(), kept)))
    }
}

impl<S: Sink> Pass<'_, S> {
    /// Gives an error of a piece its place in the file.
    fn place(&self, ordered: &Ordered<S::State>, error: PieceError) -> StageError {
        match error {
            PieceError::Cell { file, at, column, kind } => {
                let before = if file == ordered.file { ordered.before } else { 0 };
                let number = before + at + 1;
                let spot = if self.table.lines { Spot::Line(number) } else { Spot::Row(number) };
                StageError::Cell { place: Place { path: self.table.files[file].0.clone(), spot }, column, kind }
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
