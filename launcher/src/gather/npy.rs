//! Predictions as a directory of NumPy arrays: pred.npy (N, *out_shape) and row_id.npy (N).

use super::{GatherError, predictions::Out};
use enn_common::{
    fs::{Disk, FileError, Storage, StorageFile, mmap::bytes_of},
    staged::{
        StagedMeta,
        npy::{ALIGN_BYTES, Element, Header},
    },
};
use std::{io, path::Path};

const PREDICTIONS: &str = "pred.npy";
const IDS: &str = "row_id.npy";
/// Blocks of `ALIGN_BYTES` that a header may take.
const HEADER_BLOCKS_MAX: usize = 64;

/// The arrays being written.
pub(super) struct NpyOut {
    predictions: Growing,
    ids: Growing,
}

/// An array file and where its next byte goes.
struct Growing {
    file: Box<dyn StorageFile>,
    at: u64,
}

impl NpyOut {
    /// Begins the arrays in `folder`.
    pub(super) fn create(folder: &Path, meta: &StagedMeta) -> Result<Self, GatherError> {
        Disk.create_dir(folder)?;
        let shape: Vec<u64> = std::iter::once(meta.rows).chain(meta.out_shape.iter().map(|&n| n as u64)).collect();
        Ok(Self {
            predictions: Growing::create(&folder.join(PREDICTIONS), Element::F32, &shape)?,
            ids: Growing::create(&folder.join(IDS), Element::I64, &[meta.rows])?,
        })
    }
}

impl Growing {
    fn create(path: &Path, element: Element, shape: &[u64]) -> Result<Self, FileError> {
        let header = (1..=HEADER_BLOCKS_MAX).find_map(|blocks| Header::write(element, shape, blocks * ALIGN_BYTES));
        let too_long = || FileError::of("write the header of", path)(io::Error::from(io::ErrorKind::InvalidInput));
        let header = header.ok_or_else(too_long)?;
        let mut growing = Self { file: Disk.create(path)?, at: 0 };
        growing.append(&header)?;
        Ok(growing)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.file.write_at(self.at, &[bytes])?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}

impl Out for NpyOut {
    fn write(&mut self, ids: &[i64], _names: &[String], values: &[f32]) -> Result<(), GatherError> {
        self.ids.append(bytes_of(ids))?;
        Ok(self.predictions.append(bytes_of(values))?)
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<String>, GatherError> {
        self.ids.file.sync()?;
        self.predictions.file.sync()?;
        Ok(vec![PREDICTIONS.to_owned(), IDS.to_owned()])
    }
}
