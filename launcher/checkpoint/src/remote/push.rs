//! Uploads a checkpoint, or a run with its checkpoints: files first, the manifest last.
//!
//! Next to each uploaded file a small object `.pushed/FILE` contains its digest, so that an interrupted upload resumes with the next file,
//! and `.pushed/FILE.parts` lists the uploaded parts of the current file. They are removed once the manifest is uploaded.

use super::{
    RemoteError,
    notes::{NOTES, note},
    store::Store,
    upload::upload,
};
use enn_common::{
    checkpoint::{Checkpoint, Manifest, listing, name},
    fs::{FileError, RelPath},
};
use std::path::Path;

const NOTE_BYTES_MAX: u64 = 256;
const MANIFEST_BYTES_MAX: u64 = 1 << 30;
/// Files that are uploaded with the checkpoints of a run, the manifest last.
const RUN_FILES: [&str; 4] = ["run.json", "events.jsonl", "report.html", "MANIFEST.json"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    pub place: String,
    pub step: u64,
    pub sent: usize,
    /// The number of files that existed from an earlier, interrupted upload, or all files when the checkpoint existed.
    pub present: usize,
    pub bytes: u64,
}

/// Uploads the checkpoint in `dir` to `store`, as `step-N` below it. `progress` gets the bytes done and the total.
///
/// A different checkpoint of the same name is only replaced with `replace`; its manifest is removed before the first of its files changes.
pub fn push(
    dir: &Path,
    store: &Store,
    replace: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Pushed, RemoteError> {
    let manifest = Checkpoint::whole(dir)?;
    let step = name::committed(manifest.step);
    let place = store.below(&step);
    let path = dir.join(name::MANIFEST);
    let sealed = std::fs::read(&path).map_err(FileError::of("read", &path))?;
    place.sweep();
    place.below(NOTES).sweep();
    let there = place.small(name::MANIFEST, MANIFEST_BYTES_MAX)?;
    let pushed = |sent, present| Pushed {
        place: place.name_of(""),
        step: manifest.step,
        sent,
        present,
        bytes: manifest.bytes(),
    };
    match there {
        Some(found) if found == sealed => {
            // An upload that was interrupted after the manifest has left its notes.
            let (left, _) = place.below(NOTES).list()?;
            left.iter().try_for_each(|one| place.remove(&note(&one.name)))?;
            return Ok(pushed(0, manifest.files.len()));
        }
        Some(_) if !replace => return Err(RemoteError::Exists { place: place.name_of("") }),
        Some(_) => place.remove(name::MANIFEST)?,
        None => {}
    }
    let (sent, present) = files(dir, &manifest, &place, progress)?;
    place.put(name::MANIFEST, sealed)?;
    for file in &manifest.files {
        place.remove(&note(&file.path))?;
    }
    Ok(pushed(sent, present))
}

/// Sends the missing files. Returns the number of files that were sent and that existed.
fn files(
    dir: &Path,
    manifest: &Manifest,
    place: &Store,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(usize, usize), RemoteError> {
    let total = manifest.bytes();
    let mut done = 0;
    let mut sent = 0;
    for file in &manifest.files {
        let noted = place.small(&note(&file.path), NOTE_BYTES_MAX)?;
        let present = noted.is_some_and(|digest| digest == file.digest().as_bytes())
            && place.length(&file.path)? == Some(file.bytes);
        if present {
            done += file.bytes;
            progress(done, total);
            continue;
        }
        place.remove(&note(&file.path))?;
        let digest = file.digest();
        upload(place, &file.path.locate(dir)?, &file.path, Some(&digest), &mut |bytes| {
            done += bytes;
            progress(done, total);
        })?;
        place.put(&note(&file.path), digest.into_bytes())?;
        sent += 1;
    }
    Ok((sent, manifest.files.len() - sent))
}

/// Uploads a run: its complete checkpoints, oldest first (only the newest without `all`), its configuration, journal and report.
pub fn push_run(
    run: &Path,
    store: &Store,
    all: bool,
    replace: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<Pushed>, RemoteError> {
    let complete: Vec<_> = listing::list(run).into_iter().filter(|one| one.complete).collect();
    let chosen = if all { complete.as_slice() } else { &complete[complete.len().saturating_sub(1)..] };
    if chosen.is_empty() {
        let what = "it has no complete one".to_owned();
        return Err(RemoteError::NoCheckpoint { place: run.display().to_string(), what });
    }
    let inside = listing::checkpoints_dir(run) != run;
    let below = if inside { store.below("checkpoints") } else { store.below("") };
    let pushed = chosen.iter().map(|one| push(&one.path, &below, replace, progress)).collect::<Result<Vec<_>, _>>()?;
    if inside {
        push_records(run, store)?;
    }
    Ok(pushed)
}

pub fn push_records(run: &Path, store: &Store) -> Result<(), RemoteError> {
    for file in RUN_FILES {
        let path =
            RelPath::parse(file).map_err(|_| RemoteError::FileName { place: store.name_of(""), file: file.into() })?;
        let path = path.locate(run)?;
        if path.is_file() {
            upload(store, &path, file, None, &mut |_| {})?;
        }
    }
    Ok(())
}
