//! Arrays and numbers of numpy inside a pickle.

use super::{
    element::Element,
    item,
    stored::{ItemError, StoredTensor},
    tree::{Tree, TreeId, TreeNode},
    value::Value,
};

const MULTIARRAY: [&str; 2] = ["numpy.core.multiarray", "numpy._core.multiarray"];
const NUMERIC: [&str; 2] = ["numpy.core.numeric", "numpy._core.numeric"];

struct ArrayParts<'t> {
    dtype: TreeId,
    sizes: Vec<u64>,
    is_fortran: bool,
    data: &'t TreeNode<'t>,
}

pub(super) fn is_array(tree: &Tree<'_>, id: TreeId) -> bool {
    let TreeNode::Object { callee, .. } = tree.node(id) else { return false };
    let is = |modules: [&'static str; 2], name: &'static str| {
        modules.iter().any(|module| tree.is_global(*callee, module, name))
    };
    is(MULTIARRAY, "_reconstruct") || is(NUMERIC, "_frombuffer")
}

/// An array as a tensor whose bytes are in the pickle itself.
pub(super) fn array(tree: &Tree<'_>, id: TreeId) -> Result<StoredTensor, ItemError> {
    let unsupported = |what: String| ItemError::Unsupported { what };
    let found = parts(tree, id).ok_or_else(|| unsupported("an array of numpy in a form that is not known".into()))?;
    let element = element(tree, found.dtype)?;
    let TreeNode::Bytes(bytes) = found.data else {
        return Err(unsupported(
            "an array whose bytes the pickle holds as text (protocol 2 or older), or of objects".into(),
        ));
    };
    let count = found.sizes.iter().try_fold(1u64, |all, size| all.checked_mul(*size));
    let needed = count.and_then(|count| count.checked_mul(element.bytes()));
    if needed != Some(bytes.len() as u64) {
        return Err(unsupported(format!("an array of size {:?} over {} bytes", found.sizes, bytes.len())));
    }
    let strides = if found.is_fortran {
        let reversed: Vec<u64> = found.sizes.iter().rev().copied().collect();
        item::strides(&reversed).into_iter().rev().collect()
    } else {
        item::strides(&found.sizes)
    };
    let at = tree.offset(bytes).ok_or(ItemError::Cut)?;
    Ok(StoredTensor { element, sizes: found.sizes, strides, first: 0, at, bytes: bytes.len() as u64, crc32: 0 })
}

fn parts<'t>(tree: &'t Tree<'t>, id: TreeId) -> Option<ArrayParts<'t>> {
    let (name, args, state) = tree.object(id)?;
    if name == "_frombuffer" {
        let [data, dtype, sizes, order, ..] = args else { return None };
        let is_fortran = tree.text(*order) == Some("F");
        return Some(ArrayParts {
            dtype: *dtype,
            sizes: tree.size(*sizes)?,
            is_fortran,
            data: tree.node(buffer(tree, *data)),
        });
    }
    let state = tree.tuple(state?)?;
    // The version in front is missing in old ones.
    let [sizes, dtype, order, data] = state.get(state.len().checked_sub(4)?..)? else { return None };
    let is_fortran = matches!(tree.node(*order), TreeNode::Bool(true) | TreeNode::Int(1));
    Some(ArrayParts { dtype: *dtype, sizes: tree.size(*sizes)?, is_fortran, data: tree.node(*data) })
}

/// Returns the argument of `bytearray(…)`.
fn buffer(tree: &Tree<'_>, id: TreeId) -> TreeId {
    match tree.object(id) {
        Some(("bytearray" | "bytes", args, _)) => args.first().copied().unwrap_or(id),
        _ => id,
    }
}

/// The element type of `numpy.dtype(code, …)` with its byte order.
fn element(tree: &Tree<'_>, id: TreeId) -> Result<Element, ItemError> {
    let unsupported = |what: String| ItemError::Unsupported { what };
    let found = tree.object(id).filter(|(name, ..)| *name == "dtype");
    let code = found.and_then(|(_, args, _)| tree.text(*args.first()?));
    let (Some((.., state)), Some(code)) = (found, code) else {
        return Err(unsupported("an array of an element type that is not known".into()));
    };
    let order = state.and_then(|state| tree.text(*tree.tuple(state)?.get(1)?));
    if order == Some(">") && !code.ends_with('1') {
        return Err(unsupported("an array written on a big-endian machine".into()));
    }
    let name = match code {
        "f2" => "float16",
        "f4" => "float32",
        "f8" => "float64",
        "i1" => "int8",
        "i2" => "int16",
        "i4" => "int32",
        "i8" => "int64",
        "u1" => "uint8",
        "u2" => "uint16",
        "u4" => "uint32",
        "u8" => "uint64",
        "b1" => "bool",
        "c8" => "complex64",
        "c16" => "complex128",
        other => return Err(unsupported(format!("an array of the element type {}", other.escape_debug()))),
    };
    Element::of_torch(name).ok_or_else(|| unsupported(format!("an array of the element type {name}")))
}

/// A number of numpy: `scalar(dtype, bytes)`.
pub(super) fn scalar(tree: &Tree<'_>, id: TreeId) -> Option<Value> {
    let TreeNode::Object { callee, args, .. } = tree.node(id) else { return None };
    if !MULTIARRAY.iter().any(|module| tree.is_global(*callee, module, "scalar")) {
        return None;
    }
    let [dtype, data] = tree.tuple(*args)? else { return None };
    let bytes = match tree.node(*data) {
        TreeNode::Bytes(bytes) => bytes.to_vec(),
        TreeNode::Text(text) => text.as_bytes().to_vec(),
        _ => tree.encoded(*data)?,
    };
    let number = |bytes: &[u8]| bytes.try_into().ok().map(i64::from_le_bytes);
    Some(match (element(tree, *dtype).ok()?.torch(), bytes.as_slice()) {
        ("float64", bytes) => Value::Float(f64::from_le_bytes(bytes.try_into().ok()?)),
        ("float32", bytes) => Value::Float(f64::from(f32::from_le_bytes(bytes.try_into().ok()?))),
        ("int64", bytes) => Value::Int(number(bytes)?),
        ("int32", bytes) => Value::Int(i64::from(i32::from_le_bytes(bytes.try_into().ok()?))),
        ("uint8", [byte]) => Value::Int(i64::from(*byte)),
        ("bool", [byte]) => Value::Bool(*byte != 0),
        _ => return None,
    })
}
