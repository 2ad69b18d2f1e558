//! Element types and numbers of numpy inside a pickle.

use super::{
    element::Element,
    item_error::ItemError,
    tree::{Tree, TreeId, TreeNode},
    value::Value,
};

pub(super) const MULTIARRAY: [&str; 2] = ["numpy.core.multiarray", "numpy._core.multiarray"];

/// The element type of `numpy.dtype(code, …)` with its byte order.
pub(super) fn element(tree: &Tree<'_>, id: TreeId) -> Result<Element, ItemError> {
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
