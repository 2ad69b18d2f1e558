//! Copies a checkpoint directory and verifies the digests; the copy is complete and matches the manifest, or is absent.

use super::ConvertError;
use enn_common::{
    checkpoint::{Checkpoint, Manifest, name, reader::check_file},
    fs::{Disk, FileError, Storage, atomic, space},
};
use std::{
    fs::{self, File},
    path::Path,
};

/// Copies the checkpoint to `target`, which is replaced if it exists.
pub(super) fn copy_checkpoint(from: &Checkpoint, manifest: &Manifest, target: &Path) -> Result<(), ConvertError> {
    let parent = atomic::parent(target);
    Disk.create_dir(parent)?;
    space::require(parent, manifest.bytes())?;
    write_beside(target, false, |beside| copy_files(from, manifest, beside))
}

/// Calls `write` with a path beside `target`, and moves the file or directory that it makes to `target`.
pub(super) fn write_beside(
    target: &Path,
    is_file: bool,
    write: impl FnOnce(&Path) -> Result<(), ConvertError>,
) -> Result<(), ConvertError> {
    let beside = atomic::temporary(target);
    let written = write(&beside).and_then(|()| {
        if is_file {
            Disk.rename(&beside, target)?;
            return Ok(Disk.sync_dir(atomic::parent(target))?);
        }
        Ok(atomic::place_dir(&beside, target)?)
    });
    if written.is_err() {
        // The first error is returned; the leftover has a hidden name.
        let _ = if is_file { fs::remove_file(&beside) } else { fs::remove_dir_all(&beside) };
    }
    written
}

fn copy_files(from: &Checkpoint, manifest: &Manifest, beside: &Path) -> Result<(), ConvertError> {
    Disk.create_dir(beside)?;
    for file in &manifest.files {
        let path = file.path.below(beside);
        Disk.create_dir(atomic::parent(&path))?;
        copy_file(&file.path.locate(from.dir())?, &path)?;
        check_file(&path, file, &mut |_| {})?;
    }
    Ok(copy_file(&from.dir().join(name::MANIFEST), &beside.join(name::MANIFEST))?)
}

fn copy_file(from: &Path, to: &Path) -> Result<(), FileError> {
    fs::copy(from, to).map_err(FileError::of("copy to", to))?;
    File::open(to).and_then(|file| file.sync_all()).map_err(FileError::of("sync", to))
}
