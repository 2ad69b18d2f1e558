//! From any form to any form, one tensor at a time: DCP, safetensors alone or in shards, .pt, checkpoints of ours.
//!
//! **Invariant:** the target is whole or absent; no more than one tensor is in memory; what is left out is told.

use super::{
    ConvertError,
    cast::{cast, target as cast_target},
    safetensors::{self, Tensor},
    select::Selection,
    source::{PlainValue, Source},
};
use enn_common::{
    artifact::card::{self, ModelCard},
    checkpoint::{
        DType, DirectoryWriter, Draft, Element, Manifest, PathPart, name,
        state_file::{self, Content, Entry},
    },
    fs::{Disk, Storage, atomic, displace, space},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Bytes of one file where nothing else is said, as PyTorch's tools divide.
pub const SHARD_BYTES: u64 = 5_000_000_000;
/// Room for names, shapes and headers, per tensor.
const OVERHEAD_BYTES: u64 = 2048;

/// Forms that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A directory that `torch.distributed.checkpoint` reads.
    Dcp,
    /// The same with our sealed manifest.
    Enn,
    /// One .safetensors file.
    Safetensors,
    /// A directory of .safetensors files with an index.
    Shards,
    /// One file that `torch.load(weights_only=True)` reads.
    Pt,
}

impl Target {
    /// The form that a name asks for.
    pub fn of(path: &Path) -> Result<Self, ConvertError> {
        match path.extension().and_then(|extension| extension.to_str()) {
            _ if path.is_dir() => Ok(Self::Dcp),
            Some("safetensors") => Ok(Self::Safetensors),
            Some("pt" | "pth") => Ok(Self::Pt),
            None if path.file_name().is_some() => Ok(Self::Dcp),
            _ => Err(ConvertError::Form { path: path.to_path_buf() }),
        }
    }

    fn is_file(self) -> bool {
        matches!(self, Self::Safetensors | Self::Pt)
    }
}

/// How to convert.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// Form; by the target's name where it is not said.
    pub form: Option<Target>,
    /// Names.
    pub select: Selection,
    /// Type of floating-point tensors.
    pub dtype: Option<DType>,
    /// Bytes after which another file is begun, where the form has several.
    pub shard_bytes: u64,
    /// Whether a target that is there is replaced.
    pub replace: bool,
}

impl Default for Wishes {
    fn default() -> Self {
        Self { form: None, select: Selection::default(), dtype: None, shard_bytes: SHARD_BYTES, replace: false }
    }
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted {
    /// File or directory.
    pub path: PathBuf,
    /// Files with tensors it was made from.
    pub sources: usize,
    pub tensors: u64,
    /// Plain values.
    pub values: u64,
    /// Bytes of the tensors' elements.
    pub bytes: u64,
    /// What the source holds and the target does not, with the reason.
    pub left_out: Vec<String>,
    /// What else a user should know, e.g. elements that became infinite.
    pub notes: Vec<String>,
}

/// What is taken of a source: a tensor there, and as it will be.
struct Taken {
    from: Tensor,
    to: Tensor,
}

struct Job<'a> {
    source: &'a Source,
    taken: Vec<Taken>,
    /// Plain value's name there, and as it will be.
    values: Vec<(String, String)>,
    shard_bytes: u64,
    notes: Vec<String>,
    values_written: u64,
    progress: &'a mut dyn FnMut(u64, u64),
    done: u64,
    total: u64,
}

/// Converts `source` to `target`. `progress` gets the bytes done and all bytes. A file of ENN for PyTorch of which nothing is chosen
/// becomes what ENN has of it, under ENN's names.
pub fn convert(
    source: &Path,
    target: &Path,
    wishes: &Wishes,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted, ConvertError> {
    let source = Source::open(source)?;
    // Whoever chooses names means those in the file.
    let source = if wishes.select.is_all() { source.mapped() } else { source };
    convert_open(&source, target, wishes, progress)
}

pub(super) fn convert_open(
    source: &Source,
    target: &Path,
    wishes: &Wishes,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted, ConvertError> {
    let form = wishes.form.map_or_else(|| Target::of(target), Ok)?;
    if target.exists() && !wishes.replace {
        return Err(ConvertError::Exists { path: target.to_path_buf() });
    }
    if form.is_file() {
        displace::by_file(target)?;
    } else {
        displace::by_directory(target, &name::is_part)?;
    }
    let mut left_out = source.refused();
    let taken = take(source, wishes, &mut left_out)?;
    let values = match form {
        Target::Safetensors | Target::Shards => {
            left_out.extend(
                source
                    .values()
                    .into_iter()
                    .filter(|name| name != card::KEY)
                    .map(|name| format!("{name}: a plain value, which safetensors cannot hold")),
            );
            Vec::new()
        }
        _ => selected_values(source, wishes),
    };
    let total = taken.iter().map(|one| one.to.bytes()).fold(0, u64::saturating_add);
    check_names(target, &taken, &values)?;
    if taken.is_empty() {
        return Err(ConvertError::Wish {
            path: source.path().to_path_buf(),
            what: "no tensor is chosen; see --only and --without".into(),
        });
    }
    let tensors = taken.len() as u64;
    let mut job = Job {
        source,
        taken,
        values,
        shard_bytes: wishes.shard_bytes,
        notes: source.suspicions(),
        values_written: 0,
        progress,
        done: 0,
        total,
    };
    job.whole_or_absent(target, form, &mut left_out)?;
    let notes = job.notes;
    let written = job.values_written;
    let path = target.to_path_buf();
    let sources = source.file_count();
    Ok(Converted { path, sources, tensors, values: written, bytes: total, left_out, notes })
}

/// Whether elements are floating-point numbers of eight bits or fewer, as models that were quantised have.
fn is_quantised(element: Element) -> bool {
    element.dtype().is_none() && element.torch().starts_with("float")
}

fn take(source: &Source, wishes: &Wishes, left_out: &mut Vec<String>) -> Result<Vec<Taken>, ConvertError> {
    let mut taken = Vec::new();
    for from in source.tensors()? {
        let Some(name) = wishes.select.name(&from.name).map(str::to_owned) else {
            left_out.push(format!("{}: not chosen", from.name));
            continue;
        };
        if wishes.dtype.is_some() && is_quantised(from.element) {
            let name = &from.name;
            let element = from.element.torch();
            let what = format!(
                "{name} is of the type {element}, whose numbers count only together with scales in other tensors; expected no other type \
                 to be asked for\n  hint: leave out --dtype, which copies every tensor as it is"
            );
            return Err(ConvertError::Sharded { path: source.path().to_path_buf(), what });
        }
        let to = Tensor { name, element: cast_target(from.element, wishes.dtype), shape: from.shape.clone() };
        taken.push(Taken { from, to });
    }
    Ok(taken)
}

fn selected_values(source: &Source, wishes: &Wishes) -> Vec<(String, String)> {
    let chosen = |name: String| wishes.select.name(&name).map(str::to_owned).map(|to| (name, to));
    source.values().into_iter().filter_map(chosen).collect()
}

/// Two names that are the same in the target would overwrite each other.
fn check_names(target: &Path, taken: &[Taken], values: &[(String, String)]) -> Result<(), ConvertError> {
    let mut seen = BTreeSet::new();
    let names = taken.iter().map(|one| one.to.name.as_str()).chain(values.iter().map(|(_, to)| to.as_str()));
    let twice = names.into_iter().find(|name| !seen.insert(*name));
    twice.map_or(Ok(()), |name| {
        let what = format!("two tensors would be called {name}; choose with --only or --without, or leave --strip out");
        Err(ConvertError::Wish { path: target.to_path_buf(), what })
    })
}

impl Job<'_> {
    fn whole_or_absent(&mut self, target: &Path, form: Target, left_out: &mut Vec<String>) -> Result<(), ConvertError> {
        let parent = atomic::parent(target);
        Disk.create_dir(parent)?;
        space::require(parent, self.total.saturating_add(OVERHEAD_BYTES * self.taken.len() as u64))?;
        let beside = atomic::temporary(target);
        let written = match form {
            Target::Safetensors => self.safetensors(&beside),
            Target::Pt => self.pt(&beside, left_out),
            Target::Shards => self.shards(&beside),
            Target::Dcp => self.directory(&beside, None),
            Target::Enn => self.draft().and_then(|draft| self.directory(&beside, Some(draft))),
        };
        let named = written.and_then(|()| {
            if form.is_file() {
                Disk.rename(&beside, target)?;
                return Ok(Disk.sync_dir(parent)?);
            }
            Ok(atomic::place_dir(&beside, target)?)
        });
        named.map_err(|error| {
            // The first error is told; the leftover has a hidden name.
            let _ = if form.is_file() { fs::remove_file(&beside) } else { fs::remove_dir_all(&beside) };
            match error {
                ConvertError::NoType { name, element, .. } => {
                    ConvertError::NoType { path: target.to_path_buf(), name, element }
                }
                other => other,
            }
        })
    }

    /// The bytes of a tensor as it will be.
    fn read(&mut self, index: usize) -> Result<Vec<u8>, ConvertError> {
        let Taken { from, to } = &self.taken[index];
        let (bytes, overflowed) = cast(self.source.tensor(from)?, from.element, to.element);
        if overflowed > 0 {
            self.notes.push(format!("{}: {overflowed} elements are infinite in {}", to.name, to.element.torch()));
        }
        self.done += bytes.len() as u64;
        (self.progress)(self.done, self.total);
        Ok(bytes)
    }

    /// `__metadata__` of what is written. A card of other tensors, or of other types, stays behind.
    fn about(&self) -> BTreeMap<String, String> {
        let mut about = self.source.about();
        about.retain(|key, text| key != card::KEY || self.fits(text, ""));
        about
    }

    /// Whether a card's tensors are those that are written, with `prefix` before their names.
    fn fits(&self, card: &str, prefix: &str) -> bool {
        let Ok(card) = serde_json::from_str::<ModelCard>(card) else { return false };
        let wanted = card.tensors.iter().map(|tensor| (format!("{prefix}{}", tensor.name), tensor.dtype.clone()));
        let written = self.taken.iter().map(|one| (one.to.name.clone(), one.to.element.torch().to_owned()));
        wanted.collect::<BTreeSet<_>>() == written.collect()
    }

    fn safetensors(&mut self, path: &Path) -> Result<(), ConvertError> {
        let all: Vec<usize> = (0..self.taken.len()).collect();
        let about = self.about();
        self.safetensors_of(path, &about, &all)
    }

    fn safetensors_of(
        &mut self,
        path: &Path,
        about: &BTreeMap<String, String>,
        which: &[usize],
    ) -> Result<(), ConvertError> {
        let tensors: Vec<Tensor> = which.iter().map(|&index| self.taken[index].to.clone()).collect();
        let places: BTreeMap<String, usize> =
            which.iter().map(|&index| (self.taken[index].to.name.clone(), index)).collect();
        safetensors::write(path, about, &tensors, &mut |name| self.read(places[name]))
    }

    /// Files of at most `shard_bytes`, unless a tensor alone is larger, and `model.safetensors.index.json`.
    fn shards(&mut self, dir: &Path) -> Result<(), ConvertError> {
        Disk.create_dir(dir)?;
        let mut files: Vec<(u64, Vec<usize>)> = Vec::new();
        for (index, one) in self.taken.iter().enumerate() {
            let bytes = one.to.bytes();
            match files.last_mut().filter(|(held, _)| held.saturating_add(bytes) <= self.shard_bytes) {
                Some((held, which)) => {
                    *held += bytes;
                    which.push(index);
                }
                None => files.push((bytes, vec![index])),
            }
        }
        let mut map = serde_json::Map::new();
        let about = self.about();
        for (number, (_, which)) in files.iter().enumerate() {
            let file = format!("model-{:05}-of-{:05}.safetensors", number + 1, files.len());
            self.safetensors_of(&dir.join(&file), &about, which)?;
            map.extend(which.iter().map(|&index| (self.taken[index].to.name.clone(), json!(file))));
        }
        let index = json!({"metadata": {"total_size": self.total}, "weight_map": map});
        Ok(atomic::write(&dir.join("model.safetensors.index.json"), format!("{index:#}\n").as_bytes())?)
    }

    fn pt(&mut self, path: &Path, left_out: &mut Vec<String>) -> Result<(), ConvertError> {
        let about = self.about();
        let mut entries = Vec::new();
        for one in &self.taken {
            let content = Content::Tensor(one.to.element, one.to.shape.clone());
            entries.push(Entry { path: self.place(&one.from.name, &one.to.name), content });
        }
        for (from, to) in self.values.clone() {
            let from = from.as_str();
            let to = to.as_str();
            match self.source.value(from) {
                Ok(value) => {
                    let stale = |text: &str| from == card::KEY && !self.fits(text, "model.");
                    if !value.as_str().is_some_and(stale) {
                        entries.push(Entry { path: self.place(from, to), content: Content::Value(value) });
                        self.values_written += 1;
                    }
                }
                Err(error) => left_out.push(format!("{from}: {error}; only a checkpoint directory keeps it as it is")),
            }
        }
        if let Some(text) = about.get(card::KEY) {
            // A file of ours has its tensors under "model".
            entries.retain(|entry| matches!(entry.content, Content::Tensor(..)));
            entries.iter_mut().for_each(|entry| entry.path.insert(0, PathPart::Key(super::MODEL.to_owned())));
            let content = Content::Value(text.as_str().into());
            entries.push(Entry { path: vec![PathPart::Key(card::KEY.to_owned())], content });
        }
        let mut paths: Vec<&[PathPart]> = entries.iter().map(|entry| entry.path.as_slice()).collect();
        paths.sort_unstable();
        if paths.windows(2).any(|pair| pair[1].starts_with(pair[0])) {
            let what = "a tensor would be inside another one; choose with --only or --without".to_owned();
            return Err(ConvertError::Wish { path: self.source.path().to_path_buf(), what });
        }
        state_file::write(&Disk, path, &entries, &mut |entry| self.read(entry))
    }

    /// Where a name goes in nested dictionaries: as in the source, or as its own key when it was renamed.
    fn place(&self, from: &str, to: &str) -> Vec<PathPart> {
        if from == to { self.source.place(from) } else { vec![PathPart::Key(to.to_owned())] }
    }

    fn directory(&mut self, dir: &Path, draft: Option<Draft>) -> Result<(), ConvertError> {
        let mut writer = DirectoryWriter::create(&Disk, dir, self.shard_bytes)?;
        for (from, to) in &self.values.clone() {
            match self.source.plain_value(from)? {
                PlainValue::Item(bytes, crc32) => writer.item(to, &bytes, crc32)?,
                PlainValue::Value(value) => writer.value(to, &value)?,
            }
            writer.path(to, &self.place(from, to));
            self.values_written += 1;
        }
        for index in 0..self.taken.len() {
            let bytes = self.read(index)?;
            let Taken { from, to } = &self.taken[index];
            writer.tensor(&to.name, to.element, &to.shape, &bytes)?;
            writer.path(&to.name, &self.place(&from.name, &to.name));
        }
        writer.finish(draft)?;
        Ok(())
    }

    /// What the manifest says of the model: what the source's own said; else nothing but that it was converted.
    fn draft(&self) -> Result<Draft, ConvertError> {
        if let Source::Dcp(open) = self.source
            && let Some(manifest) = open.manifest()
        {
            return Ok(of_manifest(manifest));
        }
        Ok(Draft { run: "converted".to_owned(), attempt: "convert".to_owned(), ..Draft::default() })
    }
}

fn of_manifest(manifest: &Manifest) -> Draft {
    let Manifest { run, step, epoch, metric, config, meta, metrics, findings, versions, wall_time, .. } =
        manifest.clone();
    let attempt = "convert".to_owned();
    Draft { run, attempt, step, epoch, metric, config, meta, metrics, findings, versions, wall_time }
}
