//! Converts between all forms, one tensor at a time: DCP, safetensors alone or in shards, .pt, checkpoints of ENN.
//!
//! **Invariant:** the target is complete or absent; at most one tensor is in memory; everything that is left out is reported.

use super::{
    ConvertError,
    cast::{cast, target as cast_target},
    copy::write_beside,
    safetensors::{self, Tensor},
    select::Selection,
    source::{PlainValue, Source},
};
use enn_common::{
    artifact::model_card::{self, ModelCard},
    checkpoint::{
        DirectoryWriter, Draft, Element, Manifest, PathPart, TensorDType, name,
        state_file::{self, Content, StateEntry},
    },
    fs::{Disk, Storage, atomic, displace, space},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// Default size of one file, like PyTorch's tools; bytes.
pub const SHARD_BYTES: u64 = 5_000_000_000;
/// Reserved space for names, shapes and headers, bytes per tensor.
const OVERHEAD_BYTES: u64 = 2048;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A directory that `torch.distributed.checkpoint` reads.
    Dcp,
    /// A directory like `Dcp` with a sealed manifest of ENN.
    Enn,
    /// A single .safetensors file.
    Safetensors,
    /// A directory of .safetensors files with an index.
    Shards,
    /// One file that `torch.load(weights_only=True)` reads.
    Pt,
}

impl Target {
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

#[derive(Debug, Clone)]
pub struct ConvertOptions {
    /// The form; `None`: by the target's name.
    pub form: Option<Target>,
    pub select: Selection,
    pub dtype: Option<TensorDType>,
    /// Size at which another file is started, where the form has several; bytes.
    pub shard_bytes: u64,
    pub replace: bool,
}

impl Default for ConvertOptions {
    fn default() -> Self {
        Self { form: None, select: Selection::default(), dtype: None, shard_bytes: SHARD_BYTES, replace: false }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted {
    pub path: PathBuf,
    /// The number of source files with tensors.
    pub sources: usize,
    pub tensors: u64,
    pub values: u64,
    /// The bytes of all elements.
    pub bytes: u64,
    pub left_out: Vec<String>,
    /// Notes for the user, such as elements that became infinite.
    pub notes: Vec<String>,
}

struct SelectedTensor {
    from: Tensor,
    to: Tensor,
}

struct Conversion<'a> {
    source: &'a Source,
    selected: Vec<SelectedTensor>,
    values: Vec<(String, String)>,
    shard_bytes: u64,
    notes: Vec<String>,
    values_written: u64,
    progress: &'a mut dyn FnMut(u64, u64),
    done: u64,
    total: u64,
}

/// Converts `source` to `target`. `progress` gets the bytes done and the total. A file of ENN for PyTorch without a selection is converted
/// to ENN's names.
pub fn convert(
    source: &Path,
    target: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted, ConvertError> {
    let source = Source::open(source)?;
    // A selection refers to the names in the file.
    let source = if options.select.is_all() { source.mapped() } else { source };
    convert_open(&source, target, options, progress)
}

pub(super) fn convert_open(
    source: &Source,
    target: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted, ConvertError> {
    let form = options.form.map_or_else(|| Target::of(target), Ok)?;
    if target.exists() && !options.replace {
        return Err(ConvertError::Exists { path: target.to_path_buf() });
    }
    if form.is_file() {
        displace::by_file(target)?;
    } else {
        displace::by_directory(target, &name::is_part)?;
    }
    let mut left_out = source.refused();
    let selected = select_tensors(source, options, &mut left_out)?;
    let values = match form {
        Target::Safetensors | Target::Shards => {
            left_out.extend(
                source
                    .values()
                    .into_iter()
                    .filter(|name| name != model_card::KEY)
                    .map(|name| format!("{name}: a plain value, which safetensors cannot hold")),
            );
            Vec::new()
        }
        _ => selected_values(source, options),
    };
    let total = selected.iter().map(|one| one.to.bytes()).fold(0, u64::saturating_add);
    check_names(target, &selected, &values)?;
    if selected.is_empty() {
        let what = "no tensor is chosen; see --only and --without".to_owned();
        return Err(ConvertError::InvalidOptions { path: source.path().to_path_buf(), what });
    }
    let tensors = selected.len() as u64;
    let mut conversion = Conversion {
        source,
        selected,
        values,
        shard_bytes: options.shard_bytes,
        notes: source.suspicions(),
        values_written: 0,
        progress,
        done: 0,
        total,
    };
    conversion.write_atomically(target, form, &mut left_out)?;
    let notes = conversion.notes;
    let written = conversion.values_written;
    let path = target.to_path_buf();
    let sources = source.file_count();
    Ok(Converted { path, sources, tensors, values: written, bytes: total, left_out, notes })
}

/// Returns whether elements are floating-point numbers of at most eight bits, as in quantised models.
fn is_quantised(element: Element) -> bool {
    element.dtype().is_none() && element.torch().starts_with("float")
}

fn select_tensors(
    source: &Source,
    options: &ConvertOptions,
    left_out: &mut Vec<String>,
) -> Result<Vec<SelectedTensor>, ConvertError> {
    let mut selected = Vec::new();
    for from in source.tensors()? {
        let Some(name) = options.select.name(&from.name).map(str::to_owned) else {
            left_out.push(format!("{}: not chosen", from.name));
            continue;
        };
        if options.dtype.is_some() && is_quantised(from.element) {
            let name = &from.name;
            let element = from.element.torch();
            let what = format!(
                "{name} is of the type {element}, whose numbers count only together with scales in other tensors; expected no other type \
                 to be asked for\n  hint: leave out --dtype, which copies every tensor as it is"
            );
            return Err(ConvertError::sharded(source.path(), what));
        }
        let to = Tensor { name, element: cast_target(from.element, options.dtype), shape: from.shape.clone() };
        selected.push(SelectedTensor { from, to });
    }
    Ok(selected)
}

fn selected_values(source: &Source, options: &ConvertOptions) -> Vec<(String, String)> {
    let chosen = |name: String| options.select.name(&name).map(str::to_owned).map(|to| (name, to));
    source.values().into_iter().filter_map(chosen).collect()
}

fn check_names(target: &Path, selected: &[SelectedTensor], values: &[(String, String)]) -> Result<(), ConvertError> {
    let mut seen = BTreeSet::new();
    let names = selected.iter().map(|one| one.to.name.as_str()).chain(values.iter().map(|(_, to)| to.as_str()));
    let twice = names.into_iter().find(|name| !seen.insert(*name));
    twice.map_or(Ok(()), |name| {
        let what = format!("two tensors would be called {name}; choose with --only or --without, or leave --strip out");
        Err(ConvertError::InvalidOptions { path: target.to_path_buf(), what })
    })
}

impl Conversion<'_> {
    fn write_atomically(
        &mut self,
        target: &Path,
        form: Target,
        left_out: &mut Vec<String>,
    ) -> Result<(), ConvertError> {
        let parent = atomic::parent(target);
        Disk.create_dir(parent)?;
        space::require(parent, self.total.saturating_add(OVERHEAD_BYTES * self.selected.len() as u64))?;
        let written = write_beside(target, form.is_file(), |beside| match form {
            Target::Safetensors => self.safetensors(beside),
            Target::Pt => self.pt(beside, left_out),
            Target::Shards => self.shards(beside),
            Target::Dcp => self.directory(beside, None),
            Target::Enn => self.directory(beside, Some(self.draft())),
        });
        written.map_err(|error| match error {
            ConvertError::NoType { name, element, .. } => {
                ConvertError::NoType { path: target.to_path_buf(), name, element }
            }
            other => other,
        })
    }

    fn read(&mut self, index: usize) -> Result<Vec<u8>, ConvertError> {
        let SelectedTensor { from, to } = &self.selected[index];
        let (bytes, overflowed) = cast(self.source.tensor(from)?, from.element, to.element);
        if overflowed > 0 {
            self.notes.push(format!("{}: {overflowed} elements are infinite in {}", to.name, to.element.torch()));
        }
        self.done += bytes.len() as u64;
        (self.progress)(self.done, self.total);
        Ok(bytes)
    }

    /// Returns the `__metadata__` of the target. A model card of other tensors or types is left out.
    fn about(&self) -> BTreeMap<String, String> {
        let mut about = self.source.about();
        about.retain(|key, text| key != model_card::KEY || self.fits(text, ""));
        about
    }

    /// Returns whether a card's tensors are the written ones, with `prefix` before their names.
    fn fits(&self, card: &str, prefix: &str) -> bool {
        let Ok(card) = serde_json::from_str::<ModelCard>(card) else { return false };
        let wanted = card.tensors.iter().map(|tensor| (format!("{prefix}{}", tensor.name), tensor.dtype.clone()));
        let written = self.selected.iter().map(|one| (one.to.name.clone(), one.to.element.torch().to_owned()));
        wanted.collect::<BTreeSet<_>>() == written.collect()
    }

    fn safetensors(&mut self, path: &Path) -> Result<(), ConvertError> {
        let all: Vec<usize> = (0..self.selected.len()).collect();
        let about = self.about();
        self.safetensors_of(path, &about, &all)
    }

    fn safetensors_of(
        &mut self,
        path: &Path,
        about: &BTreeMap<String, String>,
        which: &[usize],
    ) -> Result<(), ConvertError> {
        let tensors: Vec<Tensor> = which.iter().map(|&index| self.selected[index].to.clone()).collect();
        let places: BTreeMap<String, usize> =
            which.iter().map(|&index| (self.selected[index].to.name.clone(), index)).collect();
        safetensors::write(path, about, &tensors, &mut |name| self.read(places[name]))
    }

    /// Writes files of at most `shard_bytes`, unless a single tensor is larger, and `model.safetensors.index.json`.
    fn shards(&mut self, dir: &Path) -> Result<(), ConvertError> {
        Disk.create_dir(dir)?;
        let mut files: Vec<(u64, Vec<usize>)> = Vec::new();
        for (index, one) in self.selected.iter().enumerate() {
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
            map.extend(which.iter().map(|&index| (self.selected[index].to.name.clone(), json!(file))));
        }
        let index = json!({"metadata": {"total_size": self.total}, "weight_map": map});
        Ok(atomic::write(&dir.join("model.safetensors.index.json"), format!("{index:#}\n").as_bytes())?)
    }

    fn pt(&mut self, path: &Path, left_out: &mut Vec<String>) -> Result<(), ConvertError> {
        let about = self.about();
        let mut entries = Vec::new();
        for one in &self.selected {
            let content = Content::Tensor(one.to.element, one.to.shape.clone());
            entries.push(StateEntry { path: self.place(&one.from.name, &one.to.name), content });
        }
        for (from, to) in self.values.clone() {
            let from = from.as_str();
            let to = to.as_str();
            match self.source.value(from) {
                Ok(value) => {
                    let stale = |text: &str| from == model_card::KEY && !self.fits(text, "model.");
                    if !value.as_str().is_some_and(stale) {
                        entries.push(StateEntry { path: self.place(from, to), content: Content::Value(value) });
                        self.values_written += 1;
                    }
                }
                Err(error) => left_out.push(format!("{from}: {error}; only a checkpoint directory keeps it as it is")),
            }
        }
        if let Some(text) = about.get(model_card::KEY) {
            // A file of ENN has its tensors under "model".
            entries.retain(|entry| matches!(entry.content, Content::Tensor(..)));
            entries.iter_mut().for_each(|entry| entry.path.insert(0, PathPart::Key(super::MODEL.to_owned())));
            let content = Content::Value(text.as_str().into());
            entries.push(StateEntry { path: vec![PathPart::Key(model_card::KEY.to_owned())], content });
        }
        let mut paths: Vec<&[PathPart]> = entries.iter().map(|entry| entry.path.as_slice()).collect();
        paths.sort_unstable();
        if paths.windows(2).any(|pair| pair[1].starts_with(pair[0])) {
            let what = "a tensor would be inside another one; choose with --only or --without".to_owned();
            return Err(ConvertError::InvalidOptions { path: self.source.path().to_path_buf(), what });
        }
        state_file::write(&Disk, path, &entries, &mut |entry| self.read(entry))
    }

    /// Returns the path of a name in nested dictionaries: that of the source, or a key of its own if it was renamed.
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
        for index in 0..self.selected.len() {
            let bytes = self.read(index)?;
            let SelectedTensor { from, to } = &self.selected[index];
            writer.tensor(&to.name, to.element, &to.shape, &bytes)?;
            writer.path(&to.name, &self.place(&from.name, &to.name));
        }
        writer.finish(draft)?;
        Ok(())
    }

    /// Returns the description of the model for the manifest: that of the source, or else only that it was converted.
    fn draft(&self) -> Draft {
        if let Source::Dcp(open) = self.source
            && let Some(manifest) = open.manifest()
        {
            return of_manifest(manifest);
        }
        Draft { run: "converted".to_owned(), attempt: "convert".to_owned(), ..Draft::default() }
    }
}

fn of_manifest(manifest: &Manifest) -> Draft {
    let Manifest { run, step, epoch, metric, config, meta, metrics, findings, versions, wall_time, .. } =
        manifest.clone();
    let attempt = "convert".to_owned();
    Draft { run, attempt, step, epoch, metric, config, meta, metrics, findings, versions, wall_time }
}
