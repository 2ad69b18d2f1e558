//! PT2 archives, the format that `torch.export.load` reads and libtorch runs by itself, written without either.
//!
//! ```text
//! root/archive_format, archive_version, .data/version, byteorder      identification of the file
//!      models/model.json                                              the program: aten calls in order, and their signature
//!      data/weights/…, data/constants/…                               a table of names, and one record per storage
//!      data/sample_inputs/model.pt                                    zeros, for compilers that trace
//!      extra/…                                                        metadata of the model
//! ```
//! **Invariant:** equal models give equal bytes; of the versions only those that PyTorch compares are stated (schema 8, archive 0).

mod call;
pub mod check;
mod names;
mod program;
mod size;
mod tensors;
#[cfg(test)]
mod tests;

use crate::{ExportError, Model};
use enn_common::{
    checkpoint::{call::arguments, zip::Builder},
    fs::{Disk, Storage, StorageFile, atomic},
};
use names::{Names, identifier};
use size::Sizes;
use std::path::Path;

/// Name of the archive's only program, for which `torch.export.load` looks.
const MODEL: &str = "model";
/// Alignment of storages in bytes, so that they can be mapped.
const ALIGN_BYTES: u64 = 64;

/// # Errors
/// A size cannot be expressed in the format, before anything is written; or any error of the system.
pub fn write(model: &Model<'_>, path: &Path) -> Result<(), ExportError> {
    let sizes = Sizes::of(model)?;
    let program = program::program(model.graph, Names::of(model.graph), &sizes).to_string();
    let weights = tensors::weights(model.graph);
    let constants = tensors::constants(model.graph);
    let samples = tensors::zeros(model.graph, &sizes);
    let sample: Vec<_> =
        samples.iter().map(|(dtype, shape, bytes)| (*dtype, shape.as_slice(), bytes.as_slice())).collect();
    let temporary = atomic::temporary(path);
    let put = |archive: &mut Archive| {
        archive.small("archive_format", b"pt2")?;
        archive.small("archive_version", b"0")?;
        archive.small(".data/version", b"6\n")?;
        archive.small("byteorder", b"little")?;
        archive.small(&format!("models/{MODEL}.json"), program.as_bytes())?;
        for (folder, table) in [("weights", &weights), ("constants", &constants)] {
            let config = table.config(&sizes).to_string();
            archive.small(&format!("data/{folder}/{MODEL}_{folder}_config.json"), config.as_bytes())?;
            for (name, bytes) in &table.storages {
                archive.storage(&format!("data/{folder}/{name}"), bytes)?;
            }
        }
        archive.small(&format!("data/sample_inputs/{MODEL}.pt"), &arguments(&sample))?;
        model.about.iter().try_for_each(|(name, text)| archive.small(&format!("extra/{name}"), text.as_bytes()))
    };
    let written = Archive::create(&temporary, identifier(model.name)).and_then(|mut archive| {
        put(&mut archive)?;
        archive.finish()?;
        Ok(Disk.rename(&temporary, path)?)
    });
    if written.is_err() {
        // The first error is returned; the leftover has a hidden name that nothing reads.
        let _ = std::fs::remove_file(&temporary);
        return written;
    }
    Ok(Disk.sync_dir(atomic::parent(path))?)
}

/// A file that is being written, record by record.
struct Archive {
    file: Box<dyn StorageFile>,
    zip: Builder,
    at: u64,
    root: String,
}

impl Archive {
    fn create(path: &Path, root: String) -> Result<Self, ExportError> {
        Ok(Self { file: Disk.create(path)?, zip: Builder::new(0), at: 0, root })
    }

    fn append(&mut self, parts: &[&[u8]]) -> Result<(), ExportError> {
        self.file.write_at(self.at, parts)?;
        self.at += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        Ok(())
    }

    fn small(&mut self, name: &str, bytes: &[u8]) -> Result<(), ExportError> {
        let record = self.zip.small(&format!("{}/{name}", self.root), bytes);
        self.append(&[&record])
    }

    fn storage(&mut self, name: &str, bytes: &[u8]) -> Result<(), ExportError> {
        let header = self.zip.record(&format!("{}/{name}", self.root), bytes, ALIGN_BYTES);
        self.append(&[&header, bytes])
    }

    fn finish(mut self) -> Result<(), ExportError> {
        let end = std::mem::replace(&mut self.zip, Builder::new(0)).finish();
        self.append(&[&end])?;
        Ok(self.file.sync()?)
    }
}
