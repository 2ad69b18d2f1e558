//! A draft as bytes on disk.

use super::{
    IR_VERSION, OPSET,
    draft::Draft,
    tensor::{Outside, Tensor, entry, typed},
};
use crate::{ExportError, Model, proto::Message};
use enn_common::fs::atomic;
use std::{
    borrow::Cow,
    io,
    path::{Path, PathBuf},
};

/// What stands in the file of tensors begins at multiples of this, so that it can be mapped.
const ALIGN: u64 = 64;
/// Smaller tensors stay in the model's own file: shapes follow from them.
const OUTSIDE_BYTES_MIN: usize = 1024;
/// End of the name of a file of tensors, behind so many digits of what is in it.
const DATA: &str = ".data";
const DATA_DIGITS: usize = 16;

/// Writes what was drafted; the files, the model's own first.
pub(super) fn write(
    draft: &Draft<'_>,
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

/// The file of tensors of a model: named by what is in it, so that a model never meets the tensors of another one that was there before.
fn data_path(model: &Path, parts: &[&[u8]]) -> PathBuf {
    let mut hasher = blake3::Hasher::new();
    parts.iter().for_each(|part| _ = hasher.update(part));
    let mut name = model.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}{DATA}", &hasher.finalize().to_hex()[..DATA_DIGITS]));
    model.with_file_name(name)
}

/// Files of tensors that lie beside a model: its own, and those that older ones of its name left.
///
/// # Errors
/// What the system says of the directory.
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

/// Where each tensor lies in the file of tensors, and that file.
fn outside<'a>(tensors: &'a [Tensor<'_>]) -> (Vec<Option<u64>>, Vec<&'a [u8]>) {
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

/// The model's own file in parts.
fn assembled<'a>(draft: &'a Draft<'_>, model: &Model<'_>, places: &[Option<Outside<'_>>]) -> Vec<Cow<'a, [u8]>> {
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
        // Where it knows that two are of one size, onnxruntime makes a sum and the norm behind it one operator, which takes several times
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
