//! Fetches a checkpoint, complete and verified or not at all.
//!
//! Files are fetched into a hidden directory next to the target, whose name follows from the target, so that an interrupted fetch can be
//! resumed. They are compared with the manifest before the directory gets its name.

use super::{
    RemoteError,
    store::{Object, Store},
};
use enn_common::{
    artifact::seal,
    checkpoint::{Checkpoint, Manifest, check_file, listing::Listed, manifest::FileEntry, name},
    fs::{Disk, FileError, RelPath, Storage, atomic, displace, space},
};
use enn_process::run_dir::RUN_JSON;
use std::{
    fs::{self, File, OpenOptions},
    path::{Path, PathBuf},
};

pub(super) const SMALL_BYTES_MAX: u64 = 1 << 30;
pub(super) const CHECKPOINTS: &str = "checkpoints";
/// Files that are fetched with a run's configuration. The manifest of a run lists files that are not fetched.
const RECORDS: [&str; 2] = [JOURNAL, "report.html"];
pub(super) const JOURNAL: &str = "events.jsonl";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    pub path: PathBuf,
    pub place: String,
    /// The step; `None` for a checkpoint written by PyTorch.
    pub step: Option<u64>,
    pub files: usize,
    pub bytes: u64,
    /// Bytes that an earlier, interrupted fetch had left.
    pub resumed: u64,
}

/// Fetches the checkpoint at `store` to `target`: the checkpoint itself, or from a run or its checkpoints that of `step`, by default the
/// newest complete one; damaged ones are skipped. From a run, `target` becomes a run directory with its configuration.
pub fn pull(
    store: &Store,
    step: Option<u64>,
    target: &Path,
    replace: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Pulled, RemoteError> {
    if store.length(name::METADATA)?.is_some() {
        return checkpoint(store, target, replace, progress);
    }
    let run = store.small("run.json", SMALL_BYTES_MAX)?;
    let (below, steps) = steps(store)?;
    let mut damage = None;
    for found in steps.into_iter().filter(|found| step.is_none_or(|step| step == *found)) {
        let place = below.below(&name::committed(found));
        if place.length(name::MANIFEST)?.is_none() {
            continue;
        }
        let path =
            if run.is_some() { target.join("checkpoints").join(name::committed(found)) } else { target.to_path_buf() };
        let pulled = match checkpoint(&place, &path, replace, progress) {
            Err(error) if step.is_none() && error.is_damage() => {
                tracing::warn!("{} is skipped: {error}", place.name_of(""));
                let _kept = Disk.remove_dir(&beside(&path));
                damage.get_or_insert(error);
                continue;
            }
            pulled => pulled?,
        };
        if run.is_some() {
            // The records of a run that exists here are newer.
            pull_records(store, target, &|file| !target.join(file).exists())?;
        }
        return Ok(pulled);
    }
    let what = match (step, damage) {
        (_, Some(damage)) => return Err(damage),
        (Some(step), None) => format!("there is no {} with a manifest", name::committed(step)),
        (None, None) => "there is neither a .metadata nor a step-… with a manifest".to_owned(),
    };
    Err(RemoteError::NoCheckpoint { place: store.name_of(""), what })
}

/// Fetches a run's configuration, and the records that `wants` selects.
pub(super) fn pull_records(store: &Store, target: &Path, wants: &dyn Fn(&str) -> bool) -> Result<(), RemoteError> {
    for file in [RUN_JSON].into_iter().chain(RECORDS.into_iter().filter(|file| wants(file))) {
        let found = store.small(file, SMALL_BYTES_MAX)?;
        found.map_or(Ok(()), |bytes| atomic::write(&target.join(file), &bytes))?;
    }
    Ok(())
}

/// Returns the address of the checkpoints of a run, or of a directory of checkpoints, and their steps, newest first.
pub(super) fn steps(store: &Store) -> Result<(Store, Vec<u64>), RemoteError> {
    let (_, folders) = store.list()?;
    let inside = folders.iter().any(|folder| folder == CHECKPOINTS);
    let below = store.below(if inside { CHECKPOINTS } else { "" });
    let folders = if inside { below.list()?.1 } else { folders };
    let mut steps: Vec<u64> = folders.iter().filter_map(|folder| name::step_of(folder)).collect();
    steps.sort_unstable_by(|one, other| other.cmp(one));
    Ok((below, steps))
}

/// Lists the checkpoints of a run, oldest first, by their manifests and file sizes. Incomplete ones have a reason.
pub fn list(store: &Store) -> Result<Vec<Listed>, RemoteError> {
    let (below, steps) = steps(store)?;
    let one = |step| {
        let place = below.below(&name::committed(step));
        let path = PathBuf::from(place.name_of(""));
        Ok(match complete_manifest(&place) {
            Ok((Manifest { world, metric, ref files, .. }, _)) => {
                let bytes = files.iter().map(|file| file.bytes).sum();
                Listed { step, path, complete: true, bytes, world, metric, reason: None }
            }
            Err(error) if error.is_damage() => {
                let reason = Some(error.to_string());
                Listed { step, path, complete: false, bytes: 0, world: 0, metric: None, reason }
            }
            Err(error) => return Err(error),
        })
    };
    steps.into_iter().rev().map(one).collect()
}

/// Returns the manifest of a checkpoint whose files all exist with their sizes, and its sealed bytes.
pub(super) fn complete_manifest(place: &Store) -> Result<(Manifest, Vec<u8>), RemoteError> {
    let missing = |file: &str| RemoteError::Missing { place: place.name_of(file) };
    let sealed = place.small(name::MANIFEST, SMALL_BYTES_MAX)?.ok_or_else(|| missing(name::MANIFEST))?;
    let manifest: Manifest = seal::unseal(Path::new(&place.name_of(name::MANIFEST)), &sealed)?;
    let (objects, _) = place.list()?;
    let is_there = |file: &&FileEntry| objects.iter().any(|one| file.path == *one.name && one.bytes == file.bytes);
    match manifest.files.iter().find(|file| !is_there(file)) {
        Some(file) => Err(missing(&file.path)),
        None => Ok((manifest, sealed)),
    }
}

/// Returns the step and the sealed manifest of the newest checkpoint that has one.
pub(super) fn newest(store: &Store) -> Result<Option<(u64, Vec<u8>)>, RemoteError> {
    let (below, steps) = steps(store)?;
    for step in steps {
        if let Some(sealed) = below.below(&name::committed(step)).small(name::MANIFEST, SMALL_BYTES_MAX)? {
            return Ok(Some((step, sealed)));
        }
    }
    Ok(None)
}

/// A file to fetch: name, size and, if listed, the manifest's entry.
pub(super) struct PullFile {
    pub(super) file: RelPath,
    pub(super) bytes: u64,
    listed: Option<FileEntry>,
}

fn checkpoint(
    place: &Store,
    target: &Path,
    replace: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Pulled, RemoteError> {
    let sealed = place.small(name::MANIFEST, SMALL_BYTES_MAX)?;
    let own = fs::read(target.join(name::MANIFEST)).ok();
    if target.exists() && !replace && (own.is_none() || own != sealed) {
        return Err(RemoteError::Exists { place: target.display().to_string() });
    }
    displace::by_directory(target, &name::is_part)?;
    let manifest: Option<Manifest> = match &sealed {
        Some(bytes) => Some(seal::unseal(Path::new(&place.name_of(name::MANIFEST)), bytes)?),
        None => None,
    };
    let same = own.is_some() && own == sealed;
    let pulled = |files, bytes, resumed| Pulled {
        path: target.to_path_buf(),
        place: place.name_of(""),
        step: manifest.as_ref().map(|manifest| manifest.step),
        files,
        bytes,
        resumed,
    };
    if let Some(manifest) = manifest.as_ref().filter(|_| same && Checkpoint::whole(target).is_ok()) {
        return Ok(pulled(manifest.files.len(), manifest.bytes(), manifest.bytes()));
    }
    let wanted = files_to_pull(place, manifest.as_ref())?;
    let total = wanted.iter().map(|one| one.bytes).sum();
    let parent = atomic::parent(target);
    Disk.create_dir(parent)?;
    let beside = beside(target);
    Disk.create_dir(&beside)?;
    let mut done = 0;
    let mut resumed = 0;
    for one in &wanted {
        resumed += fetch(place, one, &beside, &mut |bytes| {
            done += bytes;
            progress(done, total);
        })?;
    }
    if let Some(sealed) = sealed {
        let path = beside.join(name::MANIFEST);
        fs::write(&path, sealed).map_err(FileError::of("write", &path))?;
        File::open(&path).and_then(|file| file.sync_all()).map_err(FileError::of("sync", &path))?;
    }
    leave_only(&beside, &wanted)?;
    check(&beside, manifest.is_some())?;
    atomic::place_dir(&beside, target)?;
    Ok(pulled(wanted.len(), total, resumed))
}

/// Returns the directory of the files of `target` while it is fetched.
fn beside(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.pull"))
}

/// Returns the files of the manifest, or all files where there is none.
pub(super) fn files_to_pull(place: &Store, manifest: Option<&Manifest>) -> Result<Vec<PullFile>, RemoteError> {
    let refused = |file: &str| RemoteError::FileName { place: place.name_of(""), file: file.to_owned() };
    // A checkpoint is one directory, but a name in a store may be anything.
    let plain = |file: &str| RelPath::parse(file).ok().filter(RelPath::is_name).ok_or_else(|| refused(file));
    let Some(manifest) = manifest else {
        let (objects, _) = place.list()?;
        let one = |one: Object| Ok(PullFile { file: plain(&one.name)?, bytes: one.bytes, listed: None });
        return objects.into_iter().map(one).collect();
    };
    let one =
        |file: &FileEntry| Ok(PullFile { file: plain(&file.path)?, bytes: file.bytes, listed: Some(file.clone()) });
    manifest.files.iter().map(one).collect()
}

/// Fetches the missing part of a file and verifies all of it. Returns the bytes that existed before.
fn fetch(place: &Store, one: &PullFile, dir: &Path, progress: &mut dyn FnMut(u64)) -> Result<u64, RemoteError> {
    let path = one.file.locate(dir)?;
    let have = fs::metadata(&path).map(|found| found.len()).unwrap_or(0);
    // Existing bytes cannot be trusted without a digest.
    let have = if have > one.bytes || one.listed.is_none() { 0 } else { have };
    space::require(dir, one.bytes - have)?;
    let open = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let mut file = open.map_err(FileError::of("open", &path))?;
    file.set_len(have).map_err(FileError::of("cut", &path))?;
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(have)).map_err(FileError::of("write", &path))?;
    progress(have);
    place.download(&one.file, have, &mut file, &path, progress)?;
    file.sync_all().map_err(FileError::of("sync", &path))?;
    let Some(listed) = &one.listed else { return Ok(have) };
    if let Err(damaged) = check_file(&path, listed, &mut |_| {}) {
        // The next attempt starts over.
        let _ = fs::remove_file(&path);
        return Err(damaged.into());
    }
    Ok(have)
}

fn leave_only(dir: &Path, wanted: &[PullFile]) -> Result<(), RemoteError> {
    for entry in fs::read_dir(dir).map_err(FileError::of("read", dir))?.flatten() {
        let known = entry
            .file_name()
            .to_str()
            .is_some_and(|found| found == name::MANIFEST || wanted.iter().any(|one| one.file == *found));
        if !known {
            fs::remove_file(entry.path()).map_err(FileError::of("remove", &entry.path()))?;
        }
    }
    Ok(())
}

/// Checks a checkpoint of ENN for consistency, since its digests have been compared already; of another checkpoint every item's own
/// checksum is checked.
fn check(dir: &Path, ours: bool) -> Result<(), RemoteError> {
    if ours {
        Checkpoint::open(dir)?;
        return Ok(());
    }
    match Checkpoint::open_dcp(dir)?.inspect(&mut |_| {}).problems.into_iter().next() {
        Some(problem) => Err(problem.into()),
        None => Ok(()),
    }
}
