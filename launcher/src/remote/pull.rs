//! Fetches a checkpoint, whole and verified or not at all.
//!
//! Files come into a hidden directory beside the target, whose name follows from the target, so that an interrupted fetch goes on
//! where it was. What is there is compared with the manifest before the directory gets its name.

use super::{RemoteError, store::Store};
use enn_common::{
    artifact::seal,
    checkpoint::{Checkpoint, Manifest, check_file, manifest::FileEntry, name},
    fs::{Disk, FileError, Storage, atomic, space},
};
use std::{
    fs::{self, File, OpenOptions},
    path::{Path, PathBuf},
};

/// Largest manifest and largest file of a run that are fetched at once.
const SMALL_BYTES_MAX: u64 = 1 << 30;
/// What comes with a run's configuration. The manifest of a run lists what does not come.
const RECORDS: [&str; 2] = ["events.jsonl", "report.html"];

/// What was fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// The checkpoint's directory.
    pub path: PathBuf,
    /// Where it came from.
    pub place: String,
    /// Step; `None` for one that PyTorch wrote.
    pub step: Option<u64>,
    /// Files.
    pub files: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes that were there from an earlier, interrupted fetch.
    pub resumed: u64,
}

/// Fetches the checkpoint at `store` to `target`: the checkpoint itself, or of a run or its checkpoints that of `step`, the newest
/// complete one without it. From a run, `target` becomes a run's directory, with its configuration.
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
    let (_, folders) = store.list()?;
    let inside = folders.iter().any(|folder| folder == "checkpoints");
    let below = store.below(if inside { "checkpoints" } else { "" });
    let (_, steps) = below.list()?;
    let mut steps: Vec<u64> = steps.iter().filter_map(|folder| name::step_of(folder)).collect();
    steps.sort_unstable();
    for found in steps.into_iter().rev().filter(|found| step.is_none_or(|step| step == *found)) {
        let place = below.below(&name::committed(found));
        if place.length(name::MANIFEST)?.is_none() {
            continue;
        }
        let path =
            if run.is_some() { target.join("checkpoints").join(name::committed(found)) } else { target.to_path_buf() };
        let pulled = checkpoint(&place, &path, replace, progress)?;
        if let Some(run) = run {
            atomic::write(&target.join("run.json"), &run)?;
            // Of a run that is here already its own records tell more.
            for file in RECORDS.iter().filter(|file| !target.join(file).exists()) {
                let found = store.small(file, SMALL_BYTES_MAX)?;
                found.map_or(Ok(()), |bytes| atomic::write(&target.join(file), &bytes))?;
            }
        }
        return Ok(pulled);
    }
    let what = match step {
        Some(step) => format!("there is no {} with a manifest", name::committed(step)),
        None => "there is neither a .metadata nor a step-… with a manifest".to_owned(),
    };
    Err(RemoteError::NoCheckpoint { place: store.name_of(""), what })
}

/// What has to come: name, bytes and, where there is a manifest, what that says of it.
struct Wanted {
    file: String,
    bytes: u64,
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
    let manifest: Option<Manifest> = match &sealed {
        Some(bytes) => Some(seal::unseal(Path::new(&place.name_of(name::MANIFEST)), bytes)?),
        None => None,
    };
    let same = own.is_some() && own == sealed;
    if let Some(manifest) = manifest.as_ref().filter(|_| same && Checkpoint::whole(target).is_ok()) {
        let (files, bytes, step) = (manifest.files.len(), manifest.bytes(), Some(manifest.step));
        let (path, place) = (target.to_path_buf(), place.name_of(""));
        return Ok(Pulled { path, place, step, files, bytes, resumed: bytes });
    }
    let wanted = wanted(place, manifest.as_ref())?;
    let total = wanted.iter().map(|one| one.bytes).sum();
    let parent = atomic::parent(target);
    Disk.create_dir(parent)?;
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let beside = target.with_file_name(format!(".{name}.pull"));
    Disk.create_dir(&beside)?;
    let (mut done, mut resumed) = (0, 0);
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
    let step = manifest.map(|manifest| manifest.step);
    let (path, place) = (target.to_path_buf(), place.name_of(""));
    Ok(Pulled { path, place, step, files: wanted.len(), bytes: total, resumed })
}

/// The manifest's files; without one, all that is there.
fn wanted(place: &Store, manifest: Option<&Manifest>) -> Result<Vec<Wanted>, RemoteError> {
    let Some(manifest) = manifest else {
        let (objects, _) = place.list()?;
        return Ok(objects.into_iter().map(|one| Wanted { file: one.name, bytes: one.bytes, listed: None }).collect());
    };
    let plain = |file: &str| !file.is_empty() && !file.contains('/') && file != "." && file != "..";
    let one = |file: &FileEntry| {
        if !plain(&file.path) {
            return Err(RemoteError::FileName { place: place.name_of(""), file: file.path.clone() });
        }
        Ok(Wanted { file: file.path.clone(), bytes: file.bytes, listed: Some(file.clone()) })
    };
    manifest.files.iter().map(one).collect()
}

/// Fetches what is missing of a file and compares all of it. Returns the bytes that were there.
fn fetch(place: &Store, one: &Wanted, dir: &Path, progress: &mut dyn FnMut(u64)) -> Result<u64, RemoteError> {
    let path = dir.join(&one.file);
    let have = fs::metadata(&path).map(|found| found.len()).unwrap_or(0);
    // Without a digest what is there cannot be trusted.
    let have = if have > one.bytes || one.listed.is_none() { 0 } else { have };
    space::require(dir, one.bytes - have)?;
    let open = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let mut file = open.map_err(FileError::of("open", &path))?;
    file.set_len(have).map_err(FileError::of("cut", &path))?;
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(have)).map_err(FileError::of("write", &path))?;
    progress(have);
    place.download(&one.file, have, (&mut file, &path), progress)?;
    file.sync_all().map_err(FileError::of("sync", &path))?;
    let Some(listed) = &one.listed else { return Ok(have) };
    if let Err(damaged) = check_file(&path, listed, &mut |_| {}) {
        // The next attempt begins anew.
        let _ = fs::remove_file(&path);
        return Err(damaged.into());
    }
    Ok(have)
}

/// Removes what another checkpoint left in the hidden directory.
fn leave_only(dir: &Path, wanted: &[Wanted]) -> Result<(), RemoteError> {
    for entry in fs::read_dir(dir).map_err(FileError::of("read", dir))?.flatten() {
        let known = entry
            .file_name()
            .to_str()
            .is_some_and(|found| found == name::MANIFEST || wanted.iter().any(|one| one.file == found));
        if !known {
            fs::remove_file(entry.path()).map_err(FileError::of("remove", &entry.path()))?;
        }
    }
    Ok(())
}

/// Ours: everything fits, the digests were compared on the way. Another's: every item against its own checksum.
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
