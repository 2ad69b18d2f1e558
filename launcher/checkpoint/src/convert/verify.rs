//! Verifies files as far as each form carries checks, and reports all problems.

use super::{
    ConvertError,
    cast::floats,
    safetensors::Tensor,
    source::{Source, foreign, is_checkpoint},
};
use enn_common::checkpoint::{
    Checkpoint, ReadError, form::FileForm, listing, mention::Mention, name, reader::Inspection,
    state_file::StateFileError,
};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verified {
    pub path: PathBuf,
    pub form: &'static str,
    pub tensors: u64,
    pub values: u64,
    pub bytes: u64,
    /// Damage, one sentence each: bytes differ from those that were written.
    pub problems: Vec<String>,
    /// Foreign content of another library, or of a form that is not read. Everything else was read.
    pub foreign: Vec<String>,
    /// Dangerous content, which runs code when Python loads the file.
    pub dangerous: Vec<String>,
    /// Suspicions of damage that cannot be verified, because no checksum covers it.
    pub suspicions: Vec<String>,
    /// Notes about content that is correct.
    pub notes: Vec<String>,
    /// Whether the file could not be read at all, as it is no known checkpoint.
    pub is_unread: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Whole,
    /// Everything that was read is correct, but not everything was read.
    Foreign,
    /// The source can be read, but may not be what was saved.
    Suspect,
    /// Bytes differ from those that were written.
    Damaged,
    Dangerous,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Foreign => "foreign",
            Self::Suspect => "suspect",
            Self::Damaged => "damaged",
            Self::Dangerous => "dangerous",
        }
    }
}

impl Verified {
    pub fn outcome(&self) -> Outcome {
        if !self.dangerous.is_empty() {
            Outcome::Dangerous
        } else if !self.problems.is_empty() {
            Outcome::Damaged
        } else if !self.suspicions.is_empty() {
            Outcome::Suspect
        } else if !self.foreign.is_empty() {
            Outcome::Foreign
        } else {
            Outcome::Whole
        }
    }
}

/// Verifies a checkpoint, a .safetensors file or shards of them, or a .pt file.
///
/// Without `deep`, a checkpoint of ENN is compared with the digests of its manifest; with it, and always without a manifest, every item is
/// read and compared with its own checksum. `progress` gets the bytes done and the total.
pub fn verify(path: &Path, deep: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<Verified, ConvertError> {
    if is_checkpoint(path) {
        let open = if path.join(name::MANIFEST).exists() { Checkpoint::open(path) } else { Checkpoint::open_dcp(path) };
        return Ok(match open {
            Ok(open) => checkpoint(&open, deep, progress),
            Err(error) => {
                let path = path.to_path_buf();
                let mut found = Verified { path, form: "checkpoint", is_unread: true, ..Verified::default() };
                found.add_error(&error);
                found
            }
        });
    }
    let source = match Source::open(path) {
        Err(error @ (ConvertError::Safetensors { .. } | ConvertError::Sharded { .. })) => {
            return Ok(damaged(path, "safetensors", error.to_string()));
        }
        Err(ConvertError::StateFile(error @ StateFileError::Item { .. })) => return Ok(unread(path, &error)),
        source => source?,
    };
    match &source {
        Source::Dcp(open) => Ok(checkpoint(open, deep, progress)),
        _ => files(&source, deep, progress),
    }
}

fn unread(path: &Path, error: &StateFileError) -> Verified {
    let is_damage = matches!(error, StateFileError::Item { source, .. } if source.is_damage());
    let message = error.to_string();
    if is_damage {
        return damaged(path, "torch.save", message);
    }
    Verified { path: path.to_path_buf(), form: "file", foreign: vec![message], is_unread: true, ..Verified::default() }
}

fn danger_message(found: &Mention) -> String {
    format!("{found} at byte {} of a pickle: Python runs it, or what it reaches, while loading the file", found.at)
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
    let mut verified = Verified {
        path: open.dir().to_path_buf(),
        form: if ours { "ENN checkpoint" } else { "PyTorch DCP" },
        tensors: shown.tensors.len() as u64,
        values: shown.values.len() as u64,
        bytes: open.metadata().tensor_bytes(),
        suspicions: open.suspicions(),
        ..Verified::default()
    };
    open.inspect_files(&mut tick).iter().for_each(|error| verified.add_error(error));
    if every {
        let found = open.inspect(&mut tick);
        found.problems.iter().for_each(|error| verified.add_error(error));
        verified.add_mentions(&found);
        if found.unchecked > 0 {
            let what = "items carry no checksum: nothing can be findings of their bytes";
            verified.notes.push(format!("{} {what}", found.unchecked));
        }
        let stale = found.unlisted.into_iter();
        verified.notes.extend(stale.map(|file| format!("{file} belongs to no tensor: left over from another save")));
    }
    verified
}

fn files(source: &Source, deep: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<Verified, ConvertError> {
    let tensors = source.tensors()?;
    let total = tensors.iter().map(Tensor::bytes).fold(0, u64::saturating_add);
    let mut verified = Verified {
        path: source.path().to_path_buf(),
        form: source.form(),
        tensors: tensors.len() as u64,
        values: source.values().len() as u64,
        bytes: total,
        dangerous: source.dangerous().iter().map(danger_message).collect(),
        ..Verified::default()
    };
    verified.add_refused(source);
    let mut done = 0;
    for tensor in &tensors {
        match source.tensor(tensor) {
            Ok(bytes) if deep => verified.notes.extend(not_finite(tensor, &bytes)),
            Ok(_) => {}
            Err(error) => verified.problems.push(error.to_string()),
        }
        done += tensor.bytes();
        progress(done, total);
    }
    if let Source::Safetensors(files) = source {
        verified.problems.extend(files.inconsistencies());
        let note = "safetensors carries no checksums: that headers, lengths and shards fit is all that can be findings";
        verified.notes.push(note.to_owned());
        verified.notes.extend(files.unbounded());
    }
    Ok(verified)
}

impl Verified {
    fn add_error(&mut self, error: &ReadError) {
        let message = error.to_string();
        match error.refused_mention() {
            Some(found) if found.is_dangerous() => {
                self.dangerous.push(format!("{message}; {}", danger_message(&found)))
            }
            Some(_) => self.foreign.push(message),
            None if error.is_unsupported() => self.foreign.push(message),
            None => self.problems.push(message),
        }
    }

    /// Adds the references in plain values.
    fn add_mentions(&mut self, found: &Inspection) {
        for (name, mentions) in &found.mentions {
            self.foreign.extend(mentions.foreign().iter().map(|mention| format!("{name}: a mention of {mention}")));
            self.dangerous
                .extend(mentions.dangerous().iter().map(|mention| format!("{name}: {}", danger_message(mention))));
        }
    }

    /// Adds what was refused when the source was opened.
    fn add_refused(&mut self, source: &Source) {
        let Source::Pt(file) = source else {
            self.notes = source.refused();
            return;
        };
        self.foreign = foreign(file);
        for (name, error) in file.refused() {
            let message = format!("{name}: {error}");
            if error.is_damage() { self.problems.push(message) } else { self.foreign.push(message) }
        }
        if file.form() != FileForm::Zip {
            let note = "this form carries no checksums: that pickles and lengths fit is all that can be findings";
            self.notes.push(note.to_owned());
        }
    }
}

fn not_finite(tensor: &Tensor, bytes: &[u8]) -> Option<String> {
    let count = floats(bytes, tensor.element)?.filter(|value| !value.is_finite()).count();
    (count > 0).then(|| format!("{}: {count} elements are not finite", tensor.name))
}
