//! The name of a staged directory: a digest of the contents of the sources and of the configuration.
//!
//! A file's digest is blake3 over the blake3 of its blocks of `BLOCK_BYTES`, so that blocks are hashed in parallel. It is cached below
//! the output directory for as long as the file's size, times and inode stay the same.

use super::{
    error::StageError,
    ordered_pool::{self, PoolSteps},
};
use enn_common::{
    config::data::DataConfig,
    fs::{FileError, atomic, regular},
    staged::{
        StagedMeta,
        known::{FileIdentity, KnownSource, KnownSources},
    },
};
use std::{fs::File, os::unix::fs::FileExt, path::Path};

/// Version that changes whenever the same data would be staged as other arrays.
const STAGER: u32 = 2;

/// Version that changes whenever rows to predict would be read differently: they are staged again, a run's own data are not.
const READER: u32 = 2;

const BLOCK_BYTES: u64 = 1024 * 1024;

const REMEMBERED: &str = ".sources.json";

/// Nanoseconds before the cache was written in which a change of a file makes its entry invalid: a later change might not show in its
/// times.
const SETTLED_NS: i64 = 2_000_000_000;

pub(crate) fn identity(path: &Path) -> Result<FileIdentity, StageError> {
    let metadata = path.metadata().map_err(FileError::of("measure", path))?;
    if metadata.is_dir() {
        return Err(StageError::MissingFile { path: path.to_owned() });
    }
    Ok(FileIdentity::from(&metadata))
}

/// Returns the hex digest of the configuration and of all sources. Reads every file whose digest is not cached.
pub(crate) fn key(
    config: &DataConfig,
    training: Option<&StagedMeta>,
    out: &Path,
    threads: usize,
) -> Result<String, StageError> {
    let memory = out.join(REMEMBERED);
    let old = recall(&memory);
    let mut new = KnownSources::new();
    let mut hasher = blake3::Hasher::new();
    for path in &config.files {
        let seen = identity(path).map_err(|_| StageError::MissingFile { path: path.clone() })?;
        let digest = match old.get(path).filter(|known| known.identity == seen) {
            Some(known) => known.digest.clone(),
            None => file(path, threads)?,
        };
        if identity(path)? != seen {
            return Err(StageError::Changed { path: path.clone() });
        }
        hasher.update(digest.as_bytes());
        new.insert(path.clone(), KnownSource { identity: seen, digest });
    }
    // File names do not matter, except that the format may depend on the extension.
    let formats: Vec<_> = config.files.iter().map(|path| super::source::format_of(path, config.format)).collect();
    let formats = formats.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut config = DataConfig { files: Vec::new(), ..config.clone() };
    // The sampling weight of a source does not change the arrays.
    config.sources.iter_mut().for_each(|source| source.weight = None);
    let model = training.map(|meta| (READER, &meta.features, &meta.out_shape, &meta.out_labels));
    let asked = serde_json::to_vec(&(STAGER, formats, config, model));
    hasher.update(&asked.map_err(|source| FileError::of("encode the key of", out)(source.into()))?);
    remember(&memory, &old, &new);
    Ok(hasher.finalize().to_hex().to_string())
}

fn recall(memory: &Path) -> KnownSources {
    let Ok(written) = identity(memory) else { return KnownSources::new() };
    let text = std::fs::read(memory).unwrap_or_default();
    let mut known: KnownSources = serde_json::from_slice(&text).unwrap_or_default();
    known.retain(|_, entry| entry.identity.changed_ns + SETTLED_NS < written.modified_ns);
    known
}

/// Writes the cache. A failure is ignored: the files are then read again next time.
fn remember(memory: &Path, old: &KnownSources, new: &KnownSources) {
    let same = new.iter().all(|(path, entry)| old.get(path).is_some_and(|known| known.identity == entry.identity));
    if same {
        return;
    }
    let mut all = old.clone();
    all.extend(new.clone());
    if let Ok(text) = serde_json::to_vec_pretty(&all) {
        let _ = atomic::write(memory, &text);
    }
}

pub(crate) fn file(path: &Path, threads: usize) -> Result<String, StageError> {
    // Opening a pipe would block until a writer opens it.
    if !path.is_file() {
        return Err(StageError::MissingFile { path: path.to_path_buf() });
    }
    let file = regular::open(path)?;
    let bytes = file.metadata().map_err(FileError::of("measure", path))?.len();
    let mut blocks = 0..bytes.div_ceil(BLOCK_BYTES);
    let steps = Blocks { file: &file, path, bytes };
    let hasher = ordered_pool::run(threads, || Ok(blocks.next()), &steps, blake3::Hasher::new(), &mut |()| {})?;
    Ok(hasher.finalize().to_hex().to_string())
}

struct Blocks<'a> {
    file: &'a File,
    path: &'a Path,
    bytes: u64,
}

impl PoolSteps for Blocks<'_> {
    type Item = u64;
    type Work = Result<blake3::Hash, StageError>;
    type State = blake3::Hasher;
    type Placed = ();
    type Report = ();

    fn work(&self, block: u64) -> Self::Work {
        let at = block * BLOCK_BYTES;
        let mut bytes = vec![0; (self.bytes - at).min(BLOCK_BYTES) as usize];
        self.file.read_exact_at(&mut bytes, at).map_err(FileError::of("read", self.path))?;
        Ok(blake3::hash(&bytes))
    }

    fn order(&self, state: &mut blake3::Hasher, work: Self::Work) -> Result<((), ()), StageError> {
        state.update(work?.as_bytes());
        Ok(((), ()))
    }
}
