//! The name of a staged directory: a digest of what the sources hold and what the configuration asks for.
//!
//! A file's digest is blake3 over the blake3 of its blocks of `BLOCK_BYTES`, so that blocks are hashed in parallel and never held
//! together. It is remembered below the output directory for as long as the file's size, times and inode stay the same.

use super::{
    crew::{self, Steps},
    error::StageError,
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

/// Changes whenever the stager would make other arrays of the same data.
const STAGER: u32 = 2;

/// Changes whenever rows that are to be predicted would be read in another way than before: what was staged of them is staged anew, and
/// a run's own data are not.
const READER: u32 = 2;

/// Bytes hashed at once.
const BLOCK_BYTES: u64 = 1024 * 1024;

/// File that remembers digests, below the output directory.
const REMEMBERED: &str = ".sources.json";

/// A file changed within this time before its digest was remembered may change again without its times showing it.
const SETTLED_NS: i64 = 2_000_000_000;

/// A path as the system describes it.
pub(crate) fn identity(path: &Path) -> Result<FileIdentity, StageError> {
    let metadata = path.metadata().map_err(FileError::of("measure", path))?;
    if metadata.is_dir() {
        return Err(StageError::MissingFile { path: path.to_owned() });
    }
    Ok(FileIdentity::from(&metadata))
}

/// Digest of the configuration and of all sources, hex. Reads every file whose digest is not remembered.
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
    // The files are their contents, not their names; the format may hang on a name.
    let formats: Vec<_> = config.files.iter().map(|path| super::source::format_of(path, config.format)).collect();
    let formats = formats.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut config = DataConfig { files: Vec::new(), ..config.clone() };
    // How often a source is drawn is nothing that is staged.
    config.sources.iter_mut().for_each(|source| source.weight = None);
    let model = training.map(|meta| (READER, &meta.features, &meta.out_shape, &meta.out_labels));
    let asked = serde_json::to_vec(&(STAGER, formats, config, model));
    hasher.update(&asked.map_err(|source| FileError::of("encode the key of", out)(source.into()))?);
    remember(&memory, &old, &new);
    Ok(hasher.finalize().to_hex().to_string())
}

/// What was remembered and may still be believed.
fn recall(memory: &Path) -> KnownSources {
    let Ok(written) = identity(memory) else { return KnownSources::new() };
    let text = std::fs::read(memory).unwrap_or_default();
    let mut known: KnownSources = serde_json::from_slice(&text).unwrap_or_default();
    known.retain(|_, entry| entry.identity.changed_ns + SETTLED_NS < written.modified_ns);
    known
}

/// A memory that cannot be written is no harm: the files are read again next time.
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

/// Digest of one file's contents, hex.
pub(crate) fn file(path: &Path, threads: usize) -> Result<String, StageError> {
    // To open a pipe is to wait for somebody who writes to it.
    if !path.is_file() {
        return Err(StageError::MissingFile { path: path.to_path_buf() });
    }
    let file = regular::open(path)?;
    let bytes = file.metadata().map_err(FileError::of("measure", path))?.len();
    let mut blocks = 0..bytes.div_ceil(BLOCK_BYTES);
    let steps = Blocks { file: &file, path, bytes };
    let hasher = crew::run(threads, || Ok(blocks.next()), &steps, blake3::Hasher::new(), &mut |()| {})?;
    Ok(hasher.finalize().to_hex().to_string())
}

struct Blocks<'a> {
    file: &'a File,
    path: &'a Path,
    bytes: u64,
}

impl Steps for Blocks<'_> {
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

    fn after(&self, (): ()) -> Result<(), StageError> {
        Ok(())
    }
}
