//! Assembles the chunks of a prediction in the order of the source, checks every row, and writes the manifest last.

use super::{
    GatherError,
    arrow::ArrowOut,
    csv::CsvOut,
    layout::{Layout, Rows},
    ledger::Ledger,
    npy::{self, NpyOut},
    output::{OutputWriter, TableFile},
    parquet::ParquetOut,
};
use enn_common::{
    artifact::{
        chunk::{self, Chunk, RowStatus},
        prediction::{self, ChunkDigest, FileDigest, ModelDigest, OutputAxis, PredictionManifest},
        seal,
    },
    fs::{Disk, FileError, RelPath, Storage, atomic, digest, displace, space},
    staged::{Histories, StagedMeta, reader::Staged},
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Name of a file in the directory of chunks: blake3 of the file that takes the output's name next.
const PLACING: &str = "placing";

/// The forms of prediction outputs. Rows without a prediction are included with the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One Parquet file: `row_id`, `row_name` when rows have names, a column per output cell, a column `CELL@LEVEL` for each level of
    /// predicted quantiles but the median (which is the column of the cell), `label` for classes (the likeliest), and `failed`: why
    /// a row has no prediction, null for those that have one. Numbers that are not finite are null.
    Parquet,
    /// One Arrow IPC file with the same columns.
    Arrow,
    /// Comma-separated text with the same columns; what is null there is empty.
    Csv,
    /// A directory with pred.npy (N, *out_shape) f32, row_id.npy (N) i64 and status.npy (N) u8, 0 for a row that is predicted (see
    /// `artifact::chunk::RowStatus`). With quantiles also levels.npy (N, L, *out_shape) f32 and level.npy (L) f64; with classes
    /// label.npy (N) i64, the index of the likeliest, −1 for a row without prediction.
    Npy,
}

impl Format {
    pub fn of(output: &Path) -> Result<Self, GatherError> {
        match output.extension().and_then(|extension| extension.to_str()) {
            Some("parquet" | "pq") => Ok(Self::Parquet),
            Some("arrow" | "feather" | "ipc") => Ok(Self::Arrow),
            Some("csv") => Ok(Self::Csv),
            None if output.file_name().is_some() => Ok(Self::Npy),
            _ => Err(GatherError::Format { path: output.to_path_buf() }),
        }
    }
}

#[derive(Debug)]
pub struct Request<'a> {
    /// The output: `NAME.parquet`, `NAME.arrow`, `NAME.csv`, or a name without extension for a directory.
    pub output: &'a Path,
    pub replace: bool,
    pub staged: &'a Path,
    pub checkpoint: ModelDigest,
    /// The levels of the predicted quantiles, ascending and including the median; empty without quantiles.
    pub levels: &'a [f64],
    pub point: bool,
    pub axes: Vec<OutputAxis>,
    pub versions: BTreeMap<String, String>,
    /// Seconds since the Unix epoch.
    pub wall_time: f64,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Gathered {
    pub path: PathBuf,
    pub manifest: PathBuf,
    /// The number of files, including the manifest.
    pub files: u64,
    /// The bytes of the files without the manifest.
    pub bytes: u64,
    pub rows: u64,
    pub non_finite: u64,
    pub failed: BTreeMap<String, u64>,
}

/// Returns the form of `output` if it may be written: only an output of the same form is replaced, and never the rows in `inputs`.
pub fn writable(output: &Path, replace: bool, inputs: &[PathBuf]) -> Result<Format, GatherError> {
    let format = Format::of(output)?;
    let path = || output.to_path_buf();
    let real = std::fs::canonicalize(output).ok();
    if real.is_some() && inputs.iter().any(|input| std::fs::canonicalize(input).ok() == real) {
        return Err(GatherError::Input { path: path() });
    }
    if output.exists() && !replace && !is_unfinished(output) {
        return Err(GatherError::Exists { path: path() });
    }
    match format {
        Format::Npy => displace::by_directory(output, &npy::is_part)?,
        Format::Parquet | Format::Arrow | Format::Csv => displace::by_file(output)?,
    }
    Ok(format)
}

/// Returns the directory of the chunks of an output (`Task::Predict::out`), next to it so that the last step is a rename.
pub fn partial_dir(output: &Path) -> PathBuf {
    let name = output.file_name().unwrap_or_default().to_string_lossy();
    output.with_file_name(format!("{name}.partial"))
}

/// Assembles the chunks of the ledger. Chunks are removed once the manifest is durable.
///
/// `progress` gets the rows written so far.
pub fn predictions(
    request: &Request<'_>,
    ledger: &Ledger,
    progress: &mut dyn FnMut(u64),
) -> Result<Gathered, GatherError> {
    let output = request.output;
    let partial = partial_dir(request.output);
    let format = writable(output, request.replace, &[])?;
    let manifest_path = prediction::manifest_path(output);
    let staged = Staged::open(request.staged)?;
    let meta = staged.meta();
    let histories = Histories::of(meta);
    let chunks = ledger.chunks();
    check_rows(&chunks, meta.rows, &partial)?;
    let found_layout = Layout::new(meta, request.levels);
    let layout = if request.point { found_layout.points_only() } else { found_layout.clone() };
    space::require(atomic::parent(&partial), meta.rows * (layout.numbers() as u64 * 4 + 8))?;
    let whole = partial.join("whole");
    if whole.exists() {
        // This is left over from an interrupted attempt, or the replaced output.
        Disk.remove_dir(&whole)?;
    }
    let table = || TableFile::at(&whole, output, meta, layout.clone());
    let mut out: Box<dyn OutputWriter> = match format {
        Format::Parquet => Box::new(ParquetOut::create(table()?)?),
        Format::Arrow => Box::new(ArrowOut::create(table()?)?),
        Format::Csv => Box::new(CsvOut::create(table()?)?),
        Format::Npy => Box::new(NpyOut::create(&whole, meta, layout.clone())?),
    };
    let mut non_finite = 0;
    let mut failed = BTreeMap::<String, u64>::new();
    for found in &chunks {
        let path = chunk::path(&partial, found.start, found.end);
        let open = Chunk::open(&path, Some(&found.blake3))?;
        let ids = checked_ids(&open, &path, &staged, &found_layout, found)?;
        let mut values = found_layout.selected(open.predictions()?, request.point);
        let mut status = open.status().to_vec();
        if let Some(histories) = &histories {
            mask_missing_history(histories, &staged, found.start as usize, values.to_mut(), &mut status);
        }
        non_finite += values.iter().filter(|value| !value.is_finite()).count() as u64;
        for reason in status.iter().filter_map(|number| RowStatus::of(*number)?.reason()) {
            *failed.entry(reason.to_owned()).or_default() += 1;
        }
        out.write(&Rows { ids, names: names_of(meta, found), values: &values, status: &status })?;
        progress(found.end);
    }
    let names = out.finish()?;
    let files = digests(&whole, &names)?;
    let bytes = files.iter().map(|file| file.bytes).sum();
    let rows = meta.rows;
    let count = files.len() as u64 + 1;
    let manifest = PredictionManifest {
        format: prediction::FORMAT.to_owned(),
        version: prediction::VERSION,
        rows,
        non_finite,
        failed: failed.clone(),
        levels: layout.levels,
        columns: layout.columns,
        out_shape: meta.out_shape.clone(),
        axes: request.axes.clone(),
        units: meta.units.clone(),
        checkpoint: request.checkpoint.clone(),
        data: meta.digest.clone(),
        files,
        chunks,
        versions: request.versions.clone(),
        wall_time: request.wall_time,
    };
    publish(&whole, &partial, output, format, &manifest)?;
    Disk.remove_dir(&partial)?;
    Ok(Gathered { path: output.to_path_buf(), manifest: manifest_path, files: count, bytes, rows, non_finite, failed })
}

/// Masks the numbers of series without history in rows from `first` on, and sets their status: chunks of an older worker may contain such
/// numbers.
fn mask_missing_history(histories: &Histories, staged: &Staged, first: usize, values: &mut [f32], status: &mut [u8]) {
    let each = (values.len() / status.len().max(1)).max(1);
    for (at, (values, status)) in values.chunks_mut(each).zip(status).enumerate() {
        let valid = staged.x_mask_row(first + at);
        histories.hold(|column| valid[column] != 0, values, status);
    }
}

fn check_rows(chunks: &[ChunkDigest], rows: u64, partial: &Path) -> Result<(), GatherError> {
    let mut next = 0;
    for chunk in chunks {
        if chunk.start > next {
            return Err(GatherError::Rows { start: next, end: chunk.start, rows });
        }
        if chunk.start < next || chunk.end > rows {
            return Err(GatherError::Twice { start: chunk.start, end: chunk.end, partial: partial.to_path_buf() });
        }
        next = chunk.end;
    }
    if next != rows {
        return Err(GatherError::Rows { start: next, end: rows, rows });
    }
    Ok(())
}

/// Returns the identities of a chunk's rows after comparing them and the shape with the staged data.
fn checked_ids<'a>(
    open: &'a Chunk,
    path: &Path,
    staged: &Staged,
    layout: &Layout,
    found: &ChunkDigest,
) -> Result<&'a [i64], GatherError> {
    let other = |what| GatherError::OtherData { path: path.to_path_buf(), what };
    let levels = Some(layout.levels.len() as u64).filter(|levels| *levels > 0);
    let grid = staged.meta().out_shape.iter().map(|&n| n as u64);
    let expected = std::iter::once(found.end - found.start).chain(levels).chain(grid);
    if !open.shape().iter().copied().eq(expected) {
        return Err(other("the shape of a prediction"));
    }
    let ids = open.ids()?;
    let rows = index(found.start)..index(found.end);
    if staged.row_id().get(rows) != Some(ids) {
        return Err(other("the identity of a row"));
    }
    Ok(ids)
}

fn names_of<'a>(meta: &'a StagedMeta, found: &ChunkDigest) -> &'a [String] {
    meta.row_names.get(index(found.start)..index(found.end)).unwrap_or_default()
}

/// Converts a row number to an index; rows fit into memory because the staged identities are mapped.
fn index(row: u64) -> usize {
    usize::try_from(row).unwrap_or(usize::MAX)
}

fn digests(whole: &Path, names: &[String]) -> Result<Vec<FileDigest>, GatherError> {
    let mut files = Vec::new();
    for name in names {
        let path = RelPath::parse(name.as_str())?;
        let (bytes, blake3) = digest::of_file(&path.below(whole), &mut |_| {})?;
        files.push(FileDigest { path, bytes, blake3, crc32: None });
    }
    Ok(files)
}

/// Moves the finished output to its name: a directory with its manifest in one step; a file first, then its manifest.
fn publish(
    whole: &Path,
    partial: &Path,
    output: &Path,
    format: Format,
    manifest: &PredictionManifest,
) -> Result<(), GatherError> {
    let beside = prediction::manifest_path(output);
    let file = match (format, manifest.files.first()) {
        (Format::Parquet | Format::Arrow | Format::Csv, Some(file)) => file,
        (Format::Npy, _) | (_, None) => {
            seal::write(&Disk, &prediction::manifest_path(whole), manifest)?;
            return Ok(atomic::place_any(whole, output)?);
        }
    };
    // If the process is interrupted between the two steps, the digest identifies the file.
    atomic::write(&partial.join(PLACING), file.blake3.as_bytes())?;
    // The manifest of a replaced output must not describe the new one.
    if beside.exists() {
        std::fs::remove_file(&beside).map_err(FileError::of("remove", &beside))?;
    }
    atomic::place_any(&file.path.below(whole), output)?;
    Ok(seal::write(&Disk, &beside, manifest)?)
}

/// Returns whether the output was left by a prediction that was interrupted before its manifest.
fn is_unfinished(output: &Path) -> bool {
    let note = std::fs::read_to_string(partial_dir(output).join(PLACING));
    let is_noted = |note: String| digest::of_file(output, &mut |_| {}).is_ok_and(|(_, blake3)| blake3 == note);
    !prediction::manifest_path(output).exists() && note.is_ok_and(is_noted)
}
