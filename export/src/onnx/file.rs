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
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".data");
    let data = path.with_file_name(&name);
    let name = name.to_string_lossy();
    let (places, parts) = outside(&draft.tensors, &name);
    // A model must never meet the tensors of another one: the old one goes first.
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            return Err(ExportError::Io { path: path.to_owned(), source });
        }
        _ => {}
    }
    atomic::write_parts(&data, &parts)?;
    atomic::write_parts(path, &borrowed(&assembled(draft, model, &places)))?;
    Ok(vec![path.to_owned(), data])
}

/// Where each tensor lies in the file of tensors, and that file.
fn outside<'a>(tensors: &'a [Tensor<'_>], file: &'a str) -> (Vec<Option<Outside<'a>>>, Vec<&'a [u8]>) {
    let (mut at, mut parts) = (0_u64, Vec::new());
    let places = tensors.iter().map(|tensor| {
        if tensor.bytes.len() < OUTSIDE_BYTES_MIN {
            return None;
        }
        let offset = at.next_multiple_of(ALIGN);
        parts.push(&[0; ALIGN as usize][..(offset - at) as usize]);
        parts.push(&tensor.bytes);
        at = offset + tensor.bytes.len() as u64;
        Some(Outside { file, offset })
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
