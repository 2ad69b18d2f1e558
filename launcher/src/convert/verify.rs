//! Whether files are what was written: as far as each form carries checks, and all that is wrong, not only the first.

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

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verified {
    /// File or directory.
    pub path: PathBuf,
    pub form: &'static str,
    pub tensors: u64,
    /// Plain values in it.
    pub values: u64,
    /// Bytes of its tensors.
    pub bytes: u64,
    /// What is damaged, a sentence each: bytes are not those that were written.
    pub problems: Vec<String>,
    /// What is foreign: of another library or of a form that is not read. Everything else was read.
    pub foreign: Vec<String>,
    /// What is dangerous: it runs code when Python loads the file.
    pub dangerous: Vec<String>,
    /// What may be wrong, and cannot be told from what is right: nobody wrote down what belongs together.
    pub suspicions: Vec<String>,
    /// What is right and still worth knowing.
    pub notes: Vec<String>,
    /// Whether nothing of it was read: it is no checkpoint that is known.
    pub is_unread: bool,
}

/// What it comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing speaks against it.
    Whole,
    /// All that is read is as it was written, and not all is read.
    Foreign,
    /// It can be read, and may not be what was saved.
    Suspect,
    /// Bytes are not those that were written.
    Damaged,
    /// Python would run code while loading it.
    Dangerous,
}

impl Outcome {
    /// In one word, for machines.
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
    /// What was found, in short.
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
/// Without `deep`, a checkpoint of ours is compared with the digests of its manifest; with it, and always where there is no
/// manifest, every item is read and compared with its own checksum. `progress` gets bytes done and all bytes.
pub fn verify(path: &Path, deep: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<Verified, ConvertError> {
    if is_checkpoint(path) {
        let open = if path.join(name::MANIFEST).exists() { Checkpoint::open(path) } else { Checkpoint::open_dcp(path) };
        return Ok(match open {
            Ok(open) => checkpoint(&open, deep, progress),
            Err(error) => {
                let mut said = Said::default();
                said.sort(&error);
                let Said { problems, foreign, dangerous } = said;
                let path = path.to_path_buf();
                Verified {
                    path,
                    form: "checkpoint",
                    problems,
                    foreign,
                    dangerous,
                    is_unread: true,
                    ..Verified::default()
                }
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

/// A file of which nothing is read.
fn unread(path: &Path, error: &StateFileError) -> Verified {
    let is_damage = matches!(error, StateFileError::Item { source, .. } if source.is_damage());
    let told = error.to_string();
    if is_damage {
        return damaged(path, "torch.save", told);
    }
    Verified { path: path.to_path_buf(), form: "file", foreign: vec![told], is_unread: true, ..Verified::default() }
}

/// What is told of something that runs code.
fn danger(found: &Mention) -> String {
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
    let mut said = Said::default();
    open.inspect_files(&mut tick).iter().for_each(|error| said.sort(error));
    let mut notes = Vec::new();
    if every {
        let found = open.inspect(&mut tick);
        found.problems.iter().for_each(|error| said.sort(error));
        said.mention(&found);
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
        problems: said.problems,
        foreign: said.foreign,
        dangerous: said.dangerous,
        suspicions: open.suspicions(),
        notes,
        is_unread: false,
    }
}

fn files(source: &Source, deep: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<Verified, ConvertError> {
    let tensors = source.tensors()?;
    let total = tensors.iter().map(Tensor::bytes).fold(0, u64::saturating_add);
    let Found { mut problems, foreign, mut notes } = Found::of(source);
    let dangerous = source.dangerous().iter().map(danger).collect();
    let mut done = 0;
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
        foreign,
        dangerous,
        suspicions: Vec::new(),
        notes,
        is_unread: false,
    })
}

/// What is wrong in a checkpoint, by what it is.
#[derive(Default)]
struct Said {
    problems: Vec<String>,
    foreign: Vec<String>,
    dangerous: Vec<String>,
}

impl Said {
    /// Puts what was found under its word.
    fn sort(&mut self, error: &ReadError) {
        let told = error.to_string();
        match error.refused_mention() {
            Some(found) if found.is_dangerous() => self.dangerous.push(format!("{told}; {}", danger(&found))),
            Some(_) => self.foreign.push(told),
            None if error.is_unsupported() => self.foreign.push(told),
            None => self.problems.push(told),
        }
    }

    /// Adds what values mention.
    fn mention(&mut self, found: &Inspection) {
        for (name, mentions) in &found.mentions {
            self.foreign.extend(mentions.foreign().iter().map(|mention| format!("{name}: a mention of {mention}")));
            self.dangerous.extend(mentions.dangerous().iter().map(|mention| format!("{name}: {}", danger(mention))));
        }
    }
}

/// What opening a file has found.
#[derive(Default)]
struct Found {
    problems: Vec<String>,
    foreign: Vec<String>,
    notes: Vec<String>,
}

impl Found {
    fn of(source: &Source) -> Self {
        let Source::Pt(file) = source else { return Self { notes: source.refused(), ..Self::default() } };
        let mut found = Self { foreign: foreign(file), ..Self::default() };
        for (name, error) in file.refused() {
            let told = format!("{name}: {error}");
            if error.is_damage() { found.problems.push(told) } else { found.foreign.push(told) }
        }
        if file.form() != FileForm::Zip {
            found
                .notes
                .push("this form carries no checksums: that pickles and lengths fit is all that can be said".into());
        }
        found
    }
}

fn not_finite(tensor: &Tensor, bytes: &[u8]) -> Option<String> {
    let count = floats(bytes, tensor.element)?.filter(|value| !value.is_finite()).count();
    (count > 0).then(|| format!("{}: {count} elements are not finite", tensor.name))
}
