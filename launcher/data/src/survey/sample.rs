//! A sample of the rows of a table: the beginning, and pieces that are spread over the rest.

use crate::stage::{
    StageError,
    error::{Location, Position},
    source::{
        self, DeclaredType, Request, Source,
        block::{Block, ColumnKind, ColumnSpec, NO_WORD, PieceError, Values},
        clean::MissingTokens,
    },
};
use enn_common::config::{
    data::{Labels, SourceFormat},
    resolve::MISSING_DEFAULT,
};
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Rows of a sample at most.
const ROWS_MAX: u64 = 50_000;
/// Cells of a sample at most: a wide table has fewer rows in it.
const CELLS_MAX: u64 = 1_500_000;
/// Rows of a sample at least, where the table has them.
const ROWS_MIN: u64 = 200;
/// The character between the parts of a list, where it is a word.
const LIST_SEPARATOR: char = ';';
/// Places of a large file from which rows are taken.
const PLACES: u64 = 16;

/// Files that are one table, and how they are read.
#[derive(Debug, Clone, Copy)]
pub struct TableFiles<'a> {
    pub files: &'a [PathBuf],
    /// Format of all files; `None` decides by extension.
    pub format: Option<SourceFormat>,
    /// Sheet of a workbook; `None` takes the first.
    pub sheet: Option<&'a str>,
    /// Texts that mean a missing cell.
    pub missing: &'a [String],
    /// The same in files that declare types, which have missing cells besides.
    pub missing_in_typed: &'a [String],
}

/// A column of the sample: for each row the index of its word.
#[derive(Debug, Clone)]
pub struct SampledColumn {
    pub name: String,
    pub(super) declared: DeclaredType,
    /// Whether another column has this name.
    pub(super) is_repeated: bool,
    /// Indices into `words`, `NO_WORD` where missing.
    pub(super) ids: Vec<u32>,
    /// Different words in order of first appearance.
    pub(super) words: Vec<String>,
}

impl SampledColumn {
    /// Whether it is declared to hold texts, and one of them would mean a missing cell elsewhere.
    pub(super) fn has_missing_words(&self) -> bool {
        let means_missing = |word: &str| MISSING_DEFAULT.contains(&word);
        match self.declared {
            DeclaredType::Text => self.words.iter().any(|word| means_missing(word)),
            DeclaredType::List => self.words.iter().any(|word| word.split(LIST_SEPARATOR).any(means_missing)),
            _ => false,
        }
    }
}

#[derive(Debug, Clone)]
pub struct TableSample {
    pub columns: Vec<SampledColumn>,
    pub rows: usize,
    /// Estimated number of rows of the table; `rows` if all were read.
    pub rows_estimate: u64,
    /// Whether all rows were read.
    pub is_whole: bool,
    /// Number of rows at the beginning that follow each other in the table.
    pub(super) head_rows: usize,
}

struct WordCollector {
    column: SampledColumn,
    index: HashMap<String, u32>,
}

impl WordCollector {
    fn push(&mut self, values: Option<&Values>, rows: usize) {
        let Some(words) = values.and_then(Values::words) else {
            return self.column.ids.extend(std::iter::repeat_n(NO_WORD, rows));
        };
        let mut known = vec![NO_WORD; words.list.len()];
        for id in words.ids.iter().take(rows) {
            let Some(place) = known.get_mut(*id as usize) else {
                self.column.ids.push(NO_WORD);
                continue;
            };
            if *place == NO_WORD {
                let word = &words.list[*id as usize];
                *place = self.index.get(word).copied().unwrap_or_else(|| {
                    let new = u32::try_from(self.column.words.len()).unwrap_or(NO_WORD);
                    self.column.words.push(word.clone());
                    self.index.insert(word.clone(), new);
                    new
                });
            }
            self.column.ids.push(*place);
        }
    }
}

/// Reads a sample of a table.
///
/// # Errors
/// Files that are missing, of another format, or without a data row; a column that only some of the files have.
pub fn sample(table: &TableFiles<'_>) -> Result<TableSample, StageError> {
    let first = table.files.first().ok_or(StageError::NoFiles)?;
    // Zipped arrays are unpacked there; a table in memory needs none.
    let scratch = std::env::temp_dir();
    let open = |path: &Path| source::open_as(path, table.format, table.sheet, &scratch);
    let header = open(first)?;
    let mut collectors = collectors(&*header);
    let share =
        (CELLS_MAX / collectors.len().max(1) as u64).clamp(ROWS_MIN, ROWS_MAX) / table.files.len().max(1) as u64;
    let mut found = TableSample { columns: Vec::new(), rows: 0, rows_estimate: 0, is_whole: true, head_rows: 0 };
    for (file, path) in table.files.iter().enumerate() {
        let source = open(path)?;
        let is_typed = (0..source.header().len()).any(|column| source.declared(column) != DeclaredType::Open);
        let missing = if is_typed { table.missing_in_typed } else { table.missing };
        let pass = FilePass { file, path, source: &*source, missing };
        pass.read(share.max(1), &mut collectors, &mut found)?;
    }
    if found.is_whole {
        found.rows_estimate = found.rows as u64;
    }
    if found.rows == 0 {
        return Err(StageError::zero_rows(first, "no row has as many fields as the header"));
    }
    found.columns = collectors.into_iter().map(|collector| collector.column).collect();
    Ok(found)
}

fn collectors(source: &dyn Source) -> Vec<WordCollector> {
    let header = source.header();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    header.iter().for_each(|name| *counts.entry(name).or_default() += 1);
    let column = |(place, name): (usize, &String)| SampledColumn {
        name: name.clone(),
        declared: source.declared(place),
        is_repeated: counts.get(name.as_str()).is_some_and(|count| *count > 1),
        ids: Vec::new(),
        words: Vec::new(),
    };
    header.iter().enumerate().map(column).map(|column| WordCollector { column, index: HashMap::new() }).collect()
}

struct FilePass<'a> {
    file: usize,
    path: &'a Path,
    source: &'a dyn Source,
    missing: &'a [String],
}

impl FilePass<'_> {
    fn read(&self, rows_max: u64, collectors: &mut [WordCollector], found: &mut TableSample) -> Result<(), StageError> {
        let request = self.request(collectors)?;
        let estimate = self.source.rows_estimate();
        found.rows_estimate += estimate;
        // Estimates of short files are rough: a little more is read from one place, too.
        let is_short = estimate <= rows_max + rows_max / 4;
        let places = if is_short { vec![None] } else { self.source.positions(PLACES) };
        let each = if is_short { rows_max * 2 } else { (rows_max / places.len() as u64).max(1) };
        for (index, place) in places.iter().enumerate() {
            let read = self.place(*place, each, &request, collectors, found);
            match read {
                Ok(ended) => found.is_whole &= ended && is_short,
                // A later place may lie within a quoted field; what is wrong with the table is told where it is staged.
                Err(_) if index > 0 => {}
                Err(error) => return Err(error),
            }
            if self.file == 0 && index == 0 {
                found.head_rows = found.rows;
            }
        }
        Ok(())
    }

    /// Reads up to `rows_max` rows from one place on; returns whether the file ended.
    fn place(
        &self,
        place: Option<u64>,
        rows_max: u64,
        request: &Arc<Request>,
        collectors: &mut [WordCollector],
        found: &mut TableSample,
    ) -> Result<bool, StageError> {
        let mut pieces = self.source.start(request.clone(), place)?;
        let mut left = usize::try_from(rows_max).unwrap_or(usize::MAX);
        while let Some(piece) = pieces.next()? {
            let block = piece.decode().map_err(|error| self.located(error))?;
            let rows = block.rows.min(left);
            push(collectors, request, &block, rows);
            found.rows += rows;
            left -= rows;
            if rows < block.rows {
                return Ok(false);
            }
            if left == 0 {
                return Ok(pieces.next()?.is_none());
            }
        }
        Ok(true)
    }

    /// Requests the words of all columns that the file has and that can be read.
    fn request(&self, collectors: &[WordCollector]) -> Result<Arc<Request>, StageError> {
        let header = self.source.header();
        let mut specs = Vec::new();
        let mut columns = Vec::new();
        for (place, collector) in collectors.iter().enumerate() {
            let wanted = &collector.column;
            // Columns of one name are told apart by their place.
            let at = if header.get(place) == Some(&wanted.name) {
                Some(place)
            } else {
                header.iter().position(|name| *name == wanted.name)
            };
            let Some(at) = at else {
                return Err(StageError::UnknownColumn {
                    path: self.path.to_owned(),
                    columns: vec![wanted.name.clone()],
                    near: Vec::new(),
                    found: header.to_vec(),
                });
            };
            let kind = match self.source.declared(at) {
                DeclaredType::Other => continue,
                DeclaredType::List => ColumnKind::Labels(Labels { separator: LIST_SEPARATOR, empty_is_missing: true }),
                _ => ColumnKind::Word,
            };
            specs.push(ColumnSpec::new(&wanted.name, kind));
            columns.push(at);
        }
        let missing = MissingTokens::new(self.missing);
        Ok(Arc::new(Request { file: self.file, specs, columns, missing, hash_rows: false }))
    }

    fn located(&self, error: PieceError) -> StageError {
        match error {
            PieceError::Cell { at, column, kind, .. } => {
                let place = Location { path: self.path.to_owned(), position: Position::Line(at + 1) };
                StageError::Cell { place, column, kind }
            }
            PieceError::Stage(error) => error,
        }
    }
}

/// Appends the first rows of a block to all columns.
fn push(collectors: &mut [WordCollector], request: &Request, block: &Block, rows: usize) {
    let mut slots = request.specs.iter().zip(&block.columns).peekable();
    for collector in collectors {
        let own = slots.next_if(|(spec, _)| spec.column == collector.column.name);
        collector.push(own.map(|(_, values)| values), rows);
    }
}
