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

/// The result of [`verify`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verified {
    pub path: PathBuf,
    pub form: &'static str,
    pub tensors: u64,
    /// The number of plain values.
    pub values: u64,
    /// The bytes of all tensors.
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

/// The summary of a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// No problem was found.
    Whole,
    /// Everything that was read is correct, but not everything was read.
    Foreign,
    /// The source can be read, but may not be what was saved.
    Suspect,
    /// Bytes differ from those that were written.
    Damaged,
    /// Python would run code while loading it.
    Dangerous,
}

impl Outcome {
    /// Returns the name in JSON.
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
    /// Returns the most severe finding.
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
                let mut findings = CheckpointFindings::default();
                findings.add_error(&error);
                let CheckpointFindings { problems, foreign, dangerous } = findings;
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

/// Returns the result for a file that cannot be read.
fn unread(path: &Path, error: &StateFileError) -> Verified {
    let is_damage = matches!(error, StateFileError::Item { source, .. } if source.is_damage());
    let message = error.to_string();
    if is_damage {
        return damaged(path, "torch.save", message);
    }
    Verified { path: path.to_path_buf(), form: "file", foreign: vec![message], is_unread: true, ..Verified::default() }
}

/// Describes a reference that runs code.
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
    let mut findings = CheckpointFindings::default();
    open.inspect_files(&mut tick).iter().for_each(|error| findings.add_error(error));
    let mut notes = Vec::new();
    if every {
        let found = open.inspect(&mut tick);
        found.problems.iter().for_each(|error| findings.add_error(error));
        findings.add_mentions(&found);
        if found.unchecked > 0 {
            notes.push(format!("{} items carry no checksum: nothing can be findings of their bytes", found.unchecked));
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
        problems: findings.problems,
        foreign: findings.foreign,
        dangerous: findings.dangerous,
        suspicions: open.suspicions(),
        notes,
        is_unread: false,
    }
}

fn files(source: &Source, deep: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<Verified, ConvertError> {
    let tensors = source.tensors()?;
    let total = tensors.iter().map(Tensor::bytes).fold(0, u64::saturating_add);
    let FileFindings { mut problems, foreign, mut notes } = FileFindings::of(source);
    let dangerous = source.dangerous().iter().map(danger_message).collect();
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
        problems.extend(files.inconsistencies());
        notes.push(
            "safetensors carries no checksums: that headers, lengths and shards fit is all that can be findings".into(),
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

/// Problems of a checkpoint by kind.
#[derive(Default)]
struct CheckpointFindings {
    problems: Vec<String>,
    foreign: Vec<String>,
    dangerous: Vec<String>,
}

impl CheckpointFindings {
    /// Adds an error under its kind.
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
}

/// Problems of a file that were found when it was opened.
#[derive(Default)]
struct FileFindings {
    problems: Vec<String>,
    foreign: Vec<String>,
    notes: Vec<String>,
}

impl FileFindings {
    fn of(source: &Source) -> Self {
        let Source::Pt(file) = source else { return Self { notes: source.refused(), ..Self::default() } };
        let mut found = Self { foreign: foreign(file), ..Self::default() };
        for (name, error) in file.refused() {
            let message = format!("{name}: {error}");
            if error.is_damage() { found.problems.push(message) } else { found.foreign.push(message) }
        }
        if file.form() != FileForm::Zip {
            found.notes.push(
                "this form carries no checksums: that pickles and lengths fit is all that can be findings".into(),
            );
        }
        found
    }
}

fn not_finite(tensor: &Tensor, bytes: &[u8]) -> Option<String> {
    let count = floats(bytes, tensor.element)?.filter(|value| !value.is_finite()).count();
    (count > 0).then(|| format!("{}: {count} elements are not finite", tensor.name))
}
