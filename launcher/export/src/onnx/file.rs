//! A draft as bytes on disk.

use super::{
    draft::OnnxDraft,
    tensor::{Initializer, Outside, entry, typed},
};
use crate::{ExportError, Model, proto::Message};
use enn_common::fs::atomic;
use std::{
    borrow::Cow,
    io,
    path::{Path, PathBuf},
};

pub const IR_VERSION: u64 = 8;
pub const OPSET: u64 = 18;
/// Alignment in the file of tensors, so that it can be mapped.
const ALIGN: u64 = 64;
/// Smaller tensors stay in the model's own file: shapes follow from them.
const OUTSIDE_BYTES_MIN: usize = 1024;
/// Extension of a file of tensors, after this many digits of its digest.
const DATA: &str = ".data";
const DATA_DIGITS: usize = 16;

/// Writes the draft; returns the files, the model's own first.
pub(super) fn write(
    draft: &OnnxDraft<'_>,
    model: &Model<'_>,
    path: &Path,
    file_bytes_max: u64,
) -> Result<Vec<PathBuf>, ExportError> {
    let whole = assembled(draft, model, &vec![None; draft.tensors.len()]);
    if length(&whole) <= file_bytes_max {
        atomic::write_parts(path, &borrowed(&whole))?;
        return Ok(vec![path.to_owned()]);
    }
    let (places, parts) = outside(&draft.tensors);
    let data = data_path(path, &parts);
    let name = data.file_name().unwrap_or_default().to_string_lossy();
    let places: Vec<_> = places.iter().map(|at| at.map(|offset| Outside { file: &name, offset })).collect();
    atomic::write_parts(&data, &parts)?;
    atomic::write_parts(path, &borrowed(&assembled(draft, model, &places)))?;
    Ok(vec![path.to_owned(), data])
}

/// Returns the path of a model's file of tensors: named by its content, so that a model never reads the tensors of an older one.
fn data_path(model: &Path, parts: &[&[u8]]) -> PathBuf {
    let mut hasher = blake3::Hasher::new();
    parts.iter().for_each(|part| _ = hasher.update(part));
    let mut name = model.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}{DATA}", &hasher.finalize().to_hex()[..DATA_DIGITS]));
    model.with_file_name(name)
}

/// Returns the files of tensors beside a model: its own, and those of older models of its name.
///
/// # Errors
/// The directory cannot be read.
pub fn data_files(model: &Path) -> io::Result<Vec<PathBuf>> {
    let name = model.file_name().unwrap_or_default().to_string_lossy();
    let is_data = |found: &str| {
        let digits = found.strip_prefix(&*name).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(DATA));
        digits
            .is_some_and(|digits| digits.len() == DATA_DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(atomic::parent(model))? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_data) {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// Returns the offset of each tensor in the file of tensors, and that file's parts.
fn outside<'a>(tensors: &'a [Initializer<'_>]) -> (Vec<Option<u64>>, Vec<&'a [u8]>) {
    let mut at = 0_u64;
    let mut parts = Vec::new();
    let places = tensors.iter().map(|tensor| {
        if tensor.bytes.len() < OUTSIDE_BYTES_MIN {
            return None;
        }
        let offset = at.next_multiple_of(ALIGN);
        parts.push(&[0; ALIGN as usize][..(offset - at) as usize]);
        parts.push(&tensor.bytes);
        at = offset + tensor.bytes.len() as u64;
        Some(offset)
    });
    (places.collect(), parts)
}

/// Returns the model's own file in parts.
fn assembled<'a>(draft: &'a OnnxDraft<'_>, model: &Model<'_>, places: &[Option<Outside<'_>>]) -> Vec<Cow<'a, [u8]>> {
    let graph = draft.graph;
    let name = if model.name.is_empty() { "model" } else { model.name };
    let mut body: Vec<Cow<'_, [u8]>> = Vec::with_capacity(2 * draft.tensors.len() + 4);
    let nodes = Message::new().messages(1, draft.nodes.iter().cloned()).text(2, name);
    body.push(Cow::Owned(nodes.into_bytes()));
    for (tensor, place) in draft.tensors.iter().zip(places) {
        let head = tensor.head(*place);
        let inside: &[u8] = if place.is_some() { &[] } else { &tensor.bytes };
        let opening = Message::new().opening(5, (head.len() + inside.len()) as u64);
        body.push(Cow::Owned([opening.into_bytes(), head.into_bytes()].concat()));
        body.push(Cow::Borrowed(inside));
    }
    let port = |id, names_batch| {
        let value = graph.value(id);
        typed(&value.name, value.dtype, &value.shape, names_batch)
    };
    let between = graph.nodes().iter().map(|node| node.out).filter(|id| !graph.outputs().contains(id));
    let ports = Message::new()
        .messages(11, graph.inputs().iter().map(|id| port(*id, true)))
        .messages(12, graph.outputs().iter().map(|id| port(*id, true)))
        // Where onnxruntime knows that two sizes are equal, it fuses a sum and the norm after it into one operator, which takes several times
        // as long as both.
        .messages(13, between.map(|id| port(id, false)));
    body.push(Cow::Owned(ports.into_bytes()));
    let head =
        Message::new().uint(1, IR_VERSION).text(2, "enn").text(3, env!("CARGO_PKG_VERSION")).opening(7, length(&body));
    let operators = Message::new().text(1, "").uint(2, OPSET);
    let about = model.about.iter().map(|(key, value)| entry(key, value));
    let tail = Message::new().message(8, &operators).messages(14, about);
    body.insert(0, Cow::Owned(head.into_bytes()));
    body.push(Cow::Owned(tail.into_bytes()));
    body
}

fn length(parts: &[Cow<'_, [u8]>]) -> u64 {
    parts.iter().map(|part| part.len() as u64).sum()
}

fn borrowed<'a>(parts: &'a [Cow<'_, [u8]>]) -> Vec<&'a [u8]> {
    parts.iter().map(|part| &**part).collect()
}
