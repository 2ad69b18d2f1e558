//! Crash at the k-th operation of a save: whatever survives is the old checkpoint or the new one, whole.
//!
//! The storage here keeps two images: what a process sees, and what a disk would still have after losing power. Bytes become
//! durable by `sync`, names by `sync_dir`. After the crash three worlds are looked at: everything seen survived (the process
//! was killed), only what is durable survived (power cut), and the worst mixture a journalling file system allows: all
//! names survived, but only durable bytes.

use crate::fixture::{draft, pattern, w, write_shards};
use enn_common::{
    checkpoint::{
        self, ShardLayout, ShardTable, TensorDType, latest,
        layout::BoxOf,
        name,
        write::{How, write_shard},
    },
    fs::{FileError, Storage, StorageFile, atomic},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

/// Bytes of a tensor that is written by itself.
const LARGE_BYTES: u64 = (1 << 20) + 3;

/// Where checkpoints are: a directory of runs and a run are new too.
const CHECKPOINTS: &str = "/runs/weather/checkpoints";

/// Numbers of what the system says: interrupted, a broken disk, a full one.
const EINTR: i32 = 4;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// Number of a file's contents.
type Inode = usize;

#[derive(Default, Clone)]
struct Names {
    files: BTreeMap<PathBuf, Inode>,
    dirs: BTreeSet<PathBuf>,
}

#[derive(Default)]
struct Machine {
    seen: Names,
    durable: Names,
    seen_bytes: Vec<Vec<u8>>,
    durable_bytes: Vec<Vec<u8>>,
    operations: usize,
    fails_at: Option<usize>,
    /// Only that one operation fails.
    once: bool,
    /// What the system says, by number.
    error: Option<i32>,
    /// Files of which a sync failed: the system took what was to be written for written, and a later sync says that all is well.
    lost: BTreeSet<Inode>,
}

impl Machine {
    /// Counts an operation; from the k-th on nothing works any more.
    fn operate(&mut self, action: &'static str, path: &Path) -> Result<(), FileError> {
        self.operations += 1;
        let failed = match self.fails_at {
            // A full disk stays full; a crash stops everything.
            Some(at) if self.once => self.operations == at + 1,
            Some(at) => self.operations > at,
            None => false,
        };
        if failed {
            let source = io::Error::from_raw_os_error(self.error.unwrap_or(EINTR));
            return Err(FileError { action, path: path.to_owned(), source });
        }
        Ok(())
    }

    fn below(names: &Names, dir: &Path) -> Names {
        let files = names.files.iter().filter(|(path, _)| path.starts_with(dir));
        Names {
            files: files.map(|(path, inode)| (path.clone(), *inode)).collect(),
            dirs: names.dirs.iter().filter(|path| path.starts_with(dir)).cloned().collect(),
        }
    }

    fn moved(names: &Names, from: &Path, to: &Path) -> Names {
        let place = |path: &PathBuf| match path.strip_prefix(from) {
            Ok(rest) if rest.as_os_str().is_empty() => to.to_owned(),
            Ok(rest) => to.join(rest),
            Err(_) => path.clone(),
        };
        Names {
            files: names.files.iter().map(|(path, inode)| (place(path), *inode)).collect(),
            dirs: names.dirs.iter().map(place).collect(),
        }
    }

    fn without(names: &mut Names, dir: &Path) {
        names.files.retain(|path, _| !path.starts_with(dir));
        names.dirs.retain(|path| !path.starts_with(dir));
    }
}

#[derive(Clone, Default)]
struct Crashing(Arc<Mutex<Machine>>);

struct CrashingFile {
    machine: Arc<Mutex<Machine>>,
    inode: Inode,
    path: PathBuf,
}

impl Storage for Crashing {
    fn create(&self, path: &Path) -> Result<Box<dyn StorageFile>, FileError> {
        let mut machine = self.machine();
        machine.operate("create", path)?;
        let inode = machine.seen_bytes.len();
        machine.seen_bytes.push(Vec::new());
        machine.durable_bytes.push(Vec::new());
        machine.seen.files.insert(path.to_owned(), inode);
        Ok(Box::new(CrashingFile { machine: Arc::clone(&self.0), inode, path: path.to_owned() }))
    }

    fn create_dir(&self, path: &Path) -> Result<(), FileError> {
        let mut machine = self.machine();
        machine.operate("create directory", path)?;
        machine.seen.dirs.extend(path.ancestors().map(Path::to_owned));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), FileError> {
        let mut machine = self.machine();
        machine.operate("rename to", to)?;
        let mut names = machine.seen.clone();
        Machine::without(&mut names, to);
        machine.seen = Machine::moved(&names, from, to);
        Ok(())
    }

    fn exchange(&self, one: &Path, other: &Path) -> Result<(), FileError> {
        let mut machine = self.machine();
        machine.operate("exchange with", other)?;
        let aside = Path::new("/aside");
        let names = Machine::moved(&machine.seen, one, aside);
        let names = Machine::moved(&names, other, one);
        machine.seen = Machine::moved(&names, aside, other);
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> Result<(), FileError> {
        let mut machine = self.machine();
        machine.operate("sync directory", path)?;
        // The names directly in this directory, and what a subdirectory had already made durable under its own name.
        let seen = Machine::below(&machine.seen, path);
        let mut durable = machine.durable.clone();
        let parent = |name: &PathBuf| name.parent() == Some(path);
        durable.files.retain(|name, _| !parent(name));
        durable
            .files
            .extend(seen.files.iter().filter(|(name, _)| parent(name)).map(|(name, inode)| (name.clone(), *inode)));
        for dir in seen.dirs.iter().filter(|dir| parent(dir)) {
            // A directory that got this name by a rename brings the entries that are durable in it: those it was synced with.
            let inside = Machine::below(&seen, dir);
            let known: BTreeSet<Inode> = machine.durable.files.values().copied().collect();
            let kept = Machine::below(&durable, dir).dirs.into_iter().filter(|dir| inside.dirs.contains(dir));
            let kept: Vec<PathBuf> = kept.collect();
            Machine::without(&mut durable, dir);
            durable.dirs.extend(kept);
            durable.dirs.insert(dir.clone());
            durable.files.extend(inside.files.into_iter().filter(|(_, inode)| known.contains(inode)));
        }
        let gone: Vec<_> =
            durable.dirs.iter().filter(|dir| parent(dir) && !seen.dirs.contains(*dir)).cloned().collect();
        gone.iter().for_each(|dir| Machine::without(&mut durable, dir));
        machine.durable = durable;
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> Result<(), FileError> {
        let mut machine = self.machine();
        machine.operate("remove directory", path)?;
        Machine::without(&mut machine.seen, path);
        Ok(())
    }

    fn len(&self, path: &Path) -> Result<u64, FileError> {
        let machine = self.machine();
        let inode = machine.seen.files.get(path).copied();
        let missing = || FileError::of("look at", path)(io::Error::from(io::ErrorKind::NotFound));
        Ok(machine.seen_bytes[inode.ok_or_else(missing)?].len() as u64)
    }

    fn exists(&self, path: &Path) -> bool {
        let machine = self.machine();
        machine.seen.files.contains_key(path) || machine.seen.dirs.contains(path)
    }
}

impl StorageFile for CrashingFile {
    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> Result<(), FileError> {
        let mut guard = self.machine.lock().unwrap();
        let machine = &mut *guard;
        let outcome = machine.operate("write", &self.path);
        let bytes = &mut machine.seen_bytes[self.inode];
        let all = parts.concat();
        // The write during which the crash comes is torn: half of it is there.
        let done = if outcome.is_ok() { all.len() } else { all.len() / 2 };
        let end = offset as usize + done;
        bytes.resize(bytes.len().max(end), 0);
        bytes[offset as usize..end].copy_from_slice(&all[..done]);
        outcome
    }

    fn sync(&self) -> Result<(), FileError> {
        let mut guard = self.machine.lock().unwrap();
        let machine = &mut *guard;
        if let Err(error) = machine.operate("sync", &self.path) {
            machine.lost.insert(self.inode);
            return Err(error);
        }
        if machine.lost.contains(&self.inode) {
            return Ok(());
        }
        machine.durable_bytes[self.inode] = machine.seen_bytes[self.inode].clone();
        Ok(())
    }
}

impl Crashing {
    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.0.lock().unwrap()
    }

    /// Writes one of the three worlds to a real directory.
    fn survive(&self, names: fn(&Machine) -> &Names, bytes: fn(&Machine) -> &Vec<Vec<u8>>) -> tempfile::TempDir {
        let machine = self.machine();
        let root = tempfile::tempdir().unwrap();
        let real = |path: &Path| root.path().join(path.strip_prefix("/").unwrap());
        for dir in
            names(&machine).dirs.iter().filter(|dir| dir.ancestors().all(|above| names(&machine).dirs.contains(above)))
        {
            fs::create_dir_all(real(dir)).unwrap();
        }
        // What lies in a directory whose name is lost is lost with it.
        let is_there = |path: &&PathBuf| path.ancestors().skip(1).all(|above| names(&machine).dirs.contains(above));
        for (path, inode) in names(&machine).files.iter().filter(|(path, _)| is_there(path)) {
            fs::create_dir_all(real(path).parent().unwrap()).unwrap();
            fs::write(real(path), &bytes(&machine)[*inode]).unwrap();
        }
        root
    }

    fn worlds(&self) -> [tempfile::TempDir; 3] {
        [
            self.survive(|m| &m.seen, |m| &m.seen_bytes),
            self.survive(|m| &m.durable, |m| &m.durable_bytes),
            self.survive(|m| &m.seen, |m| &m.durable_bytes),
        ]
    }
}

/// The step of the newest complete checkpoint, after reading every byte of it.
fn newest(root: &Path) -> Option<u64> {
    let found = latest(&root.join(CHECKPOINTS.trim_start_matches('/'))).found?;
    found.verify(&mut |_| {}).unwrap();
    let step = found.manifest().unwrap().step;
    assert_eq!(found.tensor("model.w").unwrap().bytes, w(step));
    assert!(found.tensor("third.2").unwrap().bytes == pattern(step, LARGE_BYTES as usize));
    Some(step)
}

/// Saves a step the way workers and launcher do; an error ends it like a crash would.
fn save(storage: &Crashing, step: u64) -> Result<(), String> {
    let checkpoints = Path::new(CHECKPOINTS);
    let temporary = checkpoints.join(name::temporary(step, "a"));
    let committed = checkpoints.join(name::committed(step));
    let tables = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| write_shards(storage, &temporary, 2, step)));
    let mut tables = tables.map_err(|_| "a shard could not be written".to_owned())?;
    tables.push(write_large(storage, &temporary, step)?);
    let done = checkpoint::commit::commit_on(storage, &temporary, &committed, &tables, draft(step));
    done.map(|_| ()).map_err(|error| error.to_string())
}

/// A shard of a third rank, written as workers and launcher do: small tensors together, a large one by itself.
fn write_large(storage: &Crashing, temporary: &Path, step: u64) -> Result<ShardTable, String> {
    let lengths = [5, 7, LARGE_BYTES];
    let part = |(index, &length): (usize, &u64)| {
        let fqn = format!("third.{index}");
        BoxOf { fqn, dtype: TensorDType::U8, global: vec![length], offsets: vec![0], sizes: vec![length] }
    };
    let layout = ShardLayout::of(lengths.iter().enumerate().map(part).collect()).unwrap();
    let bytes: Vec<Vec<u8>> = lengths.iter().map(|&length| pattern(step, length as usize)).collect();
    let payloads: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
    // One thread, so that the k-th operation is the same one each time.
    let how = How { threads: 1, blake3: false };
    write_shard(storage, temporary, 2, &layout, &payloads, how).map_err(|error| error.to_string())
}

fn machine() -> Crashing {
    let storage = Crashing::default();
    storage.machine().seen.dirs.insert("/".into());
    storage.machine().durable.dirs.insert("/".into());
    // As the launcher makes a run.
    atomic::make_dir_on(&storage, Path::new(CHECKPOINTS)).unwrap();
    storage
}

/// Saves step 1 in peace, then `step` with a failure at every operation in turn.
fn crash_everywhere(step: u64, error: Option<i32>) -> (usize, usize) {
    let calm = machine();
    save(&calm, 1).unwrap();
    let before = calm.machine().operations;
    save(&calm, step).unwrap();
    let operations = calm.machine().operations - before;
    assert!(calm.worlds().iter().all(|world| newest(world.path()) == Some(step)), "durable when commit returns");

    std::panic::set_hook(Box::new(|_| {}));
    let mut old = 0;
    let mut new = 0;
    for at in 0..operations {
        let storage = machine();
        save(&storage, 1).unwrap();
        storage.machine().fails_at = Some(before + at);
        storage.machine().error = error;
        let told = save(&storage, step).unwrap_err();
        for (world, root) in storage.worlds().iter().enumerate() {
            match newest(root.path()) {
                Some(1) if step != 1 => old += 1,
                Some(found) if found == step => new += 1,
                found => panic!("crash at {at} of {operations}, world {world}: {found:?} ({told})"),
            }
        }
    }
    drop(std::panic::take_hook());
    (old, new)
}

#[test]
fn a_crash_leaves_the_old_or_the_new_checkpoint() {
    let (old, new) = crash_everywhere(2, None);
    assert!(old > 60 && new > 0, "{old} old, {new} new");
}

#[test]
fn a_full_disk_leaves_the_old_checkpoint() {
    let (old, _) = crash_everywhere(2, Some(ENOSPC));
    assert!(old > 60, "{old}");
}

#[test]
fn replacing_a_step_never_leaves_none() {
    crash_everywhere(1, None);
}

#[test]
fn a_directory_that_was_made_without_care_is_lost_with_all_that_is_in_it() {
    let storage = Crashing::default();
    storage.machine().seen.dirs.insert("/".into());
    storage.machine().durable.dirs.insert("/".into());
    storage.create_dir(Path::new(CHECKPOINTS)).unwrap();
    save(&storage, 1).unwrap();
    assert_eq!(newest(storage.worlds()[1].path()), None);
    assert_eq!(newest(storage.worlds()[0].path()), Some(1));
}

#[test]
fn a_disk_that_fails_once_costs_a_save_and_never_a_checkpoint_with_a_hole() {
    let calm = machine();
    save(&calm, 1).unwrap();
    let before = calm.machine().operations;
    save(&calm, 2).unwrap();
    let operations = calm.machine().operations - before;
    std::panic::set_hook(Box::new(|_| {}));
    for at in 0..operations {
        let storage = machine();
        save(&storage, 1).unwrap();
        storage.machine().fails_at = Some(before + at);
        storage.machine().once = true;
        storage.machine().error = Some(EIO);
        let told = save(&storage, 2).unwrap_err();
        // What was not synced is in no checkpoint, whatever of it can still be seen.
        for root in storage.worlds() {
            assert!(matches!(newest(root.path()), Some(1 | 2)), "at {at} of {operations}: {told}");
        }
        // Once more, all from the beginning: a file whose sync failed is not taken for what it seems to be.
        save(&storage, 2).unwrap();
        for root in storage.worlds() {
            assert_eq!(newest(root.path()), Some(2), "again at {at} of {operations}: {told}");
        }
    }
    drop(std::panic::take_hook());
}
