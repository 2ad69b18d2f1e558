//! Which checkpoint of a run is used: the newest whose bytes are what was written. One that is damaged does not stand in the way of an older
//! one, and whoever asked is told of it.

use super::{
    Checkpoint, ReadError,
    listing::{FindError, checkpoints_dir, find},
    name,
};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Beginnings of the names of the weights that a model is used with, and of those being trained. Buffers have only the second.
const BEST: &str = "best.";
const MODEL: &str = "model.";

/// Parts of a checkpoint that must be undamaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The weights that a model is used with. The state of its optimizer is not read.
    Weights,
    Whole,
}

/// A checkpoint whose bytes were read and compared.
#[derive(Debug)]
pub struct Sound {
    pub checkpoint: Checkpoint,
    /// Newer ones that are damaged or incomplete, newest first, each with the reason.
    pub passed_over: Vec<(PathBuf, ReadError)>,
}

impl Sound {
    /// A sentence about each checkpoint that was passed over: which one, what is used instead, and why.
    pub fn notes(&self) -> Vec<String> {
        let used = self.checkpoint.dir().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let note = |(path, error): &(PathBuf, ReadError)| {
            let passed = path.file_name().unwrap_or_default().to_string_lossy();
            format!("the newer checkpoint {passed} is damaged, {used} is used instead: {error}")
        };
        self.passed_over.iter().map(note).collect()
    }
}

/// Opens the checkpoint that `path` means, as [`find`] does, and reads what is needed of it: of a run or a checkpoints directory it is the
/// newest that is sound.
///
/// # Errors
/// There is none; the newest one's reason. A checkpoint that was named itself is not replaced by another.
pub fn find_sound(path: &Path, extent: Extent) -> Result<Sound, FindError> {
    let named = path.join(name::METADATA).exists();
    let steps = if named { Vec::new() } else { name::list(&checkpoints_dir(path)) };
    if steps.is_empty() {
        let checkpoint = find(path)?;
        checkpoint.check(extent).map_err(Box::new)?;
        return Ok(Sound { checkpoint, passed_over: Vec::new() });
    }
    let mut passed_over = Vec::new();
    for (_, step) in steps {
        let opened = Checkpoint::open(&step);
        match opened.and_then(|checkpoint| checkpoint.check(extent).map(|()| checkpoint)) {
            Ok(checkpoint) => return Ok(Sound { checkpoint, passed_over }),
            Err(error) if error.is_damage() => passed_over.push((step, error)),
            Err(error) => return Err(Box::new(error).into()),
        }
    }
    let reason = Box::new(passed_over.swap_remove(0).1);
    Err(FindError::Incomplete { path: path.to_path_buf(), reason })
}

impl Checkpoint {
    /// Reads what is needed, and compares it with its checksums.
    pub fn check(&self, extent: Extent) -> Result<(), ReadError> {
        if extent == Extent::Whole {
            return self.verify(&mut |_| {});
        }
        let names: BTreeSet<&str> = self.tensor_names().collect();
        let is_used = |name: &&str| match name.strip_prefix(MODEL) {
            Some(plain) => !names.contains(format!("{BEST}{plain}").as_str()),
            None => name.starts_with(BEST),
        };
        names.iter().copied().filter(is_used).try_for_each(|name| self.check_tensor(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{Draft, ShardWriter, TensorDType, commit};
    use std::{fs, os::unix::fs::FileExt};

    fn step(run: &Path, step: u64) -> PathBuf {
        let dir = run.join("checkpoints");
        let temporary = dir.join(name::temporary(step, "a"));
        let mut shard = ShardWriter::create(&temporary, 0).unwrap();
        for (name, value) in [("best.w", 1), ("model.w", 2), ("model.scaler", 3), ("optim.w", 4)] {
            shard.whole(name, TensorDType::F32, &[64], &[value; 256]).unwrap();
        }
        let tables = [shard.finish().unwrap()];
        commit(&temporary, &dir.join(name::committed(step)), &tables, Draft { step, ..Draft::default() }).unwrap().path
    }

    /// Changes a byte of a tensor.
    fn damage(dir: &Path, tensor: &str) {
        let open = Checkpoint::open(dir).unwrap();
        let place = &open.metadata().tensors[tensor].chunks[0].place;
        let file = fs::OpenOptions::new().read(true).write(true).open(place.file.below(dir)).unwrap();
        let mut item = vec![0; usize::try_from(place.length).unwrap()];
        file.read_exact_at(&mut item, place.offset).unwrap();
        let value = [("best.w", 1), ("optim.w", 4)].iter().find(|(name, _)| *name == tensor).unwrap().1;
        let at = item.windows(16).position(|bytes| bytes == [value; 16]).unwrap();
        file.write_all_at(&[9], place.offset + at as u64).unwrap();
    }

    #[test]
    fn a_damaged_newest_checkpoint_makes_way_for_an_older_one() {
        let dir = tempfile::tempdir().unwrap();
        let older = step(dir.path(), 10);
        let newer = step(dir.path(), 20);
        assert_eq!(find_sound(dir.path(), Extent::Whole).unwrap().checkpoint.dir(), newer);
        damage(&newer, "optim.w");
        assert_eq!(find_sound(dir.path(), Extent::Weights).unwrap().checkpoint.dir(), newer, "that is not used");
        assert_eq!(find_sound(dir.path(), Extent::Whole).unwrap().checkpoint.dir(), older);
        damage(&newer, "best.w");
        for place in [dir.path(), &dir.path().join("checkpoints")] {
            let found = find_sound(place, Extent::Weights).unwrap();
            assert_eq!((found.checkpoint.dir(), found.passed_over.len()), (older.as_path(), 1));
            let note = &found.notes()[0];
            assert!(
                note.contains("step-00000020 is damaged, step-00000010 is used") && note.contains("best.w"),
                "{note}"
            );
        }
        let error = find_sound(&newer, Extent::Weights).unwrap_err().to_string();
        assert!(error.contains("best.w"), "it was named itself: {error}");
        damage(&older, "best.w");
        let error = find_sound(dir.path(), Extent::Weights).unwrap_err().to_string();
        assert!(error.contains("no complete checkpoint") && error.contains("step-00000020"), "{error}");
    }

    #[test]
    fn a_newest_checkpoint_that_is_cut_or_without_manifest_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let older = step(dir.path(), 10);
        let newer = step(dir.path(), 20);
        for file in ["__0_0.distcp", name::METADATA, name::MANIFEST] {
            fs::OpenOptions::new().write(true).open(newer.join(file)).unwrap().set_len(9).unwrap();
            let found = find_sound(dir.path(), Extent::Weights).unwrap();
            assert_eq!((found.checkpoint.dir(), found.passed_over.len()), (older.as_path(), 1), "{file}");
        }
        fs::remove_file(newer.join(name::MANIFEST)).unwrap();
        assert_eq!(find_sound(dir.path(), Extent::Whole).unwrap().checkpoint.dir(), older);
    }
}
