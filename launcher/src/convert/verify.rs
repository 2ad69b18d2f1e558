//! Whether files are what was written: as far as each form carries checks, and all that is wrong, not only the first.

use super::{
    ConvertError,
    cast::floats,
    safetensors::Tensor,
    source::{Source, is_checkpoint},
};
use enn_common::checkpoint::{Checkpoint, listing, name};
use std::path::{Path, PathBuf};

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verified {
    /// File or directory.
    pub path: PathBuf,
    /// Its form.
    pub form: &'static str,
    /// Tensors in it.
    pub tensors: u64,
    /// Plain values in it.
    pub values: u64,
    /// Bytes of its tensors.
    pub bytes: u64,
    /// What is wrong, a sentence each.
    pub problems: Vec<String>,
    /// What may be wrong, and cannot be told from what is right: nobody wrote down what belongs together.
    pub suspicions: Vec<String>,
    /// What is right and still worth knowing.
    pub notes: Vec<String>,
}

/// What it comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing speaks against it.
    Whole,
    /// It can be read, and may not be what was saved.
    Suspect,
    /// Something is wrong.
    Damaged,
}

impl Outcome {
    /// In one word, for machines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Suspect => "suspect",
            Self::Damaged => "damaged",
        }
    }
}

impl Verified {
    /// What was found, in short.
    pub fn outcome(&self) -> Outcome {
        match (self.problems.as_slice(), self.suspicions.as_slice()) {
            ([], []) => Outcome::Whole,
            ([], _) => Outcome::Suspect,
            _ => Outcome::Damaged,
        }
    }
}

/// Verifies a checkpoint, a .safetensors file or shards of them, or a .pt file.
///
/// Without `deep`, a checkpoint of ours is compared with the digests of its manifest; with it, and always where there is no
/// manifest, every item is read and compared with its own checksum. `progress` gets bytes done and all bytes.
pub fn verify(path: &Path, deep: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<Verified, ConvertError> {
    if is_checkpoint(path) {
        let open = if path.join(name::MANIFEST).exists() { Checkpoint::open(path) } else { Checkpoint::open_dcp(path) };
        return Ok(match open {
            Ok(open) => checkpoint(&open, deep, progress),
            Err(error) => damaged(path, "checkpoint", error.to_string()),
        });
    }
    let source = match Source::open(path) {
        Err(error @ (ConvertError::Safetensors { .. } | ConvertError::Sharded { .. })) => {
            return Ok(damaged(path, "safetensors", error.to_string()));
        }
        Err(error @ ConvertError::StateFile(_)) => return Ok(damaged(path, "torch.save", error.to_string())),
        source => source?,
    };
    match &source {
        Source::Dcp(open) => Ok(checkpoint(open, deep, progress)),
        _ => files(&source, deep, progress),
    }
}

fn damaged(path: &Path, form: &'static str, problem: String) -> Verified {
    Verified { path: path.to_path_buf(), form, problems: vec![problem], ..Verified::default() }
}

fn checkpoint(open: &Checkpoint, deep: bool, progress: &mut dyn FnMut(u64, u64)) -> Verified {
    let shown = listing::show(open);
    let ours = open.manifest().is_some();
    let every = deep || !ours;
    let file_bytes = open.file_bytes().unwrap_or_default();
    let total = file_bytes * (u64::from(ours) + u64::from(every));
    let mut done = 0;
    let mut tick = |bytes| {
        done += bytes;
        progress(done, total);
    };
    let mut problems: Vec<String> = open.inspect_files(&mut tick).iter().map(ToString::to_string).collect();
    let mut notes = Vec::new();
    if every {
        let found = open.inspect(&mut tick);
        problems.extend(found.problems.iter().map(ToString::to_string));
        if found.unchecked > 0 {
            notes.push(format!("{} items carry no checksum: nothing can be said of their bytes", found.unchecked));
        }
        let stale = found.unlisted.into_iter();
        notes.extend(stale.map(|file| format!("{file} belongs to no tensor: left over from another save")));
    }
    let form = if ours { "ENN checkpoint" } else { "PyTorch DCP" };
    Verified {
        path: open.dir().to_path_buf(),
        form,
        tensors: shown.tensors.len() as u64,
        values: shown.values.len() as u64,
        bytes: open.metadata().tensor_bytes(),
        problems,
        suspicions: open.suspicions(),
        notes,
    }
}

fn files(source: &Source, deep: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<Verified, ConvertError> {
    let tensors = source.tensors()?;
    let total = tensors.iter().map(Tensor::bytes).fold(0, u64::saturating_add);
    let (mut problems, mut notes, mut done) = (Vec::new(), source.refused(), 0);
    for tensor in &tensors {
        match source.tensor(tensor) {
            Ok(bytes) if deep => notes.extend(not_finite(tensor, &bytes)),
            Ok(_) => {}
            Err(error) => problems.push(error.to_string()),
        }
        done += tensor.bytes();
        progress(done, total);
    }
    if let Source::Safetensors(files) = source {
        problems.extend(files.oddities());
        notes.push(
            "safetensors carries no checksums: that headers, lengths and shards fit is all that can be said".into(),
        );
        notes.extend(files.unbounded());
    }
    Ok(Verified {
        path: source.path().to_path_buf(),
        form: source.form(),
        tensors: tensors.len() as u64,
        values: source.values().len() as u64,
        bytes: total,
        problems,
        suspicions: Vec::new(),
        notes,
    })
}

fn not_finite(tensor: &Tensor, bytes: &[u8]) -> Option<String> {
    let count = floats(bytes, tensor.element)?.filter(|value| !value.is_finite()).count();
    (count > 0).then(|| format!("{}: {count} elements are not finite", tensor.name))
}
