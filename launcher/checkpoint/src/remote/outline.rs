//! A checkpoint at an address of which only the needed parts are fetched: its manifest and `.metadata`, and the requested byte ranges of
//! other files.
//!
//! The other files are sparse files of full length, so that the directory can be opened like any checkpoint.
//!
//! **Invariant:** bytes that were not fetched are zero, which no reader takes for an item.

use super::{
    RemoteError,
    pull::{self, SMALL_BYTES_MAX},
    store::Store,
};
use enn_common::{
    checkpoint::{Manifest, metadata::StoredPlace, name},
    fs::{FileError, RelPath, space},
};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// Byte ranges with a smaller gap are fetched together, because a request costs more.
const GAP_BYTES_MAX: u64 = 64 << 10;

pub struct Outline {
    store: Store,
    dir: PathBuf,
    /// The length of each file.
    files: BTreeMap<RelPath, u64>,
}

impl Outline {
    /// Opens the checkpoint at `store`, or the newest complete one of a run or its checkpoints there, in the new directory `dir`.
    pub fn open(store: &Store, dir: &Path) -> Result<Self, RemoteError> {
        let (store, found) = newest(store)?;
        fs::create_dir(dir).map_err(FileError::of("make", dir))?;
        let wanted = pull::files_to_pull(&store, found.as_ref().map(|(manifest, _)| manifest))?;
        let files: BTreeMap<RelPath, u64> = wanted.into_iter().map(|one| (one.file, one.bytes)).collect();
        for (file, bytes) in files.iter().filter(|(file, _)| **file != *name::METADATA) {
            let path = file.below(dir);
            File::create(&path).and_then(|file| file.set_len(*bytes)).map_err(FileError::of("make", &path))?;
        }
        let write = |file: &str, bytes: &[u8]| {
            let path = dir.join(file);
            fs::write(&path, bytes).map_err(FileError::of("write", &path))
        };
        let metadata = store.small(name::METADATA, SMALL_BYTES_MAX)?;
        let missing = || RemoteError::Missing { place: store.name_of(name::METADATA) };
        write(name::METADATA, &metadata.ok_or_else(missing)?)?;
        found.map_or(Ok(()), |(_, sealed)| write(name::MANIFEST, &sealed))?;
        Ok(Self { dir: dir.to_owned(), store, files })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn address(&self) -> String {
        self.store.name_of("")
    }

    /// Fetches the byte ranges `places`. `progress` gets the bytes done and the total.
    pub fn fetch(&self, places: &[StoredPlace], progress: &mut dyn FnMut(u64, u64)) -> Result<(), RemoteError> {
        let stretches = self.stretches(places);
        let total = stretches.iter().map(|(_, stretch)| stretch.end - stretch.start).sum();
        space::require(&self.dir, total)?;
        let mut done = 0;
        for (name, stretch) in stretches {
            let path = name.locate(&self.dir)?;
            let file = OpenOptions::new().write(true).open(&path).map_err(FileError::of("open", &path))?;
            let mut at = stretch.start;
            self.store.read(name, stretch, &mut |bytes| {
                file.write_all_at(bytes, at).map_err(FileError::of("write", &path))?;
                at += bytes.len() as u64;
                done += bytes.len() as u64;
                progress(done, total);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Merges the places to byte ranges of files. Places outside the known files are left to the reader's error.
    fn stretches<'a>(&'a self, places: &[StoredPlace]) -> Vec<(&'a RelPath, Range<u64>)> {
        let stretch = |place: &StoredPlace| {
            let (file, bytes) = self.files.get_key_value(&place.file).filter(|(file, _)| **file != *name::METADATA)?;
            let start = place.offset.min(*bytes);
            let end = place.offset.saturating_add(place.length).min(*bytes);
            (start < end).then_some((file, start, end))
        };
        let mut all: Vec<_> = places.iter().filter_map(stretch).collect();
        all.sort_unstable();
        let mut stretches: Vec<(&RelPath, Range<u64>)> = Vec::new();
        for (file, start, end) in all {
            match stretches.last_mut() {
                Some((last, stretch)) if *last == file && start <= stretch.end.saturating_add(GAP_BYTES_MAX) => {
                    stretch.end = stretch.end.max(end);
                }
                _ => stretches.push((file, start..end)),
            }
        }
        stretches
    }
}

/// A manifest, and its sealed bytes.
type Sealed = (Manifest, Vec<u8>);

/// Finds the checkpoint at an address, and its manifest; `None` where PyTorch wrote it.
fn newest(store: &Store) -> Result<(Store, Option<Sealed>), RemoteError> {
    if store.length(name::METADATA)?.is_some() {
        let ours = store.length(name::MANIFEST)?.is_some();
        return Ok((store.clone(), ours.then(|| pull::complete_manifest(store)).transpose()?));
    }
    let (below, steps) = pull::steps(store)?;
    let mut damage = None;
    for step in steps {
        let place = below.below(&name::committed(step));
        match pull::complete_manifest(&place) {
            Ok(found) => return Ok((place, Some(found))),
            Err(error) if error.is_damage() => {
                tracing::warn!("{} is skipped: {error}", place.name_of(""));
                damage.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    let what = "there is neither a .metadata nor a step-… with a manifest".to_owned();
    Err(damage.unwrap_or(RemoteError::NoCheckpoint { place: store.name_of(""), what }))
}
