//! A checkpoint at an address of which no more is fetched than is read: its manifest and `.metadata`, and of the other files the places
//! that are asked for.
//!
//! The other files are here with their lengths and take no room: to whoever opens the directory it is a checkpoint as any other.
//!
//! **Invariant:** where nothing was brought there are zeros, which no reader takes for an item.

use super::{
    RemoteError,
    pull::{self, SMALL_BYTES_MAX},
    store::Store,
};
use enn_common::{
    checkpoint::{Manifest, metadata::Place, name},
    fs::{FileError, RelPath, space},
};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// Places that lie no further apart are fetched as one: a request costs more.
const GAP_BYTES_MAX: u64 = 64 << 10;

/// What is here of a checkpoint.
pub struct Outline {
    store: Store,
    dir: PathBuf,
    /// Bytes of each file.
    files: BTreeMap<RelPath, u64>,
}

impl Outline {
    /// Of the checkpoint at `store`, or the newest whole one of a run or its checkpoints there, in the new directory `dir`.
    pub fn open(store: &Store, dir: &Path) -> Result<Self, RemoteError> {
        let (store, found) = newest(store)?;
        fs::create_dir(dir).map_err(FileError::of("make", dir))?;
        let wanted = pull::wanted(&store, found.as_ref().map(|(manifest, _)| manifest))?;
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

    /// Where the checkpoint is.
    pub fn address(&self) -> String {
        self.store.name_of("")
    }

    /// Fetches what is at `places`. `progress` gets bytes done and all bytes.
    pub fn bring(&self, places: &[Place], progress: &mut dyn FnMut(u64, u64)) -> Result<(), RemoteError> {
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

    /// Stretches of files that hold these places. What is said to lie elsewhere is left to whoever reads it.
    fn stretches<'a>(&'a self, places: &[Place]) -> Vec<(&'a RelPath, Range<u64>)> {
        let stretch = |place: &Place| {
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

/// A manifest as it is, and as it was sealed.
type Sealed = (Manifest, Vec<u8>);

/// The checkpoint that a place means, and its manifest; none where PyTorch wrote it.
fn newest(store: &Store) -> Result<(Store, Option<Sealed>), RemoteError> {
    if store.length(name::METADATA)?.is_some() {
        let ours = store.length(name::MANIFEST)?.is_some();
        return Ok((store.clone(), ours.then(|| pull::whole(store)).transpose()?));
    }
    let (below, steps) = pull::steps(store)?;
    let mut damage = None;
    for step in steps {
        let place = below.below(&name::committed(step));
        match pull::whole(&place) {
            Ok(found) => return Ok((place, Some(found))),
            Err(error) if error.is_damage() => {
                tracing::warn!("{} is passed over: {error}", place.name_of(""));
                damage.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    let what = "there is neither a .metadata nor a step-… with a manifest".to_owned();
    Err(damage.unwrap_or(RemoteError::NoCheckpoint { place: store.name_of(""), what }))
}
