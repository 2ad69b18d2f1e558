//! MANIFEST.json: every file of a run with its digest. Shards are not read again, because their checkpoint's manifest lists them.

use super::{GatherError, predictions::Gathered};
use enn_common::{
    artifact::{prediction::FileDigest, run, run::RunManifest, seal},
    checkpoint::{Manifest, name},
    fs::{Disk, FileError, RelPath, digest},
};
use std::{collections::BTreeMap, fs, path::Path};

/// Maximum depth below the run directory to which files are listed.
const DEPTH_MAX: usize = 8;
/// Folders of a run that are not part of the result; the staged data have their own digest.
const LEFT_OUT: &[&str] = &["staged"];

#[derive(Debug, Clone, Default)]
pub struct RunInfo {
    pub run: String,
    pub code: u8,
    pub versions: BTreeMap<String, String>,
    /// Seconds since the Unix epoch.
    pub wall_time: f64,
}

/// Writes MANIFEST.json of a run whose files do not change any more.
pub fn run_manifest(run_dir: &Path, info: RunInfo) -> Result<Gathered, GatherError> {
    let mut files = Vec::new();
    collect(run_dir, "", DEPTH_MAX, &mut files)?;
    files.sort_by(|one, other| one.path.cmp(&other.path));
    let path = run_dir.join(run::FILE);
    let bytes = files.iter().map(|file| file.bytes).sum();
    let count = files.len() as u64 + 1;
    let manifest = RunManifest {
        format: run::FORMAT.to_owned(),
        version: run::VERSION,
        run: info.run,
        code: info.code,
        files,
        versions: info.versions,
        wall_time: info.wall_time,
    };
    seal::write(&Disk, &path, &manifest)?;
    Ok(Gathered { path: run_dir.to_path_buf(), manifest: path, files: count, bytes, ..Gathered::default() })
}

/// Adds the files below `dir`, whose path in the run is `prefix`. Hidden names and links are left out.
fn collect(dir: &Path, prefix: &str, depth: usize, files: &mut Vec<FileDigest>) -> Result<(), GatherError> {
    let entries = fs::read_dir(dir).map_err(FileError::of("list", dir))?;
    for entry in entries {
        let entry = entry.map_err(FileError::of("list", dir))?;
        let path = entry.path();
        let kind = entry.file_type().map_err(FileError::of("look at", dir))?;
        let Ok(own) = entry.file_name().into_string() else { continue };
        if own.starts_with('.') || (prefix.is_empty() && (own == run::FILE || LEFT_OUT.contains(&own.as_str()))) {
            continue;
        }
        let listed = format!("{prefix}{own}");
        if kind.is_dir() && name::step_of(&own).is_some() {
            collect_checkpoint(&path, &listed, files)?;
        } else if kind.is_dir() && depth > 0 {
            collect(&path, &format!("{listed}/"), depth - 1, files)?;
        } else if kind.is_file() {
            let (bytes, blake3) = digest::of_file(&path, &mut |_| {})?;
            files.push(FileDigest { path: RelPath::parse(listed)?, bytes, blake3, crc32: None });
        }
    }
    Ok(())
}

/// Adds a checkpoint's files by its manifest. A checkpoint without a manifest is not part of the result.
fn collect_checkpoint(dir: &Path, listed: &str, files: &mut Vec<FileDigest>) -> Result<(), GatherError> {
    let Ok(manifest) = Manifest::read(dir) else { return Ok(()) };
    let inside = |path: &str| RelPath::parse(format!("{listed}/{path}"));
    for file in manifest.files {
        let path = inside(&file.path)?;
        files.push(FileDigest { path, bytes: file.bytes, blake3: file.blake3, crc32: file.whole_crc32 });
    }
    let (bytes, blake3) = digest::of_file(&dir.join(name::MANIFEST), &mut |_| {})?;
    files.push(FileDigest { path: inside(name::MANIFEST)?, bytes, blake3, crc32: None });
    Ok(())
}
