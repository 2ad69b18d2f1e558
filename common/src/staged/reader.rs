//! Opens a staged directory: checks everything, then maps the arrays read-only. Workers of a node share the page cache.

use super::{
    ArrayName, META, StagedError, StagedMeta, Sums, VERSION,
    npy::{Header, NpyElement},
};
use crate::fs::{
    mmap::{Plain, ReadMap},
    regular,
};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Largest metadata; names of samples and categories make most of them.
const META_BYTES_MAX: u64 = 1 << 30;

const DIGEST_CHARS: usize = 64;

/// Use of a sample; the numbers of split.npy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Split {
    /// Weights are fitted to it.
    Train = 0,
    /// The best model is chosen by it.
    Val = 1,
    /// Looked at once, at the end. All rows of prediction data.
    Test = 2,
}

/// The code of samples that are of no split: they are neither trained on nor judged.
pub const LEFT_OUT: u8 = 3;

impl Split {
    /// All splits, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Train, Self::Val, Self::Test];

    /// "train", "val" or "test": the key of metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Val => "val",
            Self::Test => "test",
        }
    }
}

/// A mapped `.npy` file whose header was checked.
#[derive(Debug)]
pub struct NpyMap {
    map: ReadMap,
    header: Header,
    path: PathBuf,
}

impl NpyMap {
    /// Maps `path` and checks that the file is as long as its header says.
    pub fn open(path: &Path) -> Result<Self, StagedError> {
        let map = ReadMap::open(path)?;
        let wrong = |kind| StagedError::Npy { path: path.to_path_buf(), kind };
        let header = Header::parse(map.bytes()).map_err(wrong)?;
        let expected = header.data_offset as u64 + header.data_bytes();
        if map.bytes().len() as u64 != expected {
            return Err(StagedError::mismatch(path, "length in bytes", map.bytes().len(), expected));
        }
        Ok(Self { map, header, path: path.to_path_buf() })
    }

    /// Maps `path`, which must hold so many elements of a type.
    pub fn open_as(path: &Path, element: NpyElement, count: u64) -> Result<Self, StagedError> {
        let map = Self::open(path)?;
        let found = (map.header.element, map.header.count());
        if found == (element, count) {
            return Ok(map);
        }
        let found = format!("{} × {}", found.0.descr(), found.1);
        let expected = format!("{} × {count}", element.descr());
        Err(StagedError::mismatch(path, "element type and number of elements", found, expected))
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The elements in C order; `None` when the data are not aligned for `T`. The caller has compared the element type.
    pub fn numbers<T: Plain>(&self) -> Option<&[T]> {
        self.map.numbers(self.header.data_offset, usize::try_from(self.header.count()).ok()?)
    }

    pub fn data(&self) -> &[u8] {
        &self.map.bytes()[self.header.data_offset..]
    }
}

/// An open staged directory. All slices are mapped; reading one touches the disk only where the page cache lacks it.
#[derive(Debug)]
pub struct Staged {
    dir: PathBuf,
    meta: StagedMeta,
    x: NpyMap,
    x_mask: NpyMap,
    targets: Option<(NpyMap, NpyMap)>,
    row_id: NpyMap,
    split: NpyMap,
    weight: Option<NpyMap>,
    features: usize,
    outputs: usize,
}

impl Staged {
    /// Reads meta.json alone; for those who need shapes and names only.
    pub fn read_meta(dir: &Path) -> Result<StagedMeta, StagedError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let path = dir.join(META);
        let text = regular::read(&path, META_BYTES_MAX).map_err(|error| {
            if error.is_missing() { StagedError::NotStaged { path: dir.to_path_buf() } } else { error.into() }
        })?;
        let wrong = |source| StagedError::Meta { path: path.clone(), source };
        let Versioned { version } = serde_json::from_slice(&text).map_err(wrong)?;
        if version != VERSION {
            return Err(StagedError::Version { path, found: version, expected: VERSION });
        }
        serde_json::from_slice(&text).map_err(wrong)
    }

    /// Opens and validates: a few blocks of every array against their checksums, version, digest, element types, shapes, lengths, and the number of samples in each split.
    pub fn open(dir: &Path) -> Result<Self, StagedError> {
        let meta = Self::read_meta(dir)?;
        check_meta(dir, &meta)?;
        let features = [meta.features.len() as u64];
        let grid: Vec<u64> = meta.out_shape.iter().map(|size| *size as u64).collect();
        let open = |name: ArrayName, inner: &[u64]| open_array(dir, name, meta.rows, inner);
        let x = open(ArrayName::X, &features)?;
        let x_mask = open(ArrayName::XMask, &features)?;
        let targets = match meta.has_targets {
            true => Some((open(ArrayName::Y, &grid)?, open(ArrayName::YMask, &grid)?)),
            false => None,
        };
        let row_id = open(ArrayName::RowId, &[])?;
        let split = open(ArrayName::Split, &[])?;
        check_split(dir, &meta, split.data())?;
        let weight = meta.has_weights.then(|| open(ArrayName::Weight, &[])).transpose()?;
        if let Some(sums) = Sums::read(dir)? {
            // Every process looks at other blocks.
            sums.sample(dir, u64::from(std::process::id()))?;
        }
        let outputs = meta.out_shape.iter().product();
        let features = meta.features.len();
        Ok(Self { dir: dir.to_path_buf(), meta, x, x_mask, targets, row_id, split, weight, features, outputs })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn meta(&self) -> &StagedMeta {
        &self.meta
    }

    pub fn rows(&self) -> usize {
        self.row_id().len()
    }

    pub fn features(&self) -> usize {
        self.features
    }

    /// Target cells per sample O, the product of `out_shape`.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Inputs (N, F), user units; NaN where missing, categories as their index.
    pub fn x(&self) -> &[f32] {
        numbers(&self.x)
    }

    /// Validity of the inputs (N, F): 1 valid, 0 missing.
    pub fn x_mask(&self) -> &[u8] {
        self.x_mask.data()
    }

    /// Targets (N, *out_shape), user units; NaN where missing. Empty when the source had none.
    pub fn y(&self) -> &[f32] {
        self.targets.as_ref().map_or(&[], |(y, _)| numbers(y))
    }

    /// Validity of the targets (N, *out_shape). Empty when the source had none.
    pub fn y_mask(&self) -> &[u8] {
        self.targets.as_ref().map_or(&[], |(_, mask)| mask.data())
    }

    /// Identity of the samples (N).
    pub fn row_id(&self) -> &[i64] {
        numbers(&self.row_id)
    }

    /// Split of the samples (N), the numbers of `Split`.
    pub fn split(&self) -> &[u8] {
        self.split.data()
    }

    /// Weights of the samples (N), finite and at least 0; empty when all count the same.
    pub fn weight(&self) -> &[f32] {
        self.weight.as_ref().map_or(&[], numbers)
    }

    /// Inputs of one sample (F). Panics when `row` ≥ N, as slices do.
    pub fn x_row(&self, row: usize) -> &[f32] {
        &self.x()[row * self.features..][..self.features]
    }

    /// Validity of one sample's inputs (F).
    pub fn x_mask_row(&self, row: usize) -> &[u8] {
        &self.x_mask()[row * self.features..][..self.features]
    }

    /// Targets of one sample (O). Panics when the source had none.
    pub fn y_row(&self, row: usize) -> &[f32] {
        &self.y()[row * self.outputs..][..self.outputs]
    }

    /// Validity of one sample's targets (O). Panics when the source had none.
    pub fn y_mask_row(&self, row: usize) -> &[u8] {
        &self.y_mask()[row * self.outputs..][..self.outputs]
    }

    /// Indices of the samples of one split, ascending.
    pub fn rows_of(&self, split: Split) -> impl Iterator<Item = usize> + '_ {
        self.split().iter().enumerate().filter(move |(_, code)| **code == split as u8).map(|(row, _)| row)
    }
}

/// The elements of an array whose type, shape and alignment `open_array` has checked.
fn numbers<T: Plain>(array: &NpyMap) -> &[T] {
    array.numbers().unwrap_or(&[])
}

fn open_array(dir: &Path, name: ArrayName, rows: u64, inner: &[u64]) -> Result<NpyMap, StagedError> {
    let array = NpyMap::open(&dir.join(name.file()))?;
    let mut shape = vec![rows];
    shape.extend_from_slice(inner);
    let Header { element, shape: found, data_offset } = array.header();
    if *element != name.element() {
        return Err(StagedError::mismatch(&array.path, "element type", element.descr(), name.element().descr()));
    }
    if *found != shape {
        return Err(StagedError::mismatch(&array.path, "shape", format!("{found:?}"), format!("{shape:?}")));
    }
    if !data_offset.is_multiple_of(super::npy::ALIGN_BYTES) {
        return Err(StagedError::mismatch(&array.path, "data offset", data_offset, "a multiple of 64"));
    }
    if usize::try_from(array.header().count()).is_err() {
        return Err(StagedError::shape(&array.path, &shape));
    }
    Ok(array)
}

/// Checks that the lists of meta.json agree with each other.
fn check_meta(dir: &Path, meta: &StagedMeta) -> Result<(), StagedError> {
    let outputs = meta.out_shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size)).unwrap_or(0);
    let lengths: Vec<usize> = meta.out_labels.iter().map(Vec::len).collect();
    let persistence = meta.persistence.as_ref().map_or(outputs, Vec::len);
    let reach = meta.persistence.iter().flatten().max().map_or(0, |column| *column as usize + 1);
    let digest_is_hex = meta.digest.len() == DIGEST_CHARS && meta.digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    let names = meta.row_names.len() as u64;
    let axes = meta.out_shape.len();
    let of_sources =
        |split: usize| meta.sources.iter().map(|source| source.split_rows[split]).fold(0, u64::saturating_add);
    let sources = [of_sources(0), of_sources(1), of_sources(2)];
    let facts: [(&'static str, bool, String, String); 10] = [
        (
            "samples of the sources",
            meta.sources.is_empty() || sources == meta.split_rows,
            format!("{sources:?}"),
            format!("{:?}", meta.split_rows),
        ),
        ("number of axes of classes", !meta.has_classes || axes == 1, axes.to_string(), "1".into()),
        ("digest", digest_is_hex, meta.digest.clone(), "64 hexadecimal digits".into()),
        ("out_shape", outputs > 0, format!("{:?}", meta.out_shape), "sizes of at least 1".into()),
        ("out_labels", lengths == meta.out_shape, format!("{lengths:?} names"), format!("{:?}", meta.out_shape)),
        (
            "x_stats",
            meta.x_stats.len() == meta.features.len(),
            meta.x_stats.len().to_string(),
            meta.features.len().to_string(),
        ),
        ("y_stats", meta.y_stats.len() == outputs, meta.y_stats.len().to_string(), outputs.to_string()),
        ("persistence", persistence == outputs, persistence.to_string(), outputs.to_string()),
        ("persistence column", reach <= meta.features.len(), reach.to_string(), format!("≤ {}", meta.features.len())),
        ("row_names", names == 0 || names == meta.rows, names.to_string(), format!("0 or {}", meta.rows)),
    ];
    for (what, holds, found, expected) in facts {
        if !holds {
            return Err(StagedError::mismatch(&dir.join(META), what, found, expected));
        }
    }
    Ok(())
}

fn check_split(dir: &Path, meta: &StagedMeta, split: &[u8]) -> Result<(), StagedError> {
    let mut counts = [0u64; 256];
    split.iter().for_each(|code| counts[usize::from(*code)] += 1);
    let strange = meta.rows - counts[..=usize::from(LEFT_OUT)].iter().sum::<u64>();
    if counts[..3] == meta.split_rows && strange == 0 {
        return Ok(());
    }
    let path = dir.join(ArrayName::Split.file());
    let found = format!("{:?} and {strange}", &counts[..3]);
    let expected = format!("{:?} and 0", meta.split_rows);
    Err(StagedError::mismatch(&path, "number of train, val, test and other codes", found, expected))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::staged::meta::{CleaningReport, FeatureMeta, Stats};

    /// Metadata of `rows` training samples with 2 inputs and a (1, 3) target.
    pub(in crate::staged) fn tiny_meta(rows: u64) -> StagedMeta {
        let stats = Stats { n: rows, mean: 0.0, std: 1.0, min: 0.0, max: 1.0 };
        let feature = |name: &str| FeatureMeta { name: name.into(), ..FeatureMeta::default() };
        StagedMeta {
            version: VERSION,
            digest: "ab".repeat(32),
            rows,
            features: vec![feature("a"), feature("b")],
            out_shape: vec![1, 3],
            out_labels: vec![vec!["s".into()], vec!["t0".into(), "t1".into(), "t2".into()]],
            units: String::new(),
            persistence: None,
            has_targets: true,
            has_classes: false,
            class_form: None,
            has_weights: false,
            split_rows: [rows, 0, 0],
            sources: vec![],
            row_names: vec![],
            x_stats: vec![stats; 2],
            y_stats: vec![stats; 3],
            report: CleaningReport::default(),
        }
    }

    #[test]
    fn metadata_that_contradict_themselves_are_refused() {
        let dir = Path::new("/staged");
        check_meta(dir, &tiny_meta(2)).unwrap();
        let mut meta = tiny_meta(2);
        meta.persistence = Some(vec![0, 1, 2]);
        let error = check_meta(dir, &meta).unwrap_err().to_string();
        assert!(error.contains("persistence column is 3, expected ≤ 2"), "{error}");
        let mut meta = tiny_meta(2);
        meta.row_names = vec!["one".into()];
        assert!(check_meta(dir, &meta).is_err());
        let mut meta = tiny_meta(2);
        meta.digest = "../../etc".into();
        assert!(check_meta(dir, &meta).is_err());
    }

    #[test]
    fn a_foreign_code_in_the_split_is_refused() {
        let dir = Path::new("/staged");
        let meta = tiny_meta(2);
        check_split(dir, &meta, &[0, 0]).unwrap();
        let error = check_split(dir, &meta, &[0, 9]).unwrap_err().to_string();
        assert!(error.contains("[1, 0, 0] and 1"), "{error}");
    }

    #[test]
    fn another_version_is_said_before_the_fields_are_read() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(META), br#"{"version": 7}"#).unwrap();
        let error = Staged::read_meta(dir.path()).unwrap_err().to_string();
        assert!(error.contains("version 7, this build reads version 1"), "{error}");
    }
}
