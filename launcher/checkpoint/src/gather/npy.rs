//! Predictions as a directory of NumPy arrays, which are listed in `Format::Npy`.

use super::{
    GatherError,
    layout::{Layout, Rows},
    output::OutputWriter,
};
use enn_common::{
    artifact::prediction,
    fs::{Disk, FileError, Storage, StorageFile, mmap::bytes_of},
    staged::{
        StagedMeta,
        npy::{ALIGN_BYTES, Header, NpyElement},
    },
};
use std::{io, path::Path};

pub(super) const PREDICTIONS: &str = "pred.npy";
pub(super) const IDS: &str = "row_id.npy";
pub(super) const STATUS: &str = "status.npy";
pub(super) const QUANTILES: &str = "levels.npy";
pub(super) const LEVELS: &str = "level.npy";
const LABELS: &str = "label.npy";

pub(super) fn is_part(name: &str) -> bool {
    [PREDICTIONS, IDS, STATUS, QUANTILES, LEVELS, LABELS, prediction::MANIFEST].contains(&name)
}

const HEADER_BLOCKS_MAX: usize = 64;

pub(super) struct NpyOut {
    predictions: ArrayFile,
    ids: ArrayFile,
    status: ArrayFile,
    quantiles: Option<ArrayFile>,
    labels: Option<ArrayFile>,
    names: Vec<String>,
    layout: Layout,
}

struct ArrayFile {
    file: Box<dyn StorageFile>,
    at: u64,
}

impl NpyOut {
    pub(super) fn create(folder: &Path, meta: &StagedMeta, layout: Layout) -> Result<Self, GatherError> {
        Disk.create_dir(folder)?;
        let grid: Vec<u64> = meta.out_shape.iter().map(|&n| n as u64).collect();
        let shape = |inner: &[u64]| [&[meta.rows], inner].concat();
        let mut names = Vec::new();
        let mut begin = |name: &str, element: NpyElement, shape: &[u64]| {
            names.push(name.to_owned());
            ArrayFile::create(&folder.join(name), element, shape)
        };
        let predictions = begin(PREDICTIONS, NpyElement::F32, &shape(&grid))?;
        let ids = begin(IDS, NpyElement::I64, &[meta.rows])?;
        let status = begin(STATUS, NpyElement::U8, &[meta.rows])?;
        let levels = layout.levels.len() as u64;
        let quantiles = if levels > 0 {
            let mut all = begin(LEVELS, NpyElement::F64, &[levels])?;
            all.append(bytes_of(&layout.levels))?;
            all.file.sync()?;
            Some(begin(QUANTILES, NpyElement::F32, &shape(&[&[levels], grid.as_slice()].concat()))?)
        } else {
            None
        };
        let labels = layout.classes.then(|| begin(LABELS, NpyElement::I64, &[meta.rows])).transpose()?;
        Ok(Self { predictions, ids, status, quantiles, labels, names, layout })
    }
}

impl ArrayFile {
    fn create(path: &Path, element: NpyElement, shape: &[u64]) -> Result<Self, FileError> {
        let header = (1..=HEADER_BLOCKS_MAX).find_map(|blocks| Header::write(element, shape, blocks * ALIGN_BYTES));
        let too_long = || FileError::of("write the header of", path)(io::Error::from(io::ErrorKind::InvalidInput));
        let header = header.ok_or_else(too_long)?;
        let mut array = Self { file: Disk.create(path)?, at: 0 };
        array.append(&header)?;
        Ok(array)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.file.write_at(self.at, &[bytes])?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}

impl OutputWriter for NpyOut {
    fn write(&mut self, rows: &Rows<'_>) -> Result<(), GatherError> {
        self.ids.append(bytes_of(rows.ids))?;
        self.status.append(rows.status)?;
        if let Some(quantiles) = &mut self.quantiles {
            self.predictions.append(bytes_of(&self.layout.points(rows.values)))?;
            quantiles.append(bytes_of(rows.values))?;
        } else {
            self.predictions.append(bytes_of(rows.values))?;
        }
        if let Some(labels) = &mut self.labels {
            let index = |label: Option<usize>| label.map_or(-1, |label| label as i64);
            labels.append(bytes_of(&self.layout.labels(rows).into_iter().map(index).collect::<Vec<i64>>()))?;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Vec<String>, GatherError> {
        let arrays = [self.predictions, self.ids, self.status].into_iter().chain(self.quantiles).chain(self.labels);
        for array in arrays {
            array.file.sync()?;
        }
        Ok(self.names)
    }
}
