//! Fetches a checkpoint, whole and verified or not at all.
//!
//! Files come into a hidden directory beside the target, whose name follows from the target, so that an interrupted fetch goes on
//! where it was. What is there is compared with the manifest before the directory gets its name.

use super::{
    RemoteError,
    store::{Object, Store},
};
use crate::run_dir::RUN_JSON;
use enn_common::{
    artifact::seal,
    checkpoint::{Checkpoint, Manifest, check_file, listing::Listed, manifest::FileEntry, name},
    fs::{Disk, FileError, RelPath, Storage, atomic, displace, space},
};
use std::{
    fs::{self, File, OpenOptions},
    path::{Path, PathBuf},
};

/// Largest manifest and largest file of a run that are fetched at once.
pub(super) const SMALL_BYTES_MAX: u64 = 1 << 30;
/// Where a run has its checkpoints.
pub(super) const CHECKPOINTS: &str = "checkpoints";
/// What comes with a run's configuration. The manifest of a run lists what does not come.
const RECORDS: [&str; 2] = [JOURNAL, "report.html"];
/// The journal.
pub(super) const JOURNAL: &str = "events.jsonl";

/// What was fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// The checkpoint's directory.
    pub path: PathBuf,
    /// Where it came from.
    pub place: String,
    /// Step; `None` for one that PyTorch wrote.
    pub step: Option<u64>,
    pub files: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes that were there from an earlier, interrupted fetch.
    pub resumed: u64,
}

/// Fetches the checkpoint at `store` to `target`: the checkpoint itself, or of a run or its checkpoints that of `step`, the newest
/// whole one without it: a damaged one is passed over. From a run, `target` becomes a run's directory, with its configuration.
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
                tracing::warn!("{} is passed over: {error}", place.name_of(""));
                let _kept = Disk.remove_dir(&beside(&path));
                damage.get_or_insert(error);
                continue;
            }
            pulled => pulled?,
        };
        if run.is_some() {
            // Of a run that is here already its own records tell more.
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

/// Fetches a run's configuration, and what it says of itself where `wants` says so.
pub(super) fn pull_records(store: &Store, target: &Path, wants: &dyn Fn(&str) -> bool) -> Result<(), RemoteError> {
    for file in [RUN_JSON].into_iter().chain(RECORDS.into_iter().filter(|file| wants(file))) {
        let found = store.small(file, SMALL_BYTES_MAX)?;
        found.map_or(Ok(()), |bytes| atomic::write(&target.join(file), &bytes))?;
    }
    Ok(())
}

/// Where the checkpoints of a run are, or those of a directory of checkpoints, and their steps, newest first.
pub(super) fn steps(store: &Store) -> Result<(Store, Vec<u64>), RemoteError> {
    let (_, folders) = store.list()?;
    let inside = folders.iter().any(|folder| folder == CHECKPOINTS);
    let below = store.below(if inside { CHECKPOINTS } else { "" });
    let folders = if inside { below.list()?.1 } else { folders };
    let mut steps: Vec<u64> = folders.iter().filter_map(|folder| name::step_of(folder)).collect();
    steps.sort_unstable_by(|one, other| other.cmp(one));
    Ok((below, steps))
}

/// The checkpoints of a run, oldest first, by their manifests and the sizes of their files. One that is not whole says why.
pub fn list(store: &Store) -> Result<Vec<Listed>, RemoteError> {
    let (below, steps) = steps(store)?;
    let one = |step| {
        let place = below.below(&name::committed(step));
        let path = PathBuf::from(place.name_of(""));
        Ok(match whole(&place) {
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

/// The manifest of a checkpoint whose files are all there, with their sizes; as it is, and as it was sealed.
pub(super) fn whole(place: &Store) -> Result<(Manifest, Vec<u8>), RemoteError> {
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

/// The newest checkpoint that has a manifest, and that.
pub(super) fn newest(store: &Store) -> Result<Option<(u64, Vec<u8>)>, RemoteError> {
    let (below, steps) = steps(store)?;
    for step in steps {
        if let Some(sealed) = below.below(&name::committed(step)).small(name::MANIFEST, SMALL_BYTES_MAX)? {
            return Ok(Some((step, sealed)));
        }
    }
    Ok(None)
}

/// What has to come: name, bytes and, where there is a manifest, what that says of it.
pub(super) struct Wanted {
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
    if let Some(manifest) = manifest.as_ref().filter(|_| same && Checkpoint::whole(target).is_ok()) {
        let files = manifest.files.len();
        let bytes = manifest.bytes();
        let step = Some(manifest.step);
        let path = target.to_path_buf();
        let place = place.name_of("");
        return Ok(Pulled { path, place, step, files, bytes, resumed: bytes });
    }
    let wanted = wanted(place, manifest.as_ref())?;
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
    let step = manifest.map(|manifest| manifest.step);
    let path = target.to_path_buf();
    let place = place.name_of("");
    Ok(Pulled { path, place, step, files: wanted.len(), bytes: total, resumed })
}

/// Where the files of `target` are until all of them are there.
fn beside(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.pull"))
}

/// The manifest's files; without one, all that is there.
pub(super) fn wanted(place: &Store, manifest: Option<&Manifest>) -> Result<Vec<Wanted>, RemoteError> {
    let refused = |file: &str| RemoteError::FileName { place: place.name_of(""), file: file.to_owned() };
    // A checkpoint is one directory; and a name may be anything in a store.
    let plain = |file: &str| RelPath::parse(file).ok().filter(RelPath::is_name).ok_or_else(|| refused(file));
    let Some(manifest) = manifest else {
        let (objects, _) = place.list()?;
        let one = |one: Object| Ok(Wanted { file: plain(&one.name)?, bytes: one.bytes, listed: None });
        return objects.into_iter().map(one).collect();
    };
    let one = |file: &FileEntry| Ok(Wanted { file: plain(&file.path)?, bytes: file.bytes, listed: Some(file.clone()) });
    manifest.files.iter().map(one).collect()
}

/// Fetches what is missing of a file and compares all of it. Returns the bytes that were there.
fn fetch(place: &Store, one: &Wanted, dir: &Path, progress: &mut dyn FnMut(u64)) -> Result<u64, RemoteError> {
    let path = one.file.locate(dir)?;
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
            .is_some_and(|found| found == name::MANIFEST || wanted.iter().any(|one| one.file == *found));
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
